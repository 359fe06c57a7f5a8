"""Which line of the program before a line after a rewrite was."""

from __future__ import annotations

import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from gradfix.tape import Site, Stack


@dataclass(frozen=True)
class Lines:
    """Which lines of the files before a line after comes from."""

    before: Mapping[str, str]
    after: Mapping[str, str]

    def origin(self, site: Site) -> range:
        """The lines before that became `site`'s line; empty for a line put in."""
        ops = self._changes.get(site.file)
        if ops is None:
            return range(site.line, site.line + 1)
        index = site.line - 1
        for tag, i1, i2, j1, j2 in ops:
            if j1 <= index < j2:
                return (
                    range(i1 + index - j1 + 1, i1 + index - j1 + 2)
                    if tag == "equal"
                    else range(i1 + 1, i2 + 1)
                )
        return range(0)

    def put_in(self) -> list[list[object]]:
        """[file, line] of every line after that was none before."""
        changes = ((path, op) for path, ops in self._changes.items() for op in ops if op[0] != "equal")
        return [[path, line] for path, (_, _, _, j1, j2) in changes for line in range(j1 + 1, j2 + 1)]

    def texts_before(self) -> dict[str, str]:
        """The files that changed, as they were."""
        texts = {path: self.before.get(path, on_disk(path)) for path in self.after}
        return {path: text for path, text in texts.items() if text is not None}

    def same(self, after: Site, before: Site) -> bool:
        return after.file == before.file and before.line in self.origin(after)

    def same_place(self, after: Site, before: Site) -> bool:
        """Whether `after` may be what `before` was: on the line that comes from it, and not for certain another part of
        that line. What a rewrite has left as it was, left and right of it, is where it was."""
        if not self.same(after, before):
            return False
        spans = self._spans(after, before)
        return spans is None or (spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1])

    def _spans(self, after: Site, before: Site) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Both as offsets into the text before, of the lines that changed together; None where that is not known."""
        if not after.end_column or not before.end_column:
            return None
        text = self.before.get(after.file) or on_disk(after.file) or ""
        old = text.splitlines(keepends=True)
        new = self.after.get(after.file, text).splitlines(keepends=True)
        ops = self._changes.get(after.file, [("equal", 0, len(old), 0, len(new))])
        i, i2, j, j2 = next((op[1:] for op in ops if op[3] < after.line <= op[4]), (0, 0, 0, 0))
        old, new = old[i:i2], new[j:j2]
        was, now = _span(before, i, old), _span(after, j, new)
        if was is None or now is None:
            return None
        a, b = "".join(old), "".join(new)
        left = _alike(a, b)
        right = _alike(a[left:][::-1], b[left:][::-1])
        if now[1] <= left:
            return now, was
        if now[0] >= len(b) - right:
            moved = len(a) - len(b)
            return (now[0] + moved, now[1] + moved), was
        return None

    def same_stack(self, after: Stack, before: Stack) -> bool:
        """Whether every frame of `after` comes from the frame of `before`."""
        return len(after) == len(before) and all(map(self.same, after, before))

    @cached_property
    def _changes(self) -> dict[str, list[tuple[str, int, int, int, int]]]:
        found: dict[str, list[tuple[str, int, int, int, int]]] = {}
        for path, new in self.after.items():
            old = self.before.get(path, on_disk(path))
            if old is not None and old != new:
                match = SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False)
                found[path] = list(match.get_opcodes())
        return found


def _alike(a: str, b: str) -> int:
    """How many characters both begin with."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _span(site: Site, first: int, lines: Sequence[str]) -> tuple[int, int] | None:
    """Where a place begins and ends in the text of `lines`, the first of which has the index `first` in its file."""
    begin, end = site.line - 1 - first, site.end_line - 1 - first
    if not 0 <= begin <= end < len(lines):
        return None
    return sum(map(len, lines[:begin])) + site.column, sum(map(len, lines[:end])) + site.end_column


def on_disk(path: str) -> str | None:
    """The text of a file, or None where it can't be read."""
    try:
        with tokenize.open(path) as stream:
            return stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
