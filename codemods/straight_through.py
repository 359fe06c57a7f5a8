"""See :class:`StraightThrough`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.flat import FLAT
from gradfix.edit import Edit, Insert, Project, View, exchange, parenthesized
from gradfix.rewrite.blocks import assignment, copy, line, method
from gradfix.rewrite.spelling import imported, last_name, unused
from gradfix.rewrite.statements import dotted

GAINS = Effect(
    "adds-gradient",
    "the gradient passes as if the op were not there; every value and every other gradient stays",
)
LATER = (cst.Lambda, cst.BaseComp, cst.IfExp, cst.BooleanOperation)


class StraightThrough(Codemod):
    """Pass the gradient straight through an op whose derivative is zero.

    Why: `sign`, `round`, `floor`, `ceil` and `trunc` have a derivative of zero wherever they have one: what only they
    lead to gets gradients of zero, and its optimizer steps without ever training it. `x + (x.round() - x).detach()` has
    the same value, and the derivative of `x`: the straight-through estimator (Bengio, Leonard and Courville 2013).

    When not: where the rounded value is a target or a statistic, and what it is made of is trained by another loss.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

encoder, decoder = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    code = encoder(x).round()  # conflict: cut-graph
    loss = (decoder(code) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

encoder, decoder = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    code = encoder(x)  # conflict: cut-graph
    code = code + (code.round() - code).detach()
    loss = (decoder(code) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        record = conflict.record
        if conflict.pattern != "zero-derivative" or record is None or not record.stack:
            return
        found = project.node(record.stack[-1])
        if found is None or not isinstance(found[1], cst.Call):
            return
        view, call = found[0], found[1]
        operand = _operand(view, call)
        if operand is None:
            return
        said = f"straight through: `{view.code(call)}`"
        if dotted(operand) is not None:
            edits: tuple[Edit, ...] = (exchange(call, _placed(view, call, _through(call, operand))),)
        else:
            edits = _named(view, call, operand)
        if edits:
            yield Proposal(said, GAINS, {view.path: edits})


def _operand(view: View, call: cst.Call) -> cst.BaseExpression | None:
    """What the op is of: ``x`` in ``x.round()`` and ``torch.round(x, decimals=1)``."""
    func = call.func
    if last_name(func) not in FLAT:
        return None
    if isinstance(func, cst.Attribute) and dotted(func.value) not in imported(view):
        return func.value
    first = call.args[0] if call.args else None
    return None if first is None or first.star or first.keyword is not None else first.value


def _named(view: View, call: cst.Call, operand: cst.BaseExpression) -> tuple[Edit, ...]:
    """The operand gets a name first: that of what is bound, where that is all of the statement."""
    small, statement = view.small_statement(call), view.statement(call)
    if small is None or statement is None or any(isinstance(a, LATER) for a in _between(view, call, small)):
        return ()
    if isinstance(small, cst.Assign) and small.value is call and len(small.targets) == 1:
        target = small.targets[0].target
        if isinstance(target, cst.Name):
            then = assignment(target, _through(_of(call, operand, target), target))
            return exchange(call, operand), Insert(small, after=(line(then),))
    name = cst.Name(unused(view, "soft"))
    passed = exchange(call, _placed(view, call, _through(_of(call, operand, name), name)))
    return Insert(small, before=(line(assignment(name, operand)),)), passed


def _between(view: View, node: cst.CSTNode, end: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for ancestor in view.ancestors(node):
        if ancestor is end:
            return
        yield ancestor


def _placed(view: View, call: cst.Call, new: cst.BaseExpression) -> cst.BaseExpression:
    """`new` in the place of `call`."""
    alone = isinstance(view.parents[call], cst.Arg | cst.Assign | cst.Return)
    return new if alone else parenthesized(new)


def _of(call: cst.Call, operand: cst.BaseExpression, name: cst.Name) -> cst.Call:
    """The same op, of `name`."""
    return cast(cst.Call, call.deep_replace(operand, copy(name)))


def _through(call: cst.Call, operand: cst.BaseExpression) -> cst.BaseExpression:
    """``x + (x.round() - x).detach()``."""
    rest = cst.BinaryOperation(call, cst.Subtract(), copy(operand))
    return cst.BinaryOperation(copy(operand), cst.Add(), method(rest, "detach"))
