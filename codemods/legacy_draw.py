"""See :class:`LegacyDraw`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.legacy import DRAWS
from gradfix.edit import Project, Replace
from gradfix.rewrite.spelling import descendants, function_of

OLD = Effect("restored", "one is drawn, as before PyTorch 0.4")


class LegacyDraw(Codemod):
    """Tell `multinomial()` to draw one.

    Why: before PyTorch 0.4 `probabilities.multinomial()` drew one of each row. Today it has to be told how many:
    "multinomial() missing 1 required positional arguments".

    When not: never; it is the number that was left out.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 5, 3):
    scores = net(x).log_softmax(1)
    action = scores.exp().multinomial()  # conflict: legacy-api
    optimizer.zero_grad()
    (-scores.gather(1, action) * x.sum(1, keepdim=True)).mean().backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 5, 3):
    scores = net(x).log_softmax(1)
    action = scores.exp().multinomial(1)  # conflict: legacy-api
    optimizer.zero_grad()
    (-scores.gather(1, action) * x.sum(1, keepdim=True)).mean().backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "removed" or conflict.message != DRAWS:
            return
        view, node = project.node(conflict.at) or (None, None)
        if view is None or node is None:
            return
        draws = [n for n in (node, *descendants(node)) if _draws_untold(n)]
        if len(draws) == 1:
            yield Proposal("draw one: `multinomial(1)`", OLD, {view.path: (Replace(draws[0], _of_one),)})


def _draws_untold(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and function_of(node) == "multinomial" and not node.args


def _of_one(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.Call)
    return node.with_changes(args=[cst.Arg(cst.Integer("1"))])
