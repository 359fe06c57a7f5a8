"""Outputs of split, chunk and unbind, and of modules with a full backward hook: views that PyTorch lets nobody write
in place, because one node made them all, or a custom Function did.

Letting such a write through without its gradient would spoil the oracle, and the flag that forbids it can't be
lifted afterwards. So the recorder makes each output by an op of its own (narrow, select, clone), which may be written
and differentiated, and remembers which tensors those are: a write to one is what PyTorch would have refused.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_DIM_AT = {"split": 2, "split_with_sizes": 2, "chunk": 2, "tensor_split": 2, "unbind": 1}
_SENTENCE = (
    "Output {} of {} is a view and is being modified inplace. This view is the output of a function that returns "
    "multiple views. Such functions do not allow the output views to be modified inplace. You should replace the "
    "inplace operation by an out-of-place one."
)

_HOOKED = (
    "Output {} of {} is a view and is being modified inplace. This view was created inside a custom Function (or "
    "because an input was returned as-is) and the autograd logic to handle view+inplace would override the custom "
    "backward associated with the custom Function, leading to incorrect gradients. This behavior is forbidden. You "
    "can fix this by cloning the output of the custom Function."
)


def splits(func: Any) -> bool:
    """Whether `func` returns several views of its first argument."""
    return getattr(func, "__name__", "") in _DIM_AT


class MultiViews:
    """The living outputs of such functions, by identity."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def apart(self, func: Any, args: Any, kwargs: dict[str, Any], outputs: Any) -> Any:
        """`outputs` of a call, each as the only output of an op of its own; as they are where that can't be done."""
        source = args[0] if args else kwargs.get("input", kwargs.get("self"))
        name = func.__name__
        if not isinstance(outputs, (tuple, list)) or not isinstance(source, torch.Tensor):
            return outputs
        made = outputs[0].grad_fn if outputs else None
        if made is None or not outputs[0]._is_view():
            return outputs
        at = _DIM_AT[name]
        dim = args[at] if len(args) > at else kwargs.get("dim", 0)
        start, alone = 0, []
        for number, output in enumerate(outputs):
            if name == "unbind":
                tensor = source.select(dim, number)
            else:
                tensor = source.narrow(dim, start, output.size(dim))
                start += output.size(dim)
            alone.append(tensor)
            self._remember(tensor, _SENTENCE.format(number, made.name()))
        return type(outputs)(alone) if type(outputs) in (tuple, list) else tuple(alone)

    def hooked(self, outputs: Any) -> Any:
        """What a module with a full backward hook returns, each tensor with a memory of its own."""
        if isinstance(outputs, tuple):
            return tuple(self._own(t, n) for n, t in enumerate(outputs))
        return self._own(outputs, 0)

    def returned(self, tensor: Any, number: int, node: str) -> None:
        """`tensor` is an input that a custom Function gave back, as its output of that number."""
        self._remember(tensor, _HOOKED.format(number, _function(node)))

    def _own(self, tensor: Any, number: int) -> Any:
        made = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
        if made is None or not tensor._is_view():
            return tensor
        own = tensor.clone()
        self._remember(own, _HOOKED.format(number, _function(made.name())))
        return own

    def refusal(self, tensor: Any) -> str:
        """PyTorch's sentence for a write to `tensor`, or "" where it would allow it."""
        known: Any = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return ""
        return known[1] if torch.is_grad_enabled() and tensor.requires_grad else ""

    def _remember(self, tensor: Any, sentence: str) -> None:
        key = id(tensor)
        self._known[key] = (weakref.ref(tensor, lambda _: self._known.pop(key, None)), sentence)


def _function(node: str) -> str:
    """The custom Function's name, of its node's."""
    return node[: -len("Backward")] if node.endswith("Backward") else node
