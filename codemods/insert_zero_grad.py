"""See :class:`InsertZeroGrad`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.calls import step_expression
from gradfix.rewrite.statements import block_of, put_after, put_before, unit_in, units
from gradfix.tape import Backward, Step

CLEARED = Effect("adds-gradient", "every step uses the gradient of its own pass only")


class InsertZeroGrad(Codemod):
    """Clear an optimizer's gradients once for each of its steps.

    Why: `backward()` adds to `.grad`. Without `optimizer.zero_grad()` every step uses the sum of the
    gradients of all passes so far. It is cleared before the first backward that the step is for, or right
    after the step where several passes are gathered for one.

    When not: where the sum over all passes is meant (a hand-written running sum of gradients).
    """

    kinds = ("unreset-grad",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    loss.backward()  # conflict: unreset-grad
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
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
        step = conflict.event
        if conflict.pattern != "never-cleared" or not isinstance(step, Step):
            return
        optimizer = step_expression(project, step)
        place = frame(project, step.stack, len(step.stack) - 1)
        block = block_of(place[0], place[1]) if place else None
        index = unit_in(place[0], block, place[1]) if place and block else None
        if optimizer is None or place is None or block is None or index is None:
            return
        view = place[0]
        code = view.code(optimizer)
        summary = f"clear the gradients of `{code}`"
        clear = cst.parse_statement(f"{code}.zero_grad()")
        first = _first(conflict, project, step)
        at = None
        if first is not None and meeting(first.stack, step.stack) == len(step.stack) - 1:
            made = frame(project, first.stack, len(step.stack) - 1)
            at = unit_in(view, block, made[1]) if made and made[0] is view else None
        if (
            at is not None
            and at < index
            and not isinstance(units(block)[index].node, cst.BaseCompoundStatement)
        ):
            yield Proposal(
                f"{summary} before the backward", CLEARED, {view.path: (put_before(units(block)[at], clear),)}
            )
        yield Proposal(
            f"{summary} after the step", CLEARED, {view.path: (put_after(units(block)[index], clear),)}, 1
        )


def _first(conflict: Conflict, project: Project, step: Step) -> Backward | None:
    """The first backward since the optimizer's last step that fills what it steps."""
    own = {r.storage for r in step.refs}
    found = (e for e in project.graph.before_step(step) if isinstance(e, Backward))
    return next((b for b in found if any(r.storage in own for r in b.accumulates)), conflict.backward)
