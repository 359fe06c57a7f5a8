"""A custom Function that keeps its result for its backward, which is the derivative for an input in that place:
``ctx.save_for_backward(result)`` in a Swish that reads it as its input. The derivative tells (derivative.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from .derivative import SAVED, Slot, kept_by
from .storages import address_of


def tell_of_saves(saving: Callable[[Any, Any], None]) -> None:
    """Have `saving` told of every call of save_for_backward: its ctx and the frame that calls."""
    plain = FunctionCtx.save_for_backward

    def save_for_backward(self: Any, *tensors: Any) -> None:
        saving(self, sys._getframe(1))
        plain(self, *tensors)

    save_for_backward.__doc__ = plain.__doc__
    FunctionCtx.save_for_backward = save_for_backward  # type: ignore[method-assign]


def results_kept(ctx: Any, result: Any, args: tuple[Any, ...]) -> list[Slot]:
    """What of the tensors saved is returned as well, and no argument, where an argument of the same shape is not
    saved."""
    outputs = [o for o in (result if isinstance(result, tuple) else (result,)) if _is_real(o)]
    given = [a for a in args if _is_real(a)]
    kept = [(slot, t) for slot, t in kept_by(ctx) if slot[0] == SAVED]
    saved = {address_of(t) for _, t in kept}
    mine = {address_of(o) for o in outputs} - {address_of(a) for a in given}
    return [
        slot
        for slot, t in kept
        if address_of(t) in mine
        and any(a.shape == t.shape and a.requires_grad and address_of(a) not in saved for a in given)
    ]


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
