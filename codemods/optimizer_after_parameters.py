"""See :class:`OptimizerAfterParameters`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.replaced import prepared
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    lifted,
    put_after,
    take_all_away,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Optimizer, Step

HELD = Effect(
    "adds-gradient", "the optimizer holds the model's own parameters; every other gradient is as before"
)


class OptimizerAfterParameters(Codemod):
    """Make the optimizer when the model has the parameters that it is to train.

    Why: an optimizer holds the tensors that it was given. A layer that is replaced afterwards gets
    gradients and is never updated, while the optimizer goes on with the old layer's tensors.

    When not: where the new layer is to stay as it is (then freeze it), or belongs to an optimizer of its
    own that is still to come.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)  # conflict: stray-optimizer
net[1] = torch.nn.Linear(3, 2)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
net[1] = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)  # conflict: stray-optimizer
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "unregistered":
            return
        made = _made(conflict, project)
        if made is None:
            return
        for site in reversed(made.stack):
            found = project.node(site)
            block = block_of(found[0], found[1]) if found else None
            index = unit_in(found[0], block, found[1]) if found and block is not None else None
            if found is None or block is None or index is None:
                continue
            view, body = found[0], units(block)
            chain, limit = prepared(body, index)
            last = max((n for n in range(index + 1, limit) if _replaces(body[n], conflict)), default=None)
            if last is not None:
                yield _moved(view, body, chain, body[last], 0)
            if limit - 1 not in (last, index) and limit - 1 not in chain:
                yield _moved(view, body, chain, body[limit - 1], 1)


def _made(conflict: Conflict, project: Project) -> Optimizer | None:
    """The making of the optimizer, unless it has stepped before its parameters were replaced: it had them by right."""
    event = conflict.event
    if isinstance(event, Step) and event == project.graph.steps_of(event.optimizer)[0]:
        event = project.graph.optimizers.get(event.optimizer)
    return event if isinstance(event, Optimizer) and event.stack else None


def _replaces(unit: Unit, conflict: Conflict) -> bool:
    """Whether the statement may have given the model another parameter: it binds (a part of) what holds it,
    or calls something with it."""
    name = conflict.ref.name if conflict.ref is not None else ""
    root = name.partition(".")[0]
    if isinstance(unit.node, cst.FunctionDef | cst.ClassDef):
        return False
    if not name:
        return isinstance(unit.node, cst.Expr | cst.Assign)
    if touches(unit.writes, {name}):
        return True
    if isinstance(unit.node, cst.Assign) and any(_root(t.target) == root for t in unit.node.targets):
        return True
    calls = isinstance(unit.node, cst.Expr) and isinstance(unit.node.value, cst.Call)
    return calls and touches(unit.reads, {root})


def _root(node: cst.BaseExpression) -> str:
    """``net`` of ``net[2].weight``."""
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
    return node.value if isinstance(node, cst.Name) else ""


def _moved(view: View, body: Sequence[Unit], chain: Sequence[int], behind: Unit, rank: int) -> Proposal:
    moved = [body[n] for n in chain]
    edits = take_all_away(moved, view)
    edits.append(put_after(behind, *(lifted(u) for u in moved)))
    names = ", ".join(f"`{w}`" for u in moved for w in sorted(u.writes))
    return Proposal(f"make {names} after the parameters", HELD, {view.path: tuple(edits)}, rank)
