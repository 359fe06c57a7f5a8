"""A saved tensor that is handed to a function which overwrites it: the call, and where its caller saved it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.liveness import dotted, live_after, shared_with, sharing, target_names
from gradfix.rewrite.spelling import descendants
from gradfix.tape import Stack


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """`call` hands `given`, a name's tensor, to what writes into it; `saving` is the expression of the same function
    whose value, or one of whose operands, was saved. `stack` leads to the call."""

    view: View
    call: cst.Call
    given: cst.BaseExpression
    name: str
    saving: cst.CSTNode
    result: bool  # the value of `saving` itself is what is written
    stack: Stack

    @property
    def read_on(self) -> bool:
        """Whether the caller reads what was written, by this name or another."""
        small = self.view.small_statement(self.call)
        end = self.view.span(self.call).end
        bound = small.targets if isinstance(small, cst.Assign) else ()
        rebound = frozenset().union(*(target_names(t.target) for t in bound))
        for name in {self.name, *sharing(self.view, self.call, self.name).names} - rebound:
            reads = (n for n in descendants(small or self.call) if dotted(n) == name)
            starts = (self.view.span(n).start for n in reads)
            if any((s.line, s.column) >= (end.line, end.column) for s in starts):
                return True
            if live_after(self.view, self.call, name):
                return True
        return False


def passed(conflict: Conflict, project: Project) -> tuple[Passed, ...]:
    """The calls of user frames through which a conflict's tensor came to what overwrites it, innermost first."""
    write, record = conflict.write, conflict.record
    if write is None or record is None or not write.stack or not record.stack:
        return ()
    depth = meeting(write.stack, record.stack)
    calling, saving = frame(project, write.stack, depth), frame(project, record.stack, depth)
    if calling is None or saving is None or calling[0] is not saving[0]:
        return ()
    view, node = calling
    call = node.value if isinstance(node, cst.Expr) else node
    if not isinstance(call, cst.Call):
        return ()
    made = saving[1].value if isinstance(saving[1], cst.Expr) else saving[1]
    if any(made is x for x in (call, *view.ancestors(call))) and made is not view.small_statement(call):
        return ()
    result = (
        record.output is not None
        and conflict.ref is not None
        and record.output.storage == conflict.ref.storage
    )
    found = []
    for given in _handed(call):
        for name in shared_with(given):
            holding = {name} | sharing(view, call, name).names
            bound = view.small_statement(made)
            targets = bound.targets if isinstance(bound, cst.Assign) else ()
            holds = any(shared_with(t.target) & holding for t in targets)
            uses = any(
                shared_with(n) & holding for n in descendants(made) if isinstance(n, cst.BaseExpression)
            )
            if holds or uses:
                stack = write.stack[: depth + 1]
                found.append(Passed(view, call, given, name, made, result and holds, stack))
    return tuple(found)


def _handed(call: cst.Call) -> list[cst.BaseExpression]:
    """What the called function gets as tensors: its arguments, and the object of a method."""
    given = [a.value for a in call.args if not a.star]
    return [g for g in given if shared_with(g)]
