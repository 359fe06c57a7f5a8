"""Whether a value only leads to what the person sees: printed, logged, kept, measured, and never in a loss."""

from __future__ import annotations

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.liveness import reads
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import body_of, reads_of, touches, walk


def only_shown(name: str, at: cst.CSTNode, view: View, conflict: Conflict, project: Project) -> bool:
    """Whether `name`, which is written at `at`, is read in other statements, and whatever these make of it never gets
    into the loss that the conflict's backward differentiates. Where that stands in another function, nobody knows."""
    needed = conflict.label("needed")
    found = project.node(needed.stack[-1]) if needed is not None else None
    body = body_of(view, at)
    if found is None or found[0] is not view or body_of(view, found[1]) is not body or "." in name:
        return False
    writing = view.small_statement(at)
    others = [unit for unit in walk(body) if unit.node is not writing]
    if not any(reads_of(unit.node, name) for unit in others if name not in unit.writes):
        return False
    tests = [n.test for n in descendants(body) if isinstance(n, cst.If | cst.While)]
    known = {name}
    while True:
        more = {w for u in others if touches(u.reads, known) for w in u.writes} - known
        if not more:
            break
        known |= more
    return not touches(reads(found[1]), known) and not any(touches(reads(test), known) for test in tests)
