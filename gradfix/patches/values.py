"""What a patch file holds (docs/patches.md, schema.json)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gradfix.verdict import EffectKind, Status

Bound = Literal["block", "file", "attribute", "free", "new"]


@dataclass(frozen=True, slots=True)
class Hunk:
    """Whole lines of a file's text to replace: `old`, which begin in `line` (from 1; none of them where `new` goes in
    before that line), stood between `before` and `after`.

    `alike` says how well the next best place of that text fits between the same lines, from 0 to 1.
    `names` are those that the lines use, attributes with a dot before: bound in the same ``block`` (a statement of
    the module's), elsewhere in the ``file``, an ``attribute`` that the file sets, ``free`` (the file does not say),
    or ``new``: brought in by the fix. `cell` is the notebook's cell, lines counting in all of its code cells.
    """

    line: int
    before: tuple[str, ...]
    old: tuple[str, ...]
    new: tuple[str, ...]
    after: tuple[str, ...]
    alike: float = 0.0
    names: Mapping[str, Bound] = field(default_factory=dict)
    cell: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """A statement that reads a `name` whose value a fix changes; `how` is what it does with it, `line` its first."""

    name: str
    how: str
    line: str


@dataclass(frozen=True, slots=True)
class Flow:
    """What the lines that a fix changes have to do with the lines around them: `order` has what lies among them and
    uses their names, `origins` which of their names have one value, `readers` who reads the values that they make."""

    order: tuple[str, ...]
    origins: tuple[str, ...]
    readers: tuple[Reader, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """The flow of `names` in a text before a fix, and after it. `escapes` are the functions whose callers get what it
    changes: by what they return, or in what they were given."""

    names: tuple[str, ...]
    before: Flow
    after: Flow
    escapes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FilePatch:
    """The hunks of one file, in its order. `path` has slashes and begins at the patch's root; `sha256` is that of the
    text they were made from, in UTF-8 with ``\\n`` endings (a notebook's: its code cells joined). `flow` is None where
    that text is no Python of the version that made it."""

    path: str
    sha256: str
    hunks: tuple[Hunk, ...]
    flow: Sides | None = None


@dataclass(frozen=True, slots=True)
class Meant:
    """The one change to the training that a cure means to have."""

    kind: EffectKind
    words: str = ""


@dataclass(frozen=True, slots=True)
class Cured:
    """One fault (`kind`, and its sentence) in `line` of `path`, and the cure of it, with what was measured of that
    cure alone."""

    kind: str
    message: str
    path: str
    line: int
    codemod: str
    summary: str
    effect: Meant
    verdict: Status
    reason: str
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fix:
    """What is applied together or not at all, and was measured together: a script's cures, in order.

    `entry` is the script that ran, or was read. `faults` counts the faults that show in the text alone, by kind,
    before and after: what a reader can see of the fix; `reading` how far it came, where that is not the same after:
    ``backward`` passes, paths that ``failed``, and what it did ``not know``, by its words. `gradients` says what
    becomes of the gradients that training uses, each with the number of places that show it. `kinds` are those of the
    values that its lines use: by path, for each statement before and after, for each of its names, in their order (""
    where that is not known). `used` are the files of it that the entry came to. `callers` are those, in the
    entry and in each of the files, of functions of other files that hand on what it changes. `diff` is for people.
    """

    entry: str
    verdict: Status
    reason: str
    measured: Mapping[str, Any]
    cures: tuple[Cured, ...]
    faults: Mapping[str, tuple[int, int]]
    reading: Mapping[str, tuple[int, int]]
    gradients: Mapping[str, int]
    kinds: Mapping[str, tuple[tuple[str, ...], ...]]
    used: tuple[str, ...]
    callers: Mapping[str, tuple[Reader, ...]]
    files: tuple[FilePatch, ...]
    diff: str = ""


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch file. `made` are the versions of gradfix, torch ("" where nothing ran) and python."""

    made: Mapping[str, str]
    fixes: tuple[Fix, ...] = ()
