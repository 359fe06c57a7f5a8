"""See :class:`LegacySteps`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.legacy import STEPS
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.blocks import of_torch

OLD = Effect("restored", "the optimizer counts its steps as it did")


class LegacySteps(Codemod):
    """Begin an optimizer's count of steps with a tensor: `state["step"] = torch.tensor(0.0)`.

    Why: an Adam whose state several processes share, as A3C has it, fills its state when it is made. The count of steps
    was a plain number until PyTorch 1.12; the optimizers ask for a tensor today.

    When not: never; the count is the same.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.1)
for p in net.parameters():
    state = optimizer.state[p]
    state["step"] = 0
    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: legacy-api
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.1)
for p in net.parameters():
    state = optimizer.state[p]
    state["step"] = torch.tensor(0.0)
    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: legacy-api
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "removed" or STEPS not in conflict.message:
            return
        edits: dict[str, tuple[Edit, ...]] = {}
        for path in sorted(project.files):
            view = project.view(path)
            counts = list(_counts(view)) if view is not None else []
            if view is None or not counts:
                continue
            said = of_torch(view, "tensor")
            made = [cst.Call(said.expression, [cst.Arg(cst.Float(f"{n.value}.0"))]) for n in counts]
            pairs = zip(counts, made, strict=True)
            edits[path] = (*(exchange(n, call) for n, call in pairs), *said.edits)
        if edits:
            yield Proposal("begin the count of steps with a tensor", OLD, edits)


def _counts(view: View) -> Iterator[cst.Integer]:
    """The whole numbers that are put under "step" into what is called a state."""
    for node in view.parents:
        target = node.targets[0].target if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
        if not isinstance(node, cst.Assign) or not isinstance(target, cst.Subscript):
            continue
        key = target.slice[0].slice if len(target.slice) == 1 else None
        word = key.value if isinstance(key, cst.Index) else None
        if not isinstance(word, cst.SimpleString) or word.evaluated_value != "step":
            continue
        if "state" in view.code(target.value) and isinstance(node.value, cst.Integer):
            yield node.value
