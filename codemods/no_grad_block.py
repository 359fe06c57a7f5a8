"""See :class:`NoGradBlock`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.blocks import of_torch, under
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import Unit, block_of, take_away, touches, unit_in, units
from gradfix.tape import Off
from gradfix.verdict import GAINS


class NoGradBlock(Codemod):
    """Keep gradients off for a function or a block alone, not from there on.

    Why: `torch.set_grad_enabled(False)` as a statement holds until something turns gradients on again, also
    in the caller. Behind an evaluation that ends without, no loss has a graph any more. `@torch.no_grad()`
    and `with torch.no_grad():` end with the function or the block, whichever way it is left.

    When not: in a script that only predicts.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

def score(x):
    torch.set_grad_enabled(False)  # conflict: cut-graph
    return net(x).pow(2).mean()

for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    (net(x) - 1).pow(2).mean().backward()
    optimizer.step()
    print(score(x))
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)

@torch.no_grad()
def score(x):
    # conflict: cut-graph
    return net(x).pow(2).mean()

for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    (net(x) - 1).pow(2).mean().backward()
    optimizer.step()
    print(score(x))
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        off = conflict.event
        found = project.node(off.stack[-1]) if isinstance(off, Off) and off.stack else None
        if found is None or conflict.backward is None:
            return
        view, small = found[0], found[0].small_statement(found[1])
        call = small.value if isinstance(small, cst.Expr) else None
        block = block_of(view, small) if small is not None else None
        index = unit_in(view, block, small) if block is not None and small is not None else None
        if block is None or index is None or not isinstance(call, cst.Call):
            return
        if function_of(call) != "set_grad_enabled" or len(call.args) != 1:
            return
        body = units(block)
        trains = [node for v, node in project.frames(conflict.backward.stack) if v is view]
        gone = take_away(body[index], view, comments=True)
        plain = isinstance(call.args[0].value, cst.Name) and call.args[0].value.value == "False"
        if plain:
            yield from _decorated(view, block, trains, gone)
        for rank, end in enumerate(_ends(view, body, index, trains), 1):
            context = of_torch(view, "no_grad").expression if plain else call
            yield from _block(view, body[index + 1 : end], context, gone, rank)


def _decorated(
    view: View, block: cst.CSTNode, trains: Sequence[cst.CSTNode], gone: Sequence[Edit]
) -> Iterator[Proposal]:
    """The whole function, where none of what trains runs in it."""
    function = view.parents.get(block)
    if not isinstance(function, cst.FunctionDef) or len(units(block)) < 2:
        return
    if any(function in view.ancestors(node) for node in trains):
        return
    no_grad = of_torch(view, "no_grad")
    decorator = cst.Decorator(cst.Call(no_grad.expression))

    def build(node: cst.CSTNode) -> cst.CSTNode:
        now = cast(cst.FunctionDef, node)
        return now.with_changes(decorators=[*now.decorators, decorator])

    edits = (*gone, Replace(function, build), *no_grad.edits)
    summary = f"keep gradients off in `{function.name.value}` alone"
    yield Proposal(summary, GAINS, {view.path: edits})


def _ends(view: View, body: Sequence[Unit], index: int, trains: Sequence[cst.CSTNode]) -> Iterator[int]:
    """Where a block that begins behind the call may end: before what trains and what its loss is made of here, or
    with the body."""
    for n, unit in enumerate(body[index + 1 :], index + 1):
        if any(unit.node is node or unit.node in view.ancestors(node) for node in trains):
            first, wanted = n, set(unit.reads)
            for m in range(n - 1, index, -1):
                if touches(body[m].writes, wanted):
                    first, wanted = m, wanted | body[m].reads
            yield from dict.fromkeys((first, n))
            return
    yield len(body)


def _block(
    view: View, rest: Sequence[Unit], context: cst.BaseExpression, gone: Sequence[Edit], rank: int
) -> Iterator[Proposal]:
    if not rest:
        yield Proposal("leave gradients on", GAINS, {view.path: tuple(gone)}, rank, idea="block")
        return
    lines = list(dict.fromkeys(unit.line for unit in rest))
    edits = (*gone, *under(view, context, lines), *of_torch(view, "no_grad").edits)
    yield Proposal("keep gradients off in a block of its own", GAINS, {view.path: edits}, rank, idea="block")
