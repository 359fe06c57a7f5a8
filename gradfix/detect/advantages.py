"""What reinforcement learning calls an advantage: the difference of a target and a prediction, which weighs
log-probabilities as a number. Where two parts of one model's output are subtracted, one scaled and shifted, that tells
what they are: of a motion, a filter or a smooth curve the same may be meant with both sides trained.
"""

from __future__ import annotations

from functools import cached_property

from gradfix.detect.returns import ADDING, PARTS, SHAPES, through
from gradfix.detect.weights import PRODUCTS, Weights
from gradfix.graph import Graph, plain_op
from gradfix.tape import Cut, Fed


class Advantages:
    """Finds them on a tape."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph, self.weights = graph, weights

    def parts_of_one(self, prediction: int, value: int) -> bool:
        """Whether both are parts of what one pass gave: the values of each step, and those of the steps behind."""
        return prediction != value and self._whole(prediction) == self._whole(value)

    def known(self, prediction: int, target: int) -> bool:
        """Whether the difference of the two, in whichever pass, is the weight of a log-probability."""
        return not self._places.isdisjoint(self._differences.get(self._pair(prediction, target), ()))

    def valued(self, prediction: int) -> bool:
        """Whether the weight of a log-probability is made of its value off its graph, in this pass or another."""
        record = self.graph.records.get(through(self.graph, prediction, SHAPES))
        return record is not None and self.graph.stack_number(record.stack) in self._valued

    @cached_property
    def _valued(self) -> set[int]:
        """Where such are made: numbers of stacks."""
        graph = self.graph
        return {graph.stack_number(graph.records[n].stack) for n in self._weighing if n in graph.records}

    @cached_property
    def _weighing(self) -> set[int]:
        """What is cut off its graph and weighs a log-probability then, or is part of what does."""
        graph, events = self.graph, self.graph.tape.events
        cuts = {e.time: e.node for e in events if isinstance(e, Cut) and e.node is not None}
        found = set[int]()
        for fed in (e for e in events if isinstance(e, Fed)):
            product = graph.records.get(fed.node)
            if product is None or plain_op(product) not in PRODUCTS:
                continue
            if any(self.weights.made_of(parent) for parent in product.parents):
                found |= {through(graph, cuts[time], SHAPES) for time in fed.cuts if time in cuts}
        return found

    @cached_property
    def _places(self) -> set[int]:
        """Where differences are taken that are cut off their graph, and weigh a log-probability then: numbers of
        stacks."""
        graph, found = self.graph, set[int]()
        for node in self._weighing:
            near = (graph.records[n] for n in self.weights.near(node) if n in graph.records)
            found |= {graph.stack_number(r.stack) for r in near if plain_op(r) in ADDING}
        return found

    @cached_property
    def _differences(self) -> dict[frozenset[int], set[int]]:
        """Of every two nodes one of which is taken off the other, where: numbers of stacks."""
        found: dict[frozenset[int], set[int]] = {}
        for record in self.graph.records.values() if self._places else ():
            if plain_op(record) in ADDING and len(record.parents) == 2:
                place = self.graph.stack_number(record.stack)
                found.setdefault(self._pair(*record.parents), set()).add(place)
        return found

    def _pair(self, one: int, other: int) -> frozenset[int]:
        return frozenset((self._whole(one), self._whole(other)))

    def _whole(self, node: int) -> int:
        """What `node` is a part of."""
        return through(self.graph, node, SHAPES | PARTS | {"roll"})
