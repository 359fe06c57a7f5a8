"""NumPy's functions of a tensor are torch's: what a term of a loss would be, had it been computed with its graph.

NumPy asks its arguments for these itself (NEP 13 and NEP 18). Standard library and torch only; see impose.py.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from .pretend import joined
from .words import IN_TORCH

_OTHERS = {**IN_TORCH, "concatenate": "cat"}
_SINGLE = {"max": "amax", "min": "amin"}


def compute_with_torch() -> None:
    """Let NumPy's functions take tensors, and ``torch.from_numpy``; what else takes an array is given the values."""
    plain, detach, numpy = torch.from_numpy, torch.Tensor.detach, torch.Tensor.numpy
    torch.from_numpy = lambda array: (  # type: ignore[assignment]
        array if isinstance(array, torch.Tensor) else plain(array)
    )
    torch.Tensor.__array__ = lambda self, *args, **kwargs: numpy(detach(self))  # type: ignore
    torch.Tensor.__array_function__ = _function  # type: ignore[attr-defined]
    torch.Tensor.__array_ufunc__ = _ufunc  # type: ignore[attr-defined]

    for name in ("FloatTensor", "DoubleTensor"):
        setattr(torch, name, _of_tensors(getattr(torch, name)))

    if (random := getattr(sys.modules.get("numpy"), "random", None)) is not None:
        random.choice = _of_values(random.choice, lambda t: numpy(detach(t)))


def _of_tensors(plain: Any) -> Any:
    """A class of tensors that is given tensors in a list stacks them."""

    def make(*args: Any, **kwargs: Any) -> Any:
        kept = joined(args[0]) if len(args) == 1 else None
        return plain(*args, **kwargs) if kept is None else kept.type(plain)

    return make


def _of_values(draw: Any, values: Any) -> Any:
    """A draw by probabilities: how exactly they have to add up depends on whether they are an array."""

    def call(*args: Any, **kwargs: Any) -> Any:
        arrays = {k: values(v) if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        return draw(*(values(a) if isinstance(a, torch.Tensor) else a for a in args), **arrays)

    return call


def _function(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    module = str(getattr(func, "__module__", ""))
    return _call(func.__name__, "linalg" in module, args, kwargs)


def _ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    return _call(ufunc.__name__, False, inputs, kwargs) if method == "__call__" else NotImplemented


def _call(name: str, linalg: bool, args: Any, kwargs: Any) -> Any:
    if name in _SINGLE:  # of one axis, torch's give indices as well
        name = _SINGLE[name]
    found = getattr(torch.linalg if linalg else torch, _OTHERS.get(name, name), None)
    if found is None:
        return NotImplemented
    if name in ("array", "asarray"):
        return args[0]
    return found(*map(_tensor, args), **kwargs)


def _tensor(value: Any) -> Any:
    """An array is a tensor there; numbers may be either."""
    if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
        return torch.as_tensor(value)
    return value
