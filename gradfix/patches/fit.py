"""Where a hunk may belong in a text, and how well it fits there.

The lines that are replaced must be there, but for names, comments and indentation; the lines around them may have
changed. How much is left of those is what diff-match-patch says.
"""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from itertools import pairwise

from diff_match_patch import diff_match_patch

from gradfix.patches.lines import Line, Names, lexed, renames
from gradfix.patches.values import Hunk

SLACK = 4  # lines that may have come in between the lines around a place
LONGEST = 8_000  # characters of changed lines that are compared one by one
Pairs = Iterable[tuple[str, str]]  # lines of the hunk, and what they are here
LIKE = 0.5  # from here on a changed line counts, as much as is left of it


@dataclass(frozen=True, slots=True)
class Touched:
    """The lines of a hunk that must be there, `old` and as many before (`lead`) and after it as give it a hold: what
    goes in between two lines needs both."""

    lines: tuple[str, ...]
    lead: int
    trail: int

    @classmethod
    def of(cls, hunk: Hunk, old: tuple[str, ...] | None = None) -> Touched:
        """`old` in place of the hunk's own."""
        middle = hunk.old if old is None else old
        if any(lexed(x).kind == "code" for x in middle):
            return cls(middle, 0, 0)
        before, after = _to_code(hunk.before[::-1])[::-1], _to_code(hunk.after)
        return cls((*before, *middle, *after), len(before), len(after))


def _to_code(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The first of `lines`, up to and with one that is code."""
    for n, text in enumerate(lines, 1):
        if lexed(text).kind == "code":
            return lines[:n]
    return lines


@dataclass(frozen=True, slots=True)
class Place:
    """Lines `start` to `end` (from 0, the end exclusive) of a text, in which the lines that a hunk replaces are
    `names`; `score` is how much of what stood around them still does, from 0 to 1."""

    start: int
    end: int
    names: Names = field(compare=False)
    score: float
    pairs: tuple[tuple[str, str], ...] = field(
        default=(), compare=False
    )  # lines of code that were found: (old, here)


class Text:
    """A file's lines, for many questions."""

    def __init__(self, text: str) -> None:
        self.lines = self.whole = text.split("\n")

    def number(self, line: int) -> int:
        """The line of the file, from 0, that `line` is: see gradfix.patches.layout."""
        return line

    def left_out(self, start: int, end: int) -> list[tuple[int, tuple[str, ...]]]:
        """What of the file is not among these lines, and where."""
        return []

    def real(self, start: int, end: int, new: Sequence[str]) -> tuple[int, int, tuple[str, ...]]:
        """What is to be put in the place of which lines of the file."""
        return start, end, tuple(new)

    @cached_property
    def code(self) -> list[int]:
        """The numbers of the lines that are code."""
        return [n for n, text in enumerate(self.lines) if lexed(text).kind == "code"]

    @cached_property
    def said(self) -> frozenset[int]:
        """The numbers of the lines that begin within a string: a docstring, code that is put aside."""
        try:
            tree = ast.parse("\n".join(self.lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()
        strings = (x for x in ast.walk(tree) if isinstance(x, ast.JoinedStr | ast.Constant))
        return frozenset(
            n
            for x in strings
            if isinstance(x, ast.JoinedStr) or isinstance(x.value, str | bytes)
            for n in range(x.lineno, x.end_lineno or x.lineno)
        )

    @cached_property
    def unit(self) -> str:
        """What one level is indented by; "" where nothing is, or not everything by the same."""
        code = [lexed(self.lines[n]) for n in self.code]
        steps = {
            line.indent.removeprefix(head.indent)
            for head, line in pairwise(code)
            if head.tokens[-1] == ("fixed", ":") and len(line.indent) > len(head.indent)
        }
        return steps.pop() if len(steps) == 1 else ""

    @cached_property
    def used(self) -> frozenset[str]:
        """Every name in it."""
        return frozenset(name for n in self.code for name in lexed(self.lines[n]).used)

    @cached_property
    def spelled(self) -> dict[int, str]:
        """The lines that are code, as they compare."""
        return {n: lexed(self.lines[n]).spelled({}) for n in self.code}

    def around(self, start: int, end: int, before: int, after: int) -> tuple[list[int], list[int]]:
        """So many lines of code before `start`, and from `end` on."""
        at, to = bisect_left(self.code, start), bisect_left(self.code, end)
        return self.code[max(at - before, 0) : at], self.code[to : to + after]


def places(hunk: Hunk, text: Text, old: tuple[str, ...] | None = None) -> Iterator[Place]:
    """Every place where the lines that `hunk` replaces (or `old`) stand."""
    touched = Touched.of(hunk, old)
    size = len(touched.lines)
    if not any(lexed(x).kind == "code" for x in touched.lines):
        return
    found = set()
    for at in range(len(text.lines) - size + 1):
        if at + touched.lead in text.said:
            continue
        names = renames(touched.lines, text.lines[at : at + size])
        if names is not None:
            start, end = at + touched.lead, at + size - touched.trail
            found.add(at)
            yield _place(hunk, text, start, end, names, zip(touched.lines, text.lines[at:], strict=False))
    if touched.lead and touched.trail and size == touched.lead + touched.trail:
        for above, start, called in _gaps(touched, text):
            if above not in found:
                pairs = zip(
                    (touched.lines[0], touched.lines[-1]), (text.lines[above], text.lines[start]), strict=True
                )
                yield _place(hunk, text, start, start, called, pairs)


def _gaps(touched: Touched, text: Text) -> Iterator[tuple[int, int, Names]]:
    """Where the two lines of code that something goes between stand with other comments and blank lines in between."""
    ends = (touched.lines[0], touched.lines[-1])
    if any(lexed(x).kind != "code" for x in ends):  # an end of the file
        return
    for above, below in pairwise(n for n in text.code if n not in text.said):
        names = renames(ends, (text.lines[above], text.lines[below]))
        between = text.lines[above + 1 : below]
        if names is not None and all(lexed(x).kind in ("comment", "blank") for x in between):
            yield above, below, names


def _place(hunk: Hunk, text: Text, start: int, end: int, names: Names, pairs: Pairs) -> Place:
    every = _throughout(hunk, text, start, end, names)
    known = tuple((old, here) for old, here in pairs if lexed(old).kind == "code")
    return Place(start, end, every, score(hunk, text, start, end, every), known)


def _throughout(hunk: Hunk, text: Text, start: int, end: int, names: Names) -> Names:
    """`names`, and those of the lines around that are called otherwise in all of the text: who renames one variable
    often renames them all. The old name is nowhere any more, and the new one was not among the hunk's."""
    known = dict(names)
    was = {name for x in (*hunk.before, *hunk.old, *hunk.new, *hunk.after) for name in lexed(x).used}
    sides = (hunk.before[::-1], hunk.after)
    for lines, there in zip(sides, _around(hunk, text, start, end), strict=True):
        old = [x for x in lines if lexed(x).kind == "code"]
        here = [text.lines[n] for n in there]
        shapes = [_shape(x) for x in old], [_shape(x) for x in here]
        for block in SequenceMatcher(None, shapes[0], shapes[1], autojunk=False).get_matching_blocks():
            for n in range(block.size):
                found = renames([old[block.a + n]], [here[block.b + n]]) or {}
                fits = all(
                    known.get(a, b) == b
                    and (a == b or a in known or (a[0] != "." and a not in text.used and b not in was))
                    for a, b in found.items()
                )
                more = known | found
                if fits and len(set(more.values())) == len(more):
                    known = more
    return known


def _shape(text: str) -> tuple[str, ...]:
    return tuple(
        "" if kind == "name" else f".{said}" if kind == "attribute" else said
        for kind, said in lexed(text).tokens
    )


def rival(hunk: Hunk, text: Text, own: Place) -> tuple[float, int]:
    """How well the best other place fits between the same lines, and its line (from 0): one where at least one of the
    lines that are replaced stands, or the one right before or after them."""
    marks: list[tuple[str, int, int]] = []  # a line, and how far before it the place begins and after it ends
    size = len(hunk.old)
    for n, line in enumerate(hunk.old):
        marks.append((line, n, size - n))
    for n, line in enumerate(hunk.before[::-1], 1):
        if lexed(line).kind == "code":
            marks.append((line, -n, n + size))
            break
    for n, line in enumerate(hunk.after):
        if lexed(line).kind == "code":
            marks.append((line, n + size, -n))
            break
    found: dict[tuple[int, int], float] = {}
    for line, before, after in marks:
        said = lexed(line).spelled(own.names)
        for at in text.code if said else ():
            if at in text.said:
                continue
            start, end = max(at - before, 0), min(at + after, len(text.lines))
            if abs(start - own.start) <= size + SLACK or (start, end) in found or start > end:
                continue
            if text.spelled[at] == said:
                found[start, end] = score(hunk, text, start, end, own.names)
    best = max(found, key=lambda x: found[x], default=None)
    return (found[best], best[0]) if best is not None else (0.0, 0)


def score(hunk: Hunk, text: Text, start: int, end: int, names: Names) -> float:
    """How much of the lines around the hunk stands around these lines of `text`."""
    before, after = (_code(lines) for lines in (hunk.before, hunk.after))
    if not before and not after:
        return 1.0
    above, below = _around(hunk, text, start, end)
    there = [[text.spelled[n] for n in numbers] for numbers in (above[::-1], below)]
    kept = _kept([x.spelled(names) for x in before], there[0]) + _kept(
        [x.spelled(names) for x in after], there[1]
    )
    return kept / (len(before) + len(after))


def _around(hunk: Hunk, text: Text, start: int, end: int) -> tuple[list[int], list[int]]:
    """The lines of code that may be those around the hunk, away from it."""
    before, after = (sum(lexed(x).kind == "code" for x in some) + SLACK for some in (hunk.before, hunk.after))
    above, below = text.around(start, end, before, after)
    return above[::-1], below


def _code(lines: Sequence[str]) -> list[Line]:
    return [line for line in map(lexed, lines) if line.kind == "code"]


def _kept(old: list[str], now: list[str]) -> float:
    """How many of the lines `old` are among `now`, in order; a changed one counts as far as it is the same."""
    engine = diff_match_patch()
    engine.Diff_Timeout = 0  # the same answer on every machine
    a, b, lines = engine.diff_linesToChars(*("".join(f"{x}\n" for x in some) for some in (old, now)))
    steps = engine.diff_main(a, b, False)
    engine.diff_charsToLines(steps, lines)
    kept, gone = 0.0, ""
    for step, text in steps:
        if step == engine.DIFF_EQUAL:
            kept, gone = kept + text.count("\n"), ""
        elif step == engine.DIFF_DELETE:
            gone = text
        elif gone:
            kept += _alike(engine, gone, text) * min(gone.count("\n"), text.count("\n"))
            gone = ""
    return kept


def _alike(engine: diff_match_patch, old: str, now: str) -> float:
    if max(len(old), len(now)) > LONGEST:  # the time goes with the square
        return 0.0
    distance = engine.diff_levenshtein(engine.diff_main(old, now, False))
    alike = 1 - distance / max(len(old), len(now))
    return alike if alike >= LIKE else 0.0
