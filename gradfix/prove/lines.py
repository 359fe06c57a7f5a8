"""Which line of the program before a line after a rewrite was."""

from __future__ import annotations

import tokenize
from collections.abc import Mapping
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


def on_disk(path: str) -> str | None:
    """The text of a file, or None where it can't be read."""
    try:
        with tokenize.open(path) as stream:
            return stream.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
