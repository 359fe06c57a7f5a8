"""The calls that made nodes: which sequence numbers, from where, when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import partial
from typing import Any

from .sites import Key
from .tapewriter import Clock

_NEW = 4000  # items that wait to be put into their columns
_MOST, _FORGOTTEN = 400_000, 200_000


class Calls:
    """Lists side by side, not a list of tuples: objects that stay would wake the garbage collector in every pass."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._new: list[Any] = []  # start, end, stack and time of one call after the other
        self._starts: list[int] = [-1]  # of a call that there never was: before the first there is always one
        self._ends: list[int] = [-1]
        self._stacks: list[Key] = [()]
        self._times: list[int] = [0]  # less the number of the node: a time of its own for every node

    def add(self, start: int, end: int, stack: Key) -> None:
        clock = self._clock
        self._new += (start, end, stack, clock.now + 1 - start)
        clock.now += end - start
        if len(self._new) > _NEW:
            self._file()

    def last(self) -> int:
        """The number behind those of the nodes that were made last."""
        self._file()
        return max(self._ends[-1], 0)

    def nodes_of(self, node: int) -> Iterable[int]:
        """All nodes that the call made which made `node`: what a CopySlices saved was saved by the function it runs,
        made before it."""
        self._file()
        at = bisect_right(self._starts, node) - 1
        return range(self._starts[at], self._ends[at]) if node < self._ends[at] else (node,)

    def of(self, node: int) -> tuple[Key, int] | None:
        """Where and when `node` was made, as far as that is known."""
        self._file()
        at = bisect_right(self._starts, node) - 1
        return (self._stacks[at], self._times[at] + node) if node < self._ends[at] else None

    def of_each(self, nodes: list[int]) -> list[tuple[Key, int]]:
        """Where and when each was made; nowhere and now where that is not known."""
        self._file()
        ends, stacks, times, tick = self._ends, self._stacks, self._times, self._clock.tick
        places = map(partial(bisect_right, self._starts), nodes)
        return [
            (stacks[at - 1], times[at - 1] + node) if node < ends[at - 1] else ((), tick())
            for node, at in zip(nodes, places)  # noqa: B905 (Python 3.9)
        ]

    def _file(self) -> None:
        new, self._new = self._new, []
        columns: tuple[list[Any], ...] = (self._starts, self._ends, self._stacks, self._times)
        for at, column in enumerate(columns):
            column += new[at :: len(columns)]
            if len(column) > _MOST:
                del column[1:_FORGOTTEN]
