"""attached-target (ratio): a policy's probabilities over those that it had when it acted, which carry their graph, too.

In ``exp(new - old)`` the two are equal as long as nothing has been stepped in between, and what the loss gives the one
it takes from the other: together they get a gradient of zero. Of two log-probabilities that differ (of an answer that
was preferred to another, of a posterior and a prior) both may well be meant to be trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.returns import ADDING, SHAPES, through
from gradfix.detect.weights import CLIPPED, Weights
from gradfix.graph import Graph, plain_op
from gradfix.tape import Alike, Backward, Itself, Record

OLD = 1  # which operand it is, in ``new - old`` and in ``new / old``
KEEPING = (
    (SHAPES - {"neg"}) | CLIPPED | {"sum"}
)  # what a difference of logarithms goes through before ``exp()``


class Ratio(NamedTuple):
    """What compares the two, what made the old one, and the backward that comes by both."""

    compared: Record
    old: Record
    backward: Backward


def attached_ratios(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """One conflict for every place of such a ratio."""
    found = Findings()
    for ratio in ratios(graph):
        found.add(("ratio", ratio.compared.stack), ratio.backward.time, _told(ratio))
    return found.conflicts()


def ratios(graph: Graph) -> Iterator[Ratio]:
    """Every one whose sides were equal whenever the program came to it, of two backwards at least."""
    equal = _equal(graph)
    if not equal:
        return
    weights = Weights(graph)
    found: dict[int, list[Ratio]] = {}
    for backward in graph.backwards:
        owned = graph.owned_mask(graph.uses(backward))
        if not owned or backward.create:
            continue
        for compared in _compared(graph, backward, equal):
            if _of_one_policy(graph, weights, compared, owned):
                old = graph.records[compared.parents[OLD]]
                place = graph.stack_number(compared.stack)
                found.setdefault(place, []).append(Ratio(compared, old, backward))
    for those in found.values():
        if len({r.backward.time for r in those}) > 1:
            yield from those


def _equal(graph: Graph) -> set[int]:
    """What compares equals, rounding aside; not where another time it did not."""
    equal, apart = set[int](), set[int]()
    for event in graph.tape.events:
        if isinstance(event, Alike):
            equal.update(event.nodes, event.near)
            if len(event.near) < event.apart:
                apart.add(graph.stack_number(event.stack))
        elif isinstance(event, Itself) and not event.wrote:
            equal.add(event.node)
    places = {(graph.stack_number(r.stack), r.op) for n in equal if (r := graph.records.get(n))}
    for node, record in graph.records.items() if places else ():
        place = graph.stack_number(record.stack)
        if node not in equal and (place, record.op) in places:
            apart.add(place)
    return {n for n in equal if (r := graph.records.get(n)) and graph.stack_number(r.stack) not in apart}


def _compared(graph: Graph, backward: Backward, equal: set[int]) -> Iterator[Record]:
    """What of `equal` has two operands with a graph, and is a ratio of exponentials or a ratio's logarithm."""
    for record in (graph.records[n] for n in graph.walk(backward) if n in graph.records):
        op, found = plain_op(record), record
        if op == "exp":
            node = through(graph, record.parents[0], KEEPING)
            if node not in equal or plain_op(found := graph.records[node]) not in ADDING:
                continue
        elif op != "div" or record.node not in equal:
            continue
        if len(found.parents) == 2 and min(found.parents) >= 0:
            yield found


def _of_one_policy(graph: Graph, weights: Weights, compared: Record, owned: int) -> bool:
    """Whether both operands are (log-)probabilities that the same of the parameters `owned` make."""
    masks = {graph.reach_mask(p) & owned for p in compared.parents}
    if len(masks) != 1 or not masks.pop():
        return False
    parents = compared.parents
    if plain_op(compared) == "div":
        records = [graph.records.get(through(graph, p, SHAPES)) for p in parents]
        if all(r is None or plain_op(r) != "exp" for r in records):
            return all(weights.probabilities((p,)) for p in parents)
        parents = tuple(r.parents[0] for r in records if r is not None and plain_op(r) == "exp")
    return len(parents) == 2 and all(weights.made_of(p) for p in parents)


def _told(ratio: Ratio) -> Conflict | None:
    compared, old, backward = ratio
    name = wording.name(old.output, wording.at("target", old.stack))
    return make(
        "attached-target",
        "ratio",
        f"{name} carries its graph into the ratio, and is equal to the probability that it is compared with: the "
        "two gradients cancel each other, and the policy is not trained by it",
        [
            ("target", old.stack, "the old probability, with its graph"),
            ("used", compared.stack, "both sides give the policy a gradient, the one what the other takes"),
            ("needed", backward.stack, "a gradient of zero"),
        ],
        "used",
        severity="error",
        ref=old.output,
        record=old,
        backward=backward,
        event=compared,
    )
