"""One file from its text to the faults that show in it: read, detect, and what codemods would make of it.

Nothing is run. Imports neither torch nor libcst, until there is a fault to rewrite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix import suppress
from gradfix.asked import asked
from gradfix.dataclass import dataclass
from gradfix.detect import Conflict, detect
from gradfix.discover import project_root
from gradfix.read import Reading, might_matter, read
from gradfix.read.project import LONGEST
from gradfix.result import Cure, Diagnosis, Evidence, Problem, Settings
from gradfix.source import Source, SourceError, check_syntax
from gradfix.tape import Tape
from gradfix.verdict import Verdict

if TYPE_CHECKING:
    from gradfix.read.kept import Kept, Moves
    from gradfix.read.watched import Watch

HELP = 4  # cures that are worked out for a report, not tried
LONG = (
    200_000  # characters of the files that a cure may touch: libcst takes a second for every thousand lines
)
Place = tuple[str, int, str]  # file, line, kind


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of one file. `diagnoses` are those that were asked for, notes among them; `unsure` how many more there
    are that are only likely; `met` where anything was found in a file with comments to gradfix (`comments`: this
    one has some), asked for or not; `whole` whether every backward of the file was reached; `used` the files whose
    text counts; `starts` whether the file itself, run as a script, comes to a backward."""

    diagnoses: tuple[Diagnosis, ...] = ()
    unsure: int = 0
    met: tuple[Place, ...] = ()
    comments: bool = False
    whole: bool = True
    used: tuple[str, ...] = ()
    problem: Problem | None = None
    minor: tuple[str, ...] = ()
    interpreted: bool = False
    starts: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """A fault with the tape it shows in, and the texts it speaks of."""

    conflict: Conflict
    evidence: Evidence
    tape: Tape
    texts: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """The faults of one tape, which speaks of `files`, where the tape itself is not kept."""

    conflicts: tuple[tuple[Conflict, Evidence], ...]
    files: frozenset[str]

    def moved(self, moves: Moves) -> Seen | None:
        """The same where lines have come or gone; None where a sentence names a line that may be another file's."""
        out = []
        for conflict, evidence in self.conflicts:
            sites = {site for c in (conflict, *conflict.also) for label in c.labels for site in label.stack}
            own = {site.line for site in sites if site.file == moves.path}
            certain = own - {site.line for site in sites if site.file != moves.path}
            if self.files != {moves.path} and not _lines(conflict) <= certain:
                return None
            out.append((_moved(conflict, moves), evidence))
        return Seen(tuple(out), self.files)


def seen(tape: Tape, likely: frozenset[int]) -> Seen:
    """What there is to say of `tape`."""
    reading = Reading("", tape, likely)
    found = tuple((_bare(c), reading.evidence(c)) for c in detect(tape))
    return Seen(found, frozenset(tape.sources))


def examine(
    path: Path,
    settings: Settings,
    source: Source | None = None,
    files: Mapping[str, str] | None = None,
    kept: Kept | None = None,
) -> Examined:
    """Read the file at `path`, or `source` in its place, among `files` over the disk's, and look for faults. Of what
    `kept` has, only what is new is read; there are no cures then."""
    try:
        if source is None:
            source = Source.read(path)
        if not matters(source.raw if source.kind == "script" else source.text.encode("utf-8", "replace")):
            return Examined()
        readings = read_text(path, source.text, files, kept)
    except SourceError as problem:
        return Examined(problem=Problem(problem.sentence, problem.detail))
    found = findings(path, source.text, readings, files)
    told: list[Found] = []
    unsure = 0
    for each in found:
        if not asked(each.conflict, settings, each.texts):
            continue
        if each.evidence == "likely" and settings.evidence == "certain":
            unsure += each.conflict.severity != "note"
        else:
            told.append(each)
    diagnoses = [diagnosed(each, settings, most=HELP) for each in told]
    if any(d.cures[1:] for d in diagnoses):
        from gradfix.unproved import leading

        diagnoses = leading(path, source.text, files, told, diagnoses)
    wrong = [c for c in suppress.complaints(str(path), source.text) if asked(c, settings, {})]
    reached = {site for reading in readings for site in reading.reached}
    problems = list(dict.fromkeys(problem.text for reading in readings for problem in reading.problems))
    return Examined(
        (*diagnoses, *(Diagnosis(c, evidence="certain") for c in wrong)),
        unsure,
        tuple(dict.fromkeys(_met(found))),
        bool(suppress.ignores(source.text)),
        not problems and reached >= {site for reading in readings for site in reading.total},
        tuple(sorted({file for r in readings for file in (*r.tape.sources, *r.looked)} - {str(path)})),
        None,
        tuple(problems),
        True,
        any(r.entry == "__main__" and r.reached for r in readings),
    )


def own_fault(problem: Exception) -> tuple[str, str]:
    """What to say of an exception that is nobody's fault but gradfix's: (what and where, its traceback)."""
    import traceback

    at = traceback.extract_tb(problem.__traceback__)[-1]
    where = f"{Path(at.filename).parent.name}/{Path(at.filename).name}:{at.lineno}"
    return f"{type(problem).__name__}: {problem} ({where})", "".join(traceback.format_exception(problem))


def matters(raw: bytes) -> bool:
    """Whether a file of these bytes may have something to say."""
    return might_matter(raw) or b"gradfix" in raw


def read_text(
    path: Path,
    text: str,
    files: Mapping[str, str] | None = None,
    kept: Kept | None = None,
    watch: Watch | None = None,
) -> tuple[Reading, ...]:
    """The readings of `text` as the file at `path`, among `files` over the disk's. Raises SourceError where nothing
    could be made of it."""
    readings = read(path, text, root=project_root(path), idle=False, files=files, kept=kept, watch=watch)
    problem = next((p for r in readings for p in r.problems), None)
    if problem is not None and not any(reading.tape.events or reading.said for reading in readings):
        if len(text) <= LONGEST:  # else the reason is known, and a tree of it would take a gigabyte
            check_syntax(text, str(path))
        place = f"{path}:{problem.line}" if problem.line else str(path)
        raise SourceError(f"{place}: {problem.text[:1].lower()}{problem.text[1:].rstrip('.')}")
    return readings


def findings(
    path: Path, text: str, readings: Iterable[Reading], files: Mapping[str, str] | None = None
) -> list[Found]:
    """Every fault of `readings` once, at its best evidence, in the order of the text."""
    known: dict[str, str] = {**(files or {}), str(path): text}
    best: dict[object, Found] = {}
    for reading in readings:
        for conflict, evidence in _judged(reading):
            key = (conflict.kind, conflict.at)
            if key not in best or (best[key].evidence, evidence) == ("likely", "certain"):
                best[key] = Found(conflict, evidence, reading.tape, _texts(reading.tape, known))
    order = {file: n for n, file in enumerate(dict.fromkeys([str(path), *sorted(known)]))}
    return sorted(best.values(), key=lambda f: (order.get(f.conflict.at.file, 0), f.conflict.at.line))


def _judged(reading: Reading) -> Iterator[tuple[Conflict, Evidence]]:
    if reading.said is not None:
        yield from reading.said.conflicts
        return
    for conflict in detect(reading.tape):
        yield conflict, reading.evidence(conflict)


def diagnosed(
    found: Found, settings: Settings, reason: str = "nothing was run", most: int | None = None
) -> Diagnosis:
    """`found` with the cures that codemods propose (the first `most` of them), the field's idiom first; none of them
    is tried, for `reason`."""
    conflict = found.conflict
    if conflict.severity == "note" and not settings.notes:
        return Diagnosis(_bare(conflict), status="note", evidence=found.evidence)
    if not settings.repair or _long(found):
        return Diagnosis(_bare(conflict), evidence=found.evidence)
    several = islice(_cures(found, settings, reason), most)
    cures = [cure for _, cure in sorted(several, key=lambda each: each[0])]
    return Diagnosis(_bare(conflict), tuple(cures), evidence=found.evidence)


def _cures(found: Found, settings: Settings, reason: str) -> Iterator[tuple[tuple[int, int, str], Cure]]:
    """Every proposal that holds together, with what orders them."""
    from gradfix import choose
    from gradfix.codemod import codemods
    from gradfix.edit import Project

    files = {path: text for path, text in found.texts.items() if settings.edits(path)}
    mods = [m for m in codemods() if not settings.codemods or m.name() in settings.codemods]
    for candidate in choose.candidates(found.conflict, Project(found.tape, files), mods, lambda _: None):
        proposal = candidate.proposal
        before = {file: files[file] for file in candidate.texts}
        untried = Verdict("untried", reason)
        order = (proposal.rank, candidate.size, proposal.codemod)
        yield (
            order,
            Cure(proposal.codemod, proposal.summary, proposal.effect, untried, before, candidate.texts),
        )


def _long(found: Found) -> bool:
    """Whether the files it is about are too long to be rewritten while somebody waits."""
    files = {site.file for label in found.conflict.labels for site in label.stack}
    return sum(len(found.texts.get(file, "")) for file in files) > LONG


def _bare(conflict: Conflict) -> Conflict:
    """Without the events, which nobody needs who only reports: the same from a cache and from another process."""
    also = tuple(_bare(c) for c in conflict.also)
    return replace(
        conflict, ref=None, record=None, write=None, backward=None, earlier=None, event=None, also=also
    )


_LINE = re.compile(r"(?<=\bline )\d+")


def _lines(conflict: Conflict) -> set[int]:
    """The lines that the sentences of `conflict` name."""
    said = [conflict.message, *(label.text for label in conflict.labels)]
    own = {int(line) for each in said for line in _LINE.findall(each)}
    return own.union(*map(_lines, conflict.also))


def _moved(conflict: Conflict, moves: Moves) -> Conflict:
    def said(text: str) -> str:
        return _LINE.sub(lambda found: str(moves.line(int(found[0]))), text)

    labels = tuple(
        replace(label, stack=tuple(map(moves.site, label.stack)), text=said(label.text))
        for label in conflict.labels
    )
    also = tuple(_moved(c, moves) for c in conflict.also)
    return replace(conflict, message=said(conflict.message), labels=labels, also=also)


def _texts(tape: Tape, known: dict[str, str]) -> Mapping[str, str]:
    for file in tape.sources:
        if file not in known:
            try:
                known[file] = Source.read(file).text
            except SourceError:
                continue
    return {file: known[file] for file in tape.sources if file in known}


def _met(found: Iterable[Found]) -> Iterator[Place]:
    for each in found:
        at = each.conflict.at
        if suppress.ignores(each.texts.get(at.file, "")):
            yield at.file, at.line, each.conflict.kind
