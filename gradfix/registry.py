"""The installed codemods as their files tell of them: read, not imported, since libcst takes its time to load."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.packages import outside_here, packages, unique

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class About:
    """What a codemod's class says of itself; `examples` are (before, after)."""

    name: str
    kinds: tuple[str, ...]
    effects: tuple[str, ...]
    description: str
    examples: tuple[tuple[str, str], ...] = ()

    @property
    def summary(self) -> str:
        """The first paragraph of the description, in one line."""
        return " ".join(self.description.split("\n\n")[0].split())


@cache
def catalogue() -> tuple[About, ...]:
    """Every installed codemod, by name; the same that gradfix.codemod.codemods() imports."""
    return unique((about.name, entry.module, about) for entry in packages() for about in _abouts(entry))


class _Computed(Exception):
    """A class attribute that is not written as a literal."""


def _abouts(entry: EntryPoint) -> list[About]:
    try:
        return list(_read(entry))
    except (_Computed, SyntaxError):  # facts that only Python can work out
        return list(_imported(entry))


def _read(entry: EntryPoint) -> Iterator[About]:
    spec = outside_here(find_spec, entry.module)
    if spec is None or not spec.submodule_search_locations:
        raise _Computed
    for folder in spec.submodule_search_locations:
        for root, _, names in sorted(os.walk(folder)):
            for name in sorted(names):
                if name.endswith(".py"):
                    yield from _file(Path(root, name))


def _file(path: Path) -> Iterator[About]:
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.ClassDef):
            kinds = _attribute(node, "kinds")
            if kinds is not None:
                description = ast.get_docstring(node) or ""
                effects = _attribute(node, "effects")
                yield About(
                    path.stem.replace("_", "-"),
                    _strings(kinds),
                    _strings(effects) if effects is not None else ("none",),
                    description,
                    tuple(_examples(_attribute(node, "examples"))),
                )


def _attribute(node: ast.ClassDef, name: str) -> ast.expr | None:
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return statement.value
    return None


def _strings(node: ast.expr) -> tuple[str, ...]:
    value = _literal(node)
    if not isinstance(value, tuple | list) or not all(isinstance(x, str) for x in value):
        raise _Computed
    return tuple(value)


def _examples(node: ast.expr | None) -> Iterator[tuple[str, str]]:
    if node is None:
        return
    if not isinstance(node, ast.Tuple | ast.List):
        raise _Computed
    for call in node.elts:
        if not isinstance(call, ast.Call):
            raise _Computed
        given = dict(zip(("before", "after"), call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg}
        if not {"before", "after"} <= given.keys():
            raise _Computed
        yield str(_literal(given["before"])), str(_literal(given["after"]))


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _Computed from None


def _imported(entry: EntryPoint) -> Iterator[About]:
    from gradfix.codemod import installed

    for mod in installed(entry):
        examples = tuple((e.before, e.after) for e in mod.examples)
        yield About(mod.name(), mod.kinds, mod.effects, inspect.getdoc(mod) or "", examples)
