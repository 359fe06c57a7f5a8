"""Tensors that ``expand()`` made: several of their elements lie in one place, which few ops may write to."""

from __future__ import annotations

from typing import Any

from gradfix.read.values import Shape, Spread, Tensor

_EXPANDING = {"expand", "expand_as", "broadcast_to"}
_SWAPPING = {"t", "transpose", "swapaxes", "swapdims"}
# they write one value wherever they write, do not write at all, or write into memory of their own
TAKING = {
    "detach", "fill", "fill_diagonal", "index_fill", "index_put", "masked_fill", "requires_grad", "squeeze",
    "swapaxes", "swapdims", "t", "threshold", "transpose", "tril", "triu", "unsqueeze", "zero",
}  # fmt: skip


def overlap(shape: Shape, spread: Spread) -> bool | None:
    """Whether several elements of a tensor lie in one place."""
    if spread is None:
        return None
    return any(one and n not in (0, 1) for one, n in zip(spread, shape or (), strict=False))


def refused(tensor: Tensor, op: str) -> bool:
    """Whether PyTorch refuses that the in-place op writes all of `tensor`."""
    return op.rstrip("_") not in TAKING and overlap(tensor.shape, tensor.spread) is True


def of_view(name: str, source: Tensor, shape: Shape, bound: dict[str, Any]) -> Spread:
    """What the view op `name` makes of the strides of `source`."""
    before, old = source.shape, source.spread
    if name in _EXPANDING:
        if before is None or shape is None or old is None or len(before) > len(shape):
            return None
        new = len(shape) - len(before)
        grown = [a == 1 and b != 1 for a, b in zip(before, shape[new:], strict=True)]
        return (*(True,) * new, *(g or o for g, o in zip(grown, old or (False,) * len(grown), strict=True)))
    if old == ():
        return ()
    one, other = (0, 1) if name == "t" else (bound.get("dim0"), bound.get("dim1"))
    if name not in _SWAPPING or not old or len(old) < 2 or type(one) is not int or type(other) is not int:
        return None
    swapped = list(old)
    swapped[one % len(old)], swapped[other % len(old)] = old[other % len(old)], old[one % len(old)]
    return tuple(swapped)
