"""What calling something may change, where the file itself says so: attributes, names of the module's, arguments."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from gradfix.patches.uses import PARAMETER, Function, Statement, parts

ARGUMENT = "an argument"
FORWARD = ("forward", "__call__")  # what an object runs that is called itself
Effects = Mapping[str, frozenset[str]]


def effects(functions: Iterable[Function]) -> Effects:
    """By the name of a function or method, what a call of it may bind or overwrite outside of it: names, attributes
    (whosever) with a dot before, and `ARGUMENT`. What it calls counts as well."""
    named: dict[str, list[Function]] = {}
    for f in functions:
        if isinstance(f.scope, ast.FunctionDef | ast.AsyncFunctionDef) and f.scope.name != "__init__":
            named.setdefault(f.scope.name, []).append(f)
    found = {name: frozenset().union(*map(_own, some)) for name, some in named.items()}
    called = {name: {c for f in some for s in f.statements for c in calls(s)} for name, some in named.items()}
    while True:
        further = {
            name: known.union(*(of_call(found, c) - {ARGUMENT} for c in called[name]))
            for name, known in found.items()
        }
        if further == found:
            return found
        found = further


def calls(statement: Statement) -> set[str]:
    """The names of what a statement calls, by their last part."""
    nodes = (node for part in parts(statement.node) for node in ast.walk(part))
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = {f.id for f in called if isinstance(f, ast.Name)}
    return names | {f.attr for f in called if isinstance(f, ast.Attribute)}


def of_call(known: Effects, name: str) -> frozenset[str]:
    """What a call of `name` may change. What the file has no function for may be an object of one of its classes."""
    if name in known:
        return known[name]
    return frozenset().union(*(known.get(forward, frozenset()) for forward in FORWARD))


def _own(function: Function) -> frozenset[str]:
    out = set()
    for s in function.statements:
        for name in s.binds | s.writes:
            if name.startswith(".") or name not in function.local:
                out.add(name)
            elif name in s.writes and PARAMETER in s.reads.get(name, ()):
                out.add(ARGUMENT)
    return frozenset(out)
