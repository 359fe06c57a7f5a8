"""Functions of the program that code which isn't known was given (a hook of a network that nobody sees, a callback):
it may call them whenever it runs, and what they set is not known then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradfix.read.frames import Machine
from gradfix.read.values import Bound, Function, Instance, Unknown, Value

MOST = 32  # functions that are kept in mind
GROWS = {"append", "appendleft", "extend", "insert", "update", "setdefault", "add", "copy_", "__setitem__"}


def lend(m: Machine, value: Function | Bound) -> None:
    """Unknown code gets `value`."""
    if len(m.lent) < MOST and value not in m.lent:
        m.lent.append(value)


def run(m: Machine) -> None:
    """Unknown code runs, and what it was lent."""
    for value in m.lent:
        for names, name in _set(value):
            if not isinstance(names.get(name), Unknown):
                names[name] = m.unknown("set by what was lent")


def _set(value: Function | Bound) -> Iterator[tuple[dict[str, Value], str]]:
    """The names and attributes from outside that a call may set."""
    function = value.function if isinstance(value, Bound) else value
    if not isinstance(function, Function):
        return
    arguments = function.node.args
    own = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    here: dict[str, Value] = {own[0]: value.receiver} if own and isinstance(value, Bound) else {}
    for target in _targets(function.node):
        if isinstance(target, ast.Name):
            names = {} if target.id in own else _around(function, target.id)
            if target.id in names:
                yield names, target.id
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
            names = here if target.value.id in own else _around(function, target.value.id)
            owner = names.get(target.value.id)
            if isinstance(owner, Instance):
                yield owner.attrs, target.attr


def _targets(function: ast.AST) -> Iterator[ast.expr]:
    """What is set in it: attributes, names that it says are another's, and what items are put into."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in GROWS:
            yield node.func.value
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield from (ast.Name(name, ast.Load()) for name in node.names)


def _around(function: Function, name: str) -> dict[str, Value]:
    """The names among which it is, seen from within."""
    scope = function.scope
    while scope is not None and name not in scope.names:
        scope = scope.parent
    return scope.names if scope is not None else function.unit.names
