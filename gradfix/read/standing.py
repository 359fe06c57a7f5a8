"""A backward from what a module's forward returns, and another: what the module was made with has a graph that the
first one frees."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradfix.read import backward, calls, layers, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Node, Tensor, Value

_BEHIND = re.compile(
    r"\bsetattr\b|_pre_hook\b|\b__dict__\b|\b__setattr__\b"
)  # what may bind an attribute unseen


def differentiated(m: Machine, module: Instance, given: list[Value]) -> Value:
    """What the forward gives, after a backward from all of it."""
    before = m.trace.made()
    result = calls.call(m, module, given, {})
    nodes = _walked(m, result, True)
    old = [n for n in nodes if n.number < before and (n.saves or n.bare)]
    if old and m.variant is None and _stands(module, old):
        m.doubts += 1  # somebody may make the module anew for every step
        try:
            _walked(m, result, False)
            _walked(m, calls.call(m, module, given, {}), False)
        finally:
            m.doubts -= 1
    return result


def _walked(m: Machine, result: Value, retain: bool) -> Sequence[Node]:
    roots = [ops.edge(m, t) for t in _tensors(m, result, 3) if ops.requires(m, t)]
    if roots:
        m.frame.node = None
        backward.walk(m, roots, None, retain, False, False)
    return m.trace.reached(roots, None)[0]


def _stands(module: Instance, old: Sequence[Node]) -> bool:
    """Whether what these nodes made is an attribute that is bound once in the text."""
    for _, each in layers.modules(module):
        if each.cls is None or _BEHIND.search(each.cls.unit.text):
            continue
        for name, value in each.attrs.items():
            if isinstance(value, Tensor) and any(value.node is n for n in old):
                return _bound(each.cls.unit.tree, name) == 1
    return False


def _bound(tree: ast.AST, name: str) -> int:
    return sum(
        isinstance(n, ast.Attribute) and n.attr == name and not isinstance(n.ctx, ast.Load)
        for n in ast.walk(tree)
    )


def _tensors(m: Machine, value: Value, depth: int) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value, *_tensors(m, m.records.get(value, {}), depth)]
    if depth and isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return [t for v in items for t in _tensors(m, v, depth - 1)]
    return []
