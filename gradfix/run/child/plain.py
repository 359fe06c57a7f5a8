"""Gradients that ``torch.autograd.grad`` gave without a graph of their own, and where a number made of them is added
to something that has one: there it looks like a term of the loss, and trains nothing.

A product is left alone: a weight that balances two losses by their gradients is meant as a number.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch

_ADDING = frozenset(
    (
        "add",
        "add_",
        "__add__",
        "__radd__",
        "__iadd__",
        "sub",
        "sub_",
        "__sub__",
        "__rsub__",
        "__isub__",
        "stack",
    )
)


class PlainGradients:
    """Follows such gradients through calls that make tensors without a graph. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.living: dict[int, weakref.ref[Any]] = {}  # by id; empty in nearly every run

    def given(self, gradients: Any) -> None:
        """``torch.autograd.grad`` without ``create_graph`` gave these."""
        for tensor in gradients:
            self._follow(tensor)

    def met(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        """A call was made while some of them live."""
        term = next((t for t in _tensors((*args, *kwargs.values())) if self._knows(t)), None)
        if term is None:
            return
        for made in _tensors(result if isinstance(result, (tuple, list)) else (result,)):
            if not made.requires_grad:
                self._follow(made)
            elif func.__name__ in _ADDING and made.grad_fn is not None:
                self.r.added(term, made, frame)

    def _knows(self, tensor: Any) -> bool:
        known = self.living.get(id(tensor))
        return known is not None and known() is tensor

    def _follow(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and not tensor.requires_grad and tensor.is_floating_point():
            key, living = id(tensor), self.living
            living[key] = weakref.ref(tensor, lambda _: living.pop(key, None))


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (v for v in value if isinstance(v, torch.Tensor))
