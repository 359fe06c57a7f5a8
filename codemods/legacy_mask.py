"""See :class:`LegacyMask`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.legacy import BYTES, TRUTH
from gradfix.edit import Project, Replace, parenthesized
from gradfix.rewrite.spelling import descendants, function_of

OLD = Effect("restored", "a mask of bytes masks as it did before PyTorch 1.2")
INVERTED = Effect("restored", "the mask is inverted as `1 - mask` did before PyTorch 1.2")
MASKING = frozenset(("masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select"))


class LegacyMask(Codemod):
    """Make truth values of a mask of bytes, where it masks, and invert a mask of truth values with `~`.

    Why: before PyTorch 1.2 a mask was a tensor of bytes (`.byte()`, `ByteTensor`), and comparisons gave one.
    Today it is of truth values, and to write a number under one of bytes, or to select by it, is refused:
    "masked_fill_ only supports boolean masks". So is `1 - mask` of what a comparison gave.

    When not: nothing else is meant by bytes in that place.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
seen = torch.tensor([0, 1, 0, 0]).byte()
for x in torch.randn(3, 5, 3):
    scores = net(x).masked_fill(seen, -1e9)  # conflict: legacy-api
    optimizer.zero_grad()
    scores.logsumexp(1).mean().backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
seen = torch.tensor([0, 1, 0, 0]).byte()
for x in torch.randn(3, 5, 3):
    scores = net(x).masked_fill(seen.bool(), -1e9)  # conflict: legacy-api
    optimizer.zero_grad()
    scores.logsumexp(1).mean().backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "removed" and conflict.message == TRUTH:
            yield from _inverted(conflict, project)
        if conflict.pattern != "removed" or conflict.message != BYTES:
            return
        view, node = project.node(conflict.at) or (None, None)
        if view is None or node is None:
            return
        small = view.small_statement(node)
        masks = [m for n in (node, *descendants(node)) if (m := _mask(n)) is not None]
        masks = masks or [m for n in descendants(small or node) if (m := _mask(n)) is not None]
        if masks:
            said = " ".join(view.code(masks[0]).split())
            edit = Replace(masks[0], _of_truth)
            yield Proposal(f"make truth values of `{said}`: `.bool()`", OLD, {view.path: (edit,)})


def _inverted(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """``~mask`` for ``1 - mask``."""
    view, node = project.node(conflict.at) or (None, None)
    if view is None or node is None:
        return
    found = [n for n in (node, *descendants(node)) if isinstance(n, cst.BinaryOperation) and _from_one(n)]
    if not found or (found[0] is not node and len(found) > 1):
        return
    said = " ".join(view.code(found[0].right).split())
    yield Proposal(f"`~{said}`", INVERTED, {view.path: (Replace(found[0], _by_tilde),)})


def _from_one(node: cst.BinaryOperation) -> bool:
    """Whether this is ``1 - …``."""
    left = node.left
    one = isinstance(left, cst.Integer | cst.Float) and left.evaluated_value == 1
    return one and isinstance(node.operator, cst.Subtract)


def _by_tilde(node: cst.CSTNode) -> cst.CSTNode:
    now = cst.ensure_type(node, cst.BinaryOperation)
    return cst.UnaryOperation(cst.BitInvert(), parenthesized(now.right), now.lpar, now.rpar)


def _mask(node: cst.CSTNode) -> cst.BaseExpression | None:
    """What masks in ``x[mask] = 0`` or ``x.masked_fill(mask, 0)``."""
    if isinstance(node, cst.Subscript):
        parts = [e.slice.value for e in node.slice if isinstance(e.slice, cst.Index)]
        parts = [p for p in parts if not isinstance(p, cst.Integer | cst.Ellipsis | cst.SimpleString)]
        return parts[0] if len(parts) == 1 else None
    if not isinstance(node, cst.Call) or function_of(node) not in MASKING:
        return None
    named = [a.value for a in node.args if a.keyword is not None and a.keyword.value == "mask"]
    plain = [a.value for a in node.args if a.keyword is None]
    first = 1 if isinstance(node.func, cst.Attribute) and _is_torch(node.func.value) else 0
    return named[0] if named else plain[first] if len(plain) > first else None


def _is_torch(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "torch"


def _of_truth(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.BaseExpression)
    return cst.Call(cst.Attribute(parenthesized(node), cst.Name("bool")))
