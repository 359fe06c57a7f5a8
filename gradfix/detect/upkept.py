"""attached-target by a target network that its optimizer holds: its parameters are stepped, and given the values of
others beside them.

A target network is mostly nobody's to step, and its graph in the loss costs time alone. Where the model that holds it
hands all of its parameters to one optimizer, the loss trains the target towards the prediction, between two of its
updates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradfix.detect.parameters import given
from gradfix.detect.terms import summands
from gradfix.graph import Graph
from gradfix.tape import Backward, Record


class Upkept:
    """What the parameters of optimizers are that are kept up with others of the same one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._masks = [mask for number in graph.optimizers if (mask := self._of(number))]

    def _of(self, number: int) -> tuple[int, int]:
        """The parameters that are kept up, and the others, as bit masks; nothing where they are not as many of the same
        shapes, or are not stepped. (One alone is a weight that is normalised, or tied to another.)"""
        graph, steps = self.graph, self.graph.steps_of(number)
        first = steps[0].time if steps else 0
        stepped = {r.storage: r.shape for s in steps for r in s.refs}
        kept = {s for s in stepped if any(given(w, first) for w in graph.writes.get(s, ()))}
        others = stepped.keys() - kept
        beside = Counter(stepped[s] for s in others)
        if len(steps) < 2 or len(kept) < 2 or Counter(stepped[s] for s in kept) - beside:
            return 0, 0
        return graph.mask(kept), graph.mask(others)

    def values(self, backward: Backward) -> Iterator[tuple[Record, Record]]:
        """(a value that such parameters alone have made, the op of the loss that it enters beside what the others have
        made): where a function only hands it on, what it was given."""
        graph, terms = self.graph, [*summands(self.graph, backward.roots)]
        walk = [graph.records[n] for n in sorted(graph.walk(backward), reverse=True) if n in graph.records]
        for kept, others in self._masks:
            both = [r for r in walk if kept and graph.reach_mask(r.node) & others]
            if any(self._takes_one_of(record, kept) for record in both):
                continue  # a layer of the model that it is kept up with: weights are tied
            if any(graph.reach_mask(n) & kept and not graph.reach_mask(n) & others for n in terms):
                continue  # it has a loss of its own
            for record in both:
                for parent in dict.fromkeys(record.parents):
                    mask = graph.reach_mask(parent)
                    if mask & others or not mask & kept or graph.is_parameter(parent):
                        continue
                    if _of_a_network(graph, parent, kept):
                        yield self._outermost(parent, kept), record

    def _takes_one_of(self, record: Record, kept: int) -> bool:
        """Whether the op takes one of these parameters itself."""
        graph = self.graph
        return any(
            graph.is_parameter(parent) and graph.reach_mask(parent) & kept for parent in record.parents
        )

    def _outermost(self, node: int, kept: int) -> Record:
        """The value, or that of a function further out which it was made of alone."""
        records, below, pending = self.graph.records, [node], [node]
        while pending:
            for parent in records[pending.pop()].parents:
                if parent in records and parent not in below and self.graph.reach_mask(parent) & kept:
                    below.append(parent)
                    pending.append(parent)
        depth = min(len(records[n].stack) for n in below)
        best = max(n for n in below if len(records[n].stack) == depth)
        return records[best if self._all_by_way_of(best, node, kept) else node]

    def _all_by_way_of(self, value: int, node: int, kept: int) -> bool:
        """Whether there is no other way from `node` to the parameters."""
        pending, seen = [node], {node, value}
        while pending:
            each = pending.pop()
            if each < 0 and self.graph.reach_mask(each) & kept:
                return False
            record = self.graph.records.get(each) if each != value else None
            new = [p for p in record.parents if p not in seen] if record is not None else []
            seen.update(new)
            pending += new
        return True


def _of_a_network(graph: Graph, node: int, kept: int) -> bool:
    """Whether several of the parameters made the value."""
    return (graph.reach_mask(node) & kept).bit_count() > 1
