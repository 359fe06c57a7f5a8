"""Plain gradient descent by an optimizer of its own: ``sgd.zero_grad(); loss.backward(); sgd.step()``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.calls import argument
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import Unit, block_of, body_of, units, walk
from gradfix.tape import Site


@dataclass(frozen=True, slots=True, eq=False)
class Descent:
    """The statement that makes the optimizer, its `listing` of a module's parameters and its `rate`; those that clear
    the gradients, compute them and step, in one block."""

    view: View
    made: Unit
    listing: cst.Call
    rate: cst.BaseExpression
    cleared: tuple[Unit, ...]
    backward: Unit
    step: Unit

    @property
    def of(self) -> str:
        """The name of the module that is stepped."""
        return dotted(cast(cst.Attribute, self.listing.func).value)

    @property
    def place(self) -> cst.CSTNode:
        """Where the module is changed."""
        return self.step.node

    @property
    def loss(self) -> cst.BaseExpression:
        """What is differentiated."""
        return cast(cst.Attribute, cast(cst.Call, cast(cst.Expr, self.backward.node).value).func).value


def descent(project: Project, site: Site) -> Descent | None:
    """The descent whose step stands at `site`: by SGD without momentum or a decay, that nothing else is done with."""
    found = project.node(site)
    if found is None:
        return None
    view, node = found
    block = block_of(view, node)
    beside = units(block) if block is not None else ()
    steps = [u for u in beside if u.node is view.small_statement(node)]
    owner, method = _called(steps[0].node) if steps else ("", "")
    if not owner or method != "step":
        return None
    every = list(walk(body_of(view, node)))
    made = [u for u in every if isinstance(u.node, cst.Assign) and dotted(u.node.targets[0].target) == owner]
    given = _given(cast(cst.Assign, made[0].node).value) if len(made) == 1 else None
    if given is None:
        return None
    before = beside[: beside.index(steps[0])]
    cleared = tuple(u for u in beside if _called(u.node) == (owner, "zero_grad"))
    backwards = [u for u in before if _called(u.node)[1] == "backward"]
    told = {id(u.node) for u in (*made, *cleared, *steps)}
    others = [u for u in every if id(u.node) not in told and owner in {*u.names.reads, *u.names.binds}]
    plain = len(backwards) == 1 and not cast(cst.Call, cast(cst.Expr, backwards[0].node).value).args
    if not plain or others or any(_asked(u.node, owner) for u in every if id(u.node) not in told):
        return None
    return Descent(view, made[0], *given, cleared, backwards[0], steps[0])


def _called(node: cst.CSTNode) -> tuple[str, str]:
    """``x`` and ``f`` of the statement ``x.f(...)``; of ``f(x).backward()`` the method alone."""
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return "", ""
    return dotted(call.func.value), call.func.attr.value


def _given(value: cst.BaseExpression) -> tuple[cst.Call, cst.BaseExpression] | None:
    """The parameters and the rate of ``SGD(model.parameters(), lr=rate)``; None where it is given more."""
    if not isinstance(value, cst.Call) or function_of(value) != "SGD" or len(value.args) != 2:
        return None
    listed, rate = value.args[0].value, argument(value, "lr") or value.args[1]
    named = rate.keyword is None or rate.keyword.value == "lr"
    plain = isinstance(listed, cst.Call) and isinstance(listed.func, cst.Attribute) and not listed.args
    if (
        value.args[0].keyword is not None
        or not named
        or not plain
        or function_of(cast(cst.Call, listed)) != "parameters"
    ):
        return None
    return cast(cst.Call, listed), rate.value


def _asked(node: cst.CSTNode, name: str) -> bool:
    return any(isinstance(n, cst.Name | cst.Attribute) and dotted(n) == name for n in descendants(node))
