"""What a loss takes the squared distance of: a score less the number that it is regressed on, as a least-squares GAN
does. Near that number the gradient says little of where the loss wants the score to go, and the number says it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch.autograd.graph import GradientEdge

from .saves import GONE

SHAPES = frozenset(
    f"{name}Backward{i}"
    for name in (
        "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "Expand", "T", "Transpose", "Permute", "Select",
        "Slice", "Index", "Cat", "Stack", "Clone", "ToCopy", "Alias", "Unbind", "Split",
    )
    for i in range(5)
)  # fmt: skip
_SUMS = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "NegBackward0")
_MEANS = frozenset(("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1", *_SUMS[2:]))
_DISTANCES = frozenset(("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"))
_MOST = 16  # terms of a loss
_HEAVIER = 10.0  # times as much weight: a regulariser
_EXACT = 1e-6
Gradients = Callable[[tuple[Any, ...]], tuple[Any, ...]]  # of the loss, by edges


class Distance(NamedTuple):
    """A term of a loss that is least where `rest` is zero; the term with this `weight`."""

    term: int
    rest: Any
    weight: float


def terms(root: int, nodes: dict[int, Any], parents: dict[int, tuple[int, ...]]) -> list[int]:
    """The nodes that `root` adds up, scaled maybe."""
    found, pending = [], [root]
    while pending:
        number = pending.pop()
        inputs = [p for p in parents[number] if p >= 0]
        sums = nodes[number].name() in _SUMS and (len(inputs) == 1 or nodes[number].name() in _SUMS[:2])
        if sums and inputs:
            pending += inputs
        elif number not in found:
            found.append(number)
    return found


def distances(walk: Any, saves: Any, gradients: Gradients) -> list[Distance]:
    """The terms of the loss that `walk` begins at which are squared distances."""
    found = []
    for term in terms(walk.roots[0], walk.nodes, walk.parents)[:_MOST]:
        node = term
        while walk.nodes[node].name() in _MEANS | SHAPES and len(walk.parents[node]) == 1:
            (node,) = walk.parents[node]
            if node < 0:
                break
        rest = _rest(walk.nodes[node], saves.of_node(node)) if node >= 0 else None
        if rest is not None:
            found.append((term, node, rest))
    weights = gradients(tuple(GradientEdge(walk.nodes[node], 0) for _, node, _ in found)) if found else ()
    return [
        Distance(term, rest, float(weight.sum()))
        for (term, _, rest), weight in zip(found, weights)  # noqa: B905 (Python 3.9)
        if weight is not None and float(weight.sum()) > 0
    ]


def unlike(some: list[Distance], others: list[Distance]) -> bool:
    """Whether any two are of one score, from different numbers."""
    return any(_unlike(a, b) for a in some for b in others)


def _unlike(one: Distance, other: Distance) -> bool:
    if not (other.weight / _HEAVIER < one.weight < other.weight * _HEAVIER):
        return False
    a, b = one.rest.flatten().double(), other.rest.flatten().double()
    if a.shape != b.shape or len(a) < 2:
        return False
    near = _EXACT * float(a.abs().max().maximum(b.abs().max()))
    if float(a.max() - a.min()) < 100 * near:
        return False  # of what score can't be seen
    moved = (a - b, a + b)  # (from 1, it may be ``1 - score``)
    return any(float(m.max() - m.min()) <= near and float(m.abs().min()) > 100 * near for m in moved)


def _rest(node: Any, entries: list[Any]) -> Any:
    """What the node takes the square of."""
    kept = [e.tensor for e in entries if e.tensor is not GONE and not e.moved()]
    if node.name() == "PowBackward0" and node._saved_exponent == 2 and len(kept) == 1:
        return kept[0].detach()
    if node.name() not in _DISTANCES or len(kept) != 2 or kept[0].shape != kept[1].shape:
        return None
    score = [t for t in kept if t.requires_grad]
    target = [t for t in kept if not t.requires_grad]
    return score[0].detach() - target[0] if len(score) == len(target) == 1 else None
