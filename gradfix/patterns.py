"""Patterns of files with the semantics of .gitignore."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


def matches(base: Path, patterns: tuple[str, ...], path: str | Path) -> bool:
    """Whether one of `patterns`, that start at the folder `base`, speaks of the file or of a folder around it."""
    relative = os.path.relpath(path, base)
    return not relative.startswith("..") and spec(patterns).match_file(relative)


@lru_cache(maxsize=256)
def spec(patterns: tuple[str, ...]) -> GitIgnoreSpec:
    """The patterns, compiled."""
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(patterns)
