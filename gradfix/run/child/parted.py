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

from .saves import GONE

SHAPES = frozenset(
    f"{name}Backward{i}"
    for name in (
        "View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "Expand", "T", "Transpose", "Permute", "Select",
        "Slice", "Index", "Cat", "Stack", "Clone", "ToCopy", "Alias", "Unbind", "Split",
    )
    for i in range(5)
)  # fmt: skip
_REGRESSIONS = frozenset(("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"))
_MOST = 64  # nodes of one kind that are looked at
Key = tuple[Any, frozenset[int]]  # the kind of a layer's node, and its parameters
Enter = list[tuple[int, int]]  # (the value's node, that of the layer it is given to)
Gradients = Callable[[tuple[Any, ...]], tuple[Any, ...]]  # of the loss, by edges
Pair = tuple[
    tuple[int, int], int, Any, Any, bool
]  # roots, the value's node, a gradient by each, unlike targets


class Given(NamedTuple):
    """What a network's first layer was given, and the gradient of what its last makes of that."""

    key: Key
    value: int
    inputs: list[tuple[Any, int]]  # with their versions
    gradient: Any
    target: float | None  # the one number that it is regressed on


class Loss(NamedTuple):
    """A loss that was differentiated since the last step."""

    stack: Any
    root: int
    keys: frozenset[Key]  # of layers that are given another network's value with its graph
    given: list[Given]


class Parted:
    """Finds such losses in one pass, and measures them in the next. `saves` are the recorder's."""

    def __init__(self, saves: Any) -> None:
        self._saves = saves
        self._steps: Any = None
        self._since: list[Loss] = []
        self._wanted: dict[Any, frozenset[Key]] = {}  # by the stack of the backward

    def look(
        self, walk: Any, stack: Any, masks: dict[int, int], enter: Enter, steps: Any, gradients: Gradients
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
            self._given(walk, keys[node], value, node, masks, gradients)
            for value, node in layers
            if keys[node] in wanted
        ]
        this = Loss(stack, walk.roots[0], frozenset(keys.values()) if enter else frozenset(), given)
        for other in self._since:
            if other.stack == stack or bool(other.keys) is bool(this.keys):
                continue
            for each in (stack, other.stack):
                self._wanted[each] = self._wanted.get(each, frozenset()) | this.keys | other.keys
            for one in other.given:
                for two in (t for t in given if _alike(one, t)):
                    unlike = None not in (one.target, two.target) and one.target != two.target
                    roots, value = (other.root, this.root), max(one.value, two.value)
                    yield roots, value, one.gradient, two.gradient, unlike
        self._since.append(this)

    def _given(
        self, walk: Any, key: Key, value: int, node: int, masks: dict[int, int], gradients: Gradients
    ) -> Given:
        layer, _ = last_layer(walk, node, value, masks)
        (gradient,) = gradients((layer,))
        return Given(key, value, self._inputs(node), gradient, self._target(walk, layer.node._sequence_nr()))

    def _target(self, walk: Any, node: int) -> float | None:
        """The one number that a loss takes the squared distance of this output from, as a least-squares GAN does. (Near
        it the gradient says little of where the loss wants the output to go.)"""
        users = [n for n in walk.nodes if node in walk.parents[n]]
        while len(users) == 1 and walk.nodes[users[0]].name() in SHAPES:
            (node,) = users
            users = [n for n in walk.nodes if node in walk.parents[n]]
        if len(users) != 1 or walk.nodes[users[0]].name() not in _REGRESSIONS:
            return None
        kept = [e.tensor for e in self._saves.of_node(users[0]) if e.tensor is not GONE and not e.moved()]
        targets = [t for t in kept if not t.requires_grad and t.numel()]
        if len(targets) != 1 or not bool((targets[0] == targets[0].flatten()[0]).all()):
            return None
        return float(targets[0].flatten()[0])

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
