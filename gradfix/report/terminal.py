"""Where reports go: standard output, with errors and progress on standard error; colour and progress only
where a person looks on. NO_COLOR and FORCE_COLOR are rich's to honour."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO, cast

from gradfix.report import Line, Raw
from gradfix.report.layout import Glyphs, glyphs_for, safe

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.text import Text

# rich's console takes longer to load than a small file to be read: only where something is shown in colour

PATIENCE = 0.5  # seconds before progress is shown
PIPED = 100  # columns where no terminal says how wide it is


class Unwritten(Exception):
    """Standard output takes no more, as on a full disk. No OSError: those are of files that a command works with."""


@contextmanager
def written() -> Iterator[None]:
    """What stands in it writes to standard output. Raises Unwritten."""
    try:
        yield
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its number: click would end the program with 1
    except OSError as problem:
        raise Unwritten((problem.strerror or str(problem)).lower()) from problem


class Terminal:
    """The two streams of one call of the command line."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet

    @cached_property
    def out(self) -> Console:
        return _console(sys.stdout)

    @cached_property
    def err(self) -> Console:
        return _console(sys.stderr)

    @property
    def glyphs(self) -> Glyphs:
        return glyphs_for(getattr(sys.stdout, "encoding", None) or "ascii")

    def show(self, lines: Iterable[Text | Line | Raw], to: Console | None = None) -> None:
        """Write a report. Raises Unwritten."""
        console = to or self.out
        for line in lines:
            with written():
                _show(line, console)

    def write(self, text: str) -> None:
        """Write `text` and a newline as they are. Raises Unwritten."""
        _lenient(sys.stdout)
        with written():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def error(self, sentence: str, detail: str = "") -> None:
        """One sentence on standard error, with what it rests on below."""
        from rich.text import Text

        head = Text.assemble(("gradfix", "bold red"), f": {safe(sentence)}")
        self.err.print(head, soft_wrap=True, highlight=False)
        for line in detail.rstrip().split("\n") if detail.strip() else ():
            self.err.out(f"  {safe(line)}", highlight=False)

    @contextmanager
    def progress(self, name: str) -> Iterator[Callable[[str], None]]:
        """Gives a function that says what is being done, on a line that goes away; silent where nobody
        looks."""
        if self.quiet or not self.err.is_terminal or not sys.stderr.isatty():
            yield lambda _: None
            return
        from rich.text import Text

        with self.err.status(Text(f"{safe(name)}: starting …"), spinner="dots") as status:
            yield lambda what: status.update(Text(f"{safe(name)}: {what} …"))

    @contextmanager
    def counting(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Gives a function that says how many of how many are done, on a line that goes away; for work that takes
        more than a moment. No thread draws it: processes may be forked meanwhile."""
        if self.quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield lambda done, of: None
            return
        started = shown = time.monotonic()

        def say(done: int, of: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - started > PATIENCE and now - shown > 0.1:
                shown = now
                sys.stderr.write(f"\r\x1b[K{what} {done} of {of} …")
                sys.stderr.flush()

        try:
            yield say
        finally:
            if shown > started:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _show(line: Text | Line | Raw, console: Console) -> None:
    if isinstance(line, Raw):
        console.file.flush()
        cast(TextIOWrapper, console.file).buffer.write(line.data + b"\n")
    elif isinstance(line, Line):
        # a terminal must not be steered by a source file
        text = safe(line.text) if console.is_terminal else line.text
        console.out(text, style=line.style or None, highlight=False)
    else:
        console.print(line, soft_wrap=True, highlight=False)


def _lenient(stream: TextIO) -> None:
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    class Told(Console):
        def on_broken_pipe(self) -> None:
            """Rich would end the program here, whatever it has still to do."""
            raise BrokenPipeError

    _lenient(stream)
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED
    # force_jupyter: in a notebook's kernel rich would make an output of its own of every line
    return Told(file=stream, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False)
