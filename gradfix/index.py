"""What a tape holds, looked up by node, optimizer, leaf and stack."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from gradfix.tape import (
    Backward,
    Free,
    GradWrite,
    Mutate,
    Optimizer,
    Record,
    Ref,
    Stack,
    Step,
    Tape,
    Terms,
    Unbounded,
    Zero,
)

# what can happen to a leaf's gradient: filled, cleared, written or set by hand, used
Leaf = Backward | Zero | GradWrite | Step


class Index:
    """Tables over one tape, each made when it is first asked for."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._stacks: dict[int, int] = {}
        self._stack_numbers: dict[Stack, int] = {}

    @cached_property
    def records(self) -> dict[int, Record]:
        """node -> its Record."""
        return {e.node: e for e in self.tape.events if isinstance(e, Record)}

    @cached_property
    def optimizers(self) -> dict[int, Optimizer]:
        """optimizer -> its last Optimizer event."""
        return {e.optimizer: e for e in self.tape.events if isinstance(e, Optimizer)}

    @cached_property
    def backwards(self) -> tuple[Backward, ...]:
        """Every backward, in order of time."""
        return tuple(e for e in self.tape.events if isinstance(e, Backward))

    @cached_property
    def plain_calls(self) -> tuple[Backward, ...]:
        """The calls of autograd.grad() without create_graph, whose gradients have no graph; in order of time."""
        return tuple(b for b in self.backwards if b.inputs and not b.accumulates and not b.create)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every optimizer step, in order of time."""
        return tuple(e for e in self.tape.events if isinstance(e, Step))

    @cached_property
    def terms(self) -> tuple[Terms, ...]:
        """Every measured pair of terms, in order of time."""
        return tuple(e for e in self.tape.events if isinstance(e, Terms))

    @cached_property
    def unbounded(self) -> tuple[Unbounded, ...]:
        """Every loss that was seen to pull one way without end, in order of time."""
        return tuple(e for e in self.tape.events if isinstance(e, Unbounded))

    @cached_property
    def updates(self) -> tuple[int, ...]:
        """When gradients were used or cleared: the times of every step and zero_grad, in order."""
        return tuple(e.time for e in self.tape.events if isinstance(e, (Step, Zero)))

    @cached_property
    def owners(self) -> dict[int, frozenset[int]]:
        """leaf storage -> optimizers that own it."""
        owners: dict[int, set[int]] = {}
        for number, optimizer in self.optimizers.items():
            for ref in optimizer.refs:
                owners.setdefault(ref.storage, set()).add(number)
        return {storage: frozenset(numbers) for storage, numbers in owners.items()}

    @cached_property
    def freed(self) -> dict[int, Backward]:
        """node -> the first backward that released its saved tensors."""
        freed: dict[int, Backward] = {}
        last: Backward | None = None
        for event in self.tape.events:
            if isinstance(event, Backward):
                last = event
            elif isinstance(event, Free) and last is not None:
                for node in event.nodes:
                    freed.setdefault(node, last)
        return freed

    @cached_property
    def history(self) -> dict[int, list[Leaf]]:
        """leaf storage -> what happened to its gradient, in order of time: Backward filled it, Zero cleared
        it, GradWrite changed it, Step met it (with or without a gradient)."""
        history: dict[int, list[Leaf]] = {}
        for event in self.tape.events:
            if isinstance(event, Backward):
                touched: Iterable[Ref] = event.accumulates
            elif isinstance(event, (Zero, GradWrite)):
                touched = event.refs
            elif isinstance(event, Step):
                touched = event.refs + event.without
            else:
                continue
            for storage in {ref.storage for ref in touched}:
                history.setdefault(storage, []).append(event)
        return history

    @cached_property
    def writes(self) -> dict[int, list[Mutate | Step]]:
        """storage -> the writes into it, in order of time (and of version). A Step stands for a write of its
        own only where no Mutate tells of it."""
        writes: dict[int, list[Mutate | Step]] = {}
        versions: dict[int, int] = {}
        for event in self.tape.events:
            if isinstance(event, Mutate) and event.op != "aten.detach_":  # (that writes nothing)
                writes.setdefault(event.ref.storage, []).append(event)
                versions[event.ref.storage] = event.ref.version
            elif isinstance(event, Step):
                for ref in event.refs:
                    if ref.version > versions.get(ref.storage, 0):
                        writes.setdefault(ref.storage, []).append(event)
                        versions[ref.storage] = ref.version
        return writes

    def stack_number(self, stack: Stack) -> int:
        """The same number for equal stacks; cheap, since a tape shares its stack tuples."""
        number = self._stacks.get(id(stack))
        if number is None:
            number = self._stack_numbers.setdefault(stack, len(self._stack_numbers))
            if self._interned.get(id(stack)) is stack:
                self._stacks[id(stack)] = number
        return number

    @cached_property
    def _interned(self) -> dict[int, Stack]:
        """id -> stack of the tape's own tuples: an id is only a key as long as its object lives, and the tape
        lives."""
        return {id(e.stack): e.stack for e in self.tape.events}
