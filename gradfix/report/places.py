"""Where things are, as the person knows it: paths as they gave them, and lines of the file as it is on disk.

A fault that shows only after another was cured has its lines in the text of that round; they are led back
here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.dataclass import dataclass
from gradfix.detect import describe
from gradfix.notebook import locate
from gradfix.source import split_lines
from gradfix.tape import Site

if TYPE_CHECKING:
    from gradfix.detect import Label
    from gradfix.report.origins import Origin
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
    line, end_line = site.line, max(site.end_line, site.line)
    whole = not site.end_line or (not site.column and not site.end_column)
    came = _origin(site, diagnosis, result)
    if came is not None:
        if not whole:
            return Place(site.file, came.line, came.column, came.end_line, came.end_column)
        line = end_line = came.line
    if whole:
        lines = split_lines(old) if old is not None else []
        end = len(lines[line - 1].rstrip()) if 0 < line <= len(lines) else 0
        start = len(lines[line - 1]) - len(lines[line - 1].lstrip()) if end else 0
        return Place(site.file, line, start, line, end, True)
    return Place(site.file, line, site.column, end_line, site.end_column)


def _origin(site: Site, diagnosis: Diagnosis, result: Result) -> Origin | None:
    """Where `site` was before any cure; None where no cure has changed the file."""
    old = result.sources.get(site.file)
    new = diagnosis.sources.get(site.file, old)
    if old is None or new is None or old == new:
        return None
    end_line = max(site.end_line, site.line)
    end = site.end_column if site.end_line else len("".join(split_lines(new)[site.line - 1 : site.line]))
    from gradfix.report.origins import origins  # difflib is seldom needed

    return origins(old, new).of(site.line, site.column, end_line, end)


def led_back(text: str, diagnosis: Diagnosis, result: Result) -> str:
    """`text` of the diagnosis with the lines it names ("in line 16") as they are on disk, or in their cell."""

    def on_disk(site: Site) -> str:
        there = place(site, diagnosis, result)
        found = cell(there, result)
        return f"cell {found[0]}, line {found[1]}" if found else f"line {there.line}"

    moved: dict[str, str] = {}
    for label in diagnosis.conflict.labels:
        for site in label.stack:
            moved.setdefault(str(site.line), on_disk(site))
    file = diagnosis.conflict.at.file
    lines = len(split_lines(diagnosis.sources.get(file, "")))

    def now(found: re.Match[str]) -> str:
        number = found[1]
        if number is None:
            return found[0]
        if number not in moved and int(number) <= lines:  # of a place without a label
            moved[number] = on_disk(Site(file, int(number)))
        return moved.get(number, found[0])

    return re.sub(r"`[^`]*`|\bcell \d+, line \d+|\bline (\d+)", now, text)


def labelled(label: Label, diagnosis: Diagnosis, result: Result) -> str:
    """What is said at the place of `label`, and of which statement where an earlier cure has put that there."""
    said = led_back(label.text, diagnosis, result)
    came = _origin(label.at, diagnosis, result)
    return f"{said}, in what a cure puts behind this: `{came.put}`" if came is not None and came.put else said


def message(diagnosis: Diagnosis, result: Result) -> str:
    """The conflict's one sentence in the words of the source."""
    said = describe(diagnosis.conflict, {**result.sources, **diagnosis.sources})
    return led_back(said, diagnosis, result)


def callers(labels: Sequence[Label]) -> list[Site | None]:
    """For every label inside a function, the user's own call that led there: the first frame that the labels do not
    all share; None where that is the label's own place."""
    stacks = [label.stack for label in labels]
    shared = 0
    while all(len(x) > shared + 1 and x[shared] == stacks[0][shared] for x in stacks):
        shared += 1
    return [x[shared] if shared < len(x) - 1 else None for x in stacks]
