"""Questions about the autograd graph of a tape: which optimizers a node reaches, where one model's value enters another.

Pure: reads the tape only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from gradfix.tape import Backward, Optimizer, Record, Ref, Step, Tape, Zero


@dataclass(frozen=True, slots=True)
class Crossing:
    """An edge of the graph where a value of one model enters another: `consumer` uses what `producer` made."""

    consumer: Record
    producer: Record


class Graph:
    """Indexes over one tape. All methods are pure."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    @cached_property
    def records(self) -> dict[int, Record]:
        """node -> its Record."""
        return {e.node: e for e in self.tape.events if isinstance(e, Record)}

    @cached_property
    def optimizers(self) -> dict[int, Optimizer]:
        """optimizer -> its last Optimizer event."""
        return {e.optimizer: e for e in self.tape.events if isinstance(e, Optimizer)}

    @cached_property
    def owners(self) -> dict[int, frozenset[int]]:
        """leaf storage -> optimizers that own it."""
        raise NotImplementedError

    def reaches(self, node: int) -> frozenset[int]:
        """The leaf storages whose gradient flows through `node`."""
        raise NotImplementedError

    def reached_optimizers(self, node: int) -> frozenset[int]:
        """The optimizers that own a leaf which `node` reaches."""
        raise NotImplementedError

    def next_step(self, backward: Backward) -> Step | None:
        """The first step after `backward` of an optimizer that owns a parameter this backward filled... by time."""
        raise NotImplementedError

    def serves(self, backward: Backward) -> frozenset[int]:
        """The optimizers whose step uses this backward's gradients as the code means it: those stepping between it and
        the next backward (or, where none does, before their grads are cleared)."""
        raise NotImplementedError

    def crossings(self, backward: Backward, into: frozenset[int]) -> tuple[Crossing, ...]:
        """Edges of `backward`'s walk from a node that (also) reaches a leaf of optimizers outside `into`'s complement...

        The boundary of DESIGN section 4: consumer reaches a leaf of an optimizer in serves(backward); producer reaches
        leaves of optimizers in `into` and none of serves(backward).
        """
        raise NotImplementedError

    def earlier_pass(self, record: Record, backward: Backward) -> bool:
        """Whether `record` was made before the previous execution of the very same backward (same stack), i.e. in an
        earlier pass of the loop or before the loop."""
        raise NotImplementedError
