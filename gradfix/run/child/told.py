"""What an event says of many things at once, put in words only when its line is sent, if it is ever sent.

A pass tells of every node and of every parameter, several times over. Kept in few objects that costs little: many that
stay would wake the garbage collector in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .storages import Storage


class Records:
    """The Record events of one walk, in columns.

    `nodes` are lists side by side: times, stacks, numbers, names, parents and how many of the saved tensors are the
    node's own. `saved` are, too: storages, times, shapes, dtypes and PyTorch's counters. `outputs` says which of the
    saved tensors is the output of a node, `held` what the ctx of a custom Function keeps, or a checkpoint
    hides: those are the `hidden` nodes.
    """

    __slots__ = ("held", "hidden", "nodes", "outputs", "saved")

    def __init__(self, nodes: tuple[Sequence[Any], ...]) -> None:
        self.nodes = nodes
        self.saved: tuple[list[Any], ...] = ()
        self.outputs: dict[int, int] = {}
        self.held: dict[int, list[tuple[Storage, int, Any, Any]]] = {}
        self.hidden: set[int] = set()

    def __len__(self) -> int:
        return len(self.nodes[0])

    def __iter__(self) -> Iterator[tuple[int, Any, int, str, Any, list[Any], Any]]:
        """Of each node its time, stack, number, name, parents, what it saved, and its output if that is known."""
        saved, end = list(zip(*self.saved)), 0  # noqa: B905 (Python 3.9)
        for time, stack, number, name, parents, count in zip(*self.nodes):  # noqa: B905 (Python 3.9)
            start, end = end, end + count
            made = self.outputs.get(number)
            output = None if made is None else saved[made]
            yield time, stack, number, name, parents, saved[start:end], output


class Refs:
    """The refs of a group of leaves as they were at `time`, when this was made. `storages` and what is `fixed` of their
    refs belong to the group."""

    __slots__ = ("fixed", "storages", "time")

    def __init__(self, storages: list[Storage], fixed: list[Any], time: int) -> None:
        self.storages = storages
        self.fixed = fixed
        self.time = time

    def __len__(self) -> int:
        return len(self.storages)

    def __iter__(self) -> Iterator[list[Any]]:
        for storage, rest in zip(self.storages, self.fixed):  # noqa: B905 (Python 3.9)
            yield [storage.number, storage.version(self.time), *rest]

    def numbers(self) -> list[int]:
        return [storage.number for storage in self.storages]
