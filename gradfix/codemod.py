"""What a codemod is: the class it derives from, what it proposes, and how the installed ones are found."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodCommand

from gradfix.detect import Conflict
from gradfix.edit import Edit, Project
from gradfix.verdict import NONE, Effect, EffectKind

GROUP = "gradfix.codemods"

@dataclass(frozen=True, slots=True)
class Proposal:
    """One way to cure one conflict: edits per file, the effect they mean to have, one line of what they do.

    `rank` orders proposals that measured alike: 0 is the field's idiom, larger is less idiomatic.
    """

    summary: str
    effect: Effect
    edits: Mapping[str, tuple[Edit, ...]]  # absolute path -> edits of that file
    rank: int = 0
    codemod: str = ""  # filled in by Codemod.cures


@dataclass(frozen=True, slots=True)
class Example:
    """A runnable before and after in a codemod's class; gradfix.testing runs both and proves the step between."""

    before: str
    after: str
    effect: EffectKind = "none"


class Codemod(CodemodCommand):
    """Base of every cure. A subclass names the `kinds` it answers, and yields Proposals from `propose`.

    The docstring has fixed sections, shown by ``gradfix explain``: one line; a paragraph *Why*; *When not*.
    It is also a libcst command: ``python -m libcst.tool codemod codemods.<file>.<Class> --tape run.tape FILE`` applies
    its first proposal for every conflict of the tape in FILE.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    effects: ClassVar[tuple[EffectKind, ...]] = ("none",)
    examples: ClassVar[tuple[Example, ...]] = ()

    DESCRIPTION: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.DESCRIPTION = inspect.getdoc(cls) or ""

    @classmethod
    def name(cls) -> str:
        """The codemod's name: its file's, with hyphens."""
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        """The ways this codemod can cure `conflict`; nothing where it does not apply."""
        raise NotImplementedError

    @classmethod
    def cures(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        """`propose` for conflicts of its kinds, proposals that change nothing left out."""
        raise NotImplementedError
