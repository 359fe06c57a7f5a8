"""Two terms of one loss that pull the same value apart: a discriminator's loss and a generator's, added up and
differentiated at once, when each network is given the gradient of both.

On the tape this looks like training several tasks. What tells it apart is measured: where a value that one
optimizer's network made enters another's, the gradients of two terms through the very same network are opposite.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from .parted import Parted
from .regressed import Distance, Gradients, distances, terms, unlike
from .unbounded import unbounded

_PASSES = 3  # of one backward that are measured
_MOST = 4  # terms that reach two networks
_SAMPLES = 4  # in a batch; the gradients of one or two are opposite by chance
_UNLIKE = 10.0  # times as long: a regulariser, not what the other network is there for
Engine = Callable[[tuple[Any, ...], Any, tuple[Any, ...]], Any]
Regressed = Callable[[], list[Distance]]


class Opposed:
    """Measures such terms, and writes a Terms event for each pair and value. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._looked: dict[Any, int] = {}  # how often, by the stack of the backward
        self._shared: set[Any] = set()  # stacks of backwards through one value, and no step between
        self._common: set[Any] = set()  # ... of losses that have a term in common
        self._parted = Parted(recorder.saves)
        # of the last backward: stack, steps so far, root, leaves, gradients of values, distances, weights of terms
        self._last: Any = None

    def look(self, walk: Any, stack: Any, engine: Engine, grads: Any) -> None:
        """`engine` gives the gradients of edges by edges: of outputs, with their own gradients, by inputs."""
        if (
            len(walk.roots) != 1
            or self._looked.get(stack, 0) >= _PASSES
            or self.r.optimizers.fewer_than_two()
        ):
            return
        owners, nodes = self.r.optimizers.owners(walk.accumulated), walk.nodes
        if not owners:
            return
        self._looked[stack] = self._looked.get(stack, 0) + 1
        masks = _masks(walk, owners)
        root = GradientEdge(nodes[walk.roots[0]], 0)

        def gradients(edges: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(engine((root,), grads, edges))

        @functools.cache
        def regressed() -> list[Distance]:
            return distances(walk, self.r.saves, gradients)

        self._apart(walk, stack, gradients, masks, regressed)
        if len(set(owners.values())) < 2:
            return
        self._pairs(walk, stack, gradients, masks, regressed)
        both = [t for t in terms(walk.roots[0], nodes, walk.parents) if _several(masks[t])]
        if not 2 <= len(both) <= _MOST:
            return
        below = {t: _below(t, walk.parents) for t in both}
        edges = {t: GradientEdge(nodes[t], 0) for t in both}
        weights: dict[int, Any] = {}
        for value, maker, output, _ in _meetings(nodes, walk.parents, masks):
            found = {}
            for t in (t for t in both if value in below[t]):
                if not weights:
                    weights.update(zip(edges, gradients(tuple(edges.values()))))  # noqa: B905 (Python 3.9)
                found[t] = engine((edges[t],), (weights[t],), (GradientEdge(maker, output),))[0]
            for s, t in combinations(found, 2):
                if {n for n in below[s] if n < 0} == {n for n in below[t] if n < 0}:
                    each = [[d for d in regressed() if d.term == term] for term in (s, t)]
                    self._tell(stack, (s, t), value, found[s], found[t], unlike(*each))

    def _pairs(
        self, walk: Any, stack: Any, gradients: Gradients, masks: dict[int, int], regressed: Regressed
    ) -> None:
        """The same for losses that are differentiated one by one before any step: the gradients of a value that the
        backward before this one went through as well. (Where they meet is seen in one pass, and measured in the next.)
        """
        meetings = [found[:3] for found in _meetings(walk.nodes, walk.parents, masks)]
        steps, root = self.r.optimizers.steps(), walk.roots[0]
        both = [t for t in terms(root, walk.nodes, walk.parents) if _several(masks[t])][:_MOST]
        edges = tuple(GradientEdge(walk.nodes[t], 0) for t in both) if stack in self._common else ()
        weights = dict(zip(both, gradients(edges) if edges else (None,) * len(both)))  # noqa: B905 (Python 3.9)
        leaves = {n for n in _below(root, walk.parents) if n < 0}
        found: dict[tuple[int, int], Any] = {}
        for value, maker, output in meetings:
            known = stack in self._shared
            found[value, output] = gradients((GradientEdge(maker, output),))[0] if known else None
        before, mine = self._last, regressed() if stack in self._shared else []
        self._last = (stack, steps, root, leaves, found, mine, weights)
        if before is None or before[0] == stack or before[1] != steps:
            return
        if weights.keys() & before[6].keys():
            self._common |= {before[0], stack}
            self._of_one_term(walk, masks, before, self._last)
            return
        if before[3] != leaves:
            return
        for key in found.keys() & before[4].keys():
            self._shared |= {before[0], stack}
            apart = unlike(before[5], mine)
            self._tell(stack, (before[2], root), key[0], before[4][key], found[key], apart)

    def _of_one_term(self, walk: Any, masks: dict[int, int], one: Any, other: Any) -> None:
        """Two losses have a term in common; if one is to be high where the other is to be low, all that the term gives
        to any network is given by one and taken by the other."""
        for term in one[6].keys() & other[6].keys():
            weights = [loss[6][term] for loss in (one, other)]
            if any(w is None or w.numel() != 1 for w in weights) or float(weights[0] * weights[1]) >= 0:
                continue
            below = _below(term, walk.parents)
            for value in dict.fromkeys(
                v for v, *_ in _meetings(walk.nodes, walk.parents, masks) if v in below
            ):
                told = {"nodes": [one[2], other[2]], "node": value, "cosine": -1.0}
                self.r.tape.event("Terms", self.r.clock.tick(), other[0], **told)

    def _apart(
        self, walk: Any, stack: Any, gradients: Gradients, masks: dict[int, int], regressed: Regressed
    ) -> None:
        """The same for a loss that has the value without its graph."""
        enter = [(value, user) for value, _, _, user in _meetings(walk.nodes, walk.parents, masks)]
        steps = self.r.optimizers.steps()

        for roots, value, one, other, apart in self._parted.look(
            walk, stack, masks, enter, steps, gradients, regressed
        ):
            self._tell(stack, roots, value, one, other, apart)
        for value, optimizer, sign in unbounded(walk, masks, enter, gradients):
            told = {"node": value, "optimizer": optimizer, "sign": sign}
            self.r.tape.event("Unbounded", self.r.clock.tick(), stack, **told)

    def _tell(
        self, stack: Any, nodes: tuple[int, int], value: int, one: Any, other: Any, apart: bool
    ) -> None:
        """These are the gradients of two terms, or losses, for the same; or they regress one score on two numbers."""
        fields: dict[str, Any] = {"nodes": list(nodes), "node": value}
        if not apart:
            one, other = _of_both(one, other)
            if not _comparable(one, other):
                return
            fields["cosine"] = float(torch.nn.functional.cosine_similarity(one.flatten(), other.flatten(), 0))
        self.r.tape.event("Terms", self.r.clock.tick(), stack, **fields)


def _of_both(a: Any, b: Any) -> tuple[Any, Any]:
    """What two gradients are of the samples that both have one of: the data that fakes are scored with in one batch are
    no matter of the generator's."""
    if a is None or b is None or a.shape != b.shape or a.dim() < 2:
        return a, b
    both = (a != 0).flatten(1).any(1) & (b != 0).flatten(1).any(1)
    return a[both], b[both]


def _comparable(a: Any, b: Any) -> bool:
    """Whether two gradients of a value weigh about the same, and for so many samples that their directions say
    something."""
    if a is None or b is None or a.dim() < 2 or a.shape[0] < _SAMPLES:
        return False
    one, other = float(a.norm()), float(b.norm())
    return 0 < one < _UNLIKE * other and other < _UNLIKE * one


def _masks(walk: Any, owners: dict[int, int]) -> dict[int, int]:
    """node or leaf -> the optimizers whose parameters it reaches, as a bit mask; `owners` has them by the leaf's
    storage."""
    masks = {~leaf: 1 << owner for leaf, owner in owners.items()}
    for number in sorted(walk.parents):
        masks[number] = 0
        for parent in walk.parents[number]:
            masks[number] |= masks.get(parent, 0)
    return masks


def _several(mask: int) -> bool:
    return bool(mask & (mask - 1))


def _below(root: int, parents: dict[int, tuple[int, ...]]) -> set[int]:
    """The nodes and leaves behind `root`, itself among them."""
    found, pending = {root}, [root]
    while pending:
        more = [p for p in parents.get(pending.pop(), ()) if p not in found]
        found.update(more)
        pending += more
    return found


def _meetings(
    nodes: dict[int, Any], parents: dict[int, tuple[int, ...]], masks: dict[int, int]
) -> Iterator[tuple[int, Any, int, int]]:
    """(number, node, which output) of the values of one optimizer's network that enter another's; and the number of the
    node that takes it."""
    seen = set()
    for consumer, node in nodes.items():
        for maker, output in node.next_functions if _several(masks[consumer]) else ():
            number = maker._sequence_nr() if maker is not None else None
            if (
                number not in parents
                or (number, output) in seen
                or not masks[number]
                or _several(masks[number])
            ):
                continue
            seen.add((number, output))
            # else a parameter seen another way
            if any(len(parents.get(n, ())) > 1 for n in _below(number, parents)):
                yield number, maker, output, consumer
