"""See :class:`PushGradient`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import block_of, put_after, unit_in, units

PUSHED = Effect("adds-gradient", "the gradient that ended at the new leaf goes on to what it was cut from")


class PushGradient(Codemod):
    """Hand the gradient of a cut value on to the graph it was cut from.

    Why: taking a value out of its graph as a new leaf, differentiating what comes after it piece by piece
    and then calling `value.backward(leaf.grad)` saves memory. Without the last call the gradient ends at the
    leaf, and what made the value never learns.

    When not: where the part before the cut is not to be trained by this loss.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

body, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    features = body(x)
    leaf = features.detach().requires_grad_()  # conflict: cut-graph
    optimizer.zero_grad()
    for part in leaf.split(2):
        head(part).pow(2).mean().backward()
    optimizer.step()
""",
            """\
import torch

body, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    features = body(x)
    leaf = features.detach().requires_grad_()  # conflict: cut-graph
    optimizer.zero_grad()
    for part in leaf.split(2):
        head(part).pow(2).mean().backward()
    features.backward(leaf.grad)
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        cut, backward = conflict.label("cut"), conflict.backward
        if conflict.pattern != "rewrapped" or cut is None or backward is None:
            return
        depth = meeting(cut.stack, backward.stack)
        made, needed = frame(project, cut.stack, depth), frame(project, backward.stack, depth)
        if depth != len(cut.stack) - 1 or made is None or needed is None or made[0] is not needed[0]:
            return
        view = made[0]
        small = view.small_statement(made[1])
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            return
        leaf, value = dotted(small.targets[0].target), _cut_from(small.value)
        block = block_of(view, small)
        first = unit_in(view, block, needed[1]) if block is not None else None
        if not leaf or not value or leaf == value or block is None or first is None:
            return
        body = units(block)
        last = max(n for n in range(first, len(body)) if n == first or _differentiates(body[n].node))
        push = cst.parse_statement(f"{value}.backward({leaf}.grad)")
        yield Proposal(
            f"hand `{leaf}.grad` on to `{value}`", PUSHED, {view.path: (put_after(body[last], push),)}
        )


def _cut_from(node: cst.BaseExpression) -> str:
    """The name whose value is cut: ``out`` of ``Variable(out.data, requires_grad=True)``."""
    for inner in (node, *descendants(node)):
        if isinstance(inner, cst.Attribute) and inner.attr.value in ("data", "detach"):
            return dotted(inner.value)
    return ""


def _differentiates(node: cst.CSTNode) -> bool:
    return any(
        isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "backward"
        for n in (node, *descendants(node))
    )
