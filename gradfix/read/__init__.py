"""The symbolic run: the tape that a program would leave, from its text alone. Nothing of it is executed.

    for reading in read(path, text, root=folder):
        for conflict in detect(reading.tape):
            print(conflict.message, reading.evidence(conflict))

Python values are computed, tensors are abstract: who owns which parameters, what each op saves and writes, which
storages are shared. What is not known is Unknown, and no event is written that needs an Unknown to be something. The
sites are those the recorder would write (file, span, function), so that `gradfix.detect` finds the same conflicts
at the same places. Imports the standard library and `gradfix.tape`: neither torch nor libcst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gradfix.dataclass import dataclass
from gradfix.read import outline
from gradfix.read.gate import might_matter
from gradfix.read.outline import Wanted
from gradfix.read.project import Project, Unreadable, parsed
from gradfix.tape import Event, Site, Tape

if TYPE_CHECKING:
    from gradfix.read.kept import Kept
    from gradfix.read.watched import Watch

__all__ = ["Budget", "Problem", "Reading", "might_matter", "origins", "read"]

Evidence = Literal["certain", "likely"]


class Told(Protocol):
    """What `Reading.evidence` needs of a conflict: the events it was read from, each of which may be None."""

    @property
    def record(self) -> Event | None: ...
    @property
    def write(self) -> Event | None: ...
    @property
    def backward(self) -> Event | None: ...
    @property
    def earlier(self) -> Event | None: ...
    @property
    def event(self) -> Event | None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of a file is interpreted, counted in what is done and never by the clock: the same text gives the
    same tape on every machine."""

    steps: int = 60_000  # statements and calls of all entries together
    entry: int = 12_000  # statements and calls of an entry other than the first
    events: int = 20_000  # graph nodes and events of one entry
    depth: int = 60  # calls of the user's functions inside one another
    entries: int = 64  # functions that are entered because nothing reached them
    passes: int = 3  # times through a loop whose end is not known, or far


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file could not be read, or not to its end, as a sentence for the user."""

    text: str
    line: int = 0  # 0 where no line is to blame


@dataclass(frozen=True, slots=True)
class Reading:
    """What one way into a program does to the autograd graph.

    `entry` is ``__main__`` (the module's body), or the qualified name of the function that was entered with
    unknown arguments. Its tape has `script` and `sources` set, and its End event says ``finished``, ``steps`` where
    the budget ended it, or ``failed``.
    `reached` are the places of the program (its siblings included) at which a backward was evaluated, `total` all those
    written in the file that was asked for.
    `looked` are the files that were asked after, there or not: what came of it rests on them too.
    `likely` are the times of events that lie behind a test whose outcome is not known from the text, or come of taking
    something otherwise (`gradfix.read.variants`); an entry may have several readings.
    """

    entry: str
    tape: Tape
    likely: frozenset[int] = frozenset()
    reached: frozenset[Site] = frozenset()
    total: frozenset[Site] = frozenset()
    problems: tuple[Problem, ...] = ()
    unknowns: tuple[tuple[str, int], ...] = ()  # (where an Unknown came from, how often it was asked)
    looked: Set[str] = frozenset()
    said: Any = None  # what was made of the tape, which is not kept then

    def evidence(self, conflict: Told) -> Evidence:
        """``certain`` where every event the conflict rests on happens whenever the entry runs, else ``likely``."""
        events = (conflict.record, conflict.write, conflict.backward, conflict.earlier, conflict.event)
        return "likely" if any(e is not None and e.time in self.likely for e in events) else "certain"


def read(
    path: Path,
    text: str,
    *,
    root: Path | None = None,
    budget: Budget | None = None,
    idle: bool = True,
    files: Mapping[str, str] | None = None,
    kept: Kept | None = None,
    watch: Watch | None = None,
) -> tuple[Reading, ...]:
    """Every entry of the program `text`, which lies (or would lie) at `path`.

    The first is ``__main__``; after it come the functions with a backward that it did not reach, and each ``forward``
    by itself. The same fault may show in several: a caller tells them apart by kind and sites.
    `root` is the outermost folder in which imported modules are looked for (default: the folder of `path`); their
    text is read from the disk, unless `files` has it by its absolute path. What could not come to a fault, by its words
    alone, is not gone into unless `idle`. What was read of the file before is in `kept`, and comes from there as from
    a reading now. What else is asked of the readings is in `watch`.

    Never raises for what `text` is: where it cannot be read there is one Reading with an empty tape and a Problem.
    """
    project = Project(root or path.parent, path.parent, files)
    project.follow(str(path), text)
    if kept is not None:
        kept.begin(files or {})
    wanted = Wanted() if idle else outline.wanted(str(path), text, project)
    if not wanted.any:
        return (Reading("__main__", Tape((), str(path)), looked=project.looked),)
    # the interpreter: not for files that are skipped, or known from before
    from gradfix.read import entries, sites

    try:
        unit = parsed(str(path), text, "__main__", kept.parts.tree if kept is not None else None)
    except Unreadable as problem:
        return (Reading("__main__", Tape((), str(path)), problems=(Problem(problem.text, problem.line),)),)
    total = sites.backward_sites(unit)
    found = []
    looked = project.looked
    for walk in entries.walk(path, unit, project, wanted, budget or Budget(), kept, watch):
        short = (Problem(f"{path}: too much to read: it was not followed to its end"),)
        problems = short if walk.how == "steps" else ()
        found.append(
            Reading(
                walk.entry,
                walk.tape,
                walk.likely,
                walk.reached,
                total,
                problems,
                walk.unknowns,
                looked,
                walk.said,
            )
        )
    if kept is not None:
        kept.end(looked, files or {})
    project.release()
    return tuple(found)


def origins(readings: Iterable[Reading]) -> list[tuple[str, int]]:
    """Where Unknowns came from, the most frequent first: what to support next. For developers of gradfix."""
    counts: dict[str, int] = {}
    for reading in readings:
        for origin, count in reading.unknowns:
            counts[origin] = counts.get(origin, 0) + count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
