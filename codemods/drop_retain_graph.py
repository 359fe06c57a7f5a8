"""Remove a retain_graph that keeps a graph nobody walks again."""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, drop_retain
from gradfix.verdict import NONE


class DropRetainGraph(Codemod):
    """Remove `retain_graph=True` from a backward whose graph no later backward walks.

    Why: the saved tensors of the whole graph stay in memory until the loss is collected, and the flag hides
    the mistake that it was once added for: the next change that shares a graph by accident runs without a
    word.

    When not: where a later backward does walk the graph again (two losses over one forward pass), which
    the tape of a short run may not reach.
    """

    kinds = ("wasted-backward",)

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # conflict: wasted-backward
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: wasted-backward
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "idle-retain" or conflict.backward is None:
            return
        found = backward_call(project, conflict.backward)
        if found is None:
            return
        view, call = found
        yield Proposal("drop the idle retain_graph", NONE, gather((view, drop_retain(view, call))))
