"""Where things are, as the person knows it: paths as they gave them, and lines of the file as it is on disk.

A fault that shows only after another was cured has its lines in the text of that round; they are led back
here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.dataclass import dataclass
from gradfix.notebook import locate
from gradfix.source import split_lines
from gradfix.tape import Site
from gradfix.wording import at, quote

if TYPE_CHECKING:
    from gradfix.detect import Conflict, Label
    from gradfix.result import Diagnosis, Result


@dataclass(frozen=True, slots=True)
class Paths:
    """How files are called in reports: as the person gave them, else relative to `cwd` where they are below
    it."""

    cwd: Path
    given: Mapping[str, str] = field(default_factory=dict)  # absolute path -> as given

    @classmethod
    def of(cls, given: Iterable[Path | str], cwd: Path | None = None) -> Paths:
        cwd = cwd or Path.cwd()
        return cls(cwd, {os.path.realpath(cwd / p): str(p) for p in given})

    def show(self, path: str) -> str:
        real = os.path.realpath(self.cwd / path)
        if real in self.given:
            return self.given[real]
        inside = Path(real).is_relative_to(os.path.realpath(self.cwd))
        return os.path.relpath(real, os.path.realpath(self.cwd)) if inside else path


@dataclass(frozen=True, slots=True)
class Place:
    """A span in a file as it is on disk: lines from 1, columns in code points from 0, end exclusive.
    `whole` where only the line is known."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    whole: bool = False


def cell(p: Place, result: Result) -> tuple[int, int] | None:
    """(cell, the line in it where it begins) of a place in a notebook; None elsewhere."""
    text = result.sources.get(p.path) if p.path.endswith(".ipynb") else None
    return locate(text, p.line) if text is not None else None


def shown(p: Place, result: Result, paths: Paths) -> str:
    """``path:line:column`` as reports print it; with ``cell N:`` before the line in a notebook."""
    found = cell(p, result)
    line = f"cell {found[0]}:{found[1]}" if found else str(p.line)
    return f"{paths.show(p.path)}:{line}:{p.column + 1}"


def place(site: Site, diagnosis: Diagnosis, result: Result) -> Place:
    """`site` of one of the diagnosis's labels, in the file as the person has it."""
    old = result.sources.get(site.file)
    new = diagnosis.sources.get(site.file, old)
    line, end_line = site.line, max(site.end_line, site.line)
    whole = not site.end_line or (not site.column and not site.end_column)
    if old is not None and new is not None and old != new:
        came = origins(old, new)
        (line, same), (end_line, same_end) = _origin(came, line), _origin(came, end_line)
        whole = whole or not (same and same_end)
    if whole:
        lines = split_lines(old) if old is not None else []
        end = len(lines[line - 1].rstrip()) if 0 < line <= len(lines) else 0
        start = len(lines[line - 1]) - len(lines[line - 1].lstrip()) if end else 0
        return Place(site.file, line, start, line, end, True)
    return Place(site.file, line, site.column, end_line, site.end_column)


def led_back(text: str, diagnosis: Diagnosis, result: Result) -> str:
    """`text` of the diagnosis with the lines it names ("in line 16") as they are on disk."""
    moved: dict[str, str] = {}
    for label in diagnosis.conflict.labels:
        for site in label.stack:
            moved.setdefault(str(site.line), str(place(site, diagnosis, result).line))
    return re.sub(r"`[^`]*`|(?<=\bline )\d+", lambda m: moved.get(m[0], m[0]), text)


def describe(conflict: Conflict, sources: Mapping[str, str]) -> str:
    """`conflict`'s one sentence, with the source text of its places (``optimD.step()``) where `sources`, a
    mapping of file to text, has them; without them, what the tape alone says."""
    sentence = conflict.message
    texts = [quote(label.at, sources) for label in conflict.labels]
    for label, text in zip(conflict.labels, texts, strict=True):
        if not text:
            continue
        words = f"the value of `{text}`" if label.role in ("made", "target") else f"`{text}`"
        lines = {x.at.line for x, t in zip(conflict.labels, texts, strict=True) if t == text and x.stack}
        if len(lines) > 1:  # two losses, both `loss.backward()`
            words += f" in line {label.at.line}"
        sentence = words.join(re.split(re.escape(at(label.role, label.stack)) + r"(?!\d)", sentence))
    return sentence


def message(diagnosis: Diagnosis, result: Result) -> str:
    """The conflict's one sentence in the words of the source."""
    said = describe(diagnosis.conflict, {**result.sources, **diagnosis.sources})
    return led_back(said, diagnosis, result)


@lru_cache(maxsize=64)
def origins(old: str, new: str) -> tuple[tuple[int, bool], ...]:
    """For every line of `new`, the line of `old` (from 1) it comes from, and whether it is the same text."""
    from difflib import SequenceMatcher

    a, b = split_lines(old), split_lines(new)
    out: list[tuple[int, bool]] = []
    for tag, i, end, j, stop in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for k in range(stop - j):
            nearest = min(i + k, end - 1) if end > i else max(i - 1, 0)
            out.append((nearest + 1, tag == "equal"))
    return tuple(out)


def _origin(came: tuple[tuple[int, bool], ...], line: int) -> tuple[int, bool]:
    return came[min(max(line, 1), len(came)) - 1] if came else (line, False)


def callers(labels: Sequence[Label]) -> list[Site | None]:
    """For every label inside a function, the user's own call that led there: the first frame that the labels do not
    all share; None where that is the label's own place."""
    stacks = [label.stack for label in labels]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == stacks[0][shared] for x in stacks):
        shared += 1
    return [x[shared] if shared < len(x) - 1 else None for x in stacks]
