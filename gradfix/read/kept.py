"""What was read of a file while it is being edited: every way into it, for as long as what it rests on stays.

A way into a program (`gradfix.read.entries`) is kept under the statements at the margin that it can come to, as
objects: `Parts` makes a statement anew where its text is another. Lines above it may come and go; what is said of it
moves along (`Moves`). Files that it asked after, there or not, must be as they were.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from gradfix.read.apart import first
from gradfix.read.parts import Parts
from gradfix.tape import Site, Tape

if TYPE_CHECKING:
    from gradfix.read.entries import Walk

TURNS = 20  # readings for which something is kept that nobody asks for
Spans = tuple[tuple[int, int], ...]  # first and last lines, in order


@dataclass(frozen=True, slots=True)
class Moves:
    """How the lines of the file at `path` have moved since something was said of them."""

    path: str
    then: Spans
    now: Spans

    @property
    def none(self) -> bool:
        return self.then == self.now

    def line(self, line: int) -> int:
        """Where a line of the file is now."""
        for (was, end), (start, _) in zip(self.then, self.now, strict=True):
            if was <= line <= end:
                return line - was + start
        return line

    def site(self, site: Site) -> Site:
        """The place of `site` now, whatever file it is in."""
        line = self.line(site.line) if site.file == self.path else site.line
        if line == site.line:
            return site
        return replace(site, line=line, end_line=site.end_line + line - site.line)


class Judged(Protocol):
    """What is made of a tape."""

    def moved(self, moves: Moves) -> Judged | None:
        """The same where lines have come or gone; None where that can't be told without reading again."""


@dataclass(slots=True)
class _Group:
    walks: tuple[Walk, ...]
    spans: Spans
    used: int

    def moved(self, moves: Moves) -> tuple[Walk, ...] | None:
        if moves.none:
            return self.walks
        said = [walk.said.moved(moves) for walk in self.walks]
        if None in said:
            return None
        return tuple(
            replace(walk, reached=frozenset(map(moves.site, walk.reached)), said=each)
            for walk, each in zip(self.walks, said, strict=True)
        )


@dataclass(slots=True)
class Kept:
    """What is kept of one file, from one reading of it to the next: not the tapes, but what `judge` makes of each."""

    judge: Callable[[Tape, frozenset[int]], Judged]
    parts: Parts = field(default_factory=Parts)
    reading: bool = False  # something new: may be broken off by whatever is raised
    _groups: dict[Hashable, _Group] = field(default_factory=dict)
    _rests: dict[str, object] = field(default_factory=dict)  # files that were asked after, as they were
    _turn: int = 0

    def begin(self, files: Mapping[str, str]) -> None:
        """Another text is about to be read, among `files` over the disk's."""
        self._turn += 1
        if any(_state(file, files) != was for file, was in self._rests.items()):
            self._groups.clear()
            self._rests.clear()

    def end(self, looked: Iterable[str], files: Mapping[str, str]) -> None:
        """It was read, and these files were asked after. What was not needed for a while is forgotten: people undo."""
        self._rests.update((file, _state(file, files)) for file in looked if file not in self._rests)
        self._groups = {key: g for key, g in self._groups.items() if g.used > self._turn - TURNS}

    def of(
        self, name: Hashable, path: str, statements: Sequence[ast.stmt], read: Callable[[], Iterable[Walk]]
    ) -> Iterator[Walk]:
        """What came of `statements` (of the file at `path`) before, or what comes of them now."""
        key = (name, *statements)
        spans = tuple((first(s), s.end_lineno or s.lineno) for s in statements)
        group = self._groups.get(key)
        walks = group.moved(Moves(path, group.spans, spans)) if group is not None else None
        if group is None or walks is None:
            try:
                self.reading = True
                walks = tuple(map(self._judged, read()))
            finally:
                self.reading = False
            group = self._groups[key] = _Group(walks, spans, self._turn)
        group.used = self._turn
        return iter(walks)

    def _judged(self, walk: Walk) -> Walk:
        tape = Tape((), walk.tape.script, sources=walk.tape.sources)
        said = self.judge(walk.tape, walk.likely)
        return replace(walk, tape=tape, likely=frozenset(), unknowns=(), said=said)


def _state(file: str, files: Mapping[str, str]) -> object:
    """What tells whether a file is still the same."""
    if file in files:
        return files[file]
    try:
        about = os.stat(file)
    except (OSError, ValueError):
        return None
    return about.st_mtime_ns, about.st_size
