"""The updates of a pass: backwards with the steps that use their gradients, as a helper does both for its caller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.calls import backward_call
from gradfix.rewrite.literals import Literal, element_text, written_out
from gradfix.rewrite.passes import sharing, stepped_with, trained
from gradfix.rewrite.statements import Unit, common_block, shown, unit_in, units
from gradfix.tape import Backward, Step


@dataclass(frozen=True, slots=True)
class Update:
    """A backward and the steps with its gradients: the call, and the first and last unit of the body that they are
    in; in a loop, which of its passes they are."""

    event: Backward
    steps: tuple[Step, ...]
    view: View
    call: cst.Call
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Updates:
    """The updates of one pass in order: in a body, at least one of them a single statement, or in a loop over
    `literals`."""

    view: View
    body: tuple[Unit, ...]
    updates: tuple[Update, ...]
    literals: tuple[Literal, ...] = ()

    def shown(self, update: Update) -> str:
        """An update, for a sentence."""
        if not self.literals:
            return shown(self.view, self.body[update.first].node)
        return ", ".join(element_text(some.elements[update.first]) for some in self.literals)


def updates_of(project: Project, conflict: Conflict) -> Updates | None:
    """The updates of the pass in which the conflict lies; None where they are no statements of one body."""
    backward = conflict.backward
    if backward is None:
        return None
    return _in_a_loop(project, backward) or _in_a_body(project, conflict, backward)


def _in_a_loop(project: Project, backward: Backward) -> Updates | None:
    """Those of one loop that runs the same call for each loss."""
    call = backward_call(project, backward)
    for depth in range(len(backward.stack) if call else 0):
        place = frame(project, backward.stack, depth)
        loop = place[0].loop(place[1]) if place else None
        if call is None or place is None or not isinstance(loop, cst.For):
            continue
        for count in (2, 3, 4):
            literals = written_out(place[0], loop, count)
            group = _passes(project, backward, count) if literals else ()
            steps = [_steps(project, b, group) for b in group]
            if literals and group and all(steps):
                found = (Update(b, s, *call, n, n) for n, (b, s) in enumerate(zip(group, steps, strict=True)))
                return Updates(place[0], (), tuple(found), literals)
    return None


def _passes(project: Project, backward: Backward, count: int) -> tuple[Backward, ...]:
    """The passes of one run through a loop of `count`, that of `backward` among them."""
    every = project.graph.passes(backward)
    start = [b.time for b in every].index(backward.time) // count * count
    return every[start : start + count] if start + count <= len(every) else ()


def _in_a_body(project: Project, conflict: Conflict, backward: Backward) -> Updates | None:
    """Those of one body, each made there or in a function that is called there."""
    group = sharing(project, backward)
    if isinstance(conflict.event, Step):
        both = {b.time: b for b in (*group, *stepped_with(project, backward, conflict.event))}
        group = tuple(b for _, b in sorted(both.items()))
    if len(group) < 2 or len({b.stack for b in group}) != len(group):
        return None
    steps = [_steps(project, b, group) for b in group]
    depth = meeting(*(b.stack for b in group), *(s.stack for some in steps for s in some))
    if depth < 0 or not all(steps):
        return None
    places = [[frame(project, e.stack, depth) for e in (b, *s)] for b, s in zip(group, steps, strict=True)]
    calls = [backward_call(project, b) for b in group]
    view = places[0][0][0] if places[0][0] else None
    nodes = [[p[1] for p in some if p is not None and p[0] is view] for some in places]
    if view is None or any(len(n) < len(p) for n, p in zip(nodes, places, strict=True)):
        return None
    block = common_block(view, *(n for some in nodes for n in some))
    if block is None:
        return None
    found: list[Update] = []
    for b, s, call, some in zip(group, steps, calls, nodes, strict=True):
        at = [n for node in some if (n := unit_in(view, block, node)) is not None]
        if call is None or len(at) < len(some):
            return None
        found.append(Update(b, s, *call, min(at), max(at)))
    apart = all(u.last < v.first for u, v in pairwise(found))
    several = any(u.first == u.last for u in found)
    return Updates(view, units(block), tuple(found)) if apart and several else None


def _steps(project: Project, backward: Backward, group: Sequence[Backward]) -> tuple[Step, ...]:
    """The first step of each optimizer that a backward is for."""
    numbers = sorted(trained(project, backward, group))
    following = (project.graph.step_of(k, backward.time) for k in numbers)
    return tuple(s for s in following if s is not None)
