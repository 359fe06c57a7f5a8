"""Cures without a run to prove them: from a tape made elsewhere, or from the text, helped by a pasted traceback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gradfix.asked import asked
from gradfix.dataclass import dataclass
from gradfix.detect import Conflict, detect
from gradfix.discover import project_root
from gradfix.examine import Found, diagnosed, findings, read_text
from gradfix.messages import Finding, Frame, recognise
from gradfix.result import Cure, Diagnosis, Problem, Result, Settings
from gradfix.source import Source, SourceError, readable, split_lines
from gradfix.tape import Site, relocated
from gradfix.tapefile import TapeError, read_tape
from gradfix.verdict import Verdict

ROUNDS = 12  # cures that are applied unproved, one after the other
NOT_PROVED = (
    "these cures come from the text, and none is proved: where the script runs, `gradfix fix` tries them and compares "
    "every gradient. --accept untried applies "
)

Files = Mapping[str, tuple[str, str]]


def from_tape(entry: Path, settings: Settings, text: str | None) -> Result:
    """Faults of a run made elsewhere; cures are proposed, and untried, since the run can't be repeated here."""
    assert settings.tape is not None
    try:
        source = Source.read(entry) if text is None else None
        tape = relocated(read_tape(settings.tape), entry)
    except SourceError as problem:
        return Result(entry, problem=Problem(problem.sentence, problem.detail))
    except TapeError as problem:
        return Result(entry, problem=Problem(str(problem)))
    except OSError as problem:
        return Result(entry, problem=Problem(f"{settings.tape} can't be read: {problem.strerror}"))
    digest = source.sha256 if source is not None and source.kind == "script" else None
    if digest is not None and tape.sources.get(str(entry), digest) != digest:
        sentence = f"{entry.name} is not the file that {settings.tape} was recorded from: record it again"
        return Result(entry, problem=Problem(sentence))
    script = source.text if source is not None else str(text)
    texts = readable(tape.sources, project_root(entry), {str(entry): script})
    found = [Found(conflict, "recorded", tape, texts) for conflict in detect(tape)]
    reason = "made from a tape; run it here without --tape to prove it"
    diagnoses = [diagnosed(f, settings, reason) for f in found if asked(f.conflict, settings, texts)]
    return Result(entry, tuple(diagnoses), sources=texts, ended="tape")


def from_text(entry: Path, settings: Settings, text: str | None, why: Problem | None = None) -> Result:
    """Faults that the text shows. `why` says why there is no run to prove their cures; where `settings` has a
    traceback, what matches it comes first and is confirmed by it."""
    try:
        script = Source.read(entry).text if text is None else text
        shown = _shown(settings)
        program = _program(entry, script, settings, shown)
        found = _look(program, settings, shown)
    except SourceError as problem:
        return Result(entry, problem=why or Problem(problem.sentence, problem.detail))
    reason = "the script could not be run here" if why else "nothing was run"
    lines = () if shown is None else tuple(_said(shown, found))
    files: Files = {}
    if "untried" in settings.accept:
        done, files = _applied(program, settings, shown, reason)
        left = {_identity(d.conflict, d.sources) for d in done}
        open_ = [f for f in found if _identity(f.conflict, f.texts) not in left]
        diagnoses = [*done, *(diagnosed(f, settings, reason) for f in open_)]
    else:
        diagnoses = _promising(program, found, [diagnosed(f, settings, reason) for f in found])
        if any(d.cures for d in diagnoses):
            which = (
                "those that mean to change nothing in the training"
                if settings.careful
                else "the first of each as it is"
            )
            lines = (*lines, f"{NOT_PROVED}{which}.")
    if files and why is not None:
        lines = (*lines, why.message)
    return Result(
        entry,
        tuple(diagnoses),
        files,
        {path: text for f in found for path, text in f.texts.items()} or {str(entry): script},
        Verdict("untried", reason) if files else None,
        problem=None if files else why,
        ended="read",
        lines=lines,
        trained=bool(found),
    )


@dataclass(frozen=True, slots=True)
class _Program:
    """What is read: the ways into it, and the texts that take the place of the disk's."""

    ways: tuple[Path, ...]
    files: Mapping[str, str]

    def after(self, cure: Cure) -> _Program:
        return replace(self, files={**self.files, **cure.after})

    def faults(self) -> list[Found]:
        """Every fault of it. Raises SourceError."""
        found: dict[object, Found] = {}
        for path in self.ways:
            text = self.files.get(str(path))
            text = Source.read(path).text if text is None else text
            for each in findings(path, text, read_text(path, text, self.files), self.files):
                key = (each.conflict.kind, each.conflict.at)
                if key not in found or found[key].evidence == "likely":
                    found[key] = each
        return list(found.values())


def _program(entry: Path, script: str, settings: Settings, shown: Finding | None) -> _Program:
    """The script; where it shows nothing, as one does that waits for a library, the files of its own that it imports,
    too. Raises SourceError."""
    program = _Program((entry,), {str(entry): script})
    if any(f.conflict.severity != "note" for f in _look(program, settings, shown)):
        return program
    loaded = {file for reading in read_text(entry, script) for file in reading.tape.sources}
    return replace(program, ways=(entry, *(Path(file) for file in sorted(loaded - {str(entry)}))))


def certain(entry: Path, text: str, settings: Settings) -> list[Found]:
    """The faults asked for that the script's text shows without a doubt; none of a text that can't be read."""
    try:
        found = _look(_Program((entry,), {str(entry): text}), settings, None)
    except SourceError:
        return []
    return [f for f in found if f.evidence == "certain"]


def _look(program: _Program, settings: Settings, shown: Finding | None) -> list[Found]:
    """What was asked for, best confirmed first. Raises SourceError."""
    found = []
    for each in program.faults():
        if not asked(each.conflict, settings, each.texts):
            continue
        if shown is not None and _confirms(shown, each):
            found.append(replace(each, evidence="traceback"))
        elif each.evidence == "certain" or settings.evidence == "likely":
            found.append(each)
    return sorted(found, key=lambda f: f.evidence != "traceback")


def _promising(program: _Program, found: list[Found], diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """The same, without the cures after which the text still shows the fault, where there are others."""
    if not any(d.cures[1:] for d in diagnoses):
        return diagnoses
    before, out = _faults(program), []
    for fault, diagnosis in zip(found, diagnoses, strict=True):
        several = diagnosis.cures if diagnosis.cures[1:] else ()
        cures = tuple(cure for cure in several if _helps(program, cure, before, fault))
        out.append(replace(diagnosis, cures=cures or diagnosis.cures))
    return out


def leading(
    path: Path, text: str, files: Mapping[str, str] | None, found: list[Found], diagnoses: list[Diagnosis]
) -> list[Diagnosis]:
    """The same, without the cures before the first after which the text does not show the fault any more."""
    program = _Program((path,), {**(files or {}), str(path): text})
    before, out = _faults(program), []
    for fault, diagnosis in zip(found, diagnoses, strict=True):
        several = diagnosis.cures if diagnosis.cures[1:] else ()
        first = next((n for n, cure in enumerate(several) if _helps(program, cure, before, fault)), 0)
        out.append(replace(diagnosis, cures=diagnosis.cures[first:]))
    return out


def _shown(settings: Settings) -> Finding | None:
    """What the traceback says. Raises SourceError."""
    if not settings.traceback:
        return None
    finding = recognise(settings.traceback)
    if finding is None:
        raise SourceError("--traceback: there is no error in it; give it what Python printed")
    if finding.kind is None:
        what = (
            "an autograd error that gradfix has no kind for" if finding.autograd else "not an autograd error"
        )
        raise SourceError(f"--traceback: this is {what}: {finding.error}", finding.advice)
    return finding


def _confirms(shown: Finding, found: Found) -> bool:
    """Whether the traceback is of this fault: it raised in a line where the fault says something happens, and where
    anomaly mode names the forward op, that is the one that saved (or made) the tensor."""
    conflict = found.conflict
    if conflict.kind != shown.kind or shown.raised is None:
        return False
    stacks = {label.role: label.stack for label in conflict.labels}
    forward = [s for role in ("saved", "made") for s in stacks.get(role, ())]
    if shown.forward is not None and forward and not _among(shown.forward, forward, found):
        return False
    return _among(shown.raised, [site for stack in stacks.values() for site in stack], found)


def _among(frame: Frame, sites: Iterable[Site], found: Found) -> bool:
    """Whether a frame of a traceback is one of `sites`: by its text where it has one, since lines move."""
    for site in sites:
        lines = split_lines(found.texts.get(site.file, ""))
        last = max(site.end_line, site.line)
        if frame.code and frame.code in {line.strip() for line in lines[site.line - 1 : last]}:
            return True
        same = Path(frame.file).name == Path(site.file).name and site.line <= frame.line <= last
        if same and (not frame.code or site.line < last):
            return True
    return False


def _said(shown: Finding, found: Iterable[Found]) -> Iterator[str]:
    if any(f.evidence == "traceback" for f in found):
        return
    at = f", raised in line {shown.raised.line} of {shown.raised.file}" if shown.raised else ""
    yield f"the traceback shows {shown.kind}{at}; how it comes about does not show in the text"


def _applied(
    program: _Program, settings: Settings, shown: Finding | None, reason: str
) -> tuple[list[Diagnosis], Files]:
    """One cure after the other, each the first after which the text shows its fault no longer, and no new one."""
    now, done, given_up = program, [], set()
    first: dict[str, str] = {}
    for _ in range(ROUNDS):
        found = [
            f
            for f in _look(now, settings, shown)
            if (f.conflict.severity != "note" or settings.notes)
            and _identity(f.conflict, f.texts) not in given_up
        ]
        if not found:
            break
        before = _faults(now)
        given_up.add(_identity(found[0].conflict, found[0].texts))
        diagnosis = diagnosed(found[0], settings, reason)
        harmless = [c for c in diagnosis.cures if not (settings.careful and c.effect.kind != "none")]
        cure = next((c for c in harmless if _helps(now, c, before, found[0])), None)
        if cure is not None:
            others = tuple(c for c in diagnosis.cures if c is not cure)
            done.append(replace(diagnosis, cures=(cure, *others), status="cured", sources=found[0].texts))
            first = {**cure.before, **first}
            now = now.after(cure)
    return done, {path: (text, now.files[path]) for path, text in first.items() if text != now.files[path]}


def _helps(program: _Program, cure: Cure, before: _Faults, found: Found) -> bool:
    after = _faults(program.after(cure))
    mine = _identity(found.conflict, found.texts)
    return after.all[mine] < before.all[mine] and not after.grave - before.grave


@dataclass(frozen=True, slots=True)
class _Faults:
    """What the text shows; `grave` is more than a note."""

    all: Counter[tuple[str, str]]
    grave: Counter[tuple[str, str]]


def _faults(program: _Program) -> _Faults:
    try:
        found = program.faults()
    except SourceError:
        unreadable = Counter({("unreadable", ""): 1})
        return _Faults(unreadable, unreadable)
    names = [(_identity(f.conflict, f.texts), f.conflict.severity) for f in found]
    return _Faults(Counter(name for name, _ in names), Counter(name for name, how in names if how != "note"))


def _identity(conflict: Conflict, texts: Mapping[str, str]) -> tuple[str, str]:
    """What stays of a fault while lines move: its kind and the text of its line."""
    lines = split_lines(texts.get(conflict.at.file, ""))
    line = lines[conflict.at.line - 1].strip() if conflict.at.line <= len(lines) else ""
    return conflict.kind, line
