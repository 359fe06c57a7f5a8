"""Writes that PyTorch refuses, and the recorder does all the same, so that a run meets every fault.

Standard library and torch only.
"""

from __future__ import annotations

from typing import Any

import torch

from . import writes
from .storages import address_of

_swap: Any = torch._C._swap_tensor_impl


def let_through(
    func: Any, args: Any, kwargs: Any, targets: list[Any], refused: str, second_order: bool
) -> tuple[Any, dict[int, Any]]:
    """Do the write that PyTorch refused. One whose value needs a gradient stays differentiable: the leaf
    gives up its place as a leaf, as it would in the program without its ``requires_grad=True``. A parameter
    that is made of parameters (initialised, averaged, normalised) stays one. A forbidden view is written
    through an alias, for once its counter has moved PyTorch refuses to read it, too. A view of a leaf that takes what a
    model computes, or whose elements share memory, is written as a clone of it would be.

    Gives the result and, by the id of each tensor that was made such a clone, the view that it was."""
    if writes.SHARED in refused:
        return _own_memory(func, args, kwargs, targets, refused)
    if writes.is_view_refusal(refused):
        swap = {id(t): t.data for t in targets if isinstance(t, torch.Tensor)}
        with torch.no_grad():
            result = func(
                *[swap.get(id(a), a) for a in args], **{k: swap.get(id(a), a) for k, a in kwargs.items()}
            )
        return next((t for t in targets if swap.get(id(t)) is result), result), {}
    own = {address_of(t) for t in targets if isinstance(t, torch.Tensor)}
    values = [  # (the second half of `w[2:] *= 0.5` writes back a view of w)
        a for a in (*args, *kwargs.values()) if not isinstance(a, torch.Tensor) or address_of(a) not in own
    ]
    updates = all(writes.is_parameter(t) for t in targets) and not second_order
    computed = (
        torch.is_grad_enabled()
        and writes.needs_grad(values)
        and not (updates and writes.of_parameters(values))
    )
    views = [t for t in targets if isinstance(t, torch.Tensor) and not t.is_leaf]
    if views and (computed or any(map(_shares_elements, views))):
        were = {id(t): _as_clone(t) for t in views}
        return func(*args, **kwargs), were
    if computed:
        for tensor in targets:
            if tensor.is_leaf:
                tensor.requires_grad_(False)
        try:
            return func(*args, **kwargs), {}
        except RuntimeError as problem:
            if not writes.is_refusal(str(problem)):
                raise
    with torch.no_grad():
        return func(*args, **kwargs), {}


def detached(view: torch.Tensor) -> torch.Tensor:
    """Cut a view off its graph in place, which PyTorch refuses: whoever has it has what ``detach()`` gives."""
    _swap(view, view.detach())
    return view


def _own_memory(
    func: Any, args: Any, kwargs: Any, targets: list[Any], refused: str
) -> tuple[Any, dict[int, Any]]:
    """Write an expanded tensor after it was given memory of its own. Where that is part of the graph it can't be
    done under its views: the run ends as PyTorch would end it."""
    tensors = [t for t in targets if isinstance(t, torch.Tensor)]
    if torch.is_grad_enabled() and (any(t.requires_grad for t in tensors) or writes.needs_grad(args)):
        raise RuntimeError(refused)
    for tensor in tensors:
        tensor.data = tensor.data.clone()
    return func(*args, **kwargs), {}


def _shares_elements(tensor: torch.Tensor) -> bool:
    return torch._debug_has_internal_overlap(tensor) == 1


def _as_clone(view: torch.Tensor) -> torch.Tensor:
    """Make `view` a clone of itself for whoever has it; gives the view that it was."""
    with torch.enable_grad():
        other = view.clone()
    _swap(view, other)
    return other
