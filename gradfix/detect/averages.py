"""Averages of parameters: what a pass keeps for the next one and makes of parameters and of itself alone, as the
weights of a mean teacher are. They are constants to the passes that read them, all of them: cut off from the average
of before alone, they would hand the parameters a gradient still.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gradfix.dataclass import dataclass
from gradfix.detect.conflict import Conflict
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Record, Stack

# ops that are linear in what has a gradient, where only one of the operands of a product has
LINEAR = {"add", "sub", "rsub", "neg", "lerp", "clone", "to_copy", "alias"}
SCALED = {"mul", "div"}
CARRIED = ("carried", "before-loop")  # the latter where an update leaves passes out
CLOSE = 6  # ops from an average to the one of before


@dataclass(frozen=True, slots=True)
class Averages:
    """The nodes that make averages: `updates` from the first backward on, `outset` before it; `readers` are those in
    places where nothing else that has a graph is read. `alone`: no other value comes from an earlier pass."""

    updates: tuple[Record, ...]
    outset: tuple[Record, ...]
    readers: tuple[Record, ...]
    alone: bool = True


def averages(graph: Graph, conflicts: Iterable[Conflict]) -> Averages | None:
    """The averages of parameters through which `conflicts` come to an earlier pass."""
    found: set[int] = set()
    linear: set[int] | None = None
    alone = True
    for conflict in conflicts:
        backward = conflict.backward
        if conflict.kind != "freed-graph" or conflict.pattern not in CARRIED or backward is None:
            continue
        linear = _combinations(graph) if linear is None else linear
        for later in (b for b in graph.passes(backward) if b.time >= backward.time):
            # (an update behind the step comes a pass after the state that the same fault speaks of)
            walk = graph.walk(later)
            carried = {n for n in walk & linear if _of_itself(graph, graph.records[n])}
            nodes = {m for n in carried for m in graph.below(n)}
            entered = _entered(graph, later)
            if not nodes.isdisjoint(entered) and _apart(graph, carried, nodes, walk):
                found |= {graph.stack_number(graph.records[n].stack) for n in carried}
                alone = alone and nodes.issuperset(entered)
    return replace(_everywhere(graph, found, linear), alone=alone) if found and linear else None


def _entered(graph: Graph, backward: Backward) -> set[int]:
    """The nodes of an earlier pass that a backward comes to."""
    since, records = graph.pass_begin(backward), graph.records
    own = (records[n] for n in graph.walk(backward) if n in records and records[n].time > since)
    return {p for r in own for p in r.parents if p in records and records[p].time < since}


def _everywhere(graph: Graph, stacks: set[int], linear: set[int]) -> Averages:
    """All that makes averages in these places, in any pass."""
    records = graph.records
    tops = [n for n, r in records.items() if graph.stack_number(r.stack) in stacks and n in linear]
    nodes = {m for n in tops for m in graph.below(n)}
    begun = graph.backwards[0].time
    made = [records[n] for n in sorted(nodes)]
    return Averages(
        tuple(r for r in made if r.time > begun),
        tuple(r for r in made if r.time < begun),
        tuple(_readers(graph, nodes)),
    )


def _readers(graph: Graph, nodes: set[int]) -> Iterator[Record]:
    """What reads averages where, from the first backward on, nothing is read that leads to parameters otherwise."""
    records, begun = graph.records, graph.backwards[0].time
    takes = [r for n, r in records.items() if n not in nodes and not nodes.isdisjoint(r.parents)]
    places = {_lines(r.stack): True for r in takes if r.stack}
    mixed: set[int] = set()  # nodes that lead to a leaf, and not through an average
    for node in sorted(records):
        record = records[node]
        if node not in nodes and any(p < 0 or p in mixed for p in record.parents):
            mixed.add(node)
            if record.time > begun and _lines(record.stack) in places:
                places[_lines(record.stack)] = False
    yield from (r for r in takes if places.get(_lines(r.stack)))


def _lines(stack: Stack) -> tuple[tuple[str, int], ...]:
    return tuple((site.file, site.line) for site in stack)


def _combinations(graph: Graph) -> set[int]:
    """The nodes that are linear combinations of parameters, element by element."""
    shapes = {ref.storage: ref.shape for o in graph.optimizers.values() for ref in o.refs}
    found: dict[
        int, tuple[bool, tuple[int, ...] | None]
    ] = {}  # whether a parameter goes into it, and its shape
    for node in sorted(graph.records):
        record = graph.records[node]
        op = plain_op(record)
        if not record.parents or not (op in LINEAR or (op in SCALED and len(record.parents) == 1)):
            continue
        if not all(p < 0 or p in found for p in record.parents):
            continue
        made = [found[p] if p >= 0 else (~p in shapes, shapes.get(~p)) for p in record.parents]
        known = [record.output.shape] if record.output is not None else []
        known += [shape for _, shape in made if shape is not None]
        if len(set(known)) < 2:
            found[node] = any(owned for owned, _ in made), known[0] if known else None
    return {n for n, (owned, _) in found.items() if owned}


def _of_itself(graph: Graph, record: Record) -> bool:
    """Whether the value of an earlier pass went into it that was made in the same place."""
    pending = [(p, 1) for p in record.parents]
    while pending:
        node, depth = pending.pop()
        other = graph.records.get(node)
        if other is None:
            continue
        if other.stack == record.stack and other.op == record.op and _passed(graph, other, record):
            return True
        if depth < CLOSE:
            pending += [(p, depth + 1) for p in other.parents]
    return False


def _passed(graph: Graph, before: Record, after: Record) -> bool:
    times = [b.time for b in graph.backwards]
    return bisect_left(times, before.time) < bisect_right(times, after.time)


def _apart(graph: Graph, carried: set[int], nodes: set[int], walk: frozenset[int]) -> bool:
    """Whether the parameters are trained by what is not made of the averages, too, and these are made behind a step;
    or, where a pass makes them before it reads them, are read as the parameters are."""
    records = graph.records
    others = [records[n] for n in walk if n not in nodes and n in records]
    trained = {p for r in others for p in r.parents if p < 0}
    if not {p for n in nodes for p in records[n].parents if p < 0 and ~p in graph.owners} <= trained:
        return False
    places = {graph.stack_number(records[n].stack) for n in carried}
    first = min(r.time for r in records.values() if graph.stack_number(r.stack) in places)
    if graph.steps and first > graph.steps[0].time:
        return True
    uses = {r.op for r in others if any(p < 0 for p in r.parents)}
    return bool(uses & {r.op for r in others if not nodes.isdisjoint(r.parents)})
