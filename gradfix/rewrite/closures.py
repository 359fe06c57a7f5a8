"""A closure that is run again and again (``optimizer.step(closure)``): what it differentiates has to be made in it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.edit import Edit, Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.carried import entered
from gradfix.rewrite.rerun import ONCE
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    body_of,
    lifted,
    line_of,
    names,
    put_before,
    take_all_away,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward


def into_closure(project: Project, backward: Backward) -> Iterator[tuple[str, tuple[View, list[Edit]]]]:
    """The statements outside a function that made what its backward walks in every call, put into the function; those
    whose values are read outside too stay there as well."""
    walked = entered(project, backward)
    last = max((r.time for r in walked), default=-1)
    nodes = filter(None, map(project.graph.records.get, backward.nodes))
    records = [r for r in nodes if r.time <= last and r.stack]  # (a derivative's are the engine's)
    depth = min((meeting(r.stack, backward.stack) for r in records), default=-1)
    inner, outer = frame(project, backward.stack, depth + 1), frame(project, backward.stack, depth)
    function = inner[0].function(inner[1]) if inner is not None and depth >= 0 else None
    if (
        inner is None
        or outer is None
        or inner[0] is not outer[0]
        or not isinstance(function, cst.FunctionDef)
    ):
        return
    view = outer[0]
    block = block_of(view, outer[1])
    calls = unit_in(view, block, outer[1]) if block is not None else None
    free = _free(function)
    made = [m[1] for r in records if (m := frame(project, r.stack, depth)) is not None and m[0] is view]
    chain = _chain(view, outer[1], made, free)
    if block is None or calls is None or not chain or any(ONCE.search(view.code(u.node)) for u in chain):
        return
    bound = frozenset().union(*(u.writes for u in chain))
    reader = next((u for u in units(function.body) if touches(u.reads, bound)), None)
    if reader is None or bound & frozenset(p.name.value for p in function.params.params):
        return
    within = {id(u.node) for u in walk(function.body)} | {id(u.node) for u in chain}
    others = [u for u in walk(body_of(view, outer[1])) if id(u.node) not in within]
    stay = any(touches(u.reads, bound) for u in others)
    lines = [line_of(u.node) if stay else lifted(u) for u in chain]
    edits: list[Edit] = [put_before(reader, *lines)]
    if not stay:
        edits += take_all_away(chain, view)
    said = ", ".join(f"`{w}`" for u in chain for w in sorted(u.writes))
    again = " again" if stay else ""
    yield f"compute {said}{again} in each call of `{function.name.value}`", (view, edits)


def _free(function: cst.FunctionDef) -> frozenset[str]:
    """The names that a function reads and does not bind."""
    found = names(function.body)
    return frozenset(r for r in found.reads if not touches({r}, found.binds))


def _chain(view: View, call: cst.CSTNode, made: list[cst.CSTNode], free: frozenset[str]) -> tuple[Unit, ...]:
    """The plain statements that lead from what was made to what the function reads, in order."""
    every = [u for u in walk(body_of(view, call)) if isinstance(u.node, (cst.Assign, cst.Expr))]
    before = [u for u in every if view.span(u.node).end.line < view.span(call).start.line]
    origins = {id(u.node) for m in made if (u := _around(view, before, m)) is not None}
    wanted, needed = set(free), set[int]()
    for unit in reversed(before):
        if touches(unit.writes, wanted):
            needed.add(id(unit.node))
            wanted |= unit.reads
    chain: list[Unit] = []
    dirty: set[str] = set()
    for unit in before:
        if id(unit.node) in needed and (id(unit.node) in origins or touches(unit.reads, dirty)):
            chain.append(unit)
            dirty |= unit.writes
    return tuple(chain) if origins and origins <= {id(u.node) for u in chain} else ()


def _around(view: View, some: list[Unit], node: cst.CSTNode) -> Unit | None:
    above = {id(x) for x in (node, *view.ancestors(node))}
    return next((u for u in some if id(u.node) in above), None)
