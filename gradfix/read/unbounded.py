"""Losses without a best value, told from the text: linear in what one network makes of another's value, as
``-critic(s, actor(s)).mean()`` is (`gradfix.run.child.unbounded` sees it in the graph).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.read.pulls import PASSED, SUMS, Pull, factors, plain
from gradfix.read.values import Node

_LEAST = {"minimum", "maximum", "min", "max", "amin"}
_PLAIN = PASSED | {"mean", "sum", "select", "slice", "cat", "stack"} | _LEAST


def unbounded(term: Node, pull: Pull, masks: dict[int, int]) -> Iterator[tuple[Node, int, int]]:
    """(value, mask, sign) of each value of which the term wants that optimizer's network, the `mask`, to make ever
    more (1), or ever less (-1). `masks` are those of nodes."""
    for layer, weight in _layers(term, pull.weight):
        mine = masks.get(layer.number, 0)
        for value in meetings(layer, masks):
            own = mine & ~masks[value.number]
            if own and not several(own):
                yield value, own, 1 if weight < 0 else -1


def _layers(term: Node, weight: float) -> Iterator[tuple[Node, float]]:
    """The layers whose outputs the term is linear in, but for the least of several; with the sign of each."""
    pending, seen = [(term, weight)], set[int]()
    while pending:
        node, by = pending.pop()
        if id(node) in seen or node.vague or node.custom is not None or node.checkpoint:
            continue
        seen.add(id(node))
        inner = [p for p in node.parents if isinstance(p, Node)]
        each = (
            factors(node)
            if plain(node) in SUMS
            else [1.0] * len(node.parents)
            if plain(node) in _PLAIN
            else None
        )
        if each is not None and len(inner) == len(node.parents) == len(each):
            pending += [(p, by * factor) for p, factor in zip(inner, each, strict=True)]
        elif plain(node) not in SUMS and len(inner) < len(node.parents):
            yield node, by


def several(mask: int) -> bool:
    """Whether it is the mask of more than one."""
    return bool(mask & (mask - 1))


def meetings(score: Node, masks: dict[int, int]) -> Iterator[Node]:
    """The values of one optimizer's network that enter another's behind `score`."""
    seen, pending = {id(score)}, [score]
    while pending:
        node = pending.pop()
        for parent in node.parents:
            if not isinstance(parent, Node) or id(parent) in seen:
                continue
            seen.add(id(parent))
            pending.append(parent)
            mask = masks.get(parent.number, 0)
            if several(masks[node.number]) and mask and not several(mask) and _made(parent):
                yield parent


def _made(node: Node) -> bool:
    """Whether a value was computed, and is no parameter seen another way."""
    pending: list[Node] = [node]
    while pending:
        each = pending.pop()
        if len(each.parents) > 1:
            return True
        pending += [p for p in each.parents if isinstance(p, Node)]
    return False
