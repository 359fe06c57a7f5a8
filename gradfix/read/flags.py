"""Tests that may come out otherwise, and with which something hangs that autograd sees: flags of the command line are
read both ways, and so is a test that the text does not answer where a backward is in the other branch."""

from __future__ import annotations

import ast
from bisect import bisect_left

from gradfix.read.frames import Machine
from gradfix.read.values import Lib, Value
from gradfix.read.variants import Variant

# how a parser is told of them, and what they are where nobody gives them
ACTIONS: dict[object, Value] = {
    "store_true": False,
    "store_false": True,
    Lib("argparse.BooleanOptionalAction"): None,
}
_BACKWARD = r"backward\("
_SEEN = (  # by autograd
    r"backward", r"\bstep\(", r"zero_grad", r"detach", r"\.data\b", r"requires_grad", r"retain_graph", r"[-+*/]=(?!=)",
    r"(?<!clip_grad_norm)(?<!clip_grad_value)\w_\(",
)  # fmt: skip


def given(m: Machine, name: str, default: Value) -> Value:
    """What a flag is in this reading."""
    if not isinstance(default, bool):
        return default
    m.open.flags[name] = not default
    if m.variant is not None and (m.variant.kind, m.variant.name) == ("option", name):
        return m.variant.value
    return default


def met(m: Machine, node: ast.If | ast.IfExp) -> None:
    """A test is answered: where it names a flag, it could be answered otherwise."""
    if id(node) in m.open.looked:
        return
    m.open.looked.add(id(node))
    for each in ast.walk(node.test):
        name = each.attr if isinstance(each, ast.Attribute) else each.id if isinstance(each, ast.Name) else ""
        if name in m.open.flags:
            variant = Variant("option", name, m.open.flags[name], True)
            if _matters(m, node):
                m.open.add(variant)
            else:
                m.open.options.setdefault(name, {})[variant.value] = None


def _matters(m: Machine, node: ast.If | ast.IfExp) -> bool:
    return _within(m.frame.unit.lines_with(*_SEEN), node.lineno, node.end_lineno)


def _within(lines: list[int], first: int, last: int | None) -> bool:
    at = bisect_left(lines, first)
    return at < len(lines) and lines[at] <= (last or first)


def unanswered(m: Machine, node: ast.If, taken: bool) -> None:
    """A test is not answered by the text, and `taken` to be so."""
    other = node.orelse if taken else node.body
    if other and _within(m.frame.unit.lines_with(_BACKWARD), other[0].lineno, other[-1].end_lineno):
        key, negated = m.key(node.test)
        m.open.add(Variant("test", key, taken is negated))


def forced(m: Machine, test: ast.expr) -> bool | None:
    """How an unanswered test comes out in this reading, if the reading is about it."""
    if m.variant is None or m.variant.kind != "test":
        return None
    key, negated = m.key(test)
    return bool(m.variant.value) is not negated if key == m.variant.name else None
