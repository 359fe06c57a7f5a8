"""One repository from its place to its RepoResult. It is read, run behind walls where that was asked for, and never
written to."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path

from gradfix import pipeline, unproved
from gradfix.batch.intake import Opened, Refused, opened, sources
from gradfix.batch.steps import steps
from gradfix.batch.told import fault, remarks
from gradfix.batch.values import Entry, Fault, Options, RepoResult, Spec, Step
from gradfix.batch.warm import Warm
from gradfix.batch.words import escaped
from gradfix.config import Config, ConfigError, configured, nearest_file
from gradfix.detect import Conflict
from gradfix.examine import Examined, examine, own_fault
from gradfix.patches.file import PatchError
from gradfix.patches.make import of_result
from gradfix.patches.values import Fix
from gradfix.registry import catalogue
from gradfix.result import Diagnosis, Result, Settings
from gradfix.run import InterpreterError
from gradfix.run.zygote import Zygote
from gradfix.source import Source, SourceError

Say = Callable[[str], None]
SPARE = 5.0  # seconds that are kept for the end


def migrate_one(
    spec: Spec, options: Options, scratch: Path, say: Say = lambda _: None, warm: Warm | None = None
) -> RepoResult:
    """All that is to be known of one repository. The same files and options give the same result, but for times.

    What has to be unpacked lies below `scratch`, which is the caller's to remove; `warm` is an interpreter to be used
    again by the next. Never raises for what the repository holds: it is refused with a sentence.
    """
    if warm is None:
        with Warm() as own:
            return migrate_one(spec, options, scratch, say, own)
    started = time.monotonic()
    try:
        with opened(spec, scratch) as there:
            work = _Work(there, options, _settings(there.root, options), started + options.seconds, say, warm)
            work.go()
            result = work.result(spec.name)
    except Refused as why:
        result = RepoResult(spec.name, "refused", str(why))
    return replace(result, seconds=round(time.monotonic() - started, 3))


@dataclass(slots=True)
class _Work:
    """The work on one repository as far as it has come. `texts` are those of files that cures have changed."""

    there: Opened
    options: Options
    configured: tuple[Settings, Config]
    deadline: float
    say: Say
    warm: Warm
    files: list[Path] = field(default_factory=list)
    dirty: list[str] = field(default_factory=list)
    lines: int = 0
    said: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    faults: list[tuple[Fault, str]] = field(default_factory=list)  # with the script that shows it
    originals: dict[str, str] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    torch: str = ""
    crashes: list[str] = field(default_factory=list)
    seen: set[object] = field(default_factory=set)
    ran: dict[Path, frozenset[str]] = field(default_factory=dict)  # scripts and the files that they ran
    uncured: list[Path] = field(default_factory=list)
    after: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # what changed files still show

    def go(self) -> None:
        settings, config = self.configured
        self.files, left_out = sources(self.there, config.excluded())
        self.said += [*self.there.remarks, *left_out]
        read = self._read(settings)
        if self.options.prove:
            self._prove([path for path, examined in read.items() if examined.starts], settings)
        for path, examined in read.items():
            self._tell_read(path, examined, settings)
        if self.uncured:
            self._leave("no cures were looked for in what is read only", self.uncured)

    def result(self, name: str) -> RepoResult:
        originals = {self._name(path): text for path, text in self.originals.items()}
        own = self.there.kind == "repository"
        result = RepoResult(
            name,
            "done",
            kind=self.there.kind,
            commit=self.there.commit,
            dirty=tuple(self.dirty),
            untracked=tuple(sorted(p for p in originals if own and p not in self.there.tracked)),
            remarks=tuple(dict.fromkeys(self.said)),
            files=len(self.files),
            lines=self.lines,
            entries=tuple(self.entries),
            originals=originals,
            raw={self._name(path): data for path, data in self.raw.items()},
            steps=tuple(self.steps),
            fixes=tuple(self.fixes),
            torch=self.torch,
            crashes=tuple(self.crashes),
        )
        held = {s.entry for s in result.steps} - {s.entry for s in result.committed}
        faults = [replace(f, held=f.status == "cured" and script in held) for f, script in self.faults]
        return replace(result, faults=tuple(sorted(faults, key=lambda f: (f.path, f.line, f.kind))))

    # ---- reading

    def _read(self, settings: Settings) -> dict[Path, Examined]:
        """What the text of every file shows; cures are looked for only where none will be proved."""
        out = {}
        looked = replace(settings, repair=not self.options.prove)
        for n, path in enumerate(self.files):
            if self._late():
                self._leave("not read", self.files[n:])
                break
            self.say(f"reading {n + 1} of {len(self.files)} files")
            try:
                source = Source.read(path)
            except SourceError as problem:
                self._said(problem.sentence)
                continue
            self.lines += source.text.count("\n")
            if self.there.changed(path, source.raw):
                self.dirty.append(self._name(str(path)))
            examined = self._examine(path, looked, source)
            if examined is None:
                continue
            out[path] = examined
            problem_ = examined.problem
            if problem_ is not None:
                self._said(problem_.message)
        return out

    def _tell_read(self, path: Path, examined: Examined, settings: Settings) -> None:
        """The faults of a file that no run has shown. Where nothing is proved and untried cures were accepted, they are
        applied as they are."""
        new = self._untold(examined, path)
        if not new:
            return
        if self.options.prove and self._late():  # what was found is worth more than what might cure it
            self.uncured.append(path)
        elif self.options.prove:
            again = self._examine(path, settings)
            new = self._untold(again, path) if again is not None else new
        elif "untried" in settings.accept and self._text(path) is None:
            found = unproved.from_text(path, settings, None)
            if found.files:
                self._take(found, [d for d in found.diagnoses if _key(d.conflict) not in self.seen])
                return
        texts = {d.conflict.at.file for d in new} | {
            s.file for d in new for x in d.conflict.labels for s in x.stack
        }
        known = {file: text for file in texts if (text := _source(file)) is not None}
        self._tell(Result(path, tuple(new), sources=known, ended="read"), new)

    # ---- running

    def _prove(self, entries: Sequence[Path], settings: Settings) -> None:
        if not entries:
            return
        if len(entries) > self.options.entries:
            self._leave("not run (--entries)", entries[self.options.entries :])
            entries = entries[: self.options.entries]
        try:
            with self.warm.zygote(settings) as zygote:
                for n, entry in enumerate(entries):
                    if self._late():
                        self._leave("not run", entries[n:])
                        return
                    self._prove_one(entry, settings, zygote)
        except InterpreterError as problem:  # a wall that is missing too
            raise Refused(str(problem)) from None

    def _prove_one(self, entry: Path, settings: Settings, zygote: Zygote) -> None:
        name = self._name(str(entry))
        room = max(1.0, min(settings.timeout, self.deadline - time.monotonic() - SPARE))
        bounded = replace(settings, timeout=room, until=self.deadline - SPARE)

        def say(what: str) -> None:
            self.say(f"{name}: {what}")

        (result,) = pipeline.fix(entry, bounded, self._text(entry), say, zygote, self.texts)
        zygote.settle()  # what was begun in case it would be needed
        if result.files and not self._still_hold(result, bounded, zygote):
            held = "its cures would break another script of this repository"
            result = replace(
                result, files={}, verdict=None, held_back=held, diagnoses=_uncured(result.diagnoses)
            )
        if self._late():
            self._leave("perhaps not all cures were proved", [entry])
        self.ran[entry] = frozenset(result.sources)
        self.entries.append(remarks(result, name, self.there.root))
        self._take(result, [d for d in result.diagnoses if _key(d.conflict) not in self.seen])

    def _still_hold(self, result: Result, settings: Settings, zygote: Zygote) -> bool:
        """Whether the scripts that were proved before, and ran files which now change, run as clean as they did."""
        now = self.texts | {path: new for path, (_, new) in result.files.items()}
        for entry, ran in self.ran.items():
            if not ran & result.files.keys():
                continue
            text = now.get(str(entry))
            only = replace(settings, repair=False)
            (again,) = pipeline.fix(entry, only, text, lambda _: None, zygote, now)
            before = {e.path: e for e in self.entries}[self._name(str(entry))]
            known = {
                (f.kind, f.message) for f, _ in self.faults if f.entry == before.path and f.status != "cured"
            }
            new = [d for d in again.diagnoses if (d.conflict.kind, d.conflict.message) not in known]
            if again.ended != before.ended or any(d.conflict.severity == "error" for d in new):
                return False
        return True

    def _take(self, result: Result, new: Iterable[Diagnosis]) -> None:
        """Keep what a result shows, and what it changes."""
        found = steps(result, self._name)
        for path, (old, text) in result.files.items():
            if path not in self.originals:
                self.originals[path] = old
                self.raw[path] = Path(path).read_bytes().decode("latin-1")  # any bytes there and back
            self.texts[path] = text
        self.steps += found
        self.torch = result.torch or self.torch
        try:
            fix = of_result(result, self.there.root)
        except PatchError as problem:
            self._said(f"{escaped(self._name(str(result.entry)))}: no patch to carry: {problem}")
        else:
            self.fixes += [fix] if fix is not None else []
        self._tell(result, new)

    def _tell(self, result: Result, new: Iterable[Diagnosis]) -> None:
        for diagnosis in new:
            self.seen |= {_key(c) for c in (diagnosis.conflict, *diagnosis.conflict.also)}
            told = fault(diagnosis, result, self.there.root)
            self.faults.append((told, self._name(str(result.entry))))

    # ---- helpers

    def _examine(self, path: Path, settings: Settings, source: Source | None = None) -> Examined | None:
        """What one file shows. A fault of gradfix's own costs that file, and is said and counted."""
        try:
            return examine(path, settings, source)
        except Exception as problem:
            said, detail = own_fault(problem)
            print(detail, end="", file=sys.stderr)
            self.crashes.append(f"{self._name(str(path))}: {said}")
            return None

    def _untold(self, examined: Examined, path: Path) -> list[Diagnosis]:
        """What was read and no run has shown. Of a script that was run to its end a run knows better what only wastes
        time."""
        ended = {e.ended for e in self.entries if e.path == self._name(str(path))}
        judged = bool(ended & {"steps", "finished"})
        new = [d for d in examined.diagnoses if _key(d.conflict) not in self.seen]
        return [
            d
            for d in new
            if (d.conflict.severity != "note" or not judged) and not self._cured_too(d.conflict)
        ]

    def _cured_too(self, conflict: Conflict) -> bool:
        """Whether a fault went with the cure of another: its line was changed, and shows it no longer."""
        file = conflict.at.file
        if file not in self.texts:
            return False
        lines = became(self.originals[file], self.texts[file], conflict.at.line)
        if lines is None:
            return False
        if file not in self.after:
            self.after[file] = self._kinds_now(Path(file))
        return not any((conflict.kind, line) in self.after[file] for line in lines)

    def _kinds_now(self, path: Path) -> set[tuple[str, int]]:
        """The faults that a changed file shows by itself: kind and line."""
        settings = replace(self.configured[0], repair=False)
        now = Source.read(path).encode(self.texts[str(path)])
        examined = self._examine(path, settings, Source.decode(path, now))
        found = examined.diagnoses if examined is not None else ()
        return {(d.conflict.kind, d.conflict.at.line) for d in found if d.conflict.at.file == str(path)}

    def _text(self, path: Path) -> str | None:
        return self.texts.get(str(path))

    def _late(self) -> bool:
        return time.monotonic() > self.deadline - SPARE

    def _leave(self, what: str, left: Sequence[Path]) -> None:
        names = ", ".join(self._name(str(p)) for p in left[:3]) + (
            f" and {len(left) - 3} more" if left[3:] else ""
        )
        why = "" if "(" in what else f": the {self.options.seconds:.0f} s for a repository were over"
        self.said.append(f"{names}: {what}{why}.")

    def _said(self, sentence: str) -> None:
        self.said.append(sentence.replace(f"{self.there.root}/", "").rstrip(".") + ".")

    def _name(self, path: str) -> str:
        return Path(path).relative_to(self.there.root).as_posix()


def became(old: str, new: str, line: int) -> range | None:
    """The lines of `new` in the place of a line of `old`; None where it is as it was."""
    matcher = SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    for tag, first, last, low, high in matcher.get_opcodes():
        if first < line <= last:
            return None if tag == "equal" else range(low + 1, high + 1)
    return None


def _key(conflict: Conflict) -> object:
    return conflict.kind, conflict.at.file, conflict.at.line


def _uncured(diagnoses: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    return tuple(replace(d, status="left") if d.status == "cured" else d for d in diagnoses)


def _codemods(options: Options) -> tuple[str, ...]:
    if not options.without:
        return options.codemods
    names = options.codemods or tuple(about.name for about in catalogue())
    return tuple(name for name in names if name not in options.without)


def _source(file: str) -> str | None:
    try:
        return Source.read(file).text
    except SourceError:
        return None


def _settings(root: Path, options: Options) -> tuple[Settings, Config]:
    """What the repository's own configuration says, as far as it may: which faults and files it leaves out; never what
    is started. Raises Refused where it can't be understood."""
    try:
        file = None if options.isolated else nearest_file(root)
        own = file is not None and file.parent == root
        config = configured(root, (), not own)
        given: Mapping[str, object] = {
            "select": options.select,
            "ignore": options.ignore,
            "accept": options.accept,
        }
        config = config.under("the command line", given)
        settings = config.settings(
            codemods=_codemods(options),
            notes=options.notes,
            seed=options.seed,
            sandbox=options.sandbox,
            evidence=options.evidence,
            within=(root,),
            careful=True,
            only=options.only,
            spared=options.spared,
            granted=options.granted,
            hints=options.hints,
        )
    except ConfigError as problem:
        raise Refused(f"its configuration can't be used: {problem}".replace(f"{root}/", "")) from None
    bounded = replace(
        settings,
        python=options.python,
        steps=options.steps,
        timeout=options.timeout,
        resident=options.memory // 3,  # two may run side by side, and what starts them needs some
    )
    return bounded, config
