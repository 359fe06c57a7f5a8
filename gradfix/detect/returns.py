"""Whether a target is a return, as reinforcement learning folds them: ``R = r + gamma * R`` over several values of one
model (n steps, TD(lambda), generalised advantages).

Averages of a model's outputs look much alike (``mean = 0.9 * mean + 0.1 * out``), and to train both sides of such a
difference may well be meant. What tells a return is the reward: something is added that the model did not make.
"""

from __future__ import annotations

from gradfix.graph import VIEWS, Graph, plain_op
from gradfix.tape import Record

# ops that keep a value the same value: shapes, signs, types
SHAPES = VIEWS | {"neg", "clone"}
PARTS = {"stack", "cat", "select", "slice", "unbind", "flip"}
# ops by which `target[i, a] = …` joins the graph
WRITTEN = {"torch::autograd::CopySlices", "copy", "index_put", "scatter"}
ADDING, SCALING = {"add", "sub", "rsub"}, {"mul", "div"}
ARITHMETIC = ADDING | SCALING
MOST = 4000  # states that are gone through


def is_return(graph: Graph, target: int, prediction: int, mine: int, valued: bool = False) -> bool:
    """Whether `target` is folded, in two steps or more, of rewards and of values that are made by all of the leaves
    `mine` (a mask, of those that made the prediction): of several, or of one that the last step begins with, by a pass
    of its own or where the prediction is known to be a value of that kind (`valued`); and the prediction is not folded
    itself."""
    fold = _Fold(graph, mine)
    ends = {node: steps for node, steps in fold.ends(target).items() if not mine & ~graph.reach_mask(node)}
    if not ends or max(ends.values()) < 2 or fold.ends(prediction):
        return False
    return len(ends) > 1 or valued or graph.below(prediction).isdisjoint(graph.below(next(iter(ends))))


def beginning(graph: Graph, target: int) -> Record | None:
    """What made the one value that a return begins with; None where it is folded of several."""
    ends = list(_Fold(graph, graph.reach_mask(target)).ends(target))
    return graph.records.get(ends[0]) if len(ends) == 1 else None


def through(graph: Graph, node: int, ops: set[str]) -> int:
    """The first node at or below `node` that is not one of `ops` with a single input."""
    while (
        (record := graph.records.get(node)) is not None
        and plain_op(record) in ops
        and len(record.parents) == 1
    ):
        node = record.parents[0]
    return node


class _Fold:
    """What sums and shares of it are made of."""

    def __init__(self, graph: Graph, mine: int) -> None:
        self.graph, self.mine = graph, mine
        self._rewards: dict[int, bool] = {}

    def ends(self, target: int) -> dict[int, int]:
        """The values that `target` holds shares of, each with the most steps ``reward + share * (...)`` it lies behind;
        at least one."""
        found: dict[int, int] = {}
        seen: set[tuple[int, int, bool]] = set()
        pending = [
            (target, 0, False)
        ]  # a node, the steps above it, whether a reward was added since the last
        while pending and len(seen) < MOST:
            node, steps, added = state = pending.pop()
            if state in seen or node < 0:
                continue
            seen.add(state)
            op, parents = self._op(self._base(node))
            if op in ADDING:
                others = {p: [o for o in parents if o != p] for p in parents}
                alone = len(parents) == 1  # what is added has no graph
                pending += [
                    (p, steps, added or alone or any(map(self._rewarding, others[p]))) for p in parents
                ]
            elif op in SCALING and len(parents) == 1 and (added or steps):
                pending.append((parents[0], steps + added, False))
            elif op in PARTS:
                pending += [(p, steps, added) for p in parents]
            elif steps > found.get(node, 0):
                found[node] = steps
        return found

    def _rewarding(self, node: int) -> bool:
        """Whether something the model did not make is among what `node` sums up."""
        known = self._rewards.get(node)
        if known is None:
            self._rewards[node] = False  # (until it is known: a damaged tape may have a cycle)
            op, parents = self._op(self._base(node))
            if op in ADDING and len(parents) == 1:
                known = True
            elif op in ADDING | PARTS and parents:
                known = any(map(self._rewarding, parents))
            else:
                known = not self.graph.reach_mask(node) & self.mine
            self._rewards[node] = known
        return known

    def _base(self, node: int) -> int:
        """Of a part of a sum, or of one in another shape, the sum; else the node itself."""
        base = node
        while True:
            op, parents = self._op(base)
            if op not in SHAPES | PARTS or len(parents) != 1:
                return base if op in ARITHMETIC | PARTS else node
            base = parents[0]

    def _op(self, node: int) -> tuple[str, tuple[int, ...]]:
        record = self.graph.records.get(node)
        return (plain_op(record), record.parents) if record is not None else ("", ())
