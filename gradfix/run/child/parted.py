"""Two losses through one network that is given the same value: by one with its graph, by the other without
(``D(fake)`` here, ``D(fake.detach())`` there), and no step between.

The first trains what made the value, and fills the gradients of the network it goes through as well. Whether that is
meant (two tasks of one head) or not (a discriminator that learns to be fooled) is measured: by the gradients that the
two losses have for what the network makes of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge

from .regressed import Distance, Gradients, unlike
from .saves import GONE

_MOST = 64  # nodes of one kind that are looked at
Key = tuple[Any, frozenset[int]]  # the kind of a layer's node, and its parameters
Enter = list[tuple[int, int]]  # (the value's node, that of the layer it is given to)
# roots, the value's node, a gradient by each, whether they regress one score on two numbers
Pair = tuple[tuple[int, int], int, Any, Any, bool]


class Given(NamedTuple):
    """What a network's first layer was given, and the gradient of what its last makes of that."""

    key: Key
    value: int
    inputs: list[tuple[Any, int]]  # with their versions
    gradient: Any


class Loss(NamedTuple):
    """A loss that was differentiated since the last step."""

    stack: Any
    root: int
    keys: frozenset[Key]  # of layers that are given another network's value with its graph
    given: list[Given]
    distances: list[Distance]


class Parted:
    """Finds such losses in one pass, and measures them in the next. `saves` are the recorder's."""

    def __init__(self, saves: Any) -> None:
        self._saves = saves
        self._steps: Any = None
        self._since: list[Loss] = []
        self._wanted: dict[Any, frozenset[Key]] = {}  # by the stack of the backward

    def look(
        self,
        walk: Any,
        stack: Any,
        masks: dict[int, int],
        enter: Enter,
        steps: Any,
        gradients: Gradients,
        distances: Callable[[], list[Distance]],
    ) -> Iterator[Pair]:
        """A backward went through `walk`, whose nodes reach the optimizers of these `masks`; `enter` says where one's
        network is given the value of another's. The pairs that this loss makes with those before it."""
        if steps != self._steps:
            self._steps = steps
            self._since.clear()
        wanted, kinds = self._wanted.get(stack, frozenset()), set[Any]()
        if not enter:
            kinds = {kind for kind, _ in wanted}
        layers = enter or [(-1, n) for n, node in walk.nodes.items() if type(node) in kinds][:_MOST]
        keys = {node: _key(walk, node, value, masks) for value, node in layers}
        given = [
            Given(
                keys[node],
                value,
                self._inputs(node),
                gradients((last_layer(walk, node, value, masks)[0],))[0],
            )
            for value, node in layers
            if keys[node] in wanted
        ]
        ours = frozenset(keys.values()) if enter else frozenset[Key]()
        this = Loss(stack, walk.roots[0], ours, given, distances() if given else [])
        for other in self._since:
            if other.stack == stack or bool(other.keys) is bool(this.keys):
                continue
            for each in (stack, other.stack):
                self._wanted[each] = self._wanted.get(each, frozenset()) | this.keys | other.keys
            for one in other.given:
                for two in (t for t in given if _alike(one, t)):
                    roots, value = (other.root, this.root), max(one.value, two.value)
                    yield roots, value, one.gradient, two.gradient, unlike(other.distances, this.distances)
        self._since.append(this)

    def _inputs(self, node: int) -> list[tuple[Any, int]]:
        entries = (e for e in self._saves.of_node(node) if e.tensor is not GONE and not e.moved())
        return [(e.tensor, e.version) for e in entries if not (e.tensor.is_leaf and e.tensor.requires_grad)]


def _alike(one: Given, other: Given) -> bool:
    """Whether the same layer was given the same values."""
    return one.key == other.key and any(
        a.shape == b.shape and a._version == was and b._version == then and torch.equal(a, b)
        for a, was in one.inputs
        for b, then in other.inputs
    )


def _below(node: int, walk: Any, but: int) -> set[int]:
    """The nodes and leaves behind `node`, without those behind the node `but`."""
    found, pending = {node}, [node]
    while pending:
        more = [p for p in walk.parents.get(pending.pop(), ()) if p not in found and p != but]
        found.update(more)
        pending += more
    return found


def _key(walk: Any, node: int, value: int, masks: dict[int, int]) -> Key:
    leaves = frozenset(n for n in _below(node, walk, value) if n < 0 and masks.get(n))
    return type(walk.nodes[node]), leaves


def last_layer(walk: Any, node: int, value: int, masks: dict[int, int]) -> tuple[GradientEdge, int]:
    """The output of the last layer of the network that `node` belongs to, which is given what the node `value` made;
    and that network's mask, 0 where it is no single one's."""
    _, leaves = _key(walk, node, value, masks)
    kinds = {masks[leaf] for leaf in leaves}
    mine = kinds.pop() if len(kinds) == 1 else 0
    above, last = {node}, node
    for each in sorted(n for n in walk.nodes if n > node):
        parents = walk.parents[each]
        if not above.isdisjoint(parents):
            above.add(each)
            last = each if any(p < 0 and masks.get(p) == mine for p in parents) else last
    return GradientEdge(walk.nodes[last], 0), mine
