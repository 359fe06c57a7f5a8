"""Values that are compared with equals: ``mse_loss(net(x), codes)`` where `codes` is what `net(x)` gave before.

Where both have a graph and are equal in every pass, the difference is 0 for good and trains nothing. The tape tells it
of a place at the end, so that a value that was equal once, and then was not, can be told from one that always is.
"""

from __future__ import annotations

from typing import Any

import torch

from .measure import quiet
from .sites import Key
from .storages import address_of

_LOOKS = 64  # at one place: each compares two tensors


class Alike:
    """Compares the operands of differences. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._equal: dict[Key, list[int]] = {}
        self._apart: dict[Key, int] = {}
        self._near: dict[Key, list[int]] = {}

    def compared(self, one: Any, other: Any, result: Any, stack: Key, frame: Any) -> None:
        """A call at `stack`, in `frame`, made `result` of two values."""
        if result is one or not _has_graph(result):
            return
        if _is(one, other):
            self._itself(one, result, stack, frame)
        if not (_has_graph(one) and _has_graph(other)):
            return
        equal = self._equal.setdefault(stack, [])
        apart = self._apart.setdefault(stack, 0)
        if len(equal) + apart >= _LOOKS or one.grad_fn is other.grad_fn or _capturing(one):
            return
        try:
            same = torch.equal(one, other)
            if same and not one.count_nonzero():
                return  # two networks that begin with nothing
        except RuntimeError:  # within torch.func a value can't be looked at
            return
        if same:
            equal.append(result.grad_fn._sequence_nr())
        else:
            self._apart[stack] = apart + 1
            if _near(one, other):
                self._near.setdefault(stack, []).append(result.grad_fn._sequence_nr())

    def _itself(self, one: Any, result: Any, stack: Key, frame: Any) -> None:
        """`result` is the difference of `one` and itself."""
        r = self.r
        if r.seen(("itself", stack)) <= _LOOKS:
            with torch._C.DisableTorchFunction():
                ref = r.tape.ref(r.storages.of(one), one)
                node = result.grad_fn._sequence_nr()
                r.tape.event("Itself", r.clock.tick(), stack, node=node, ref=ref)
                writer = r.aliases.writer(address_of(one), frame)
                if writer:
                    r.tape.event("Itself", r.clock.tick(), writer, node=node, ref=ref, wrote=True)

    def finish(self) -> None:
        """Tell of the places where values were equal."""
        for stack, nodes in self._equal.items():
            near = self._near.get(stack)
            if nodes or near:
                apart = self._apart[stack]
                fields: dict[str, Any] = {"apart": apart} if apart else {}
                if near:
                    fields["near"] = near
                self.r.tape.event("Alike", self.r.clock.tick(), stack, nodes=nodes, **fields)


def _near(one: Any, other: Any) -> bool:
    """Whether two values differ by rounding alone, as those of a batch do from those of its rows."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_floating_point():
        return False
    with quiet():
        return bool(torch.allclose(one, other, rtol=1e-5, atol=1e-6)) and bool(one.count_nonzero())


def _is(one: Any, other: Any) -> bool:
    """Whether two tensors are one, or lie in one place."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one is other:
        return True
    if one.layout is not torch.strided or other.layout is not torch.strided or one.shape != other.shape:
        return False
    try:
        here = one.data_ptr()
        return here != 0 and here == other.data_ptr() and one.stride() == other.stride()
    except RuntimeError:  # it has no memory of its own
        return False


def _has_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _capturing(tensor: Any) -> bool:
    """Whether a CUDA graph is being captured: it must not be waited for."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())
