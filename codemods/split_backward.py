"""Differentiate each of the losses that were added up into the parameters it is there for."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.dataclass import dataclass
from gradfix.detect import Conflict
from gradfix.detect.opposed import sides, total_of
from gradfix.edit import Edit, Project, Replace, View, parenthesized
from gradfix.graph import Graph
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of, says, with_arguments
from gradfix.rewrite.optimized import parameters_of
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    body_of,
    dotted,
    line_of,
    put_after,
    take_away,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Terms, Unbounded
from gradfix.verdict import Effect

OWN = Effect("cut-own-loss", "each loss feeds only the parameters that it is there for")


class SplitBackward(Codemod):
    """Run a backward for each of the losses that pull a value opposite ways, with `inputs=` for what it trains.

    Why: `(errD + errG).backward()` gives the discriminator the gradient of the generator's loss as well, and the
    generator that of the discriminator's: what each of them gets of the other's undoes its own. Two backwards over
    the one graph keep them apart.

    When not: where several tasks are meant to train one network. Which loss is whose is read from the terms that only
    one of the networks computes (the score of real data); where there is none, nothing is proposed.
    """

    kinds = ("mixed-gradient",)
    effects = ("cut-own-loss",)

    examples = (
        Example(
            """\
import torch

torch.manual_seed(0)
G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for real in torch.randn(4, 8, 3):
    score = D(G(torch.randn(8, 2)))
    loss_d = torch.relu(1 - D(real)).mean() + torch.relu(1 + score).mean()
    loss_g = -score.mean()
    opt_d.zero_grad()
    opt_g.zero_grad()
    (loss_d + loss_g).backward()  # conflict: mixed-gradient
    opt_d.step()
    opt_g.step()
""",
            """\
import torch

torch.manual_seed(0)
G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for real in torch.randn(4, 8, 3):
    score = D(G(torch.randn(8, 2)))
    loss_d = torch.relu(1 - D(real)).mean() + torch.relu(1 + score).mean()
    loss_g = -score.mean()
    opt_d.zero_grad()
    opt_g.zero_grad()
    loss_d.backward(retain_graph=True, inputs=list(D.parameters()))  # conflict: mixed-gradient
    loss_g.backward(inputs=list(G.parameters()))
    opt_d.step()
    opt_g.step()
""",
            effect="cut-own-loss",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        backward, event = conflict.backward, conflict.event
        if conflict.pattern != "opposed" or backward is None or not isinstance(event, Terms | Unbounded):
            return
        its, place = dict(sides(project.graph, backward, event)), backward_call(project, backward)
        if not its or place is None or says(place[1], "inputs"):
            return
        view, call = place
        total = _sum(view, call)
        block = block_of(view, call)
        index = unit_in(view, block, call) if block is not None else None
        if total is None or block is None or index is None:
            return
        added = total_of(project.graph, backward)
        parts = _parts(project.graph, added.node, total, its) if added is not None else []
        groups: dict[frozenset[int], list[_Part]] = {}
        for part in parts:
            groups.setdefault(part.optimizers, []).append(part)
        for rank, retain in enumerate((False, True) if len(groups) == 2 else ()):
            edits = _apart(project, view, call, units(block)[index], groups, retain)
            if not edits:
                return
            said = "differentiate each loss into the parameters it trains"
            yield Proposal(said, OWN, gather((view, [*edits, *_unread(view, call)])), rank)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A summand as it is written, maybe a sum itself, and what it is there for."""

    expression: cst.BaseExpression
    minus: bool
    nodes: tuple[int, ...]
    optimizers: frozenset[int]


def _parts(
    graph: Graph,
    node: int,
    expression: cst.BaseExpression,
    its: dict[int, frozenset[int]],
    minus: bool = False,
) -> list[_Part]:
    """The summands of what is written and makes `node`, where each is there for the same; nothing where one is not."""
    below = graph.below(node) & its.keys()
    record, meant = graph.records.get(node), {its[n] for n in below}
    added = isinstance(expression, cst.BinaryOperation) and isinstance(
        expression.operator, (cst.Add, cst.Subtract)
    )
    if added and node in its and not expression.lpar:
        return []  # that the first two of three are added up first does not make them one loss
    if len(meant) == 1:
        return [_Part(expression, minus, (node,), meant.pop())]
    if (
        not isinstance(expression, cst.BinaryOperation)
        or not added
        or record is None
        or len(record.parents) != 2
    ):
        return []
    turned = isinstance(expression.operator, cst.Subtract) is not minus
    left = _parts(graph, record.parents[0], expression.left, its, minus)
    right = _parts(graph, record.parents[1], expression.right, its, turned)
    return [*left, *right] if left and right else []


def _added(parts: list[_Part]) -> cst.BaseExpression:
    """The sum of these."""
    total: cst.BaseExpression | None = None
    for part in parts:
        each = part.expression.deep_clone()
        if part.minus:
            each = parenthesized(each)
        if total is not None:
            total = cst.BinaryOperation(total, cst.Subtract() if part.minus else cst.Add(), each)
        else:
            total = cst.UnaryOperation(cst.Minus(), each) if part.minus else each
    assert total is not None
    return total


def _unread(view: View, call: cst.Call) -> list[Edit]:
    """The statement that gave the sum a name, taken away where nothing else reads it."""
    name, body = dotted(loss_of(call)), list(walk(body_of(view, call)))
    if name is None or sum(touches(u.reads, {name}) for u in body) != 1:
        return []
    made = [u for u in body if touches(u.writes, {name})]
    return list(take_away(made[0], view, comments=True)) if len(made) == 1 else []


def _sum(view: View, call: cst.Call) -> cst.BinaryOperation | None:
    """``errD + errG``, at the call or bound to a name right before it."""
    loss, block = loss_of(call), block_of(view, call)
    name = dotted(loss)
    if name is not None and block is not None and (at := unit_in(view, block, call)) is not None:
        body = units(block)[:at]
        made = next((u for u in reversed(body) if touches(u.writes, {name})), None)
        if made is None or not isinstance(made.node, cst.Assign) or len(made.node.targets) != 1:
            return None
        later = body[[u.node for u in body].index(made.node) + 1 :]
        if dotted(made.node.targets[0].target) != name or any(touches(u.writes, made.reads) for u in later):
            return None
        loss = made.node.value
    added = isinstance(loss, cst.BinaryOperation) and isinstance(loss.operator, (cst.Add, cst.Subtract))
    return loss if isinstance(loss, cst.BinaryOperation) and added else None


def _apart(
    project: Project,
    view: View,
    call: cst.Call,
    unit: Unit,
    groups: dict[frozenset[int], list[_Part]],
    retain: bool,
) -> list[Edit]:
    if not isinstance(unit.node, cst.Expr) or unit.node.value is not call:
        return []
    puts: list[dict[str, cst.BaseExpression]] = []
    for optimizers, parts in groups.items():
        if all(project.graph.reached_optimizers(n) <= optimizers for part in parts for n in part.nodes):
            puts.append({})
            continue
        lists = [parameters_of(project, k, view, call) for k in sorted(optimizers)]
        if len(lists) != 1 or lists[0] is None:
            return []
        puts.append({"inputs": lists[0]})
    calls = [call.deep_replace(loss_of(call), parenthesized(_added(parts))) for parts in groups.values()]
    first, second = (cst.ensure_type(c, cst.Call) for c in calls)
    keep: dict[str, cst.BaseExpression] = {"retain_graph": cst.Name("True")} if retain else {}
    one, other = with_arguments(first, {**keep, **puts[0]}), with_arguments(second, puts[1])
    assert isinstance(one, Replace)
    assert isinstance(other, Replace)
    behind = other.build(second)
    assert isinstance(behind, cst.Call)
    return [Replace(call, lambda _: one.build(first)), put_after(unit, line_of(cst.Expr(behind)))]
