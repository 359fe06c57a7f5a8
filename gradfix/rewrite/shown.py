"""Whether a value only leads to what the person sees: printed, logged, kept, measured, and never in a loss."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.liveness import dotted, parameters, reads
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import Unit, body_of, reads_of, touches, walk


def only_shown(name: str, at: cst.CSTNode, view: View, conflict: Conflict, project: Project) -> bool:
    """Whether `name`, which is written at `at` or made there, is read in other statements, and whatever these make of
    it never gets into the loss that the conflict's backward differentiates. Where that stands in another function, it
    has to be of the same file, and the function of `at` to hand nothing back."""
    needed = conflict.label("needed")
    found = project.node(needed.stack[-1]) if needed is not None else None
    body = body_of(view, at)
    if found is None or found[0] is not view or "." in name:
        return False
    writing = view.small_statement(at)
    others = [unit for unit in walk(body) if unit.node is not writing]
    if not any(reads_of(u.node, name) for u in others if name not in u.writes and not _into(u.node, name)):
        return False
    known = _made_of({name}, others)
    if body_of(view, found[1]) is not body:
        if any(isinstance(u.node, cst.Return) and touches(u.reads, known) for u in others):
            return False
        function = view.function(at)
        own = set(parameters(function)) if isinstance(function, cst.FunctionDef) else set()
        own |= {w for u in walk(body) if isinstance(u.node, cst.Assign) for w in u.names.binds}
        others, body = list(walk(body_of(view, found[1]))), body_of(view, found[1])
        known = _made_of(known - own, others)
    tests = [n.test for n in descendants(body) if isinstance(n, cst.If | cst.While)]
    return not touches(reads(found[1]), known) and not any(touches(reads(test), known) for test in tests)


def _made_of(known: set[str], units: Sequence[Unit]) -> set[str]:
    """`known`, and the names of all that is made of them."""
    while more := {w for u in units if touches(u.reads, known) for w in u.writes} - known:
        known = known | more
    return known


def _into(node: cst.CSTNode, name: str) -> bool:
    """Whether a statement may only write into `name`: ``a.sort()``, ``np.clip(a, 0, 1, out=a)``."""
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call):
        return False
    own = isinstance(call.func, cst.Attribute) and dotted(call.func.value) == name
    return own or any(a.keyword is not None and a.keyword.value == "out" for a in call.args)
