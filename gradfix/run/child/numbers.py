"""Python numbers that were taken out of the graph (``penalty.item()``, ``float(t)``, ``t.detach().numpy()``) and come
back as a term of a sum: a constant that trains nothing.

A number bears no mark, and one that did would not be the number the script expects. What is added is known by its
value: from one time to the next it keeps its ratio to what was taken, while this changes. A number that scales a
tensor, or is taken off one, is meant as a number.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from .sites import Key

_MOST = 64  # places at which numbers are taken, additions that get numbers
_EXACT, _SINGLE = (
    1e-12,
    4e-7,
)  # how far two ratios of numbers may lie apart, and of numbers of single precision
_NEWS = 100  # times as much as that the number itself has to change


class _Taken:
    """The number that was last taken at one place: from which nodes, and what the tape calls the tensor."""

    __slots__ = ("nodes", "ref", "time", "value")

    def __init__(self, value: float, nodes: frozenset[int | None], time: int, ref: Any) -> None:
        self.value, self.nodes, self.time, self.ref = value, nodes, time, ref


class _Pair:
    """A number that is added at one place, beside one that was taken at another."""

    __slots__ = ("agreed", "ratio", "value")

    def __init__(self, ratio: float, value: float) -> None:
        self.ratio, self.value, self.agreed = ratio, value, 0


class Numbers:
    """`living` are by their place the numbers taken last; empty in a run that takes none. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.living: dict[Key, _Taken] = {}
        self._pairs: dict[Key, dict[Key, _Pair | None]] = {}  # None: they have nothing to do with each other
        self._numbers: set[Key] = set()  # places where a number is taken that is used as one on purpose

    def taken(self, tensors: Any, result: Any, frame: Any) -> None:
        """`result` was read of the first of `tensors`."""
        value = number_of(result)
        if not value or not tensors:
            return
        tensor, r = tensors[0], self.r
        maker = tensor.grad_fn
        nodes = r.constants.nodes_of(tensor) if maker is None else frozenset((maker._sequence_nr(),))
        place = r.sites.stack(frame)
        if nodes and (place in self.living or len(self.living) < _MOST):
            storage = r.storages.of(tensor)
            self.living[place] = _Taken(value, nodes, r.clock.tick(), r.tape.ref(storage, tensor))

    def met(self, adds: bool, operand: Any, made: Any, stack: Key) -> None:
        """A call at `stack` made a tensor with a graph of another and of `operand`, which is no tensor."""
        number = number_of(operand)
        if number and not adds:
            self._numbers.update(place for place, taken in self.living.items() if taken.value == number)
        elif number and (taken := self._behind(number, stack)) is not None:
            for node in taken.nodes:
                self.r.added_number(taken.ref, made, node, stack)

    def filled(self, tensor: Any, data: Any, stack: Key) -> None:
        """A call at `stack` made `tensor` of `data` (``torch.tensor(penalty)``)."""
        number = number_of(data)
        if number and (taken := self._behind(number, stack)) is not None:
            self.r.constants.follow(tensor, taken.nodes)

    def _behind(self, number: float, stack: Key) -> _Taken | None:
        """What the `number` that a call at `stack` is given was made of."""
        pairs = self._pairs.get(stack)
        if pairs is None:
            if len(self._pairs) >= _MOST:
                return None
            pairs = self._pairs[stack] = {}
        found = [place for place in self.living if self._agree(pairs, place, number)]
        whole = [place for place in found if self.living[place].value == number]
        return self.living[(whole or found)[-1]] if found else None

    def _agree(self, pairs: dict[Key, _Pair | None], place: Key, number: float) -> bool:
        """Whether `number` is what was taken at `place`, times a constant, as far as this shows by now."""
        taken = self.living[place]
        if taken.time <= self.r.kept.stepped or place in self._numbers:
            return False
        ratio = number / taken.value
        if place not in pairs:
            pairs[place] = _Pair(ratio, taken.value)
            return False
        pair = pairs[place]
        if pair is None:
            return False
        single = number != taken.value and _is_single(number)
        bound = _SINGLE if single else _EXACT
        if abs(ratio - pair.ratio) > bound * abs(ratio):
            pairs[place] = None
            return False
        if abs(taken.value - pair.value) > _NEWS * bound * abs(taken.value):
            pair.value = taken.value
            pair.agreed += 1
        return pair.agreed > single


def number_of(value: Any) -> float:
    """`value` where it is a number that says something, 0.0 else: one element of an array is a number, too."""
    if not isinstance(value, float):
        if type(value).__module__ != "numpy" or getattr(value, "size", 0) != 1:
            return 0.0
        value = value.item()
        if not isinstance(value, float):
            return 0.0
    return value if math.isfinite(value) else 0.0


def _is_single(number: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", number))[0] == number)
    except OverflowError:
        return False
