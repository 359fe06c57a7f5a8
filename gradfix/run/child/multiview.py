"""Outputs of split, chunk and unbind, and of modules with a full backward hook: views that PyTorch lets nobody write
in place, because one node made them all, or a custom Function did.

Letting such a write through without its gradient would spoil the oracle, and the flag that forbids it can't be
lifted afterwards. So the recorder makes each output by an op of its own (narrow, select, clone), which may be written
and differentiated, and remembers which tensors those are: a write to one is what PyTorch would have refused. So is
an op that reads one after what it is a view of was written.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from .storages import address_of

_DIM_AT = {"split": 2, "split_with_sizes": 2, "chunk": 2, "unbind": 1}
_SENTENCE = (
    "Output {} of {} is a view and {} modified inplace. This view is the output of a function that returns "
    "multiple views. Such functions do not allow the output views to be modified inplace. You should replace the "
    "inplace operation by an out-of-place one."
)
_ITSELF, _BEHIND = "is being", "its base or another view of its base has been"

_HOOKED = (
    "Output {} of {} is a view and {} modified inplace. This view was created inside a custom Function (or "
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
        # (reference, its sentence, version, number of the node that made it)
        self._known: dict[int, tuple[Any, tuple[Any, ...], int, int]] = {}
        self.stale: dict[int, int] = {}  # those whose memory was written otherwise -> time of the write

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
            self._remember(tensor, (_SENTENCE, number, made.name()))
        return type(outputs)(alone) if type(outputs) in (tuple, list) else tuple(alone)

    def hooked(self, outputs: Any) -> Any:
        """What a module with a full backward hook returns, each tensor with a memory of its own."""
        if isinstance(outputs, tuple):
            return tuple(self._own(t, n) for n, t in enumerate(outputs))
        return self._own(outputs, 0)

    def returned(self, tensor: Any, number: int, node: str) -> None:
        """`tensor` is an input that a custom Function gave back, as its output of that number."""
        self._remember(tensor, (_HOOKED, number, _function(node)))

    def _own(self, tensor: Any, number: int) -> Any:
        made = tensor.grad_fn if isinstance(tensor, torch.Tensor) else None
        if made is None or not tensor._is_view():
            return tensor
        own = tensor.clone()
        self._remember(own, (_HOOKED, number, _function(made.name())))
        return own

    def refusal(self, tensor: Any) -> str:
        """PyTorch's sentence for a write to `tensor`, or "" where it would allow it."""
        known: Any = self._known.get(id(tensor))
        if known is None or known[0]() is not tensor:
            return ""
        return _said(known[1], _ITSELF) if torch.is_grad_enabled() and tensor.requires_grad else ""

    def outdated(self, tensor: Any) -> str:
        """PyTorch's sentence where a backward would read `tensor`, whose memory was written otherwise; "" where it is
        none of them."""
        known: Any = self._known.get(id(tensor))
        stale = known is not None and known[0]() is tensor and tensor._version != known[2]
        return _said(known[1], _BEHIND) if stale else ""

    def sharing(self, targets: list[Any]) -> bool:
        """Whether one of them is a view of what a write to `targets` writes."""
        places = self.places()
        return bool(places) and any(address_of(t) in places for t in targets if isinstance(t, torch.Tensor))

    def places(self) -> set[int]:
        """The addresses of their storages."""
        return {address_of(view) for view in self._living()} if self._known else set()

    def written(self, time: int, address: int | None = None) -> bool:
        """Something was written at `time` (in the storage at `address`, if one is given): note the views that know
        nothing of it, and tell whether that is news of one."""
        before = len(self.stale)
        for view in self._living():
            moved = view._version != self._known[id(view)][2]
            if moved and (address is None or address_of(view) == address):
                self.stale.setdefault(id(view), time)
        return len(self.stale) > before

    def met(self, args: Any) -> Iterator[tuple[Any, int, str, int]]:
        """Those among the arguments of an op whose memory was written otherwise, each once: the view, the time of the
        write, PyTorch's sentence, and the node that made the view."""
        for value in args:
            if isinstance(value, (list, tuple)):
                yield from self.met(value)
            elif id(value) in self.stale and (known := self._known.get(id(value))) and known[0]() is value:
                yield value, self.stale.pop(id(value)), _said(known[1], _BEHIND), known[3]

    def _living(self) -> list[Any]:
        return [view for known in list(self._known.values()) if (view := known[0]()) is not None]

    def _remember(self, tensor: Any, sentence: tuple[Any, ...]) -> None:
        key = id(tensor)

        def forget(_: Any) -> None:
            self._known.pop(key, None)
            self.stale.pop(key, None)

        node = tensor.grad_fn._sequence_nr()
        self._known[key] = (weakref.ref(tensor, forget), sentence, tensor._version, node)


def may_go_stale(result: Any) -> bool:
    """Whether what an op gave where gradients are off is a view that nobody may read any more where they are on, once
    what it is a view of is written."""
    return isinstance(result, torch.Tensor) and result._is_view() and result.requires_grad


def unreadable(values: Any) -> Any:
    """A tensor among the arguments of an op that PyTorch refuses to read: a view made where gradients were off, of what
    has been written since. None where there is none."""
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (list, tuple)):
            value = unreadable(value)
        if isinstance(value, torch.Tensor) and value._is_view():
            try:
                _ = value.grad_fn
            except RuntimeError:
                return value
    return None


def _said(sentence: tuple[Any, ...], how: str) -> str:
    words, number, name = sentence
    if how == _BEHIND:  # PyTorch names the node by the class that the write has left of it
        name = re.sub(r"Backward\d*$", "", name)
    return str(words.format(number, name, how))


def _function(node: str) -> str:
    """The custom Function's name, of its node's."""
    return node[: -len("Backward")] if node.endswith("Backward") else node
