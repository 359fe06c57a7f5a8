"""freed-graph: a backward that reaches nodes whose saved tensors an earlier backward released.

Which of the four ways it came about is read from time and stacks: the very same backward (same stack)
executed before is an earlier pass of the loop, and a node made before that execution is an earlier pass's
(DESIGN section 4).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable
from dataclasses import field

from gradfix import wording
from gradfix.dataclass import dataclass
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.graph import Entry, Graph, plain_op
from gradfix.tape import Backward, Record, Stack

SECOND_TIME = "a second time"  # in PyTorch's own words

# ops through which a total is still a total: sums of losses, means, weights
SUMMING = {"add", "sum", "mean", "div", "mul", "neg", "sub", "view", "squeeze", "stack", "to_copy", "reshape"}


@dataclass(slots=True)
class Torn:
    """The freed graphs, and per backward (by its time) which fault the nodes belong to that it reached in
    vain."""

    findings: Findings = field(default_factory=Findings)
    spoilt: dict[int, dict[int, Hashable]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The released nodes that one backward reached for one reason, and the edges where it took them in."""

    backward: Backward
    freeing: Backward
    nodes: frozenset[int]
    entries: tuple[Entry, ...]
    pattern: str
    one_update: bool = False  # both backwards, of two passes of a loop, give gradients to the same step


def freed_graphs(graph: Graph) -> Torn:
    """Every freed graph; the same old value reached again is the same fault, whichever backward reaches
    it."""
    torn = Torn()
    by_value: dict[
        tuple[int, int], Hashable
    ] = {}  # (backward's or freeing backward's stack, old value's stack) -> fault
    for backward in graph.backwards:
        for group in _groups(graph, backward):
            keys = _values(graph, group)
            key = next((by_value[k] for k in keys if k in by_value), keys[0])
            for k in keys:
                by_value.setdefault(k, key)
            torn.findings.add(key, backward.time, _conflict(graph, group))
            torn.spoilt.setdefault(backward.time, {}).update(dict.fromkeys(group.nodes, key))
    return torn


def _values(graph: Graph, group: Group) -> list[tuple[int, int]]:
    freeing = graph.stack_number(group.freeing.stack)
    needing = graph.stack_number(group.backward.stack)
    made = [graph.stack_number(e.producer.stack) for e in group.entries]
    return [(by, value) for by in (freeing, needing) for value in made] or [(freeing, needing)]


def _groups(graph: Graph, backward: Backward) -> list[Group]:
    """At most two: what an earlier pass made, and what another backward of this pass released."""
    walk, records = graph.walk(backward), graph.records
    released = {n for n in walk if n in graph.freed and graph.freed[n].time < backward.time}
    said = SECOND_TIME in backward.refused
    # a node that saved nothing is walked again without complaint; what PyTorch said outweighs what hooks
    # could see
    needed = {n for n in released if n in records and (records[n].saves or said)}
    if said and any(records[n].saves for n in needed):
        needed = {n for n in needed if records[n].saves}
    if not needed:
        return []
    previous = _pass_before(graph, backward, needed)
    old = _older(graph, walk, previous.time) if previous is not None else set()
    groups = []
    if earlier := needed & old:
        entries = graph.entries(backward, old.__contains__, earlier)
        assert previous is not None
        nodes = frozenset(old | earlier)
        freeing = graph.freed[max(earlier)]
        pattern = _pattern(graph, backward, previous, entries)
        same = pattern != "accumulated" and freeing.stack == backward.stack
        together = same and one_update(graph, freeing, backward)
        groups.append(Group(backward, freeing, nodes, entries, pattern, together))
    if shared := needed - old:
        # the boundary is the freeing backward's, not only of the nodes that saved something
        entries = graph.entries(backward, lambda n: n in released and n not in old, shared)
        groups.append(
            Group(backward, graph.freed[max(shared)], frozenset(released - old), entries, "two-losses")
        )
    return groups


def _older(graph: Graph, walk: frozenset[int], time: int) -> set[int]:
    """The nodes of `walk` made before `time`. Those of a gradient that has a graph itself (create_graph) are recorded
    only where a backward walks them: what an old node takes is as old."""
    records = graph.records
    found = {n for n in walk if n in records and records[n].time < time}
    late = {n for n in walk - found if n in records and not records[n].stack}
    pending = list(found) if late else []
    while pending:
        for parent in records[pending.pop()].parents:
            if parent in late and parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def _pass_before(graph: Graph, backward: Backward, needed: set[int]) -> Backward | None:
    """The execution of the same backward in the pass before. A loop over losses that were made before it is one pass:
    what it takes, weighted maybe, no run of it has walked yet."""
    previous, terms = graph.previous(backward), summed(graph, backward.roots)
    while previous is not None:
        time = previous.time
        old = _older(graph, graph.walk(backward), time)
        taken = {e.producer.node for e in graph.entries(backward, old.__contains__, needed & old)}
        if not taken or not taken <= terms or not taken.isdisjoint(graph.walk(previous)):
            return previous
        previous = graph.previous(previous)
    return None


def one_update(graph: Graph, earlier: Backward, later: Backward) -> bool:
    """Whether the gradients of both go into one step: the losses of a loop's passes, not those of different updates."""
    at = bisect_right(graph.updates, earlier.time)
    return bool(graph.steps) and (at == len(graph.updates) or graph.updates[at] > later.time)


def _pattern(graph: Graph, backward: Backward, previous: Backward, entries: tuple[Entry, ...]) -> str:
    if not any(graph.made_between(e.producer.stack, previous.time, backward.time) for e in entries):
        return "before-loop"  # a term made once is no running sum, whatever it is added to
    totals = summed(graph, backward.roots)
    before = summed(graph, [r for b in graph.passes(backward) if b.time < backward.time for r in b.roots])
    only_summed = all(
        e.consumer is not None
        and plain_op(e.consumer) in SUMMING
        and e.consumer.node in totals
        and e.producer.node in before
        for e in entries
    )
    return "accumulated" if only_summed else "carried"


def summed(graph: Graph, roots: list[int] | tuple[int, ...]) -> set[int]:
    """The nodes reached from `roots` through ops that only add up and scale, their ends included."""
    found, pending = set(roots), list(roots)
    while pending:
        record = graph.records.get(pending.pop())
        if record is None or plain_op(record) not in SUMMING:
            continue
        for parent in record.parents:
            if parent >= 0 and parent not in found:
                found.add(parent)
                pending.append(parent)
    return found


def alone_in_loss(graph: Graph, backward: Backward, value: int) -> bool:
    """Whether the loss is a sum in which the node's value meets nothing else that has a graph before it is a term:
    without its own, it would be a constant there."""
    walked, terms = graph.walk(backward), summed(graph, backward.roots)
    above = graph.leading(walked, {value})
    ops = (r for n in above - {value} if (r := graph.records.get(n)) is not None)
    return all(above.issuperset(r.parents) for r in ops if r.node not in terms or plain_op(r) not in SUMMING)


def _conflict(graph: Graph, group: Group) -> Conflict | None:
    backward, freeing = group.backward, group.freeing
    entries = group.entries
    producer = entries[0].producer if entries else graph.records[max(group.nodes)]
    value = wording.name(producer.output, "")
    labels: list[tuple[str, Stack, str]] = []
    for e in entries:
        labels.append(
            ("made", e.producer.stack, _made(group.pattern, wording.name(e.producer.output, "this value")))
        )
    if group.pattern == "two-losses":
        for consumer in _taken(graph, freeing, group):
            labels.append(
                ("crossing", consumer.stack, f"{value or 'it'} enters the first of the two losses here")
            )
    labels.append(("freed", freeing.stack, "this backward frees its graph"))
    for e in entries:
        if e.consumer is not None:
            labels.append(
                ("used", e.consumer.stack, f"{wording.name(e.producer.output, 'it')} is used again here")
            )
    needed = "needed here again"
    if freeing.stack == backward.stack:
        next_loss = group.one_update or group.pattern == "two-losses"
        needed = f"needed again {'for the next loss' if next_loss else 'in the next pass'}"
    labels.append(("needed", backward.stack, needed))
    return make(
        "freed-graph",
        group.pattern,
        _message(group, value, producer.stack),
        labels,
        "needed",
        ref=producer.output,
        record=producer,
        backward=backward,
        earlier=freeing,
    )


def _taken(graph: Graph, freeing: Backward, group: Group) -> list[Record]:
    """Where the freeing backward's own nodes, those the second backward does not share, take the shared
    values."""
    producers = {e.producer.node for e in group.entries}
    own = graph.walk(freeing) - graph.walk(group.backward)
    records = (graph.records[n] for n in sorted(own, reverse=True) if n in graph.records)
    return [r for r in records if not producers.isdisjoint(r.parents)]


def _made(pattern: str, value: str) -> str:
    return {
        "before-loop": f"{value} is made once here, before the loop",
        "carried": f"{value} is made here and kept, with its graph, for the next pass",
        "accumulated": f"{value} is added up here with its graph",
    }.get(pattern, f"{value} is made here")


def _message(group: Group, value: str, made: Stack) -> str:
    first = wording.at("freed", group.freeing.stack)
    again = wording.at("needed", group.backward.stack)
    what = value or wording.at("made", made)
    if group.one_update:
        return (
            f"{again} is run on several losses of one update that share the graph of {what}, and the first run "
            "frees it"
        )
    if group.pattern == "two-losses" and group.freeing.stack == group.backward.stack:
        return f"{again} is run on several losses that share the graph of {what}, and the first run frees it"
    if group.pattern == "two-losses":
        return f"{again} needs the graph of {what}, which {first} has freed"
    if group.pattern == "before-loop":
        return (
            f"the graph of {what} is made once, but {again} walks it in every pass, and the first "
            "pass frees it"
        )
    if group.pattern == "accumulated":
        return f"{again} walks the losses of earlier passes again: {what} is summed up with its graph"
    if first == again:
        return f"{what} carries its graph into the next pass, where {again} meets what it has freed already"
    return f"{what} carries the graph of the pass before, which {first} has freed, into {again}"
