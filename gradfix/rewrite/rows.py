"""Loops over the rows of a tensor, which are views that one op made: autograd takes no write to any of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import cast

import libcst as cst

from gradfix.edit import Edit, Replace, View
from gradfix.rewrite.blocks import assignment, copy, line, of_torch
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.loops import in_place_of
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import names, reads_of, units
from gradfix.rewrite.writes import Write

INDICES = ("i", "j", "k", "index", "row")


def iterated(loop: cst.For, name: str) -> cst.BaseExpression | None:
    """The list or tensor that gives the loop variable `name` its values: ``ps`` of ``for p in ps``, ``for p, g in
    zip(ps, gs)``."""
    found = _source(loop, name)
    return found if found is not None and dotted(found) else None


def _source(loop: cst.For, name: str) -> cst.BaseExpression | None:
    if dotted(loop.target) == name:
        return loop.iter
    call = loop.iter
    if not isinstance(loop.target, cst.Tuple) or not isinstance(call, cst.Call) or dotted(call.func) != "zip":
        return None
    pairs = zip(loop.target.elements, [a for a in call.args if a.keyword is None], strict=False)
    return next((arg.value for element, arg in pairs if dotted(element.value) == name), None)


def rows(write: Write, statement: cst.BaseSmallStatement) -> Iterator[tuple[cst.Assign, tuple[Edit, ...]]]:
    """``for row in h: row *= 2`` as ``h = torch.stack([row * 2 for row in h])``, where ``h`` is read on."""
    loop = _loop(write)
    source = iterated(loop, write.name) if loop is not None else None
    if (
        loop is None
        or not isinstance(statement, cst.Assign)
        or not isinstance(source, cst.Name | cst.Attribute)
        or [u.node for u in units(loop.body)] != [write.small]
    ):
        return
    stack = of_torch(write.view, "stack")
    each = cst.ListComp(
        copy(statement.value),
        cst.CompFor(cast(cst.BaseAssignTargetExpression, copy(loop.target)), copy(loop.iter)),
    )
    made = assignment(source, cst.Call(stack.expression, [cst.Arg(each)]))
    yield made, (Replace(loop, lambda node: in_place_of(node, line(made))), *stack.edits)


def through_index(write: Write) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    """``for i, m in enumerate(means): h[0][i].sub_(m)`` for ``for row, m in zip(h[0], means): row.sub_(m)``"""
    loop = _loop(write)
    source = _source(loop, write.name) if loop is not None else None
    if loop is None or source is None or any(isinstance(n, cst.Call) for n in (source, *descendants(source))):
        return
    used = {n.value for n in descendants(write.view.module) if isinstance(n, cst.Name)}
    index = next((i for i in INDICES if i not in used), None)
    bound = {
        name
        for n in descendants(loop.body)
        if not isinstance(n, cst.AugAssign)
        for name in names(n).binds
        if isinstance(n, cst.BaseSmallStatement | cst.For)
    }
    if index is None or bound & {write.name, *names(source).reads}:
        return
    code = write.view.code
    if loop.iter is source:
        target, over = index, f"range(len({code(source)}))"
    else:
        assert isinstance(loop.target, cst.Tuple)
        assert isinstance(loop.iter, cst.Call)
        kept = [code(e.value) for e in loop.target.elements if dotted(e.value) != write.name]
        given = [code(a.value) for a in loop.iter.args if a.value is not source]
        several = len(kept) > 1
        target = f"{index}, ({', '.join(kept)})" if several else f"{index}, {kept[0]}"
        over = f"enumerate(zip({', '.join(given)}))" if several else f"enumerate({given[0]})"
    row = f"{code(source)}[{index}]"
    head = cst.ensure_type(cst.parse_statement(f"for {target} in {over}:\n    pass\n"), cst.For)
    reads = chain.from_iterable(reads_of(u.node, write.name) for u in units(loop.body))
    written = _written(write.view, loop, write.name)
    edits = [Replace(n, lambda _: cst.parse_expression(row)) for n in {*reads, *written}]
    edits += [Replace(loop.target, lambda _: head.target), Replace(loop.iter, lambda _: head.iter)]
    yield f"write to `{row}`", tuple(edits)


def _written(view: View, loop: cst.For, name: str) -> Iterator[cst.CSTNode]:
    """``row`` of ``row += 1`` and ``row[:] = 0``"""
    for node in descendants(loop.body):
        if isinstance(node, cst.AugAssign | cst.AssignTarget):
            yield from (n for n in (node.target, *descendants(node.target)) if _named(n, name))


def _named(node: cst.CSTNode, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _loop(write: Write) -> cst.For | None:
    loop = write.view.loop(write.node)
    plain = isinstance(loop, cst.For) and loop.orelse is None and loop.asynchronous is None
    return loop if isinstance(loop, cst.For) and plain else None
