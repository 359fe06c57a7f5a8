"""A fix taken back: what a text was before a file's hunks were placed in it, if they were."""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.patches.fit import Text, places
from gradfix.patches.lines import lexed
from gradfix.patches.values import FilePatch, Hunk

Span = tuple[int, int]  # lines, from 0, the end exclusive


def undone(file: FilePatch, text: str) -> tuple[str, bool] | None:
    """The text with the old lines of each hunk where its new ones stand, in the hunks' order, and whether nothing that
    the fix replaces is left elsewhere; None where its new lines are not all there."""
    lines = text.split("\n")
    spans: list[Span] = []
    moved = 0  # by how much the hunk before this one stands elsewhere than it was made
    for hunk in file.hunks:
        grown = sum(len(h.new) - len(h.old) for h in file.hunks[: len(spans)])
        made = hunk.line - 1 + grown
        least = spans[-1][1] if spans else 0
        start = min(_found(hunk, lines, least), key=lambda at: abs(at - made - moved), default=None)
        if start is None:
            return None
        moved = start - made
        spans.append((start, start + len(hunk.new)))
    out, at = [], 0
    for hunk, (start, end) in zip(file.hunks, spans, strict=True):
        out += [*lines[at:start], *hunk.old]
        at = end
    return "\n".join([*out, *lines[at:]]), not _left(file, text, spans)


def _found(hunk: Hunk, lines: list[str], least: int) -> Iterator[int]:
    """Where the new lines of `hunk` stand; such as say nothing, only beside the line that they were put beside."""
    says = any(lexed(x).kind == "code" for x in hunk.new)
    for at in range(least, len(lines) - len(hunk.new) + 1):
        end = at + len(hunk.new)
        if tuple(lines[at:end]) != hunk.new:
            continue
        above = lines[at - 1 : at] == list(hunk.before[-1:]) if at else not hunk.before
        below = lines[end : end + 1] == list(hunk.after[:1])
        if says or (above and below):
            yield at


def _left(file: FilePatch, text: str, spans: list[Span]) -> bool:
    """Whether lines that the fix replaces stand outside of what it made."""
    there = Text(text)
    return any(
        not any(start <= place.start and place.end <= end for start, end in spans)
        for hunk in file.hunks
        if any(lexed(x).kind == "code" for x in hunk.old)
        for place in places(hunk, there)
        if not any(old != now for old, now in place.names.items())
    )
