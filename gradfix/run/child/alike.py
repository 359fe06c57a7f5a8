"""Values that are compared with equals: ``mse_loss(net(x), codes)`` where `codes` is what `net(x)` gave before.

Where both have a graph and are equal in every pass, the difference is 0 for good and trains nothing. The tape tells it
of a place at the end, so that a value that was equal once, and then was not, can be told from one that always is.
"""

from __future__ import annotations

from typing import Any

import torch

from .sites import Key

_LOOKS = 64  # at one place: each compares two tensors


class Alike:
    """Compares the operands of differences. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._equal: dict[Key, list[int]] = {}
        self._apart: dict[Key, int] = {}

    def compared(self, one: Any, other: Any, result: Any, stack: Key) -> None:
        """A call at `stack` made `result` of two values."""
        if result is one or not (_has_graph(one) and _has_graph(other) and _has_graph(result)):
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

    def finish(self) -> None:
        """Tell of the places where values were equal."""
        for stack, nodes in self._equal.items():
            if nodes:
                apart = self._apart[stack]
                fields = {"apart": apart} if apart else {}
                self.r.tape.event("Alike", self.r.clock.tick(), stack, nodes=nodes, **fields)


def _has_graph(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _capturing(tensor: Any) -> bool:
    """Whether a CUDA graph is being captured: it must not be waited for."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())
