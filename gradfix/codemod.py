"""What a codemod is: the class it derives from, what it proposes, and how the installed ones are found."""

from __future__ import annotations

import argparse
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext

from gradfix.detect import Conflict, detect
from gradfix.edit import Edit, Project, targets
from gradfix.registry import outside_here, packages
from gradfix.tape import Tape, read_tape
from gradfix.verdict import NONE, Effect, EffectKind

__all__ = ["NONE", "Codemod", "Effect", "EffectKind", "Example", "Proposal", "codemods"]


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
    """A runnable before and after in a codemod's class; gradfix.testing runs both and proves the step
    between."""

    before: str
    after: str
    effect: EffectKind = "none"


class Codemod(CodemodCommand):
    """Base of every cure. A subclass names the `kinds` it answers, and yields Proposals from `propose`.

    The docstring has fixed sections, shown by ``gradfix explain``: one line; a paragraph *Why*; *When not*.
    It is also a libcst command: ``python -m libcst.tool codemod -x codemods.<file>.<Class> --tape run.tape
    FILE`` applies its first proposal for every conflict of the tape in FILE.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    effects: ClassVar[tuple[EffectKind, ...]] = ("none",)
    examples: ClassVar[tuple[Example, ...]] = ()

    DESCRIPTION: str = ""

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
        """`propose` for conflicts of its kinds, proposals without an edit left out."""
        if conflict.kind in cls.kinds:
            for proposal in cls.propose(conflict, project):
                if any(proposal.edits.values()):
                    yield replace(proposal, codemod=cls.name())

    # what libcst.tool asks of a command

    def __init__(self, context: CodemodContext, tape: str = "") -> None:
        super().__init__(context)
        self.tape = tape

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        arg_parser.add_argument("--tape", required=True, help="what `gradfix record SCRIPT -o FILE` wrote")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The file with the first proposal for every conflict in it applied, as far as they touch different
        places.

        Raises tape.TapeError where the tape can't be read.
        """
        tape = read_tape(self.tape)
        path = _recorded_path(self.context.filename or "", tape)
        project = Project(tape, {path: tree.code})
        edits: list[Edit] = []
        touched: set[int] = set()
        for conflict in detect(tape):
            for proposal in self.cures(conflict, project):
                new = proposal.edits.get(path, ())
                nodes = {id(node) for edit in new for node in targets(edit)}
                if new and not nodes & touched:
                    edits += new
                    touched |= nodes
                    break
                if nodes & touched:
                    break  # cured together with an earlier conflict, or only after another look
        view = project.view(path)
        return cst.parse_module(view.apply(edits), tree.config_for_parsing) if view and edits else tree


def _recorded_path(filename: str, tape: Tape) -> str:
    """The name under which the tape knows `filename`: its own, else the one that ends alike (recorded
    elsewhere)."""
    here = str(Path(filename).resolve())
    known = {site.file for event in tape.events for site in event.stack}
    if here in known:
        return here
    parts = Path(here).parts
    alike = [f for f in sorted(known) if Path(f).name == parts[-1]]
    return max(alike, key=lambda f: _common_tail(Path(f).parts, parts), default=here)


def _common_tail(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), len(b))


@cache
def codemods() -> tuple[type[Codemod], ...]:
    """Every installed codemod, by name: the Codemod subclasses of the packages that the entry points name.

    Raises ImportError where a package, or a file in it, can't be imported.
    """
    found: dict[str, type[Codemod]] = {}
    for entry in packages():
        for mod in installed(entry):
            found.setdefault(mod.name(), mod)
    return tuple(found[name] for name in sorted(found))


def installed(entry: EntryPoint) -> Iterator[type[Codemod]]:
    """The Codemod subclasses of one package. Raises ImportError."""
    package = outside_here(importlib.import_module, entry.module)
    for info in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        module = importlib.import_module(info.name)
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Codemod) and cls.__module__ == module.__name__ and cls.kinds:
                yield cls
