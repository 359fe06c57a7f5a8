"""Sentences about conflicts, with the names a person knows; with the source text at hand, in the words of the
source.

`detect` is pure and has no source text; reports do, and call :func:`describe`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from gradfix.detect.conflict import Conflict, Label
from gradfix.tape import Ref, Site, Stack

LONGEST = 60  # characters of source quoted inside a sentence

Quote = Callable[[Stack], str]


def describe(conflict: Conflict, sources: Mapping[str, str]) -> str:
    """`conflict`'s one sentence, with the source text of its places (``optimD.step()``) where `sources`, a
    mapping of file to text, has them; without them, what the tape alone says."""
    sentence = conflict.message
    for label in conflict.labels:
        text = quote(label.at, sources)
        if text:
            words = f"the value of `{text}`" if label.role in ("made", "target") else f"`{text}`"
            sentence = words.join(re.split(re.escape(place(label)) + r"(?!\d)", sentence))
    return sentence


def place(label: Label) -> str:
    """How a sentence speaks of a label's place before the source text is known."""
    return at(label.role, label.stack)


def at(role: str, stack: Stack) -> str:
    """The words for what stands at `stack`, where it plays `role`."""
    words = {
        "needed": "the backward",
        "freed": "the backward",
        "step": "the step",
        "zero": "the zero_grad",
        "overwritten": "the write",
        "saved": "the op",
        "made": "the value made",
        "target": "the value made",
        "cut": "the cut",
    }
    return (
        f"{words.get(role, 'the statement')} in line {stack[-1].line}" if stack else "code outside the script"
    )


def quote(site: Site, sources: Mapping[str, str]) -> str:
    """The source text at `site` on one line, or "" where it is unknown or too long to stand in a sentence."""
    text = sources.get(site.file)
    if text is None or not site.line:
        return ""
    lines = text.splitlines()
    last = site.end_line or site.line
    if last > len(lines):
        return ""
    if site.end_column or site.end_line > site.line:
        piece = lines[site.line - 1 : last]
        piece[-1] = piece[-1][: site.end_column]
        piece[0] = piece[0][site.column :]
    else:
        piece = [lines[site.line - 1].split("  #")[0]]
    joined = " ".join(p.strip() for p in piece).strip()
    return joined if joined and len(joined) <= LONGEST and "`" not in joined else ""


def name(ref: Ref | None, otherwise: str = "a tensor") -> str:
    """The tensor's name in backticks, or words for one that has none."""
    return f"`{ref.name}`" if ref is not None and ref.name else otherwise


def shaped(ref: Ref) -> str:
    """A tensor as a label speaks of it: ``D.weight (2×2)``."""
    size = "×".join(map(str, ref.shape)) if ref.shape else ""
    return f"{ref.name or 'tensor'} ({size})" if size else ref.name or "tensor"


def listed(names: list[str], most: int = 3) -> str:
    """``a``, ``b`` and 4 more."""
    if len(names) <= most:
        return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"
    return ", ".join(names[: most - 1]) + f" and {len(names) - most + 1} more"
