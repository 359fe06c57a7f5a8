"""Loops over losses: what they go through, and by which names a part of their body needs it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

import libcst as cst

from gradfix.edit import parenthesized
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import touches

Node = TypeVar("Node", bound=cst.CSTNode)
# calls whose result may be gone through once more by calling again
AGAIN = {
    "len",
    "zip",
    "enumerate",
    "list",
    "tuple",
    "sorted",
    "reversed",
    "range",
    "items",
    "keys",
    "values",
}


def repeatable(items: cst.BaseExpression) -> bool:
    """Whether what a loop goes through may be gone through once more."""
    if isinstance(items, cst.Call):
        return function_of(items) in AGAIN and all(repeatable(a.value) for a in items.args)
    return not isinstance(items, cst.GeneratorExp)


def bound(target: cst.BaseExpression) -> set[str]:
    """The plain names that a loop binds."""
    if isinstance(target, cst.Name):
        return {target.value}
    elements = target.elements if isinstance(target, (cst.Tuple, cst.List)) else ()
    return set().union(*(bound(e.value) for e in elements))


def narrowed(loop: cst.For, read: Collection[str]) -> cst.For:
    """The loop's head with the names in `read` alone: ``for loss, opt in zip(losses, opts)`` as ``for opt in opts``."""
    target, items = loop.target, loop.iter
    if not isinstance(target, cst.Tuple) or not isinstance(items, cst.Call):
        return loop
    kept = [n for n, e in enumerate(target.elements) if touches(bound(e.value), read)]
    found = _gone_through(items, len(target.elements), kept[0]) if len(kept) == 1 else None
    if found is None:
        return loop
    only = target.elements[kept[0]].value
    bare = only.with_changes(lpar=[], rpar=[]) if isinstance(only, cst.Tuple) else only
    return narrowed(loop.with_changes(target=bare, iter=found), read)


def _gone_through(items: cst.Call, count: int, n: int) -> cst.BaseExpression | None:
    """What gives the n-th alone of the `count` values that each item of the call has."""
    name = function_of(items)
    if name == "zip" and len(items.args) == count and not any(a.star for a in items.args):
        return items.args[n].value
    if name == "enumerate" and n == 1 and items.args:
        return items.args[0].value
    if name == "items" and count == 2 and isinstance(items.func, cst.Attribute):
        values = items.func.with_changes(attr=cst.Name("values"))
        return items.with_changes(func=values) if n else items.func.value
    return None


class _Put(cst.CSTTransformer):
    """Expressions in the place of the names that are read."""

    def __init__(self, values: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.values = values

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        value = self.values.get(original_node.value)
        return parenthesized(value.deep_clone()) if value is not None else updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)


def filled_in(node: Node, values: Mapping[str, cst.BaseExpression]) -> Node:
    """`node` with expressions in the place of names: a loop's body as one of its passes runs it."""
    found = node.deep_clone().visit(_Put(values))
    assert isinstance(found, type(node))
    return found


def passes(loop: cst.For, items: cst.BaseExpression) -> list[dict[str, cst.BaseExpression]] | None:
    """What each pass binds the loop's names to, where `items` says that literally: names and the like alone."""
    if not isinstance(items, (cst.Tuple, cst.List)):
        return None
    found = []
    for element in items.elements:
        one = _bindings(loop.target, element.value) if isinstance(element, cst.Element) else None
        if one is None:
            return None
        found.append(one)
    return found


def _bindings(target: cst.BaseExpression, value: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    if isinstance(target, cst.Name):
        plain = isinstance(value, (cst.Name, cst.Attribute, cst.Subscript, cst.BaseNumber, cst.BaseString))
        return {target.value: value} if plain else None
    if not isinstance(target, (cst.Tuple, cst.List)) or not isinstance(value, (cst.Tuple, cst.List)):
        return None
    if len(target.elements) != len(value.elements):
        return None
    found: dict[str, cst.BaseExpression] = {}
    for t, v in zip(target.elements, value.elements, strict=True):
        one = _bindings(t.value, v.value)
        if one is None:
            return None
        found |= one
    return found


def in_place_of(node: cst.CSTNode, line: cst.SimpleStatementLine) -> cst.CSTNode:
    """`line` with the comments of the loop whose place it takes."""
    assert isinstance(node, cst.For)
    above, behind = list(node.leading_lines), line.trailing_whitespace
    inner = node.body.body[0]
    if isinstance(node.body, cst.IndentedBlock) and node.body.header.comment:
        above.append(cst.EmptyLine(comment=node.body.header.comment))
    if isinstance(inner, cst.SimpleStatementLine):
        above += [each for each in inner.leading_lines if each.comment]
        behind = inner.trailing_whitespace
    return line.with_changes(leading_lines=above, trailing_whitespace=behind)
