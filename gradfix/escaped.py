"""What an autograd error that nobody caught is about: told from its traceback and from the text of the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradfix.config import ConfigError, Projects
from gradfix.messages import Finding, recognise
from gradfix.report import View, full, layout
from gradfix.report.finding import render
from gradfix.report.places import Paths
from gradfix.report.terminal import Terminal
from gradfix.result import Result, Settings
from gradfix.unproved import from_text


def explain(traceback: str, script: str | None, arguments: Sequence[str] = (), record: bool = False) -> None:
    """Write on standard error what `traceback` shows; nothing where it is not autograd's. `script` is the file that was
    run. With `record` it is run again as `gradfix fix` does."""
    finding = recognise(traceback)
    if finding is None or not finding.autograd:
        return
    terminal = Terminal()
    name = Paths(Path.cwd()).show(script) if script else "SCRIPT"
    command = ["gradfix", "fix", name, *(["--", *arguments] if arguments else [])]
    terminal.err.print()
    if record and script:
        sys.stderr.flush()
        subprocess.run([sys.executable, "-P", "-m", *command], stdout=sys.stderr, check=False)
        return
    result = shown(finding, traceback, Path(script)) if script else None
    tell(finding, result, terminal)
    if result is not None and result.diagnoses:
        terminal.err.print("To try cures and prove them: " + layout.command(command), soft_wrap=True)


def shown(finding: Finding, traceback: str, entry: Path, text: str | None = None) -> Result | None:
    """The faults in the text (of `entry`, or `text` in its place) that the traceback confirms."""
    if finding.kind is None:
        return None
    result = from_text(entry.absolute(), replace(_settings(entry), traceback=traceback), text)
    confirmed = tuple(d for d in result.diagnoses if d.evidence == "traceback")
    return replace(result, diagnoses=confirmed, lines=())


def tell(finding: Finding, result: Result | None, terminal: Terminal) -> None:
    """The faults with their cures; where the text shows none, what the message alone says."""
    width = terminal.err.width
    if result is None or not result.diagnoses:
        terminal.show(render(finding, width), terminal.err)
        return
    view = View(Paths(Path.cwd()), width, terminal.glyphs, action="check", diff=False)
    terminal.show(full.render(result, view), terminal.err)


def _settings(entry: Path) -> Settings:
    more = {"evidence": "likely"}  # it has happened
    try:
        return replace(Projects(more=more).settings(entry.absolute()), select=(), ignore=(), exempt=())
    except ConfigError:
        return Settings(evidence="likely")
