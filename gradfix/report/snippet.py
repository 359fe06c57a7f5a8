"""Source lines with labelled spans under them, drawn for a width.

    10 │ d = D(g)
       │     ──── D.weight (2×2) saved here, version 1
    14 │ optimD.step()
       │ ━━━━━━━━━━━━━ overwritten here, version 2

A span over several lines gets a bracket at the left. Lines too long for the width are cut around their spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradfix.report.layout import Glyphs, Row, fold, row, wording

SHOWN = 6  # lines of a span that are shown; of a longer one its beginning and its end
GUTTER = "bright_blue"


@dataclass(frozen=True, slots=True)
class Span:
    """A labelled stretch of source: lines from 1, columns in code points from 0, end exclusive. `whole`
    where only the line is known: all of it is marked."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str
    style: str
    primary: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class _Mark:
    """What stands under one line: terminal columns and the texts that belong to them."""

    start: int
    end: int
    texts: tuple[str, ...]
    style: str
    primary: bool


@dataclass(frozen=True, slots=True)
class _Bracket:
    """A span over several lines, drawn in `lane` at the left."""

    span: Span
    lane: int


def draw(
    lines: Sequence[str],
    spans: Sequence[Span],
    width: int,
    margin: int,
    glyphs: Glyphs,
    numbers: Callable[[int], str] = str,
) -> Iterator[Text]:
    """The rows of one file's snippet; `margin` is the width of the line numbers, `width` that of the terminal,
    `numbers` how they are written."""
    spans = [s for s in spans if 1 <= s.line <= len(lines)]
    brackets = _brackets(spans, lines)
    lanes = max((b.lane for b in brackets), default=-1) + 1
    pen = _Pen(glyphs, margin, max(width - margin - 3 - 2 * lanes, 20), brackets, lanes, numbers)
    shown = _shown(spans, brackets, len(lines))
    last = None
    for number in shown:
        if last is not None and number > last + 1:
            if number == last + 2:
                yield from pen.line(number - 1, row(lines[number - 2]), [])
            else:
                yield pen.gap(number)
        last = number
        layout = row(lines[number - 1])
        yield from pen.line(number, layout, _marks(number, layout, lines[number - 1], spans, brackets))
        yield from pen.closings(number)


def _brackets(spans: Sequence[Span], lines: Sequence[str]) -> list[_Bracket]:
    """Lanes for the spans over several lines, so that no two that overlap share one."""
    out: list[_Bracket] = []
    for span in sorted((s for s in spans if _last(s, lines) > s.line), key=lambda s: (s.line, -s.end_line)):
        taken = {b.lane for b in out if _last(b.span, lines) >= span.line}
        out.append(_Bracket(span, next(i for i in range(len(out) + 1) if i not in taken)))
    return out


def _last(span: Span, lines: Sequence[str]) -> int:
    return min(max(span.end_line, span.line), len(lines))


def _shown(spans: Sequence[Span], brackets: Sequence[_Bracket], count: int) -> list[int]:
    numbers = {s.line for s in spans}
    for bracket in brackets:
        first, last = bracket.span.line, min(bracket.span.end_line, count)
        if last - first < SHOWN:
            numbers.update(range(first, last + 1))
        else:
            numbers.update((first, first + 1, first + 2, last - 1, last))
    return sorted(numbers)


def _marks(
    number: int, layout: Row, line: str, spans: Sequence[Span], brackets: Sequence[_Bracket]
) -> list[_Mark]:
    """The marks under one line, equal spans joined; from left to right."""
    several = [b.span for b in brackets]
    found: dict[tuple[int, int], _Mark] = {}
    indent = len(line) - len(line.lstrip())
    for span in spans:
        if span.line != number:
            continue
        bracketed = any(span is s for s in several)
        if bracketed and span.column <= indent:
            continue  # the bracket opens where the line does: nothing to point out
        if span.whole:
            start, end = indent, len(line.rstrip())
        else:
            start, end = span.column, len(line.rstrip()) if bracketed else span.end_column
        a, b = layout.column(start), layout.column(end)
        b = max(b, a + 1)
        texts = () if bracketed else (span.text,)
        same = found.get((a, b))
        if same:
            primary = same.primary or span.primary
            found[a, b] = _Mark(a, b, same.texts + texts, span.style if span.primary else same.style, primary)
        else:
            found[a, b] = _Mark(a, b, texts, span.style, span.primary)
    return sorted(found.values(), key=lambda m: (m.start, -m.end))


@dataclass(frozen=True, slots=True)
class _Pen:
    glyphs: Glyphs
    margin: int
    width: int  # of the source text
    brackets: Sequence[_Bracket]
    lanes: int
    numbers: Callable[[int], str]

    def line(self, number: int, layout: Row, marks: list[_Mark]) -> Iterator[Text]:
        """The source line and the marks under it; drawn again for marks too far apart for one line."""
        for low, group in self._windows(layout, marks):
            high = layout.width if low + self.width >= layout.width else low + self.width - 1
            cut = layout.cut(low + (1 if low else 0), high).rstrip()
            text = (self.glyphs.more if low else "") + cut + (self.glyphs.more if high < layout.width else "")
            if text.strip():
                gutter = (f"{self.numbers(number):>{self.margin}} {self.glyphs.bar} ", GUTTER)
                yield Text.assemble(gutter, self._lanes(number), text)
            else:
                yield self._bare(number)
            for layer in _layers(group):
                yield from self._underlines(number, layer, low, high)

    def gap(self, number: int) -> Text:
        """The sign that lines were left out before `number`."""
        sign = (f"{'':>{self.margin}} {self.glyphs.gap} ", GUTTER)
        out = Text.assemble(sign, self._lanes(number, inside=True))
        out.rstrip()
        return out

    def closings(self, number: int) -> Iterator[Text]:
        """The ends of the brackets that close at `number`, with their texts."""
        for bracket in self.brackets:
            if bracket.span.end_line != number:
                continue
            heavy = self.glyphs.primary if bracket.span.primary else self.glyphs.secondary
            reach = 2 * (self.lanes - bracket.lane) - 1
            texts = fold(wording(bracket.span.text, self.glyphs), self.width - 2)
            for i, text in enumerate(texts):
                lanes = self._lanes(number, inside=True, until=bracket.lane, after=bracket)
                hook = self.glyphs.closing + heavy * (reach + 1) + " " if i == 0 else " " * (reach + 3)
                yield Text.assemble(self._blank(), lanes, (hook + text, bracket.span.style))

    def _windows(self, layout: Row, marks: list[_Mark]) -> Iterator[tuple[int, list[_Mark]]]:
        """Where to cut a line that is too long, and which marks that window shows."""
        if layout.width <= self.width or not marks:
            yield 0, marks
            return
        room = self.width - 2
        groups: list[list[_Mark]] = []
        for mark in marks:
            if groups and mark.end - groups[-1][0].start <= room:
                groups[-1].append(mark)
            else:
                groups.append([mark])
        for group in groups:
            start, end = group[0].start, max(m.end for m in group)
            spare = max(room - (end - start), 0)
            low = max(min(start - spare // 2, layout.width - self.width), 0)
            yield (0 if end < self.width else low), group

    def _underlines(self, number: int, layer: list[_Mark], low: int, high: int) -> Iterator[Text]:
        """One row of underlines, the rightmost with its text, and the other texts hung below their own."""
        under = Text()
        for mark in layer:
            a, b = max(mark.start - low, 0), min(mark.end, high) - low
            under.append(" " * (a - cell_len(under.plain)))
            stroke = self.glyphs.primary if mark.primary else self.glyphs.secondary
            under.append(stroke * max(b - a, 1), mark.style)
        hung = list(layer)
        texts = [wording(t, self.glyphs) for t in layer[-1].texts]
        at = cell_len(under.plain) + 1
        beside = all(at + cell_len(t) <= self.width for t in texts)
        if beside:
            hung.pop()
            if texts:
                under.append(f" {texts[0]}", layer[-1].style)
        yield Text.assemble(self._blank(), self._lanes(number, inside=True), under)
        if beside:
            for text in texts[1:]:
                stems = self._stems(hung, low, at)
                yield Text.assemble(self._blank(), self._lanes(number, True), stems, (text, layer[-1].style))
        while hung:
            mark = hung.pop()
            column = mark.start - low
            yield from self._hang(number, mark, column, [m for m in hung if m.start - low < column], low)

    def _hang(self, number: int, mark: _Mark, column: int, left: list[_Mark], low: int) -> Iterator[Text]:
        """The texts of a mark below it: to its right, or to its left where there is more room."""
        room = self.width - column - 2
        leftwards = room < 30 and column > room
        texts = [wording(t, self.glyphs) for t in mark.texts]
        lines = [x for t in texts for x in fold(t, column - 1 if leftwards else room)]
        for i, line in enumerate(lines):
            at = column - 1 - cell_len(line) if leftwards else column
            hook = self.glyphs.hook if i == 0 else " "
            stems = self._stems([m for m in left if m.start - low < at], low, at)
            text = f"{line} {self.glyphs.back if i == 0 else ''}".rstrip() if leftwards else f"{hook} {line}"
            yield Text.assemble(self._blank(), self._lanes(number, True), stems, (text, mark.style))

    def _stems(self, marks: list[_Mark], low: int, until: int) -> Text:
        out = Text()
        for mark in marks:
            out.append(" " * (max(mark.start - low, 0) - len(out.plain)))
            out.append(self.glyphs.side, mark.style)
        out.append(" " * (until - len(out.plain)))
        return out

    def _blank(self) -> tuple[str, str]:
        return f"{'':>{self.margin}} {self.glyphs.bar} ", GUTTER

    def _bare(self, number: int) -> Text:
        lanes = self._lanes(number)
        lanes.rstrip()
        return Text.assemble(
            (f"{self.numbers(number):>{self.margin}} {self.glyphs.bar}", GUTTER), " " if lanes else "", lanes
        )

    def _lanes(
        self, number: int, inside: bool = False, until: int | None = None, after: _Bracket | None = None
    ) -> Text:
        """The brackets beside a row of line `number`. `inside`: the row stands below that line's text."""
        out = Text()
        for lane in range(self.lanes if until is None else until):
            here = [b for b in self.brackets if b.lane == lane and b.span.line <= number <= b.span.end_line]
            if after is not None:  # closing rows: those that close above this one are gone
                order = list(self.brackets)
                here = [b for b in here if b.span.end_line > number or order.index(b) > order.index(after)]
            if not here:
                out.append("  ")
                continue
            opens = here[0].span.line == number and not inside
            out.append(f"{self.glyphs.opening if opens else self.glyphs.side} ", here[0].span.style)
        return out


def _layers(marks: list[_Mark]) -> Iterator[list[_Mark]]:
    """Marks in rows without overlaps."""
    rest = marks
    while rest:
        layer: list[_Mark] = []
        later: list[_Mark] = []
        for mark in rest:
            (later if layer and mark.start < layer[-1].end else layer).append(mark)
        yield layer
        rest = later
