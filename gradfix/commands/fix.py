"""One call of fix or run: entries in, reports out, an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rich.text import Text

from gradfix import pipeline
from gradfix.baseline import Baseline
from gradfix.discover import Patterns, Search, discover
from gradfix.report import View, faults, formats, full, shown
from gradfix.report.layout import fold, safe
from gradfix.report.places import Paths
from gradfix.report.terminal import Terminal
from gradfix.report.totals import counted, known
from gradfix.result import Problem, Result, Settings
from gradfix.run import InterpreterError
from gradfix.run.walls import Sandbox
from gradfix.run.zygote import Zygote
from gradfix.source import Source, SourceError, refuse_read_only, write
from gradfix.tapefile import TapeError, read_tape

NOTHING, FAULTS, FAILED = 0, 1, 2
KNOWN = (InterpreterError, SourceError, TapeError, OSError)  # sentences for whoever called


@dataclass(frozen=True, slots=True)
class Entries:
    """What was asked for on the command line: paths (``-`` for standard input), and what to run of a
    directory."""

    paths: Sequence[str]
    scripts: Sequence[str] = ()  # --entry
    prove: bool = False
    stdin_filename: str | None = None
    exclude: Patterns = ()

    def find(self, tape: Path | None) -> tuple[list[Path], Source | None]:
        """The scripts to run, and standard input where it is the script. Raises SourceError."""
        if "-" in self.paths:
            if len(self.paths) > 1:
                raise SourceError("- stands alone: it can't be mixed with other paths")
            name = Path(self.stdin_filename or "<stdin>")
            source = Source.decode(name, sys.stdin.buffer.read())
            source.check()
            return [name], source
        if self.stdin_filename:
            raise SourceError("--stdin-filename names what comes with -, and - was not given")
        paths = list(self.paths)
        if not paths and not self.scripts:
            if tape is None:
                raise SourceError("name a script: gradfix fix train.py")
            entry = read_tape(tape).script
            paths = [os.path.relpath(entry) if Path(entry).is_relative_to(Path.cwd()) else entry]
        folders = [p for p in paths if Path(p).is_dir()]
        named: dict[str, Path] = {}  # what is named twice is run once
        for script in discover([*self.scripts, *(p for p in paths if p not in folders)]):
            named.setdefault(os.path.realpath(script), script)
        found = [*named.values()]
        trainings = [p for p in discover(folders, Search(self.exclude)) if _trains(p) and p not in found]
        if folders and self.prove:
            found += trainings
        elif folders and not self.scripts:
            raise SourceError(_nothing_ran(folders, trainings))
        if not found:
            raise SourceError(f"{' '.join(folders)}: no script in it looks like a training; name one")
        return found, None

    def bounded(self, settings: Settings, entries: Sequence[Path], stdin: Source | None) -> Settings:
        """`settings` for what was named: with a directory only its files are edited, a change that is meant needs a
        script that raised, and scripts that nobody named run behind a wall that holds against hostile code; with
        standard input only that is edited."""
        folders = tuple(Path(p).resolve() for p in self.paths if Path(p).is_dir())
        if stdin is not None:
            return replace(settings, within=(entries[0].resolve(),))
        if not folders:
            return settings
        unnamed: Sandbox | None = "strict" if self.prove else None
        return replace(settings, within=folders, careful=True, sandbox=settings.sandbox or unnamed)


@dataclass(frozen=True, slots=True)
class Work:
    """`action` is ``diff``, ``write`` or ``run``; `format` the report's."""

    settings: Settings
    action: str
    diff: bool
    format: str
    verbose: int
    terminal: Terminal
    baseline: Baseline | None = None  # faults that are not reported again
    update: bool = False  # make it know all of them, and report nothing
    output_patch: Path | None = None  # where the fixes go, to be applied elsewhere

    def go(self, asked: Entries) -> int:
        """Every entry through the pipeline, its report as soon as it is there; the exit code."""
        results: list[Result] = []
        unheard: BrokenPipeError | None = None
        try:
            entries, stdin = asked.find(self.settings.tape)
            settings = asked.bounded(self.settings, entries, stdin)
            if self.output_patch is not None:
                _refuse_output(self.output_patch, entries)  # before the work, not after it
            view = self._view(entries)
            if self.action == "write" and stdin is None:
                for entry in filter(Path.exists, entries):
                    refuse_read_only(entry)  # before the work, not after it
            for result in self._results(entries, settings, stdin):
                if self.baseline is not None:
                    result = self.baseline.new(result)
                results.append(_written(result) if self.action == "write" and stdin is None else result)
                try:
                    if unheard is None:
                        self._report(results[-1], view, stdin)
                except BrokenPipeError as closed:
                    if self.output_patch is None:
                        raise
                    unheard = closed  # nobody listens any more, but the patch is waited for
        except KNOWN as problem:
            if isinstance(problem, BrokenPipeError):
                raise
            sentence, detail = str(problem), getattr(problem, "detail", "")
            if self.format in formats.DOCUMENTS:
                stopped = Problem(sentence, detail)
                self.terminal.write(formats.document(self.format, [], View(Paths.of(())), stopped))
            self.terminal.error(sentence, detail)
            return FAILED
        if self.baseline is not None and self.update:
            kept = self.baseline.update()
            if not self.terminal.quiet:
                self.terminal.write(f"{self.baseline.file} knows {counted(kept, 'fault')} now.")
            return FAILED if any(r.problem for r in results) else NOTHING
        saved = self._saved(results)  # first: nobody may listen to what is said
        if unheard is not None:
            raise unheard
        self._close(results, view, stdin)
        return self._code(results) if saved else FAILED

    def _results(self, entries: Sequence[Path], settings: Settings, stdin: Source | None) -> Iterator[Result]:
        text = None if stdin is None else stdin.text
        with ExitStack() as stack:
            many, sandbox = len(entries) > 1 and settings.run, settings.sandbox or "auto"
            shared = stack.enter_context(Zygote(settings.python, sandbox=sandbox)) if many else None
            for entry in entries:
                with self.terminal.progress(entry.name) as say:
                    try:
                        found = list(pipeline.fix(entry, settings, text, say, shared))
                    except KNOWN:
                        raise
                    except (
                        Exception
                    ):  # perhaps forged by what the script's run said: the others are not to pay for it
                        if not many:
                            raise
                        words = f"{entry}: gradfix could not make sense of what was recorded"
                        found = [Result(entry, problem=Problem(words, traceback.format_exc()))]
                yield from found

    def _report(self, result: Result, view: View, stdin: Source | None) -> None:
        terminal = self.terminal
        if self.verbose and result.output:
            terminal.err.rule("the script printed", style="dim")
            for line in result.output.rstrip().split("\n"):
                terminal.err.out(safe(line), highlight=False)
            terminal.err.rule(style="dim")
        filtering = self.action == "write" and stdin is not None
        if self.format not in formats.DOCUMENTS and not self.update:
            said = replace(result, lines=()) if terminal.quiet else result
            by_line = self.format in formats.LINES
            lines = formats.lines(self.format, said, view) if by_line else full.render(said, view)
            terminal.show(lines, terminal.err if filtering else None)
            if stdin is not None and filtering:
                _, new = result.files.get(str(result.entry), ("", stdin.text))
                sys.stdout.flush()
                sys.stdout.buffer.write(stdin.encode(new))
        if result.problem:
            given = view.paths.show(str(result.entry))
            terminal.error(result.problem.message.replace(str(result.entry), given), result.problem.detail)

    def _close(self, results: list[Result], view: View, stdin: Source | None) -> None:
        if self.format in formats.DOCUMENTS:
            self.terminal.write(formats.document(self.format, results, view))
            return
        if self.terminal.quiet:
            return
        last = full.closing(results, view)
        behind = (
            full.behind(results) if last else ""
        )  # nothing to report: nothing that was seen behind a wall
        lines = [Text(line) for line in fold(behind, view.width)] if behind else []
        last = " ".join(filter(None, (last, known(self.baseline))))
        lines += [Text(line, style="bold") for line in fold(last, view.width)] if last else []
        filtering = self.action == "write" and stdin is not None
        self.terminal.show(lines, self.terminal.err if filtering else None)

    def _saved(self, results: list[Result]) -> bool:
        """Write the fixes to a file of their own, where that was asked for; False where not all of them are in it."""
        if self.output_patch is None:
            return True
        from gradfix.patches import file, make

        left: list[str] = []
        try:
            patch = make.of_results(results, Path.cwd(), left.append)
            file.save(patch, self.output_patch)
        except OSError as problem:
            reason = (problem.strerror or str(problem)).lower()
            self.terminal.error(f"{self.output_patch}: can't be written ({reason})")
            return False
        if not self.terminal.quiet:
            count, path = len(patch.fixes), safe(str(self.output_patch))
            said = f"{count} fix{'' if count == 1 else 'es'} in {path}"
            none = f"There was no fix to write: {path} is a patch without any"
            self.terminal.err.print(f"{said if count or left else none}.", soft_wrap=True)
        for why in left:
            self.terminal.error(f"{self.output_patch} lacks a fix: {why}")
        return not left

    def _code(self, results: list[Result]) -> int:
        if any(r.problem for r in results):
            return FAILED
        asked = [d for r in results for d in (faults(r) if self.action == "run" else shown(r))]
        done = self.action == "write" and all(d.status == "cured" for d in asked)
        return NOTHING if done or not asked else FAULTS

    def _view(self, entries: Sequence[Path]) -> View:
        terminal = self.terminal
        paths = Paths.of(entries)
        out, piped = terminal.out, not terminal.out.is_terminal
        return View(paths, out.width, terminal.glyphs, self.verbose, self.action, self.diff, piped)


def _refuse_output(path: Path, entries: Sequence[Path]) -> None:
    """Raises SourceError where a patch can't be written to `path`, or not without harm to another file."""
    from gradfix.patches import file

    if os.path.realpath(path) in {os.path.realpath(entry) for entry in entries}:
        raise SourceError(f"{path}: --output-patch names the script itself; name another file")
    try:
        file.may_write(path)
    except file.PatchError as problem:
        raise SourceError(f"{path}: {problem}; name another file for --output-patch") from None
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise SourceError(f"{path}: can't be written ({reason})") from None


def _written(result: Result) -> Result:
    """The result with its files on the disk; where that could not be, with the problem and nothing cured."""
    try:
        if result.files:
            write(result.files)
    except SourceError as problem:
        left = tuple(replace(d, status="left") if d.status == "cured" else d for d in result.diagnoses)
        refused = Problem(problem.sentence, problem.detail)
        return replace(result, diagnoses=left, files={}, problem=refused)
    return result


def _trains(path: Path) -> bool:
    """Whether a file looks like a script that starts a training: a quick look at its bytes."""
    try:
        raw = path.read_bytes()
    except OSError:
        return False
    return b"torch" in raw and (b"__main__" in raw or b".backward(" in raw)


def _nothing_ran(folders: list[str], scripts: list[Path]) -> str:
    where = " ".join(folders)
    if not scripts:
        return (
            f"{where}: nothing in a directory is run unasked; name the script that trains: gradfix fix SCRIPT"
        )
    more = f" and {len(scripts) - 3} more" if len(scripts) > 3 else ""
    names = ", ".join(str(p) for p in scripts[:3]) + more
    name = f"name the script that trains (gradfix fix {scripts[0]})"
    return f"{where}: nothing in a directory is run unasked; {name}, or --prove runs each that may ({names})"
