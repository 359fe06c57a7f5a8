"""What is written behind several views that one op made: autograd refuses to have one of them read afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from gradfix.read import names
from gradfix.read.frames import Machine
from gradfix.read.values import Tensor

# `view` and `origin` of a tensor that is such a view itself, and no view of one
_TOGETHER = {("multi-view", name) for name in ("split", "split_with_sizes", "chunk", "unbind")}
_TOGETHER.add(("custom", "unmarked"))  # (of a custom Function)


def outdated(tensor: Tensor) -> bool:
    """Whether `tensor` is one of several views of an op, and something was written behind it since."""
    node = tensor.node
    return (
        node is not None and tensor.storage.touched > node.time and (tensor.view, tensor.origin) in _TOGETHER
    )


def met(m: Machine, inputs: Iterable[Tensor]) -> None:
    """An op is about to read `inputs`. PyTorch ends the program at one that is outdated; what comes after is read as
    if it had been made behind the write."""
    for tensor in inputs:
        node, base = tensor.node, tensor.base
        if base is None or node is None or not outdated(tensor):
            continue
        m.trace.view_used(tensor, node, names.variable(m, tensor))
        tensor.node = made = m.trace.node(node.name, node.op, [base if base.node is None else base.node])
        made.output, tensor.rebased = tensor, base.rebased
