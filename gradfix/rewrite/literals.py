"""What a loop goes through where the source writes it out: ``for name, loss in (("d", d_loss), ("g", g_loss))``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.edit import Edit, Replace, View
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import body_of, walk

Elements = Sequence[cst.BaseElement] | Sequence[cst.BaseDictElement]


def written_out(view: View, loop: cst.For, count: int) -> tuple[Elements, ...] | None:
    """The literals of `count` elements that a loop goes through side by side (those of a ``zip``), written in its head
    or bound once to a name in the same function; None where one is no such literal."""
    found = []
    for part in _side_by_side(loop.iter):
        literal = _literal(view, loop, part)
        if literal is None or len(literal.elements) != count or _open(literal):
            return None
        found.append(literal.elements)
    return tuple(found) or None


def put_in_order(elements: Elements, order: Sequence[int]) -> list[Edit]:
    """The element `order[n]` stands where the n-th did, which keeps its comma and the whitespace around it."""

    def exchange(here: cst.CSTNode, other: cst.CSTNode) -> Edit:
        new = {
            name: getattr(other, name).deep_clone() for name in ("key", "value") if getattr(other, name, None)
        }
        return Replace(here, lambda node: node.with_changes(**new))

    return [exchange(elements[n], elements[m]) for n, m in enumerate(order) if n != m]


def _side_by_side(items: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(items, cst.Call) and function_of(items) == "zip":
        for arg in items.args:
            yield from _side_by_side(arg.value)
    elif isinstance(items, cst.Call) and function_of(items) == "items" and not items.args:
        yield items.func.value if isinstance(items.func, cst.Attribute) else items
    else:
        yield items


def _literal(view: View, loop: cst.For, node: cst.BaseExpression) -> cst.Tuple | cst.List | cst.Dict | None:
    if isinstance(node, (cst.Tuple, cst.List, cst.Dict)):
        return node
    if not isinstance(node, cst.Name):
        return None
    body = body_of(view, loop)
    bound = [u.node for u in walk(body) if node.value in u.writes]
    plain = bound[0] if len(bound) == 1 and isinstance(bound[0], cst.Assign) else None
    if plain is None or len(plain.targets) != 1 or not isinstance(plain.targets[0].target, cst.Name):
        return None
    value = plain.value
    reads = [n for n in descendants(body) if isinstance(n, cst.Name) and n.value == node.value]
    if isinstance(value, (cst.Tuple, cst.List)) and len(reads) > 2:
        return None  # (another may count on the places of its elements)
    return value if isinstance(value, (cst.Tuple, cst.List, cst.Dict)) else None


def _open(literal: cst.Tuple | cst.List | cst.Dict) -> bool:
    """Whether it takes in what is not written here, or says something of an element beside it."""
    apart = any(isinstance(e, (cst.StarredElement, cst.StarredDictElement)) for e in literal.elements)
    return apart or any(isinstance(n, cst.Comment) for n in descendants(literal))
