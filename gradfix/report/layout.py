"""What every drawing needs: glyphs, the width of characters on a terminal, and folding text to a width."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from gradfix.dataclass import dataclass

TAB = 4


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that frame a snippet. Every member is one cell wide, except `corner` and `tee`."""

    bar: str
    corner: str
    tee: str
    gap: str
    primary: str
    secondary: str
    more: str
    opening: str
    side: str
    closing: str
    hook: str
    back: str


BOXES = Glyphs("│", "┌─", "├─", "┆", "━", "─", "…", "╭", "│", "╰", "╰", "╯")
ASCII = Glyphs("|", "-->", ":::", ":", "^", "-", "~", "/", "|", "\\", "`", "'")
_PLAIN = str.maketrans({"×": "x", "…": "...", "“": '"', "”": '"', "’": "'", "–": "-", "—": "-", "→": "->"})


def glyphs_for(encoding: str) -> Glyphs:
    """Box drawing where the output's encoding has it, else ASCII."""
    try:
        "".join(BOXES.corner + BOXES.gap + BOXES.primary + BOXES.opening).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BOXES


def wording(text: str, glyphs: Glyphs) -> str:
    """`text` in characters that go with `glyphs`, safe to print."""
    return safe(text.translate(_PLAIN) if glyphs is ASCII else text)


def safe(text: str) -> str:
    """`text` without what could steer a terminal or reorder a line: control characters, bidirectional
    overrides and lone surrogates become U+FFFD. One code point stays one code point."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if _steers(c) else c for c in text)


def command(words: Iterable[str]) -> str:
    """`words` as a line for a shell that a terminal may show: where one could steer it, in the shell's escapes."""
    return " ".join(shlex.quote(word) if safe(word) == word else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    plain = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}
    return "".join(
        plain.get(c) or ("".join(f"\\x{b:02x}" for b in os.fsencode(c)) if _steers(c) else c) for c in word
    )


@lru_cache(maxsize=4096)
def _steers(character: str) -> bool:
    if character in "\t\u200d\u200c":
        return False
    if unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}:
        return True
    return character in "\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@dataclass(frozen=True, slots=True)
class Row:
    """A source line as a terminal shows it: `cells` are (text, width) of its graphemes, tabs expanded;
    `offsets` the terminal column where each code point of the line starts, with one more for the end."""

    cells: tuple[tuple[str, int], ...]
    offsets: tuple[int, ...]

    @property
    def width(self) -> int:
        return self.offsets[-1]

    def column(self, code_point: int) -> int:
        return self.offsets[min(max(code_point, 0), len(self.offsets) - 1)]

    def cut(self, start: int, end: int) -> str:
        """The text between two terminal columns; a wide character across a border becomes blanks."""
        out, at = [], 0
        for text, width in self.cells:
            if at >= end:
                break
            if at >= start and at + width <= end:
                out.append(text)
            elif at + width > start:
                out.append(" " * (min(at + width, end) - max(at, start)))
            at += width
        return "".join(out)


def row(line: str) -> Row:
    """Lay out one source line (no ending)."""
    from rich.cells import split_graphemes

    cells: list[tuple[str, int]] = []
    offsets: list[int] = []
    at = 0
    for piece in re.split(r"(\t)", safe(line)):  # split_graphemes would join a tab to what stands before it
        if piece == "\t":
            width = TAB - at % TAB
            cells.append((" " * width, width))
            offsets.append(at)
            at += width
            continue
        plain = piece.isascii()
        spans = [(i, i + 1, 1) for i in range(len(piece))] if plain else split_graphemes(piece)[0]
        for start, end, width in spans:
            cells.append((piece[start:end], width))
            offsets += [at] * (end - start)
            at += width
    return Row(tuple(cells), (*offsets, at))


def fold(text: str, width: int, first: int | None = None) -> list[str]:
    """`text` in lines of at most `width` cells (the first of at most `first`), broken at blanks; a word
    that is wider is broken anywhere. The first line is empty where nothing fits into `first`."""
    from rich.cells import cell_len

    width = max(width, 8)
    room = width if first is None else first
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= room:
                line = joined
                continue
            if line or room < width:
                lines.append(line)
                room = width
            while cell_len(word) > width:
                head = row(word).cut(0, width).rstrip() or word[:1]
                lines.append(head)
                word = word[len(head) :]
            line = word
        lines.append(line)
        room = width
    return lines
