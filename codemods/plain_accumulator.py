"""See :class:`PlainAccumulator`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import drop_keyword, small_statements
from gradfix.rewrite.tensors import accumulates
from gradfix.rewrite.writes import write_of


class PlainAccumulator(Codemod):
    """Let the sum of losses start from a plain tensor, not from a leaf that requires grad.

    Why: `total = torch.zeros(1, requires_grad=True)` makes a leaf, and `total += loss` writes into it, which
    autograd refuses. Nothing is to be learnt from the zero the sum starts with: without `requires_grad` the
    very same `+=` is recorded, and the gradient flows to every loss.

    When not: where the tensor is something that is trained.
    """

    kinds = ("leaf-write",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(2, requires_grad=True)
total = torch.zeros(1, requires_grad=True)
for k in range(3):
    total += (w * k).sum()  # conflict: leaf-write
total.backward()
""",
            """\
import torch

w = torch.ones(2, requires_grad=True)
total = torch.zeros(1)
for k in range(3):
    total += (w * k).sum()  # conflict: leaf-write
total.backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write = write_of(conflict, project)
        if write is None or not write.name or not accumulates(project, write):
            return
        edits = tuple(_untracked(write.view, write.name))
        if edits:
            yield Proposal(f"`{write.name}` need not require grad", NONE, {write.view.path: edits})


def _untracked(view: View, name: str) -> Iterator[Edit]:
    """Edits that take requires_grad from every tensor that `name` starts as."""
    for small in small_statements(view.module):
        if isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets):
            plain = drop_keyword(small.value, "requires_grad") or _without_method(small.value)
            if plain is not None:
                yield exchange(small.value, plain)
        elif _tracks(small, name):
            line = view.parents[small]
            alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
            yield Replace(line if alone else small, lambda _: cst.RemoveFromParent())


def _without_method(value: cst.BaseExpression) -> cst.BaseExpression | None:
    """``torch.zeros(1)`` of ``torch.zeros(1).requires_grad_()``."""
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return None
    return value.func.value if value.func.attr.value == "requires_grad_" else None


def _tracks(small: cst.BaseSmallStatement, name: str) -> bool:
    if isinstance(small, cst.Assign):
        return any(dotted(t.target) == f"{name}.requires_grad" for t in small.targets)
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return dotted(small.value.func) == f"{name}.requires_grad_"
    return False
