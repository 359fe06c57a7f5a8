"""What goes to a repository's worker and what comes back: frozen values that are JSON on the way.

Paths inside a repository are relative to its root, with slashes. Texts are those of gradfix.source.Source.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gradfix.patches.values import Fix
from gradfix.run.walls import Sandbox
from gradfix.verdict import Status

T = TypeVar("T")

Kind = Literal["repository", "bare", "folder", "archive"]
Ended = Literal["done", "refused", "failed"]


@dataclass(frozen=True, slots=True)
class Spec:
    """One thing to migrate: what reports call it (unique in a workspace), and its absolute path."""

    name: str
    place: str


@dataclass(frozen=True, slots=True)
class Options:
    """What decides what is found in a repository: with other options it is looked at again."""

    prove: bool = False
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    codemods: tuple[str, ...] = ()
    notes: bool = True
    accept: tuple[Status, ...] = ()
    evidence: Literal["certain", "likely"] = "certain"
    python: str | None = None
    steps: int = 3
    timeout: float = 60.0  # seconds of one run
    seed: int = 0
    sandbox: Sandbox = "strict"
    isolated: bool = False
    entries: int = 8  # scripts of one repository that are run
    seconds: float = 900.0  # for one repository
    memory: int = 6 << 30  # bytes, of all processes that work on one repository
    only: tuple[str, ...] = ()  # fingerprints
    spared: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # codemods that were taken back
    hints: Mapping[str, str] = field(default_factory=dict)  # fingerprint to the codemod that held for a copy

    @property
    def key(self) -> str:
        """The same for options that find the same."""
        same = dataclasses.replace(self, only=(), spared=(), granted=(), without=(), hints={})
        return hashlib.sha256(dumps(same).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Entry:
    """One script that was run. `failure`: what plain PyTorch raised on it; `problem`: why it could not be judged."""

    path: str
    ended: str = ""
    wall: str = ""
    seconds: float = 0.0
    failure: str = ""
    problem: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """One place of a fault: what happened there (a label's role), and to which version of the tensor."""

    role: str
    text: str
    path: str
    line: int
    code: str = ""
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A cure with what was measured of it; `diff` is a unified diff of this cure alone."""

    codemod: str
    summary: str
    effect: str
    words: str
    verdict: Status
    reason: str
    measured: Mapping[str, Any] = field(default_factory=dict)
    diff: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `status` as a Diagnosis has it; `entry` the script whose run showed it, "" where it was read;
    `shown` the report of it, rows of (text, style); `held`: no commit can have its cure (RepoResult.committed)."""

    fingerprint: str
    kind: str
    severity: str
    evidence: str
    path: str
    line: int
    message: str
    status: str
    entry: str = ""
    wall: str = ""
    marks: tuple[Mark, ...] = ()
    cures: tuple[Tried, ...] = ()
    shown: tuple[tuple[tuple[str, str], ...], ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One cure as it is applied, on top of those before it: `texts` are whole new texts by path. Several codemods that
    can't be told apart in the text stand in one step, their names joined by ``+``."""

    codemod: str
    kinds: tuple[str, ...]
    fingerprints: tuple[str, ...]
    summary: str
    effect: str
    verdict: Status
    reason: str
    entry: str
    texts: Mapping[str, str]
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def had(self) -> Had:
        """What is remembered of it where it was applied."""
        return Had(
            self.codemod, self.kinds, self.fingerprints, self.summary, self.verdict, tuple(sorted(self.texts))
        )


@dataclass(frozen=True, slots=True)
class Had:
    """A cure that was applied, as it is remembered when what it was found in is looked at again."""

    codemod: str
    kinds: tuple[str, ...]
    fingerprints: tuple[str, ...]
    summary: str
    verdict: Status
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch that gradfix has made: the `commits` that it may be at (a kill leaves open which: the one before or the
    last), and the cures on it."""

    commits: tuple[str, ...] = ()
    cures: tuple[Had, ...] = ()

    @property
    def codemods(self) -> set[str]:
        """The codemods that did it."""
        return _codemods(self.cures)


@dataclass(frozen=True, slots=True)
class RepoResult:
    """All that one repository came to. `sentence` says why it was refused or failed; `originals` are the texts that the
    steps begin with; `commit` is what was checked out, "" outside git; `dirty` the files read that differ from it,
    `untracked` those that change and are not in it."""

    name: str
    ended: Ended
    sentence: str = ""
    kind: Kind = "folder"
    commit: str = ""
    dirty: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    files: int = 0
    lines: int = 0
    entries: tuple[Entry, ...] = ()
    faults: tuple[Fault, ...] = ()
    originals: Mapping[str, str] = field(default_factory=dict)
    raw: Mapping[str, str] = field(default_factory=dict)  # the same files' bytes, one character each
    steps: tuple[Step, ...] = ()
    fixes: tuple[Fix, ...] = ()  # the same to be carried: see gradfix.patches
    torch: str = ""
    crashes: tuple[str, ...] = ()  # faults of gradfix's own that files have shown
    seconds: float = 0.0

    @property
    def committed(self) -> tuple[Step, ...]:
        """The steps that a commit on top of `commit` can have. Those of one script were measured together, and are left
        out together where one of their files is not in it, as are those that go on from their texts."""
        out: list[Step] = []
        lacks = set(self.untracked)
        for _, some in groupby(self.steps, lambda step: step.entry):
            steps = list(some)
            files = {path for step in steps for path in step.texts}
            if files & lacks:
                lacks |= files
            else:
                out += steps
        return tuple(out)

    @property
    def changes(self) -> dict[str, tuple[str, str]]:
        """Old and new text of every file that changes."""
        new: dict[str, str] = {}
        for step in self.steps:
            new |= step.texts
        return {
            path: (self.originals[path], text) for path, text in new.items() if text != self.originals[path]
        }


@dataclass(frozen=True, slots=True)
class Written:
    """What gradfix has written into a working tree and not taken back, whatever was looked at since: old and new text
    by path, the cures that did it, and the codemods of them (`back`) that it is to be taken back for."""

    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    cures: tuple[Had, ...] = ()
    back: tuple[str, ...] = ()

    @property
    def codemods(self) -> set[str]:
        """The codemods that did it."""
        return _codemods(self.cures)

    def then(self, result: RepoResult) -> Written:
        """This, and what a result's changes add to it."""
        changes = dict(self.changes)
        for path, (old, new) in result.changes.items():
            first, last = changes.get(path, (old, old))
            # (last == new: noted before a kill, and now again)
            changes[path] = (first if last in (old, new) else old, new)
        cures = tuple(dict.fromkeys([*self.cures, *(step.had for step in result.steps)]))
        return dataclasses.replace(self, changes=changes, cures=cures)


def _codemods(cures: Iterable[Had]) -> set[str]:
    return {name for cure in cures for name in cure.codemod.split("+")}


def dumps(value: Any) -> str:
    """One of the values above as JSON: ASCII, since a path may hold bytes that are no text anywhere else."""
    return json.dumps(dataclasses.asdict(value), sort_keys=True, allow_nan=False)


def loads(kind: type[T], text: str) -> T:
    """The value back. Raises ValueError where `text` is none."""
    try:
        return cast(T, _value(kind, json.loads(text)))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"this is no {kind.__name__}: {problem}") from None


def _value(hint: Any, given: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        unknown = set(given) - set(hints)
        if unknown:
            raise TypeError(f"unknown {', '.join(sorted(unknown))}")
        return cast(type, hint)(**{name: _value(hints[name], item) for name, item in given.items()})
    origin = get_origin(hint)
    if origin is tuple:
        inner = get_args(hint)
        same = len(inner) == 2 and inner[1] is ...
        return tuple(_value(inner[0] if same else inner[i], item) for i, item in enumerate(given))
    if origin in (Union, types.UnionType):  # X | None
        return None if given is None else _value(get_args(hint)[0], given)
    if origin is Mapping:
        return {name: _value(get_args(hint)[1], item) for name, item in given.items()}
    return given
