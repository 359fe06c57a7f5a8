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
    function, receiver = (value.function, value.receiver) if isinstance(value, Bound) else (value, None)
    if not isinstance(function, Function) or len(m.lent) >= MOST:
        return
    if not any(f is function and r is receiver for f, r, _ in m.lent):
        targets = _set(function, isinstance(value, Bound))
        if targets:
            m.lent.append((function, receiver, targets))


def run(m: Machine) -> None:
    """Unknown code runs, and what it was lent."""
    for function, receiver, targets in m.lent:
        for owner, name in targets:
            names = _around(function, owner or name)
            if owner:
                own = receiver is not None and owner == _own(function)
                holder = receiver if own else names.get(owner)
                names = holder.attrs if isinstance(holder, Instance) else {}
            if name in names and not isinstance(names[name], Unknown):
                names[name] = m.unknown("set by what was lent")


def _own(function: Function) -> str:
    arguments = function.node.args
    return next((a.arg for a in (*arguments.posonlyargs, *arguments.args)), "")


def _set(function: Function, bound: bool) -> tuple[tuple[str, str], ...]:
    """What a call may set that is not its own: (the name of an object, the attribute), or ("", a name)."""
    arguments = function.node.args
    own = {a.arg for a in (*arguments.posonlyargs, *arguments.args)} - ({_own(function)} if bound else set())
    found: dict[tuple[str, str], None] = {}
    for target in _targets(function.node):
        if isinstance(target, ast.Name) and target.id not in own:
            found["", target.id] = None
        elif (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id not in own
        ):
            found[target.value.id, target.attr] = None
    return tuple(found)


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
