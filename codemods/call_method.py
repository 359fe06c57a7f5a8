"""See :class:`CallMethod`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, exchange
from gradfix.rewrite.dropped import uncalled

# the pattern of a fault -> the method that is not called, and what calling it comes to
METHODS = {
    "never-stepped": (
        "step",
        Effect("adds-gradient", "the optimizer steps with the gradients that were cleared unused"),
    ),
    "never-cleared": (
        "zero_grad",
        Effect("adds-gradient", "every step uses the gradient of its own pass only"),
    ),
    "uncalled": ("backward", Effect("adds-gradient", "the loss is differentiated before the step")),
}


class CallMethod(Codemod):
    """Call a method that a statement only names.

    Why: `optimizer.step` is the method, and `optimizer.step()` calls it. As a statement of its own the first does
    nothing, and Python says nothing: no parameter changes, no gradient is cleared, or none is computed.

    When not: where the attribute is a property that does something when it is read; that is no optimizer's.
    """

    kinds = ("unreset-grad", "cut-graph")
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
    optimizer.step
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
        if conflict.pattern not in METHODS:
            return
        method, effect = METHODS[conflict.pattern]
        for view in filter(None, map(project.view, project.files)):
            for named in uncalled(view, method):
                call = cst.Call(named.deep_clone())
                yield Proposal(f"call `{view.code(named)}()`", effect, {view.path: (exchange(named, call),)})
