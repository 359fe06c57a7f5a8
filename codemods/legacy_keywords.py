"""See :class:`LegacyKeywords`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import function_of

RENAMED = {"retain_variables": "retain_graph"}  # keywords of backward() and grad()
OLD = Effect("restored", "the argument has today's name")


class LegacyKeywords(Codemod):
    """Give arguments of `backward()` the names they have today.

    Why: `retain_variables` became `retain_graph` in PyTorch 0.2, and the old name raises.

    When not: never; it is the same argument.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    y = net(x).tanh()
    optimizer.zero_grad()
    y.mean().backward(retain_variables=True)  # conflict: legacy-api
    y.pow(2).mean().backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    y = net(x).tanh()
    optimizer.zero_grad()
    y.mean().backward(retain_graph=True)  # conflict: legacy-api
    y.pow(2).mean().backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        view = project.view(conflict.at.file)
        old = next((o for o in RENAMED if f"'{o}'" in conflict.message), None)
        if view is None or old is None:
            return
        edits = tuple(_renamed(view, old))
        yield Proposal(f"`{RENAMED[old]}` for `{old}`", OLD, {view.path: edits})


def _renamed(view: View, old: str) -> Iterator[Edit]:
    for call in view.parents:
        if isinstance(call, cst.Call) and function_of(call) in ("backward", "grad"):
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value == old:
                    yield Replace(arg.keyword, lambda _: cst.Name(RENAMED[old]))
