"""Weights of log-probabilities, as policy gradients have them, that carry the graph of a value with a loss of its own.

The log-probability may be one of several that are stacked or summed, or stand in a ratio (``exp(new - old)``); the
weight may be stacked or normalised, too.
"""

from __future__ import annotations

from gradfix.detect.returns import PARTS, SHAPES
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Record

REGRESSIONS = {"mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss", "pow", "square", "abs"}
PRODUCTS = {"mul", "dot"}
GAUSSIAN = ["sub", "div", "neg", "pow", "sub"]  # what a normal log-density is made by, the last op first
LOG_SOFTMAX = {"log_softmax", "logsumexp", "log"}  # "log" of what a softmax gave
CHOICES = {"gather", "index", "select"}  # what takes the probabilities of actions out of those of all
CLIPPED = {"clamp", "clip", "clamp_min", "clamp_max"}
OFFSET, SCALED = {"add", "sub", "rsub"}, {"mul", "div"}
ALONG = SHAPES | PARTS | {"index", "masked_select", "sum", "mean"} | SCALED
NEAR = SHAPES | PARTS | OFFSET | SCALED
MOST = 4000  # nodes of one log-probability that are gone through


class Weights:
    """Finds them in the products of a tape."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._regressions: dict[int, list[tuple[set[int], set[int]]]] = {}

    def weight(self, product: Record, backward: Backward, owned: int) -> Record | None:
        """The factor of a log-probability that carries a value's graph and is regressed on too, or None. `owned` is
        the mask of the leaves that the gradients of `backward` are for."""
        graph, (a, b) = self.graph, product.parents
        for policy, weight in ((a, b), (b, a)):
            reach = graph.reach_mask(policy)
            if weight not in graph.records or not reach & owned or not graph.reach_mask(weight) & owned:
                continue
            made_of = self.made_of(policy)
            if not made_of or made_of & graph.below(weight):
                continue
            near = self.near(weight)
            here = graph.stack_number(product.stack)
            # (a gate's product with what it lets through is regressed on itself, in every pass)
            taken = (nodes for nodes, products in self._regressed(backward) if here not in products)
            regressed = set[int]().union(*taken)
            # (a value made once more for its own loss is another node, made by the same parameters)
            own = {m for n in regressed if (m := graph.reach_mask(n)) & ~reach}
            if near & regressed or any(graph.reach_mask(n) in own for n in near):
                return graph.records[weight]
        return None

    def made_of(self, policy: int) -> set[int]:
        """The nodes that make the log-probabilities of which `policy` is one, a sum or a ratio; none where it is not
        known to be one."""
        found = set[int]()
        seen: set[tuple[int, str]] = set()
        pending = [
            (policy, "")
        ]  # a node; "exp" of which it is the exponent, "log" what can be no ratio any more
        while pending:
            node, inside = state = pending.pop()
            if state in seen:
                continue
            seen.add(state)
            record = self.graph.records.get(node)
            if record is None or len(seen) > MOST:
                return set()
            density = self._log_density(record) if inside != "exp" else None
            if density:
                found |= density
                continue
            op = plain_op(record)
            if op == "exp" and not inside:
                inside = "exp"
            elif (
                op in OFFSET
            ):  # of ratios it would be none: 1 - exp(x - x.detach()) is zero, and no weight's factor
                inside = "log"
            elif op not in ALONG | CLIPPED:
                return set()
            pending += [(parent, inside) for parent in record.parents]
        return found

    def _log_density(self, record: Record) -> set[int]:
        """The nodes that make a logarithm of a probability of `record`; none where it is not known to be one."""
        op = plain_op(record)
        if op in CHOICES:
            chosen = self._of(record.parents, NEAR, LOG_SOFTMAX)
        elif op == "log":
            chosen = self.probabilities(record.parents)
        else:
            return self._gaussian(record)
        softmaxes = LOG_SOFTMAX | {"softmax"}
        return {n for n in self.graph.below(record.node) if self._op(n) in softmaxes} if chosen else set()

    def probabilities(self, nodes: tuple[int, ...]) -> set[int]:
        """The softmaxes that `nodes` are taken out of; none where they are not known to be probabilities."""
        chosen = (self.graph.records[n] for n in self._of(nodes, NEAR | CLIPPED, CHOICES))
        return {n for record in chosen for n in self._of(record.parents, NEAR | CLIPPED, {"softmax"})}

    def _gaussian(self, record: Record) -> set[int]:
        """Those of a normal distribution's, ``-((x - mean) ** 2) / (2 * var) - log_std - …``, made by one call."""
        ops, found = [*GAUSSIAN], set[int]()
        while ops:
            if plain_op(record) == ops[0]:
                found.add(record.node)
                # (what stands before the first `-` is a difference itself, of the logarithm of the deviation)
                below = self.graph.records.get(record.parents[0]) if record.parents else None
                if below is None or below.stack != record.stack:
                    return found if ops == GAUSSIAN[-1:] else set()
                if not (ops[0] == "sub" and len(ops) > 1 and plain_op(below) == "sub"):
                    ops.pop(0)
                record = below
            else:
                return set()
        return found

    def _regressed(self, backward: Backward) -> list[tuple[set[int], set[int]]]:
        """What each regression of the same pass takes, of this walk or of the backward next to it; and the numbers of
        the stacks of products among that."""
        known = self._regressions.get(backward.time)
        if known is None:
            graph = self.graph
            near = [b for b in graph.backwards if b is backward or graph.serves(b) & graph.filled(backward)]
            nodes = {n for b in near for n in graph.walk(b) if self._op(n) in REGRESSIONS}
            if nodes:  # (the square in a normal log-density is no loss of its own)
                ends = (graph.records[n] for b in near for n in graph.walk(b) if self._op(n) == GAUSSIAN[0])
                nodes.difference_update(*map(self._gaussian, ends))
            known = []
            for node in nodes:
                taken = set[int]().union(*map(self.near, graph.records[node].parents))
                products = [n for n in taken if self._op(n) in PRODUCTS]
                known.append((taken, {graph.stack_number(graph.records[n].stack) for n in products}))
            self._regressions[backward.time] = known
        return known

    def near(self, node: int) -> set[int]:
        """`node` and what it is a difference, a shape, a part or a scaling of."""
        return self._of((node,), NEAR)

    def _of(self, nodes: tuple[int, ...], along: set[str], ops: set[str] | None = None) -> set[int]:
        """`nodes` and what they are made of by ops `along` alone; of those, where `ops` are given, the nearest."""
        found, pending = set[int](), [*nodes]
        seen = set(pending)
        while pending:
            node = pending.pop()
            op = self._op(node)
            if ops is None or op in ops:
                found.add(node)
            if op in along and (ops is None or op not in ops):
                below = [p for p in self.graph.records[node].parents if p >= 0 and p not in seen]
                seen.update(below)
                pending += below
        return found

    def _op(self, node: int) -> str:
        record = self.graph.records.get(node)
        return plain_op(record) if record is not None else ""
