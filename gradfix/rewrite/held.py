"""Who else holds the tensor that is written: whoever is to see the write would keep the old tensor if the name were
bound to a new one."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.liveness import binds, dotted, live_after, scope_of
from gradfix.rewrite.spelling import descendants
from gradfix.tape import Mutate, Stack

Holder = tuple[str, str, int]


def held_elsewhere(name: str, stack: Stack, project: Project, outer: bool = False) -> bool:
    """Whether the run saw the tensor of `name`, which is written at `stack`, somewhere else as well, where it may be
    read after the write: in an attribute, in a container, or under the name of a calling function. (`outer`: that is
    a variable of an outer function's or a global, and bound anew for all.)"""
    return any(
        _read_later(holder, stack, project)
        for event in project.tape.events
        if isinstance(event, Mutate) and event.holders and event.stack == stack
        for holder in _others(event.holders, name)
        if not (outer and holder[1] == name)
    )


def kept_beyond(stack: Stack, project: Project) -> str:
    """What holds the tensor that is written at `stack` beyond the call: an attribute, or a container of the script's
    own level, where a hook put it, say; "" for nothing."""
    found = (
        holder[1]
        for event in project.tape.events
        if isinstance(event, Mutate) and event.holders and event.stack == stack
        for holder in _others(event.holders, "")
        if _is_global(holder, stack) and _read_later(holder, stack, project)
    )
    return next(found, "")


def _is_global(holder: Holder, stack: Stack) -> bool:
    _, called, depth = holder
    return not called.partition("[")[0].isidentifier() or depth >= len(stack) - 1


def holders_of(stack: Stack, project: Project) -> frozenset[str]:
    """What a tensor that is written at `stack` is called, in whatever frame."""
    return frozenset(
        called
        for event in project.tape.events
        if isinstance(event, Mutate) and event.stack == stack
        for holder in event.holders
        for called in holder[:2]
        if called
    )


def outlives(view: View, node: cst.CSTNode, name: str) -> bool:
    """Whether the tensor written as `name` lives in an attribute that this function itself does not bind anew: it is
    made once and updated in place, so that whoever took it sees the updates."""
    if "." not in name:
        return False
    assigns = (n for n in descendants(scope_of(view, node)) if isinstance(n, cst.Assign))
    return not any(dotted(t.target) == name for each in assigns for t in each.targets)


def _others(holders: tuple[Holder, ...], name: str) -> Iterator[Holder]:
    """All but the place that is written itself, and the variables of the writing function, of which its text tells."""
    own = next((h for h in holders if h[0] == name or h[0].startswith((f"{name}.", f"{name}["))), None)
    if own is None and "." in name:  # by a way that was not looked at
        own = next((h for h in holders if not h[0].isidentifier()), None)
    yield from (h for h in holders if h is not own and not h[0].isidentifier())


def _read_later(holder: Holder, stack: Stack, project: Project) -> bool:
    """Whether a variable, or a list in one, may be read after the call that leads to the write. An attribute counts as
    read by whoever has the object."""
    _, called, depth = holder
    variable = called.partition("[")[0]
    if not variable.isidentifier() or not 0 < depth < len(stack):
        return True
    found: tuple[View, cst.CSTNode] | None = project.node(stack[-1 - depth])
    if found is None:
        return True
    view, node = found
    return variable not in binds(view.small_statement(node) or node) and live_after(view, node, variable)
