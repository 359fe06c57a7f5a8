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
from gradfix.rewrite.liveness import statement_before
from gradfix.rewrite.spelling import imported, last_name, unused
from gradfix.rewrite.statements import block_of, body_of, dotted, reads_of
from gradfix.tape import Cut, Fed

GAINS = Effect(
    "adds-gradient",
    "the gradient passes as if the op were not there; every value and every other gradient stays",
)
CODES = Effect(
    "straight-through",
    "the gradient of what is decoded goes to the encoder, and no longer to the codes, which have a loss of their own",
)
LATER = (cst.Lambda, cst.BaseComp, cst.IfExp, cst.BooleanOperation)


class StraightThrough(Codemod):
    """Pass the gradient straight through an op whose derivative is zero.

    Why: `sign`, `round`, `floor`, `ceil` and `trunc` have a derivative of zero wherever they have one: what only they
    lead to gets gradients of zero, and its optimizer steps without ever training it. `x + (x.round() - x).detach()` has
    the same value, and the derivative of `x`: the straight-through estimator (Bengio, Leonard and Courville 2013).

    So do the codes of a table which are put in the place of what an encoder makes: `z + (codes - z).detach()`.

    When not: where the rounded value is a target or a statistic, and what it is made of is trained by another loss.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient", "straight-through")
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
        if conflict.pattern == "quantized":
            yield from _codes(conflict, project)
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


def _codes(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """``codes = z + (codes - z).detach()``, behind where the loss compares the two."""
    compared, chosen = conflict.event, conflict.label("cut")
    found = project.node(compared.stack[-1]) if isinstance(compared, Fed) else None
    index = project.node(chosen.stack[-1]) if chosen is not None else None
    taken = conflict.label("used")
    lookup = project.node(taken.stack[-1]) if taken is not None else None
    if found is None or index is None or lookup is None or not isinstance(compared, Fed):
        return
    view, both = found[0], _both(found[1])
    if len(both) != 2 or index[0] is not view:
        return
    made = view.small_statement(lookup[1])
    name = dotted(made.targets[0].target) if isinstance(made, cst.Assign) else None
    if name not in both:  # the table has no graph, and what takes its codes is the decoder
        near_to = [n for n in both if reads_of(index[1], n)]
        name = next((n for n in both if n not in near_to), None) if len(near_to) == 1 else None
        bound = statement_before(view, found[1], name) if name is not None else None
        made = bound.body[0] if isinstance(bound, cst.SimpleStatementLine) else None
    if name is None or made is None:
        return
    other = next(n for n in both if n != name)
    body = body_of(view, made)
    reads = [r for r in reads_of(body, name) if _line(view, r) > _line(view, made)]
    smalls = [(r, view.small_statement(r)) for r in reads]
    near = [s for _, s in smalls if s is not None and reads_of(s, other) and not isinstance(s, cst.Return)]
    if not near or block_of(view, near[-1]) is not block_of(view, made):
        return
    last = max(near, key=lambda s: _line(view, s))
    early = [s for _, s in smalls if s is not None and s not in near and _line(view, s) < _line(view, last)]
    cuts = (e for e in project.graph.tape.events if isinstance(e, Cut) and e.time in compared.cuts)
    still = any(c.how == "discrete" for c in cuts)  # the table is kept up otherwise
    trained = any(f"{other}.detach()" in view.code(s) for s in near)
    if all(_rebinds(s, name) for s in early) and (still or trained):
        codes, value = cst.parse_expression(name), cst.parse_expression(other)
        passed = assignment(cst.ensure_type(codes, cst.Name), _through(codes, value))
        edit = Insert(last, after=(line(passed),))
        yield Proposal(
            f"straight through: `{name}` has the gradient of `{other}`", CODES, {view.path: (edit,)}
        )


def _both(node: cst.CSTNode) -> list[str]:
    """The names that a loss or a difference compares, without their ``.detach()``."""
    if isinstance(node, cst.Call):
        values = [a.value for a in node.args[:2]]
    elif isinstance(node, cst.BinaryOperation):
        values = [node.left, node.right]
    else:
        return []
    bare = [
        v.func.value if isinstance(v, cst.Call) and isinstance(v.func, cst.Attribute) else v for v in values
    ]
    return [v.value for v in bare if isinstance(v, cst.Name)]


def _rebinds(statement: cst.BaseSmallStatement, name: str) -> bool:
    """``codes = codes.view(z.shape)``"""
    return isinstance(statement, cst.Assign) and [dotted(t.target) for t in statement.targets] == [name]


def _line(view: View, node: cst.CSTNode) -> int:
    return int(view.span(node).start.line)


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


def _through(call: cst.BaseExpression, operand: cst.BaseExpression) -> cst.BaseExpression:
    """``x + (x.round() - x).detach()``."""
    rest = cst.BinaryOperation(call, cst.Subtract(), copy(operand))
    return cst.BinaryOperation(copy(operand), cst.Add(), method(rest, "detach"))
