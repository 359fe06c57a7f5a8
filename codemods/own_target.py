"""See :class:`OwnTarget`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, exchange
from gradfix.rewrite.blocks import copy, method
from gradfix.rewrite.liveness import dotted, sharing
from gradfix.rewrite.spelling import function_of, hides, layers
from gradfix.rewrite.writes import write_at

OWN = Effect("own-memory", "what is written into the target is not written into the prediction")


class OwnTarget(Codemod):
    """Give the target memory of its own, and no graph.

    Why: `target = q` is another name for the same tensor, and `q.detach()`, `q.data` and `q.detach().numpy()` share its
    memory. What is written into the target is then written into the prediction, too; the two are compared, found equal,
    and the gradient is zero. `q.detach().clone()` is a tensor of its own.

    When not: where the prediction is meant to be overwritten; then it has no use for a loss of it and itself.
    """

    kinds = ("attached-target",)
    effects = ("own-memory",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for state, reward in zip(torch.randn(3, 5, 3), torch.randn(3, 5)):
    q = net(state)
    target = q
    target[:, 0] = reward
    loss = torch.nn.functional.mse_loss(q, target)  # conflict: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for state, reward in zip(torch.randn(3, 5, 3), torch.randn(3, 5)):
    q = net(state)
    target = q.detach().clone()
    target[:, 0] = reward
    loss = torch.nn.functional.mse_loss(q, target)  # conflict: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="own-memory",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        written = conflict.label("overwritten")
        if conflict.pattern != "itself" or written is None:
            return
        write = write_at(project, written.at)
        if write is None or not write.name:
            return
        for statement in sharing(write.view, write.node, write.name).views:
            new = _own(statement.value) if isinstance(statement, cst.Assign) else None
            if new is not None:
                code = " ".join(write.view.module.code_for_node(new).split())
                edit = exchange(cast(cst.Assign, statement).value, new)
                yield Proposal(f"a target of its own: `{code}`", OWN, {write.view.path: (edit,)})
                return


def _own(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """What is equal to a name, or to an alias of one, and lies in memory of its own."""
    if isinstance(value, cst.Call) and function_of(value) == "numpy" and not value.args:
        return method(value, "copy")
    if isinstance(value, cst.Attribute) and value.attr.value == "data":
        return method(method(value.value, "detach"), "clone")
    if dotted(value):
        return method(method(copy(value), "detach"), "clone")
    return method(value, "clone") if any(hides(x) for x in layers(value)) else None
