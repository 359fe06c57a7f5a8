"""Calls of ops that today's refuse, as PyTorch took them: masks of bytes, and ``1 - mask``, before 1.2, draws of one
before 0.4."""

from __future__ import annotations

from collections.abc import Sequence

from gradfix.read.frames import Machine
from gradfix.read.values import Tensor, Unknown, Value


def masked(m: Machine, name: str, mask: Value) -> None:
    """An op is about to write, or to choose, under `mask`."""
    if isinstance(mask, Tensor) and mask.dtype == "uint8":
        said = "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char"
        m.outdated(
            "RuntimeError",
            "masked_select: expected BoolTensor for mask" if name == "masked_select" else said,
        )


def subtracted(m: Machine, left: Value, right: Value) -> bool:
    """Whether ``left - right`` inverts a mask that a comparison gave."""
    inverts = isinstance(right, Tensor) and right.dtype == "bool" and type(left) in (int, float) and left == 1
    if inverts:
        m.outdated("RuntimeError", "Subtraction, the `-` operator, with a bool tensor is not supported")
    return inverts


def unmatched(m: Machine, name: str, args: Sequence[Value]) -> Unknown:
    """No overload of the op `name` takes these arguments."""
    if name == "multinomial" and len(args) == 1 and isinstance(args[0], Tensor):
        m.outdated("TypeError", 'multinomial() missing 1 required positional arguments: "num_samples"')
    return m.unknown("op " + name)
