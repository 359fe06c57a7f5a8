"""One call of check: paths in, reports out, an exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.cache import FOLDER, Cache
from gradfix.check import Checking, check, check_text
from gradfix.config import Projects
from gradfix.dataclass import dataclass
from gradfix.discover import Search
from gradfix.report import View, faults, formats, shown
from gradfix.report.places import Paths
from gradfix.report.terminal import Terminal
from gradfix.report.totals import closing, counted, statistics
from gradfix.result import Problem, Result
from gradfix.source import Source, SourceError

if TYPE_CHECKING:
    from gradfix.baseline import Baseline

NOTHING, FAULTS, FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Asked:
    """What was named on the command line, and how to go about it."""

    paths: tuple[str, ...]
    stdin_filename: str | None = None
    force_exclude: bool = False
    jobs: int = 1
    no_cache: bool = False
    cache_dir: Path | None = None

    def start(self) -> Path:
        """The folder whose configuration is that of the call: where the cache lies, what is shown."""
        name = (self.stdin_filename or ".") if self.paths == ("-",) else self.paths[0]
        first = Path(name).absolute()
        return first if first.is_dir() else first.parent

    def results(self, projects: Projects, terminal: Terminal) -> Iterator[Result]:
        """The Results, as they come. Raises SourceError, ConfigError."""
        if "-" in self.paths:
            if len(self.paths) > 1:
                raise SourceError("- stands alone: it can't be mixed with other paths")
            yield from self._stdin(projects)
            return
        cache = None
        if not self.no_cache:
            cache = Cache(self.cache_dir or projects.of(self.start()).root / FOLDER)
        with terminal.counting("checking") as say:
            how = Checking(projects.settings, lambda folder: _search(projects, folder), self.jobs, cache, say)
            yield from check(self._named(projects), how)

    def _named(self, projects: Projects) -> list[Path]:
        paths = [Path(p) for p in self.paths]
        if not self.force_exclude:
            return paths
        return [p for p in paths if not projects.excludes(p.absolute())]

    def _stdin(self, projects: Projects) -> Iterator[Result]:
        path = Path(self.stdin_filename or "<stdin>").absolute()
        try:
            source = Source.decode(path, sys.stdin.buffer.read())
        except SourceError as problem:
            yield Result(path, problem=Problem(problem.sentence, problem.detail), ended="read")
            return
        settings = projects.settings(path)
        if not (self.force_exclude and projects.excludes(path)):
            yield from check_text(source, settings)


def report(
    asked: Asked,
    projects: Projects,
    format_: str,
    verbose: int = 0,
    quiet: bool = False,
    count: bool = False,
    exit_zero: bool = False,
    baseline: Baseline | None = None,
    update: bool = False,
) -> int:
    """Check what was asked for and report it as it comes; the exit code. What `baseline` knows is left out; with
    `update` it is made to know everything, and nothing is reported. Raises ConfigError, BaselineError."""
    terminal = Terminal(quiet)
    paths = Paths.of(p for p in asked.paths if p != "-")
    results: list[Result] = []
    stopped: Problem | None = None
    try:
        for result in asked.results(projects, terminal):
            results.append(result if baseline is None else baseline.new(result))
            if not (format_ in formats.DOCUMENTS or count or update):
                _show(results[-1], format_, paths, terminal, verbose)
            given = paths.show(str(result.entry))
            if result.problem:
                message = result.problem.message.replace(str(result.entry), given)
                terminal.error(message, result.problem.detail)
            for line in () if quiet else result.minor:
                terminal.error(line.replace(str(result.entry), given))
    except SourceError as problem:
        stopped = Problem(problem.sentence, problem.detail)
    if baseline is not None and update and not stopped:
        return _updated(baseline, results, terminal)
    if format_ in formats.DOCUMENTS:
        terminal.write(formats.document(format_, results, View(paths, action="check"), stopped))
    if stopped:
        terminal.error(stopped.message, stopped.detail)
        return FAILED
    if count:
        for line in statistics(results):
            terminal.write(line)
    if format_ not in formats.DOCUMENTS and not quiet:
        terminal.write(closing(results, paths, baseline))
    if any(r.problem for r in results):
        return FAILED
    return FAULTS if any(faults(r) for r in results) and not exit_zero else NOTHING


def _updated(baseline: Baseline, results: list[Result], terminal: Terminal) -> int:
    kept = baseline.update()
    if not terminal.quiet:
        terminal.write(f"{baseline.file} knows {counted(kept, 'fault')} now.")
    return FAILED if any(r.problem for r in results) else NOTHING


def _show(result: Result, format_: str, paths: Paths, terminal: Terminal, verbose: int) -> None:
    if format_ in formats.LINES:
        for line in formats.lines(format_, result, View(paths, glyphs=terminal.glyphs)):
            terminal.write(line.text)
    elif shown(result):
        from gradfix.report import full

        view = View(paths, terminal.out.width, terminal.glyphs, verbose, "check", False)
        terminal.show(full.render(result, view))


def _search(projects: Projects, folder: Path) -> Search:
    return Search(projects.of(folder).excluded())
