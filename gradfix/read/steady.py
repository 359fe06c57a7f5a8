"""Passes of a loop that leave the program as they found it: what comes after them is the same once more.

Of ``for _ in range(10)`` every pass is read, since one may differ from those before it: a count has grown, a container
is full. Where nothing has grown and nothing asks which pass it is, the rest has nothing to tell.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gradfix.read.frames import Frame
from gradfix.read.growing import Count
from gradfix.read.values import (
    Bound,
    Class,
    Deque,
    Function,
    Generator,
    Instance,
    Later,
    Lazy,
    Lib,
    ModuleValue,
    Native,
    Storage,
    Super,
    Tensor,
    Unknown,
    Value,
)
from gradfix.read.variants import Option

if TYPE_CHECKING:
    from gradfix.read.frames import Machine

FIRST, LAST = 2, 5  # passes after which it is looked, the first time and the last
MOST = 4_000  # values that are compared
_BLURS = ("blurs", "stepped_at")  # of an optimizer: how far it had come when these were asked

Token = tuple[Any, ...]


def variable(m: Machine, source: Value, node: ast.AST) -> str:
    """The name in ``for name in range(…)`` where nothing asks which pass it is, other than to print it; else ""."""
    if (
        not isinstance(source, range)
        or not isinstance(node, ast.For)
        or not isinstance(node.target, ast.Name)
    ):
        return ""
    name = node.target.id
    if m.gathering or m.watch is not None or name in m.frame.declared:
        return ""
    key = (id(node), "alike")
    found = m.called.get(key)
    if found is None:
        found = not _elsewhere(m, node, name) and not any(_asks(each, name) for each in node.body)
        m.called[key] = found
    return name if found else ""


def _elsewhere(m: Machine, node: ast.For, name: str) -> bool:
    """Whether `name` stands outside the loop, in what may see the loop's own."""
    around = m.frame.function.node if m.frame.function is not None else None
    first, last = (around.lineno, around.end_lineno) if around is not None else (1, 1 << 60)
    inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    lines = m.frame.unit.lines_with(rf"(?<!\bfor )\b{name}\b")
    return any(first <= line <= last and line not in inside for line in lines)


def _asks(node: ast.AST, name: str, printed: bool = False) -> bool:
    """Whether `node` reads the variable, other than as something that is `printed`."""
    if isinstance(node, ast.Name):
        return node.id == name and not isinstance(node.ctx, ast.Store) and not printed
    if isinstance(node, ast.Call):
        printed = isinstance(node.func, ast.Name) and node.func.id == "print"
    elif not isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.BinOp | ast.keyword):
        printed = False
    return any(_asks(child, name, printed) for child in ast.iter_child_nodes(node))


def state(m: Machine, variable: str) -> list[Token] | None:
    """All that the program can ask for, as it stands, but for a `variable` of the running function: two that are equal
    differ in tensors of the same kind alone. None where there is too much of it, or something whose state is not known.
    """
    names = m.frame.names
    value, names[variable] = names.get(variable), None
    try:
        return _state(m)
    finally:
        names[variable] = value


def _state(m: Machine) -> list[Token] | None:
    found: list[Token] = [
        (
            m.grad,
            m.inference,
            m.autocast,
            m.doubts,
            m.constants,
            m.escaped,
            len(m.lent),
            m.hooked,
            m.overheard,
            m.awaited,
        ),
        (
            m.turn,
            len(m.decisions),
            len(m.grown),
            sum(m.draws.values()),
            m.trace.guessed,
            m.trace.assigned,
            m.checkpoint is None,
        ),
    ]
    pending: list[Value] = [*m.frames, m.frame, *m.optimizers]
    pending += [unit.names for unit in m.project.units.values() if unit.entered]
    numbers: dict[int, int] = {}
    for value in pending:  # which grows
        kind = type(value)
        parts = _PARTS.get(kind)
        if kind in _PLAIN:
            found.append((kind, value))
        elif isinstance(value, Unknown):
            found.append((kind, value.like))
        elif (number := numbers.setdefault(id(value), len(numbers))) < len(numbers) - 1:
            found.append((number,))  # as above
        elif parts is None or len(pending) > MOST:
            return None
        else:
            token, inner = parts(m, value)
            found.append((kind, *token))
            pending += inner
    return found


def _tensor(m: Machine, value: Tensor) -> tuple[Token, list[Value]]:
    base = value.base
    token = (
        value.requires, value.node is None, value.shape, value.dtype, value.view, value.spread, value.alias,
        value.origin, value.parameter, value.retains, bool(value.cut), bool(value.left),
        base is not None and base.rebased == value.rebased,
    )  # fmt: skip
    return token, [value.storage, base, value.grad, value.items]


def _instance(m: Machine, value: Instance) -> tuple[Token, list[Value]]:
    extra = [m.blurs > each if key in _BLURS else each for key, each in value.extra.items()]
    token = (value.kind, tuple(value.attrs), tuple(value.extra))
    return token, [value.cls, *value.attrs.values(), *extra]


_PLAIN = {int, Count, float, complex, bool, str, Option, bytes, type(None), slice, range, type(Ellipsis)}
_PARTS: dict[type, Callable[[Machine, Any], tuple[Token, list[Value]]]] = {
    Tensor: _tensor,
    Instance: _instance,
    Storage: lambda m, value: ((value.plain,), [value.grad_of]),
    list: lambda m, value: ((len(value),), value),
    tuple: lambda m, value: ((len(value),), value),
    Deque: lambda m, value: ((len(value),), value),
    set: lambda m, value: ((frozenset(value),), list(value)),
    frozenset: lambda m, value: ((value,), list(value)),
    dict: lambda m, value: ((len(value),), [*value, *value.values()]),
    Frame: lambda m, value: (
        (value.qualname, value.passed_over, tuple(value.names)),
        [*value.names.values(), value.result, value.parent],
    ),
    Function: lambda m, value: (
        (id(value.node), *value.wrappers, *value.attrs),
        [value.scope, *value.defaults, *value.kw_defaults.values(), *value.attrs.values()],
    ),
    Class: lambda m, value: ((value.qualname, tuple(value.attrs)), list(value.attrs.values())),
    Bound: lambda m, value: ((), [value.function, value.receiver]),
    Super: lambda m, value: ((), [value.receiver]),
    Generator: lambda m, value: ((value.done,), [value.function, value.frame]),
    Lib: lambda m, value: ((value.path,), []),
    Native: lambda m, value: ((value.name,), []),
    Lazy: lambda m, value: ((value.length,), []),
    Later: lambda m, value: ((), []),
    ModuleValue: lambda m, value: ((value.unit.path,), []),
}
