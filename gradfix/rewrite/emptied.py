"""Where a list may be emptied: behind the last that reads it in a pass, and if nobody else would find it empty."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.drawn import views
from gradfix.rewrite.spelling import function_of, last_name
from gradfix.rewrite.statements import Unit, block_of, body_of, every_parameter, names, touches, units, walk
from gradfix.rewrite.stored import STORING


def last_reader(view: View, step: Unit, lists: Sequence[str]) -> Unit | None:
    """The step, or the last statement behind it that reads one of the lists; None where that is behind the loop, which
    finds it empty then, or hands it on."""
    block, loop = block_of(view, step.node), view.loop(step.node)
    own = units(block) if block is not None else ()
    at = next((n for n, u in enumerate(own) if u.node is step.node), len(own))
    last = next((u for u in reversed(own[at:]) if touches(u.reads, lists)), step)
    end = view.span(loop).end.line if loop is not None else None
    behind = (u for u in walk(body_of(view, step.node)) if end and view.span(u.node).start.line > end)
    handed_on = isinstance(last.node, cst.Return) or any(touches(u.reads, lists) for u in behind)
    return None if handed_on else last


def read_elsewhere(project: Project, view: View, step: Unit, name: str) -> bool:
    """Whether other functions than that of the step do more with the list than store in it, by this or another way to
    the same attribute, or its own keeps it or hands it on."""
    own = view.function(step.node)
    return any(
        _reads(other, node, name, other is view and other.function(node) is own)
        for other in views(project)
        for node in other.parents
    )


def _reads(view: View, node: cst.CSTNode, name: str, here: bool) -> bool:
    """Whether this is such a reader; one in the function of the step, `here`, if it is none of the pass alone."""
    attribute, last = "." in name, name.rpartition(".")[2]
    if isinstance(node, cst.SimpleString):
        return attribute and node.raw_value == last  # of getattr()
    if not isinstance(node, cst.Attribute if attribute else cst.Name) or last_name(node) != last:
        return False
    above = view.parents[node]
    if isinstance(above, cst.Element):
        above = view.parents[view.parents[above]]  # of ``saved, rewards = [], []``
    if _only_names(above, node):
        return False
    if here:
        call = view.parents[above] if isinstance(above, cst.Arg) else None
        kept = isinstance(call, cst.Call) and function_of(call) in STORING
        return kept or isinstance(above, cst.Return | cst.Assign)
    function = view.function(node)
    return attribute or not isinstance(function, cst.FunctionDef) or last not in _own(function)


def _only_names(above: cst.CSTNode, node: cst.CSTNode) -> bool:
    """Whether the list is stored in there, or bound, or something else has the name."""
    if isinstance(above, cst.Attribute):
        return above.attr is node or above.attr.value in STORING
    return isinstance(above, cst.AssignTarget | cst.Param) or (
        isinstance(above, cst.Arg) and above.keyword is node
    )


def _own(function: cst.FunctionDef) -> set[str]:
    """The names that are the function's own."""
    return {p.name.value for p in every_parameter(function)} | set(names(function.body).binds)
