"""A target that is the prediction itself, told apart from it; see impose.py. Standard library and torch only."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .pretend import lines, user_line, without


class Selves(TorchFunctionMode):
    """Where a tensor is compared with itself in some lines of the user's, one side is what it was before the first
    write into it, and what was written is the other, without a way to it."""

    def __init__(self, sites: Any) -> None:
        super().__init__()
        self.sites = lines(sites)
        # by id of a tensor: it, a copy of it before its first write, and the node of that write (none under no_grad)
        self.before: dict[int, tuple[Any, Any, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        base = _written(func, args)
        if base is not None and id(base) not in self.before:
            with torch.enable_grad():
                copy = base.clone()
            made = base.grad_fn
            result = func(*args, **kwargs)
            self.before[id(base)] = base, copy, base.grad_fn if base.grad_fn is not made else None
            return result
        if len(args) > 1 and _same(args[0], args[1]) and self.here():
            return func(*self.told_apart(args[0], args[1]), *args[2:], **kwargs)
        return func(*args, **kwargs)

    def told_apart(self, tensor: Any, other: Any) -> tuple[Any, Any]:
        """`tensor` before anything was written into it; and `other`, what it is now, off what it was."""
        base, copy, write = self.before.get(id(_base(tensor)), (None, None, None))
        if base is None:
            return tensor, other
        if write is not None:
            write.register_hook(without({0}))
        was = copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return was, other if write is not None else other.detach()

    def here(self) -> bool:
        """Whether the user's innermost frame is in one of the lines."""
        return user_line() in self.sites


def _written(func: Any, args: Any) -> Any:
    """The tensor with a graph that `func` writes into, or what it is a view of; None for one without."""
    name = getattr(func, "__name__", "") or ""
    writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    if not writes or not args or not isinstance(args[0], torch.Tensor):
        return None
    base = _base(args[0])
    return base if base.grad_fn is not None and name != "requires_grad_" else None


def _base(tensor: Any) -> Any:
    return tensor if tensor._base is None else tensor._base


def _same(one: Any, other: Any) -> bool:
    return isinstance(one, torch.Tensor) and (
        one is other
        or (
            isinstance(other, torch.Tensor)
            and one.requires_grad
            and one.data_ptr() == other.data_ptr()
            and one.shape == other.shape
            and one.stride() == other.stride()
        )
    )
