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

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from gradfix.tape import Event, Site, Tape

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
    entry: int = 4_000  # statements and calls of an entry other than the first
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
    `likely` are the times of events that lie behind a test whose outcome is not known from the text.
    """

    entry: str
    tape: Tape
    likely: frozenset[int] = frozenset()
    reached: frozenset[Site] = frozenset()
    total: frozenset[Site] = frozenset()
    problems: tuple[Problem, ...] = ()
    unknowns: tuple[tuple[str, int], ...] = field(
        default=()
    )  # (where an Unknown came from, how often it was asked)

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
    files: Mapping[str, str] | None = None,
) -> tuple[Reading, ...]:
    """Every entry of the program `text`, which lies (or would lie) at `path`.

    The first is ``__main__``; after it come the functions with a backward that it did not reach, and each ``forward``
    by itself. The same fault may show in several: a caller tells them apart by kind and sites.
    `root` is the outermost folder in which imported modules are looked for (default: the folder of `path`); their
    text is read from the disk, unless `files` has it by its absolute path. Never raises for what `text` is: where it
    cannot be read there is one Reading with an empty tape and a Problem.
    """
    budget = budget or Budget()
    from gradfix.read import entries  # the interpreter: not for files that are skipped, or known from before

    try:
        unit = entries.parsed(str(path), text, "__main__")
    except entries.Unreadable as problem:
        return (Reading("__main__", Tape((), str(path)), problems=(Problem(problem.text, problem.line),)),)
    total = entries.backward_sites(unit)
    found = []
    for walk in entries.walk(path, unit, root, budget, files or {}):
        found.append(Reading(walk.entry, walk.tape, walk.likely, walk.reached, total, unknowns=walk.unknowns))
    return tuple(found)


def might_matter(raw: bytes) -> bool:
    """Whether a file of these bytes could show a fault: a quick test that never says no to one that does.

    A fault needs a backward; or a write (an in-place op of the effect table, ``+=``, an item or ``.data`` that is
    assigned to, ``inplace=``, ``max_norm=``) beside what may require grad; or an optimizer.
    """
    if _GRADIENTS.search(raw) or (len(raw) < SHORT and _ENTRY.search(raw)):
        return True
    return bool(_NEEDING.search(raw)) and (bool(_WRITES.search(raw)) or _in_place(raw))


SHORT = 2_000  # bytes of a script that only calls what its siblings hold
_ENTRY = re.compile(rb"\b(?:main|train|run|fit|learn)\w*\(")
_GRADIENTS = re.compile(rb"\bbackward\b|\bautograd\b|\boptim\b|\.grad\b")
_NEEDING = re.compile(rb"\bforward\b|requires_grad|\bParameter\b|\btorch\b")
_WRITES = re.compile(rb"[-+*/%@&|^]=|\]\s*=[^=]|\binplace\b|\bmax_norm\b|\.data\b|\bout\s*=|\bsetattr\b")
_CALLED = re.compile(rb"\b(\w+_)\s*\(")


def _in_place(raw: bytes) -> bool:
    from gradfix.read import effects

    known = effects.table()
    return any(name.decode("utf-8", "replace") in known for name in set(_CALLED.findall(raw)))


def origins(readings: Iterable[Reading]) -> list[tuple[str, int]]:
    """Where Unknowns came from, the most frequent first: what to support next. For developers of gradfix."""
    counts: dict[str, int] = {}
    for reading in readings:
        for origin, count in reading.unknowns:
            counts[origin] = counts.get(origin, 0) + count
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
