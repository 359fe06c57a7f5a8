"""What a codemod is: the class it derives from, what it proposes, and how the installed ones are found."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import libcst as cst
from libcst.codemod import CodemodCommand, CodemodContext, SkipFile

from gradfix.detect import Conflict, detect
from gradfix.edit import Edit, Project, targets
from gradfix.packages import CodemodError, outside_here, packages, unique
from gradfix.tape import Tape, relocated
from gradfix.tapefile import read_tape
from gradfix.verdict import NONE, Effect, EffectKind
from gradfix.wording import quoted

__all__ = ["NONE", "Codemod", "CodemodError", "Effect", "EffectKind", "Example", "Proposal", "codemods"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One way to cure one conflict: edits per file, the effect they mean to have, one line of what they do.

    `rank` orders proposals that measured alike: 0 is the field's idiom, larger is less idiomatic. A `last_resort`
    goes behind all others that hold, however well it measures. Of a codemod's proposals with the same `idea` the later
    ones are for where the earlier ones do not hold: one of them is all that a person is shown.
    """

    summary: str
    effect: Effect
    edits: Mapping[str, tuple[Edit, ...]]  # absolute path -> edits of that file
    rank: int = 0
    codemod: str = ""  # filled in by Codemod.cures
    last_resort: bool = False
    idea: str = ""


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
    It is also a libcst command, which applies its first proposal for every conflict of the tape in FILE (-x: a
    module of any package, not one that a .libcst.codemod.yaml lists; --no-format: libcst would otherwise put the
    whole file through black):

        python -m libcst.tool codemod -x --no-format codemods.<file>.<Class> --tape run.tape FILE
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
        """`propose` for conflicts of its kinds, proposals without an edit left out.

        Raises CodemodError for an effect that the class does not declare: the prover would impose what nobody has
        been told of.
        """
        if conflict.kind in cls.kinds:
            for proposal in cls.propose(conflict, project):
                if proposal.effect.kind not in cls.effects:
                    raise CodemodError(
                        f"{cls.__module__}.{cls.__qualname__} proposed {proposal.summary!r} with the effect "
                        f"{proposal.effect.kind!r}; its `effects` declare {', '.join(cls.effects) or 'nothing'}"
                    )
                if any(proposal.edits.values()):
                    effect = replace(proposal.effect, words=quoted(proposal.effect.words))
                    yield replace(
                        proposal, summary=quoted(proposal.summary), effect=effect, codemod=cls.name()
                    )

    # what libcst.tool asks of a command

    def __init__(self, context: CodemodContext, tape: str = "") -> None:
        super().__init__(context)
        self.tape = tape

    @staticmethod
    def add_args(arg_parser: argparse.ArgumentParser) -> None:
        """What ``libcst.tool codemod`` takes beside its own options."""
        arg_parser.add_argument("--tape", required=True, help="what `gradfix record SCRIPT -o FILE` wrote")

    def transform_module_impl(self, tree: cst.Module) -> cst.Module:
        """The file with the first proposal for every conflict in it applied, as far as they touch different
        places.

        Raises TapeError where the tape can't be read, SkipFile where it speaks of no such file or of
        another text.
        """
        path, tape = self._recorded()
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

    def _recorded(self) -> tuple[str, Tape]:
        """The file's path, and the tape as it would be had it been recorded here."""
        if self.context.filename is None:
            raise SkipFile("a tape speaks of files: give a path instead of standard input")
        file = Path(self.context.filename).resolve()
        tape = _moved(read_tape(self.tape), file)
        if str(file) not in tape.sources:
            raise SkipFile(f"{self.tape} does not speak of {file.name}")
        if tape.sources[str(file)] not in ("", sha256(file.read_bytes()).hexdigest()):
            raise SkipFile(f"{file.name} is not the file that {self.tape} was recorded from: record it again")
        return str(file), tape


def _moved(tape: Tape, file: Path) -> Tape:
    """`tape`, with the script where it would be if `file` were recorded under its name here."""
    names = [Path(f) for f in sorted(tape.sources) if Path(f).name == file.name]
    if not names or file in names:
        return tape
    then = max(names, key=lambda name: _common_tail(name.parts, file.parts))
    return relocated(tape, Path(os.path.normpath(file / os.path.relpath(tape.script, then))))


def _common_tail(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    return next((i for i, (x, y) in enumerate(zip(reversed(a), reversed(b), strict=False)) if x != y), len(b))


@cache
def codemods() -> tuple[type[Codemod], ...]:
    """Every installed codemod, by name: the Codemod subclasses of the packages that the entry points name.

    Raises CodemodError where a package, or a file in it, can't be imported, and where two have one name.
    """
    return unique((mod.name(), mod.__module__, mod) for entry in packages() for mod in installed(entry))


def installed(entry: EntryPoint) -> Iterator[type[Codemod]]:
    """The Codemod subclasses of one package. Raises CodemodError where it can't be imported."""
    name = entry.module
    try:
        modules = [outside_here(importlib.import_module, name)]
        for info in pkgutil.walk_packages(getattr(modules[0], "__path__", ()), name + "."):
            name = info.name
            modules.append(importlib.import_module(name))
    except ImportError as problem:
        raise CodemodError(
            f"{name} (entry point {entry.name} of {entry.group}) can't be imported: {problem}"
        ) from problem
    for module in modules:
        for _, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Codemod) and cls.__module__ == module.__name__ and cls.kinds:
                yield cls
