"""See :class:`InsertStep`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.unstepped import step_behind, step_due
from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.dropped import uncalled
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import block_of, put_after, shown, unit_in, units
from gradfix.tape import Zero

STEPPED = Effect("adds-gradient", "the optimizer steps with the gradients that were cleared unused")


class InsertStep(Codemod):
    """Step an optimizer behind the backward whose gradients were computed for it and cleared unused.

    Why: `backward()` fills `.grad` and changes no parameter. Without `optimizer.step()` a model keeps its first
    values, and nothing is said.

    When not: where gradients alone are wanted (to look at them, to time a backward); then the optimizer is one too
    many. A loss that a GradScaler has scaled wants `scaler.step(optimizer)` and `scaler.update()`.
    """

    kinds = ("unreset-grad",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(8, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: unreset-grad
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(8, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: unreset-grad
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        zero, backward = conflict.event, step_due(project.graph, conflict)
        last = step_behind(project.graph, conflict)
        if (
            conflict.pattern != "never-stepped"
            or not isinstance(zero, Zero)
            or backward is None
            or last is None
        ):
            return
        depth = len(zero.stack) - 1
        if zero.optimizer is None or {meeting(zero.stack, e.stack) for e in (backward, last)} != {depth}:
            return  # nothing names the optimizer where the loss is, or where its gradients are clipped
        called = frame(project, backward.stack, depth)
        clear = called[0].call_at(zero.stack[-1]) if called is not None else None
        if called is None or clear is None or not isinstance(clear.func, cst.Attribute):
            return
        view, at = called
        block = block_of(view, at)
        index = unit_in(view, block, at) if block is not None else None
        if block is None or index is None or function_of(clear) != "zero_grad" or _scaled(view, at):
            return
        here = frame(project, last.stack, depth)
        end = unit_in(view, block, here[1]) if here is not None else None
        if end is None or isinstance(units(block)[index].node, cst.BaseCompoundStatement):
            return
        unit = [u for i, u in enumerate(units(block)) if i >= index and (i <= end or _clips(u.node))][-1]
        name = view.code(clear.func.value)
        if any(True for _ in uncalled(view, "step", name)):
            return  # (it stands there, without its parentheses)
        said = f"step `{name}` after `{shown(view, unit.node)}`"
        step = cst.parse_statement(f"{name}.step()")
        yield Proposal(said, STEPPED, {view.path: (put_after(unit, step),)})


def _clips(node: cst.CSTNode) -> bool:
    """Whether gradients are clipped there, which the step is to have."""
    called = (function_of(n) or "" for n in (node, *descendants(node)) if isinstance(n, cst.Call))
    return any(name.startswith("clip_grad") for name in called)


def _scaled(view: View, at: cst.CSTNode) -> bool:
    """Whether a GradScaler has scaled the loss."""
    return any(isinstance(n, cst.Call) and function_of(n) == "scale" for n in (at, *descendants(at)))
