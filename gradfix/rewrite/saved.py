"""Where the value that a backward needs was read into the graph: a copy there leaves the tensor to all who hold it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import cast

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.liveness import scope_of, shared_with, sharing
from gradfix.rewrite.spelling import descendants
from gradfix.tape import Stack


def what_was_saved(
    conflict: Conflict, project: Project, view: View, at: cst.CSTNode, name: str
) -> tuple[cst.BaseExpression, ...]:
    """The expressions whose value was saved, in the function of the node `at`, which writes (or hands out) what
    `name` is: what the saving op made, or those of its operands that share the written tensor's storage."""
    assert conflict.record is not None
    record = conflict.record
    scope = scope_of(view, at)
    for site in reversed(record.stack):
        found = project.node(site)
        if found is None or found[0] is not view:
            continue
        if scope_of(*found) is not scope and not _same_object(view, found[1], at, name):
            continue
        node = found[1].value if isinstance(found[1], cst.Expr) else found[1]
        if (
            conflict.ref is not None
            and record.output is not None
            and record.output.storage == conflict.ref.storage
        ):
            made = isinstance(node, cst.Call | cst.BinaryOperation) and not any(
                x is node for x in (at, *view.ancestors(at))
            )
            return (cast(cst.BaseExpression, node),) if made else ()
        return tuple(operands_of(node, {name} | sharing(view, at, name).names)) if name else ()
    return ()


def reads_of(
    conflict: Conflict, project: Project, called: Collection[str]
) -> tuple[tuple[View, cst.BaseExpression], ...]:
    """The operands by which the tensor that is written was read into the graph, in whatever function; `called` are the
    attributes, items and variables that hold it."""
    assert conflict.write is not None
    tails = {_tail(each) for each in called}
    found: list[tuple[View, cst.BaseExpression]] = []
    for each in (conflict, *conflict.also):
        record, ref = each.record, each.ref
        if record is None or each.write is None or ref is None or ref.storage != conflict.write.ref.storage:
            continue
        if record.output is not None and record.output.storage == ref.storage:
            continue
        for view, operand in _read_at(record.stack, project, tails) or _asked_for(record.stack, project):
            if not any(operand is known for _, known in found):
                found.append((view, operand))
    return tuple(found)


def _read_at(stack: Stack, project: Project, tails: set[str]) -> list[tuple[View, cst.BaseExpression]]:
    """Those of the innermost call that has some: a helper may have been given the tensor."""
    for site in reversed(stack):
        found = project.node(site)
        if found is None:
            continue
        view, node = found[0], found[1].value if isinstance(found[1], cst.Expr) else found[1]
        names = set()
        for name in {n for child in descendants(node) for n in _shared(child)}:
            if _tail(name) in tails or any(_tail(n) in tails for n in sharing(view, node, name).names):
                names.add(name)
        if operands := [(view, operand) for operand in operands_of(node, names)]:
            return operands
    return []


def _asked_for(stack: Stack, project: Project) -> list[tuple[View, cst.BaseExpression]]:
    """The one operand of the innermost call that an object's property or method gives: ``self.slots.view``,
    ``self.history.pull()``. What tensor that is its name does not tell."""
    for site in reversed(stack):
        found = project.node(site)
        if found is None:
            continue
        view, node = found[0], found[1].value if isinstance(found[1], cst.Expr) else found[1]
        given = [o for o in _values(node) if _of_an_object(o)]
        return [(view, given[0])] if len(given) == 1 and not isinstance(node, cst.Subscript) else []
    return []


def _of_an_object(operand: cst.BaseExpression) -> bool:
    node: cst.BaseExpression = operand
    attributes = 0
    while isinstance(node, cst.Call | cst.Attribute):
        if isinstance(node, cst.Attribute):
            attributes += 1
            node = node.value
        else:
            node = node.func
    return (
        isinstance(node, cst.Name)
        and attributes > 0
        and node.value not in ("torch", "F", "nn", "np", "numpy")
    )


def _shared(node: cst.CSTNode) -> frozenset[str]:
    return shared_with(node) if isinstance(node, cst.BaseExpression) else frozenset()


def _tail(name: str) -> str:
    """``.c`` of ``centre.c``, of ``self.parts.c[2]`` and of ``losses['slow'].c``, ``c`` of ``c`` and ``c['late']``."""
    _, dot, last = re.sub(r"\[[^\]]*\]", "", name).rpartition(".")
    return dot + last


def _same_object(view: View, one: cst.CSTNode, other: cst.CSTNode, name: str) -> bool:
    """Whether `name` is an attribute of the object whose methods both nodes stand in: the same tensor in both."""
    homes = [view.enclosing(n, cst.ClassDef) for n in (one, other)]
    return name.startswith("self.") and homes[0] is not None and homes[0] is homes[1]


def operands_of(node: cst.CSTNode, names: Collection[str]) -> Iterator[cst.BaseExpression]:
    """The outermost operands and arguments in `node` that share a storage with one of `names`."""
    for child in _values(node):
        if not shared_with(child).isdisjoint(names) and not isinstance(node, cst.Subscript):
            yield child
        else:
            yield from operands_of(child, names)


def _values(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute):
            yield node.func.value
        yield from (a.value for a in node.args if not a.star)
    elif isinstance(node, cst.BinaryOperation):
        yield from (node.left, node.right)
    elif isinstance(node, cst.UnaryOperation):
        yield node.expression
    elif isinstance(node, cst.List | cst.Tuple):
        yield from (e.value for e in node.elements if isinstance(e, cst.Element))
    elif isinstance(node, cst.Attribute) or (
        isinstance(node, cst.Assign | cst.AugAssign) and node.value is not None
    ):
        yield node.value
