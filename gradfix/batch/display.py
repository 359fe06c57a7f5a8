"""What a person sees of a batch that runs: a live display on a terminal, a line a repository elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradfix.batch.migrate import Progress
from gradfix.batch.outcome import Effects, outcomes, refused
from gradfix.batch.values import RepoResult
from gradfix.batch.words import counts, many
from gradfix.report.layout import safe
from gradfix.report.terminal import Terminal

RECENT = 6  # repositories that the live display names
STYLES = {"done": "green", "refused": "yellow", "failed": "red"}


@contextmanager
def display(terminal: Terminal) -> Iterator[Callable[[Progress], None]]:
    """Gives what hears of progress."""
    if terminal.quiet:
        yield lambda _: None
    elif terminal.err.is_terminal and sys.stderr.isatty():
        seen = _Seen()
        with Live(seen, console=terminal.err, refresh_per_second=4, transient=True):
            yield seen.hear
    else:
        yield lambda progress: _say(progress, terminal.err)


def line(result: RepoResult, effects: Effects) -> str:
    """A repository on one line: what was found, and what became of the cures."""
    if result.ended != "done":
        return f"{result.name}: {result.ended}: {result.sentence}"
    found = [f for f in result.faults if f.severity != "note"]
    notes = len(result.faults) - len(found)
    verdicts: Counter[str] = Counter(s.verdict for s in result.steps)
    cured = sum(f.status == "cured" for f in result.faults)
    cures = [f"{many(cured, 'cure')} ({counts(verdicts)})"] if cured else []
    cures += [f"{n} {what}" for what, n in outcomes((f, effects) for f in result.faults).items()]
    more = f", {many(notes, 'note')}" if notes else ""
    said = ", ".join([f"{many(len(found), 'fault')}{more}", *(cures or ["no cure"] * bool(result.faults))])
    why = "".join(f", {effect} refused" for effect in refused(effects))
    return f"{result.name}: {said}{why}, {result.seconds:.1f} s"


def duration(seconds: float) -> str:
    """``1 h 05 min``, ``4 min 10 s``, ``12 s``."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


def _say(progress: Progress, to: Console) -> None:
    if progress.last is not None:
        to.out(
            safe(f"[{progress.done}/{progress.of}] {line(progress.last, progress.effects)}"), highlight=False
        )


@dataclass(slots=True)
class _Seen:
    """What has been heard so far; rich asks it for a drawing."""

    now: Progress = field(default_factory=lambda: Progress(0, 0, 0))
    before: int = 0  # what was done before this call
    began: float = field(default_factory=time.monotonic)
    kinds: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    recent: list[Progress] = field(default_factory=list)

    def hear(self, progress: Progress) -> None:
        """Take in what has just happened."""
        self.now = progress
        if progress.last is None:
            self.before = progress.done
            return
        self.ended[progress.last.ended] += 1
        self.kinds.update(f.kind for f in progress.last.faults)
        self.verdicts.update(s.verdict for s in progress.last.steps)
        self.recent = [*self.recent, progress][-RECENT:]

    def __rich__(self) -> Table:
        now, passed = self.now, time.monotonic() - self.began
        fresh = now.done - self.before
        rate = fresh / passed if passed else 0.0
        left = f", {duration((now.of - now.done) / rate)} left" if rate else ""
        out = Table.grid(padding=(0, 1))
        head = Table.grid(padding=(0, 1))
        head.add_row(
            Text(f"{now.done} of {now.of} repositories", "bold"),
            ProgressBar(total=max(now.of, 1), completed=now.done, width=30),
            Text(f"{rate * 60:.1f} a minute{left}", "dim"),
        )
        out.add_row(head)
        for name, counter in (("ended", self.ended), ("faults", self.kinds), ("cures", self.verdicts)):
            if counter:
                counted = ", ".join(f"{n} {what}" for what, n in counter.most_common(6))
                out.add_row(Text.assemble((f"{name:>7} ", "dim"), counted))
        for progress in self.recent:
            result = progress.last
            assert result is not None
            style = STYLES["refused" if refused(progress.effects) else result.ended]
            out.add_row(Text(f"  {safe(line(result, progress.effects))}"[:120], style))
        return out
