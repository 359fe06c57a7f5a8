"""What is computed of parameters under no_grad, and so without a graph."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from .multiview import may_go_stale

_MOST = 64  # ops that are told, of one pass, and places of such
_CALLERS = 64  # half as many frames of a place are looked at
_PASSES = 8  # that are looked at
_CHECKPOINT: Any = CheckpointFunction.forward.__code__


def is_leaf(tensor: Any) -> bool:
    """``tensor.is_leaf``, which raises for a view made under no_grad once it was written: it stands for its base."""
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:
        return bool(tensor._base.is_leaf)


def _within_checkpoint(frame: Any) -> tuple[str, Any]:
    """How the graph is left in `frame`, under no_grad, and where: a reentrant checkpoint is told where it is called,
    and leaves nothing ("") where one of its inputs requires grad."""
    outer = frame
    while outer is not None:
        if outer.f_code is _CHECKPOINT:
            inputs = outer.f_locals.get("args", ())
            kept = any(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
            return ("", frame) if kept else ("checkpoint", outer)
        outer = outer.f_back
    return "no_grad", frame


def _place(frame: Any) -> tuple[int, ...]:
    """Where `frame` is, and who called it: a network runs for rollouts, and again for a loss."""
    found: list[int] = []
    while frame is not None and len(found) < _CALLERS:
        found += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    return tuple(found)


class Unrecorded:
    """Tells of each op of one pass, with its Cut. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._left, self._passes_left = _MOST, _PASSES
        # where these were: past the limit, a place that none of them was at is told all the same
        self._places: set[tuple[int, ...]] = set()

    @property
    def full(self) -> bool:
        return len(self._places) >= _MOST

    def walked(self) -> None:
        """A pass ends: a backward begins."""
        if self._passes_left:
            self._passes_left -= 1
            self._left = _MOST
            self._places.clear()

    def met(self, args: Any, result: Any, frame: Any) -> None:
        """A function of a tensor that requires grad, called in `frame`: its result has no graph. Within a checkpoint it
        may have one again; where none of the inputs requires grad, it has not."""
        needing = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
        if needing and self._left and may_go_stale(result):
            self.r.storages.of(result)  # what is written there is told
        for a in needing:
            if isinstance(a, torch.nn.Parameter) or not is_leaf(a):
                place = _place(frame)
                if not self._left and place in self._places:
                    return
                self._places.add(place)
                self._left -= self._left > 0
                how, frame = _within_checkpoint(frame)
                if how:
                    viewed = all(result is not x for x in args)  # (`x.contiguous()` may be x)
                    self.r.constants.left(result, self.r.cut(how, a, frame), viewed)
                return
