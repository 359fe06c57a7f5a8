"""Unified diffs that patch and git apply can read."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from gradfix.report.places import Paths


def unified(files: Mapping[str, tuple[str, str]], paths: Paths) -> Iterator[str]:
    """The lines of a unified diff of (old, new) texts by path, without their line ends."""
    for path, (old, new) in sorted(files.items()):
        name = paths.show(path).lstrip("/")
        before, after = old.split("\n"), new.split("\n")
        # a text that ends in a newline has an empty last element; one that doesn't gets the sign git gives it
        sign = ("\\ No newline at end of file",)
        lines = difflib.unified_diff(_ended(before), _ended(after), f"a/{name}", f"b/{name}", lineterm="")
        for line in lines:
            if line.endswith("\0"):
                yield line[:-1]
                yield from sign
            else:
                yield line


def _ended(lines: list[str]) -> list[str]:
    """Lines of a text; the last one, where no newline ends it, marked with a null so that it differs from
    an ended one."""
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], lines[-1] + "\0"]
