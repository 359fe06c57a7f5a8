"""Where reports go: standard output, with errors and progress on standard error; colour and progress only
where a person looks on. NO_COLOR and FORCE_COLOR are rich's to honour."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from gradfix.report import Line
from gradfix.report.layout import Glyphs, glyphs_for, safe

if TYPE_CHECKING:
    from collections.abc import Callable

PIPED = 100  # columns where no terminal says how wide it is


class Terminal:
    """The two streams of one call of the command line."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.out = _console(sys.stdout)
        self.err = _console(sys.stderr)

    @property
    def glyphs(self) -> Glyphs:
        return glyphs_for(getattr(self.out.file, "encoding", None) or "ascii")

    def show(self, lines: Iterable[Text | Line], to: Console | None = None) -> None:
        """Write a report."""
        console = to or self.out
        for line in lines:
            if isinstance(line, Line):
                # Text would expand tabs, and a diff must keep them; a terminal must not be steered by a
                # source file
                text = safe(line.text) if console.is_terminal else line.text
                console.out(text, style=line.style or None, highlight=False)
            else:
                console.print(line, soft_wrap=True, highlight=False)

    def write(self, text: str) -> None:
        """Write `text` and a newline as they are."""
        self.out.file.write(text + "\n")
        self.out.file.flush()

    def error(self, sentence: str, detail: str = "") -> None:
        """One sentence on standard error, with what it rests on below."""
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
        with self.err.status(Text(f"{safe(name)}: starting …"), spinner="dots") as status:
            yield lambda what: status.update(Text(f"{safe(name)}: {what} …"))


def _console(stream: TextIO) -> Console:
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    width = None if stream.isatty() or os.environ.get("COLUMNS", "").isdigit() else PIPED
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
