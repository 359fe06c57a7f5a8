"""See :class:`LegacyFull`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.blocks import of_torch
from gradfix.rewrite.calls import with_arguments
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.tape import Site

OLD = Effect("restored", "the tensor is of floats, as it was before PyTorch 1.7")


class LegacyFull(Codemod):
    """Say that `torch.full` is to be of floats.

    Why: before PyTorch 1.7 `torch.full(size, 1)` was a tensor of floats, and is one of whole numbers today, which
    `BCELoss` refuses as a target: "Found dtype Long but expected Float".

    When not: where whole numbers are meant, for a loss that takes classes.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

D = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Sigmoid())
optimizer = torch.optim.SGD(D.parameters(), 0.1)
criterion = torch.nn.BCELoss()
real_label = 1
for x in torch.randn(3, 4, 3):
    label = torch.full((4, 1), real_label)  # conflict: legacy-api
    optimizer.zero_grad()
    criterion(D(x), label).backward()
    optimizer.step()
""",
            """\
import torch

D = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Sigmoid())
optimizer = torch.optim.SGD(D.parameters(), 0.1)
criterion = torch.nn.BCELoss()
real_label = 1
for x in torch.randn(3, 4, 3):
    label = torch.full((4, 1), real_label, dtype=torch.float)  # conflict: legacy-api
    optimizer.zero_grad()
    criterion(D(x), label).backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "filled":
            return
        places = [x.stack[-1] for x in conflict.labels if x.role == "made" and x.stack]
        every = [found for site in places if (found := _made(project, site))]
        if len(every) > 1:
            yield Proposal(f"{len(every)} tensors of floats: `dtype=torch.float`", OLD, _of_floats(every))
        alone = _made(project, conflict.at)
        if alone is not None:
            yield Proposal("of floats: `dtype=torch.float`", OLD, _of_floats([alone]), len(every) > 1)


def _made(project: Project, site: Site) -> tuple[View, cst.Call] | None:
    """The call of torch.full at `site`."""
    view, node = project.node(site) or (None, None)
    if view is None or node is None:
        return None
    calls = (n for n in (node, *descendants(node)) if isinstance(n, cst.Call) and function_of(n) == "full")
    call = next(calls, None)
    if call is None or any(a.keyword is not None and a.keyword.value == "dtype" for a in call.args):
        return None
    return view, call


def _of_floats(calls: list[tuple[View, cst.Call]]) -> dict[str, tuple[Edit, ...]]:
    edits: dict[str, tuple[Edit, ...]] = {}
    for view, call in calls:
        said = of_torch(view, "float")
        more = () if view.path in edits else said.edits
        edits[view.path] = (
            *edits.get(view.path, ()),
            with_arguments(call, {"dtype": said.expression}),
            *more,
        )
    return edits
