"""A value and its own earlier self: compared with it, a difference says how far the parameters have moved. What is kept
for that alone is old on purpose, and no target that ought to follow them."""

from __future__ import annotations

from gradfix.graph import Graph
from gradfix.tape import Alike, Backward, Record


def kept_to_compare(graph: Graph, made: Record, needed: Backward) -> bool:
    """Whether all that `needed` walks the value for is a comparison with one that is made like it: at first they were
    equal, and the same parameters feed both."""
    places = {graph.stack_number(e.stack) for e in graph.tape.events if isinstance(e, Alike) and e.nodes}
    if not places:
        return False
    records = graph.records
    leads = graph.leading(graph.walk(needed), {made.node})
    inside = {n for n in leads if n in records and _meets(graph, records[n], leads)}
    stacks = {graph.stack_number(records[n].stack) for n in inside} & places
    pending, seen = [root for root in needed.roots if root in leads], set[int]()
    while pending:
        node = pending.pop()
        if node == made.node or node not in records:
            return False  # it is used for more than that
        if node not in seen and graph.stack_number(records[node].stack) not in stacks:
            pending += [p for p in records[node].parents if p in leads]
        seen.add(node)
    return bool(seen)


def _meets(graph: Graph, record: Record, leads: set[int]) -> bool:
    """Whether one operand leads to the value, and another does not and is fed by the same parameters."""
    old = {graph.reach_mask(p) for p in record.parents if p in leads}
    return bool(old) and any(graph.reach_mask(p) in old for p in record.parents if p not in leads)
