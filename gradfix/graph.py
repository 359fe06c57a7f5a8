"""Questions about the autograd graph of a tape: which optimizers a node reaches, where one model's value
enters another.

Pure: reads the tape only. Everything is iterative and memoised; leaf sets are bit masks, since a tape may
hold a hundred thousand nodes. A "backward" here is one execution; executions with the very same stack are its
passes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from functools import cached_property

from gradfix.dataclass import dataclass
from gradfix.index import Index, Leaf
from gradfix.tape import Backward, Event, Mutate, Record, Site, Stack, Step, Tape, Zero

# ops that give a tensor another shape or type
VIEWS = {
    "t",
    "transpose",
    "permute",
    "view",
    "unsafe_view",
    "reshape",
    "expand",
    "squeeze",
    "unsqueeze",
    "to_copy",
    "alias",
}


@dataclass(frozen=True, slots=True)
class Crossing:
    """An edge of the graph where a value of one model enters another: `consumer` uses what `producer`
    made."""

    consumer: Record
    producer: Record


@dataclass(frozen=True, slots=True)
class Entry:
    """An edge where a backward's own nodes take an older value; `consumer` is None where the root itself is
    old."""

    consumer: Record | None
    producer: Record


class Graph(Index):
    """Questions over one tape's tables. All methods are pure."""

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self._reaches: dict[int, int] = {}
        self._walks: dict[int, frozenset[int]] = {}
        self._serves: dict[int, frozenset[int]] = {}
        self._served: dict[int, frozenset[int]] = {}  # by the number of the stack
        self._filled: dict[int, frozenset[int]] = {}
        self._discards: dict[int, frozenset[int]] = {}
        self._uses: dict[int, frozenset[int]] = {}
        self._before_steps: dict[int, tuple[Leaf, ...]] = {}

    # -- what a node reaches -------------------------------------------------------------------------

    @cached_property
    def _bits(self) -> dict[int, int]:
        """leaf storage -> its bit."""
        bits: dict[int, int] = {}
        for record in self.records.values():
            for parent in record.parents:
                if parent < 0:
                    bits.setdefault(~parent, 1 << len(bits))
        for storage in self.owners:
            bits.setdefault(storage, 1 << len(bits))
        return bits

    @cached_property
    def _leaves(self) -> list[int]:
        """bit number -> leaf storage."""
        return list(self._bits)

    @cached_property
    def _owned(self) -> dict[int, int]:
        """optimizer -> mask of the leaves it owns."""
        return {n: self.mask(ref.storage for ref in o.refs) for n, o in self.optimizers.items()}

    def mask(self, storages: Iterable[int]) -> int:
        """The bit mask of leaf storages; those no node knows are left out."""
        mask = 0
        for storage in storages:
            mask |= self._bits.get(storage, 0)
        return mask

    def owned_mask(self, optimizers: Iterable[int]) -> int:
        """The bit mask of the leaves that `optimizers` own."""
        mask = 0
        for number in optimizers:
            mask |= self._owned.get(number, 0)
        return mask

    def reach_mask(self, node: int) -> int:
        """The leaves whose gradient flows through `node`, as a bit mask."""
        if node < 0:
            return self._bits.get(~node, 0)
        known = self._reaches
        if node in known:
            return known[node]
        records, pending = self.records, [node]
        while pending:
            current = pending[-1]
            record = records.get(current)
            parents = record.parents if record else ()
            open_parents = [p for p in parents if p >= 0 and p not in known]
            if open_parents and current not in known:
                known[current] = 0  # entered: a second visit closes it, even if a damaged tape had a cycle
                pending.extend(open_parents)
                continue
            pending.pop()
            mask = known.get(current, 0)
            for parent in parents:
                mask |= known.get(parent, 0) if parent >= 0 else self._bits[~parent]
            known[current] = mask
        return known[node]

    def reaches(self, node: int) -> frozenset[int]:
        """The leaf storages whose gradient flows through `node`."""
        return self._storages(self.reach_mask(node))

    def reached_optimizers(self, node: int) -> frozenset[int]:
        """The optimizers that own a leaf which `node` reaches."""
        mask = self.reach_mask(node)
        return frozenset(number for number, owned in self._owned.items() if mask & owned)

    def _storages(self, mask: int) -> frozenset[int]:
        found, leaves = [], self._leaves
        while mask:
            low = mask & -mask
            found.append(leaves[low.bit_length() - 1])
            mask ^= low
        return frozenset(found)

    def below(self, node: int) -> set[int]:
        """`node` and all that it was made of, leaves left out."""
        found, pending = {node}, [node]
        while pending:
            record = self.records.get(pending.pop())
            for parent in record.parents if record else ():
                if parent >= 0 and parent not in found:
                    found.add(parent)
                    pending.append(parent)
        return {n for n in found if n >= 0}

    # -- backwards among steps -----------------------------------------------------------------------

    def walk(self, backward: Backward) -> frozenset[int]:
        """The nodes `backward` walked, leaves' accumulators left out."""
        walk = self._walks.get(backward.time)
        if walk is None:
            walk = self._walks[backward.time] = frozenset(n for n in backward.nodes if n >= 0)
        return walk

    def filled(self, backward: Backward) -> frozenset[int]:
        """The optimizers that own a parameter whose ``.grad`` `backward` filled."""
        known = self._filled.get(backward.time)
        if known is None:
            numbers: set[int] = set()
            for ref in backward.accumulates:
                numbers |= self.owners.get(ref.storage, frozenset())
            known = self._filled[backward.time] = frozenset(numbers)
        return known

    def serves(self, backward: Backward) -> frozenset[int]:
        """The optimizers whose step uses this backward's gradients as the code means it: those stepping
        between it and the next backward that fills gradients; where none does, those that do so behind another
        pass of it (gradients are accumulated, and stepped with now and then); else those that step before
        their gradients are cleared."""
        known = self._serves.get(backward.time)
        if known is None:
            found = self._steps_behind(backward) or self._steps_behind_a_pass(
                self.stack_number(backward.stack)
            )
            known = self._serves[backward.time] = found or self.uses(backward)
        return known

    def _steps_behind_a_pass(self, stack: int) -> frozenset[int]:
        """Those behind the first pass that has any of the backward at this place."""
        known = self._served.get(stack)
        if known is None:
            behind = map(self._steps_behind, self._executions[stack])
            known = self._served[stack] = next(filter(None, behind), frozenset[int]())
        return known

    def _steps_behind(self, backward: Backward) -> frozenset[int]:
        filled = self.filled(backward)
        following = next((b.time for b in self._backwards_after(backward.time) if b.accumulates), None)
        served = set()
        for step in self._steps_after(backward.time):
            if following is not None and step.time > following:
                break
            if step.optimizer in filled:
                served.add(step.optimizer)
        return frozenset(served - self.discards(backward))

    def uses(self, backward: Backward) -> frozenset[int]:
        """The optimizers that step, sooner or later, with a gradient of `backward`."""
        known = self._uses.get(backward.time)
        if known is None:
            kept = self.filled(backward) - self.discards(backward)
            known = self._uses[backward.time] = frozenset(
                number for number in kept if self.step_of(number, backward.time)
            )
        return known

    def discards(self, backward: Backward) -> frozenset[int]:
        """The optimizers none of whose gradients from `backward` survive until their next step: all were
        cleared before it. An optimizer that never steps again is not among them (the run may have been cut
        short)."""
        known = self._discards.get(backward.time)
        if known is not None:
            return known
        gone = set()
        for number in self.filled(backward):
            step = self.step_of(number, backward.time)
            mine = [r.storage for r in backward.accumulates if number in self.owners.get(r.storage, ())]
            if step and mine and all(self._cleared(storage, backward.time, step.time) for storage in mine):
                gone.add(number)
        known = self._discards[backward.time] = frozenset(gone)
        return known

    def _cleared(self, storage: int, after: int, before: int) -> bool:
        events = self.history.get(storage, [])
        for i in range(bisect_left(events, after + 1, key=_time), len(events)):
            if events[i].time >= before:
                return False
            if isinstance(events[i], Zero):
                return True
        return False

    def step_of(self, optimizer: int, after: int) -> Step | None:
        """The first step of an optimizer at this time or later."""
        steps = self.steps_of(optimizer)
        at = bisect_left(steps, after, key=_time)
        return steps[at] if at < len(steps) else None

    def steps_of(self, optimizer: int) -> list[Step]:
        """The steps of one optimizer, in order of time."""
        return self._steps_by_optimizer.get(optimizer, [])

    @cached_property
    def _steps_by_optimizer(self) -> dict[int, list[Step]]:
        table: dict[int, list[Step]] = {}
        for step in self.steps:
            table.setdefault(step.optimizer, []).append(step)
        return table

    def _steps_after(self, time: int) -> Iterable[Step]:
        start = bisect_left(self.steps, time, key=_time)
        return (self.steps[i] for i in range(start, len(self.steps)))

    def _backwards_after(self, time: int) -> Iterable[Backward]:
        start = bisect_left(self.backwards, time + 1, key=_time)
        return (self.backwards[i] for i in range(start, len(self.backwards)))

    def plain_gradients(self, *around: Backward | None) -> tuple[Site, ...]:
        """Where autograd.grad() was called without create_graph in the function in which it was called last before one
        of `around`, or as one of them."""
        calls = [c for c in self.plain_calls if c.stack]
        last = [next((c for c in reversed(calls) if c.time <= b.time), None) for b in around if b is not None]
        functions = {(c.stack[-1].file, c.stack[-1].function) for c in last if c is not None}
        return tuple(
            dict.fromkeys(c.stack[-1] for c in calls if (c.stack[-1].file, c.stack[-1].function) in functions)
        )

    # -- passes of a loop ----------------------------------------------------------------------------

    @cached_property
    def _executions(self) -> dict[int, list[Backward]]:
        table: dict[int, list[Backward]] = {}
        for backward in self.backwards:
            table.setdefault(self.stack_number(backward.stack), []).append(backward)
        return table

    @cached_property
    def _made(self) -> dict[int, list[int]]:
        """stack number -> times at which a node was recorded there."""
        table: dict[int, list[int]] = {}
        for record in self.records.values():
            table.setdefault(self.stack_number(record.stack), []).append(record.time)
        for times in table.values():
            times.sort()
        return table

    def passes(self, backward: Backward) -> tuple[Backward, ...]:
        """Every execution of the very same backward (same stack), in order of time, this one among them."""
        return tuple(self._executions[self.stack_number(backward.stack)])

    def previous(self, backward: Backward) -> Backward | None:
        """The execution of the very same backward before this one."""
        executions = self._executions[self.stack_number(backward.stack)]
        here = bisect_left(executions, backward.time, key=_time)
        return executions[here - 1] if here else None

    def pass_begin(self, backward: Backward) -> int:
        """The time of the execution of the very same backward before this one; -1 for the first."""
        previous = self.previous(backward)
        return previous.time if previous is not None else -1

    def earlier_pass(self, record: Record, backward: Backward) -> bool:
        """Whether `record` was made before the previous execution of the very same backward (same stack),
        i.e. in an earlier pass of the loop or before the loop."""
        previous = self.previous(backward)
        return previous is not None and record.time < previous.time

    def shared_later(self, backward: Backward) -> bool:
        """Whether another backward walks again what this one's own pass made and saved: it needs the graph kept,
        whatever becomes of what an earlier pass made."""
        since = self.pass_begin(backward)
        own = {
            n
            for n in self.walk(backward)
            if n in self.records and self.records[n].time > since and self.records[n].saves
        }
        later = (b for b in self._backwards_after(backward.time) if b.stack != backward.stack)
        return any(not own.isdisjoint(self.walk(b)) for b in later)

    def made_between(self, stack: Stack, after: int, before: int) -> bool:
        """Whether any node was recorded at `stack` with after < time < before."""
        times = self._made.get(self.stack_number(stack), [])
        at = bisect_left(times, after + 1)
        return at < len(times) and times[at] < before

    # -- boundaries ----------------------------------------------------------------------------------

    def crossings(self, backward: Backward, into: Collection[int]) -> tuple[Crossing, ...]:
        """Where a value made by the models of the optimizers `into` enters the rest of `backward`'s walk.

        The boundary of DESIGN section 4: the consumer reaches a leaf of an optimizer in serves(backward) that
        is not in `into`; the producer reaches leaves of optimizers in `into` and none of those. Highest
        consumer first.
        """
        own = self.owned_mask(self.serves(backward) - set(into))
        other = self.owned_mask(into) & ~own
        return self.boundary(backward, own, other)

    def boundary(self, backward: Backward, own: int, other: int) -> tuple[Crossing, ...]:
        """Edges of `backward`'s walk from a node that reaches leaves of the mask `own` to one that reaches
        leaves of the mask `other` and none of `own`; a mere view of a parameter is no value. Highest
        consumer first."""
        found = []
        walk = self.walk(backward)
        for node in sorted(walk, reverse=True):
            record = self.records.get(node)
            if record is None or not self.reach_mask(node) & own:
                continue
            for parent in dict.fromkeys(record.parents):
                mask = self.reach_mask(parent)
                if parent not in walk or not mask & other or mask & own or self.is_parameter(parent):
                    continue
                if parent in self.records:
                    found.append(Crossing(record, self.records[parent]))
        return tuple(found)

    def is_parameter(self, node: int) -> bool:
        """Whether `node` is no more than a parameter seen another way: transposed, cast,
        weight-normalised."""
        while (record := self.records.get(node)) is not None:
            if "weight_norm" in record.op:
                return True
            if plain_op(record) not in VIEWS or len(record.parents) != 1:
                return False
            node = record.parents[0]
        return node < 0

    def entries(
        self, backward: Backward, old: Callable[[int], bool], into: Collection[int]
    ) -> tuple[Entry, ...]:
        """Edges of `backward`'s walk from a node that is not `old` to an `old` one through which a node of
        `into` is reached; an old root is an entry without consumer. Highest consumer first."""
        walk, records = self.walk(backward), self.records
        leads = self.leading(walk, into)
        found = [
            Entry(None, records[root])
            for root in backward.roots
            if root in leads and root in records and old(root)
        ]
        for node in sorted(leads, reverse=True):
            record = records.get(node)
            if record is None or old(node):
                continue
            for parent in dict.fromkeys(record.parents):
                if parent in leads and parent in records and old(parent):
                    found.append(Entry(record, records[parent]))
        return tuple(found)

    def leading(self, walk: frozenset[int], into: Collection[int]) -> set[int]:
        """The nodes of `walk` from which a node of `into` is reached within it."""
        consumers: dict[int, list[int]] = {}
        for node in walk:
            record = self.records.get(node)
            for parent in record.parents if record else ():
                if parent in walk:
                    consumers.setdefault(parent, []).append(node)
        found, pending = set(into), list(into)
        while pending:
            for consumer in consumers.get(pending.pop(), ()):
                if consumer not in found:
                    found.add(consumer)
                    pending.append(consumer)
        return found & walk

    def before_step(self, step: Step) -> tuple[Leaf, ...]:
        """What happened to the gradients of `step`'s parameters since its optimizer's previous step."""
        known = self._before_steps.get(step.time)
        if known is not None:
            return known
        mine = {ref.storage for ref in step.refs + step.without}
        steps = self.steps_of(step.optimizer)
        at = bisect_left(steps, step.time, key=_time)
        start = steps[at - 1].time if at else -1
        found: dict[int, Leaf] = {}
        for storage in mine:
            events = self.history.get(storage, [])
            for i in range(bisect_left(events, start + 1, key=_time), len(events)):
                if events[i].time >= step.time:
                    break
                if not isinstance(events[i], Step):
                    found[events[i].time] = events[i]
        known = self._before_steps[step.time] = tuple(found[t] for t in sorted(found))
        return known


def plain_op(event: Record | Mutate) -> str:
    """The op without namespace, overload, underscores: ``aten._to_copy`` is ``to_copy``,
    ``aten.add_.Tensor`` ``add``."""
    parts = event.op.split(".")
    return (parts[1] if parts[0] == "aten" and len(parts) > 1 else parts[0]).strip("_")


def _time(event: Event) -> int:
    return event.time
