"""Tensors that look like a term of the loss and train nothing: made of gradients that ``torch.autograd.grad`` gave
without a graph of their own, or of a loss that was cut off its graph, and added to something that has one.

A product is left alone: a weight that balances two losses by their gradients, or their values, is meant as a number.
So is a value that is taken off something (an old one, a baseline, the largest exponent).

Of every value off its graph is told what takes it that has one (Fed): whether it is what a layer is given, or no more
than a target, is for the reader of the tape to say.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch

_ADDING = frozenset(("add", "add_", "__add__", "__radd__", "__iadd__", "stack"))
_NOTHING: frozenset[int | None] = frozenset()
_GRADIENT: frozenset[int | None] = frozenset((None,))
_MOST_CUTS = 64
_GROUPS = {tuple, list}
_TAKING_OFF = frozenset(("sub", "sub_", "__sub__", "__rsub__", "__isub__"))


class Constants:
    """Follows them through calls that make tensors without a graph. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        # by id: a weak reference, the nodes that were cut off (None for gradients), the times of the Cuts that it is
        # made of, and whether it is a view that was made under no_grad, which requires grad as its base does and has no
        # graph (it is not asked for one: that would make it one, once it was written to); empty in most passes
        self.living: dict[int, tuple[weakref.ref[Any], frozenset[int | None], frozenset[int], bool]] = {}
        self._functions: set[int] = set()  # nodes of whose value something was computed past torch
        self._drawn: set[int] = set()  # Cuts that gave indices, or other whole numbers or truth values
        self._numbers: set[int | None] = set()  # nodes whose value is used as a number on purpose

    def install(self) -> None:
        """``torch.Tensor(losses)`` comes to no mode: look at it where it is made."""
        me, plain = self, torch.Tensor.__new__

        def __new__(*args: Any, **kwargs: Any) -> Any:  # torch._dynamo compares signatures
            tensors = within(args[1]) if len(args) > 1 and args[0] is torch.Tensor else []
            if not tensors or me.r.quiet or me.r.off():
                return plain(*args, **kwargs)
            with torch._C.DisableTorchFunction():  # each is read as a number
                made = plain(*args, **kwargs)
            me.leave("tensor", tensors, made, sys._getframe(1))
            return made

        torch.Tensor.__new__ = __new__  # type: ignore[method-assign]

    def leave(self, how: str, tensors: Any, result: Any, frame: Any) -> None:
        """`result` was made of `tensors`, and the graph left, in `frame`."""
        remade = how in ("detach", "tensor")
        if remade:
            self.cut(how, tensors, result)
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                time = self.r.cut(how, tensor, frame, result if how == "tensor" else None)
                self.r.computed.taken(how, tensor, frame, time)
                if remade:
                    self.left(result, time)

    def given(self, gradients: Any) -> None:
        """``torch.autograd.grad`` without ``create_graph`` gave these."""
        for tensor in gradients:
            self.follow(tensor, _GRADIENT)

    def cut(self, how: str, tensors: Any, result: Any) -> None:
        """`result` is one of the `tensors` off its graph: a loss, or whatever ``torch.tensor(t)`` makes anew. (A tensor
        of several values that is detached is a target, or the like.)"""
        if isinstance(result, torch.Tensor) and (how == "tensor" or not result.dim()):
            node = next((t.grad_fn for t in tensors if t.grad_fn is not None), None)
            if node is not None:
                self.follow(result, frozenset((node._sequence_nr(),)))

    def left(self, result: Any, time: int | None, view: bool = False) -> None:
        """The Cut of this `time` (None where it was not told) left `result`, which may be a `view` made without a
        graph."""
        if time is not None and isinstance(result, torch.Tensor):
            cuts = self._cuts_of(result)
            if len(cuts) >= _MOST_CUTS:
                return
            if not result.is_floating_point():
                self._drawn.add(time)
            if view and result.requires_grad and result.is_floating_point():
                self._keep(result, self.nodes_of(result), cuts | {time}, True)
            else:
                self.follow(result, self.nodes_of(result), cuts | {time})

    def computed(
        self, tensor: Any, nodes: frozenset[int | None], functions: set[int], left: frozenset[int]
    ) -> None:
        """`tensor` has what was computed of the values of these nodes, as `functions` of theirs or as they are: those
        that the Cuts of the times `left` took."""
        self._functions |= functions
        self.follow(tensor, nodes, left)

    def _off(self, tensor: Any) -> bool:
        return not tensor.requires_grad or self.living[id(tensor)][3]

    def nodes_of(self, tensor: Any) -> frozenset[int | None]:
        """The nodes that were cut off, for the value of `tensor`."""
        return self.living[id(tensor)][1] if self._knows(tensor) else _NOTHING

    def _cuts_of(self, tensor: Any) -> frozenset[int]:
        return self.living[id(tensor)][2] if self._knows(tensor) else frozenset()

    def met(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        """A call was made while some of them live."""
        values = [*args, *kwargs.values()]
        if not _GROUPS.isdisjoint(map(type, values)):
            values += [v for group in values if isinstance(group, (tuple, list)) for v in group]
        if self.living.keys().isdisjoint(map(id, values)):
            return  # as nearly always
        terms = [t for t in _tensors((*args, *kwargs.values())) if self._knows(t)]
        if not terms:
            return
        cut = _NOTHING.union(*(self.living[id(t)][1] for t in terms))
        left = frozenset[int]().union(*(self.living[id(t)][2] for t in terms if self._off(t)))
        for made in _tensors(result if isinstance(result, (tuple, list)) else (result,)):
            if not made.requires_grad:
                self.follow(made, cut, left | self._cuts_of(made))
            elif not (self._knows(made) and self.living[id(made)][3]) and made.grad_fn is not None:
                for term in terms:
                    self._used(func.__name__, term, made, frame)
                if left:
                    self.r.fed(made, left, frame)

    def _used(self, name: str, term: Any, made: Any, frame: Any) -> None:
        """`term` went into `made`, which has a graph."""
        for node in self.living[id(term)][1]:
            if node in self._numbers:
                continue
            if name in _ADDING or (name in _TAKING_OFF and node is None):
                self.r.added(term, made, node, frame, node in self._functions)
            elif node is not None:
                self._numbers.add(node)

    def _knows(self, tensor: Any) -> bool:
        known = self.living.get(id(tensor))
        return known is not None and known[0]() is tensor

    def follow(self, tensor: Any, cut: frozenset[int | None], left: frozenset[int] = frozenset()) -> None:
        """`tensor` is the value of these nodes, or of what these Cuts took, or made of it."""
        known = isinstance(tensor, torch.Tensor) and not tensor.requires_grad
        if known and (tensor.is_floating_point() or not self._drawn.isdisjoint(left)):
            self._keep(tensor, cut, left)

    def _keep(
        self, tensor: Any, cut: frozenset[int | None], left: frozenset[int], view: bool = False
    ) -> None:
        key, living = id(tensor), self.living
        living[key] = weakref.ref(tensor, lambda _: living.pop(key, None)), cut, left, view


def within(data: Any) -> list[torch.Tensor]:
    """The tensors in a list, and in its lists (not where these begin with numbers: they may be many)."""
    if not isinstance(data, (list, tuple)):
        return []
    first = data[0] if data else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    deep = isinstance(first, torch.Tensor)
    return [
        t
        for each in data
        for t in ([each] if isinstance(each, torch.Tensor) else within(each) if deep else ())
    ]


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (v for v in value if isinstance(v, torch.Tensor))
