"""What a call that is run twice is handed: made once, under a name, where another model makes it.

``score = D(G(z))``, run again behind D's step, would run G again, too, with random numbers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst

from gradfix.edit import View
from gradfix.rewrite.drawn import draws, holds
from gradfix.rewrite.rerun import Plan, inside
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.stale import stale
from gradfix.rewrite.statements import Unit, body_of, dotted, names, touches

GENERATOR = re.compile(r"((net|model)_?)?g(en(erator)?)?(_\w{1,2}|\d)?")
CONDITIONAL = (cst.BaseComp, cst.Lambda, cst.IfExp, cst.BooleanOperation)  # not evaluated once, or not always


def named(found: Plan) -> Mapping[cst.CSTNode, str]:
    """The expressions in what `found` runs twice that another model computes, and a name for each."""
    chosen: dict[cst.CSTNode, str] = {}
    for feed in found.boundary():
        unit = next(u for u in found.kept if inside(found.view, feed.value, u.node))
        call = _model_call(found, feed.value)
        if call is not None and _movable(found, unit, feed.value):
            chosen[feed.value] = _name(found.view, call, set(chosen.values()))
    return chosen


def _model_call(found: Plan, value: cst.BaseExpression) -> cst.Call | None:
    """The call in `value` that uses parameters; None where there is none, or a step has made it stale."""
    project, view = found.project, found.view
    late, _ = stale(project, found.event)
    if any(holds(view, value, site) for record in late for site in record.stack):
        return None
    for record in project.graph.records.values():
        for site in record.stack if any(p < 0 for p in record.parents) else ():
            call = view.call_at(site) if holds(view, value, site) else None
            if call is not None:
                return call
    random = draws(project, view, value)
    return next((n for n in (value, *descendants(value)) if random and isinstance(n, cst.Call)), None)


def _movable(found: Plan, unit: Unit, value: cst.BaseExpression) -> bool:
    """Whether `value` may be computed before its statement."""
    if isinstance(unit.node, cst.BaseCompoundStatement) or names(value).binds:
        return False
    between = []
    for above in found.view.ancestors(value):
        if above is unit.node:
            break
        between.append(above)
    walrus = [n for n in descendants(unit.node) if isinstance(n, cst.NamedExpr)]
    bound = {w for n in walrus for w in names(n.target).reads}
    again = {w for u in found.again for w in u.writes}
    reads = names(value).reads
    return not any(isinstance(x, CONDITIONAL) for x in between) and not touches(reads, bound | again)


def _name(view: View, call: cst.Call, taken: set[str]) -> str:
    """A name for what `call` gives: ``fake`` for a generator's, else after what is called."""
    called = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", (dotted(call.func) or "made").rpartition(".")[2]).lower()
    base = "fake" if GENERATOR.fullmatch(called) else f"{called.strip('_')}_out"
    words = taken | set(re.findall(r"\w+", cst.Module([]).code_for_node(body_of(view, call))))
    return next(n for n in (base, f"new_{base}", *(f"{base}_{k}" for k in range(2, 1000))) if n not in words)
