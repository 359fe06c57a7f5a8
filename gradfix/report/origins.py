"""Where a place of a text that a cure has changed stands in the text as it was.

Texts are compared statement by statement (a line may hold several): a cure moves them, and writes into them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from gradfix.dataclass import dataclass
from gradfix.source import split_lines

ALIKE = 0.75  # of the words of two statements that are one, written anew; of two that begin alike (`loss =`):
ALIKE_FROM_THE_START = 0.4
_TOKEN = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\#.*|\w+|\S""")
_Span = tuple[int, int]  # columns


@dataclass(frozen=True, slots=True)
class Origin:
    """A place in the old text. `put`: the statement has none there, and a cure put it behind this one."""

    line: int
    column: int
    end_line: int
    end_column: int
    put: str = ""


@dataclass(frozen=True, slots=True)
class _Statement:
    """What stands in one line up to a semicolon. `line` counts from 1, columns from 0."""

    line: int
    text: str
    words: tuple[str, ...]
    spans: tuple[_Span, ...]

    @property
    def column(self) -> int:
        return self.spans[0][0]

    @property
    def end(self) -> int:
        return self.spans[-1][1]


class Origins:
    """The old places of the new text's."""

    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = list(_statements(old)), list(_statements(new))
        self.starts = [(s.line, s.column) for s in self.new]
        self.ends = [(s.line, s.end) for s in self.new]
        self.came: dict[int, int] = {}  # statements by their numbers: new -> old
        gone: list[int] = []
        put: list[int] = []
        words = [s.words for s in self.old], [s.words for s in self.new]
        for tag, i, end, j, stop in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
            if tag == "equal":
                self.came.update(zip(range(j, stop), range(i, end), strict=True))
            else:
                gone += range(i, end)
                put += range(j, stop)
        self._match(gone, put)

    def _match(self, gone: Iterable[int], put: Sequence[int]) -> None:
        """Statements that were moved or changed, the most alike first."""
        pairs = [(alike, k, n) for n in gone for k in put if (alike := self._alike(n, k))]
        for _, k, n in sorted(pairs, key=lambda p: (-p[0], p[1:])):
            if k not in self.came and n not in self.came.values():
                self.came[k] = n

    def _alike(self, n: int, k: int) -> float:
        old, new = self.old[n].words, self.new[k].words
        share = SequenceMatcher(None, old, new, autojunk=False).ratio()
        return share if share >= (ALIKE_FROM_THE_START if old[:2] == new[:2] else ALIKE) else 0.0

    def of(self, line: int, column: int, end_line: int, end_column: int) -> Origin | None:
        """Where this place was; None where the old text is empty."""
        if not self.old or not self.new:
            return None
        first = min(bisect_right(self.ends, (line, column)), len(self.new) - 1)
        last = max(bisect_left(self.starts, (end_line, end_column)) - 1, first)
        while first < last and first not in self.came and self.new[first].line == self.new[first + 1].line:
            first += 1  # of a line of several statements, that which was there
            column = self.new[first].column
        if first not in self.came:
            known = max((k for k in self.came if k < first), default=None)
            behind = self.old[self.came[known]] if known is not None else self.old[0]
            return Origin(behind.line, behind.column, behind.line, behind.end, self.new[first].text)
        old = self.old[self.came[first]]
        if first == last:
            start, end = _columns(old, self.new[first], column, end_column)
            return Origin(old.line, start, old.line, end)
        start, _ = _columns(old, self.new[first], column, self.new[first].end)
        upto = self.old[self.came.get(last, self.came[first])]
        if upto.line < old.line:  # its lines went different ways
            return Origin(old.line, start, old.line, old.end)
        _, end = _columns(upto, self.new[last], self.new[last].column, end_column)
        return Origin(old.line, start, upto.line, max(end, start + 1) if upto.line == old.line else end)


@lru_cache(maxsize=64)
def origins(old: str, new: str) -> Origins:
    """The places of `new` in `old`."""
    return Origins(old, new)


def _statements(text: str) -> Iterable[_Statement]:
    for number, line in enumerate(split_lines(text), 1):
        found = [(m[0], m.span()) for m in _TOKEN.finditer(line)]
        while found:
            end = next((n for n, (word, _) in enumerate(found) if word == ";"), len(found))
            if end:
                words, spans = zip(*found[:end], strict=True)
                yield _Statement(number, line[spans[0][0] : spans[-1][1]], words, spans)
            found = found[end + 1 :]


def _columns(old: _Statement, new: _Statement, column: int, end_column: int) -> _Span:
    """The part of `old` that what stands in these columns of `new` came of; all of it where that is nothing."""
    inside = [n for n, (a, b) in enumerate(new.spans) if a < end_column and b > column]
    if not inside:
        return old.column, old.end
    to: dict[int, int] = {}
    for block in SequenceMatcher(None, old.words, new.words, autojunk=False).get_matching_blocks():
        to.update((block.b + n, block.a + n) for n in range(block.size))
    first = to.get(inside[0], 1 + max((m for n, m in to.items() if n < inside[0]), default=-1))
    last = to.get(inside[-1], min((m for n, m in to.items() if n > inside[-1]), default=len(old.words)) - 1)
    while first < last and old.words[last] in ")]}" and not _closes(old.words[first : last + 1]):
        last -= 1  # one bracket is like another
    return (old.spans[first][0], old.spans[last][1]) if first <= last else (old.column, old.end)


def _closes(words: Sequence[str]) -> bool:
    """Whether no bracket is closed that was not opened."""
    opened = 0
    for word in words:
        opened += (word in "([{") - (word in ")]}")
        if opened < 0:
            return False
    return True
