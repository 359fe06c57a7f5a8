"""Losses without a best value: linear in what one network makes of another's value, ``-critic(s, actor(s)).mean()``.

They train the network before. The one that they go through learns nothing by them but to say ever more (or ever less).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .parted import Enter, last_layer
from .regressed import SHAPES, Gradients

_SUMS = frozenset(
    f"{name}Backward{i}" for name in ("Mean", "Sum", "Add", "Sub", "Rsub", "Neg") for i in range(3)
)
_LEAST = frozenset(
    f"{name}Backward{i}" for name in ("Minimum", "Maximum", "Min", "Max", "Amin") for i in range(3)
)


def unbounded(
    walk: Any, masks: dict[int, int], enter: Enter, gradients: Gradients
) -> Iterator[tuple[int, int, int]]:
    """(value's node, optimizer, sign) of each value of which the loss wants that optimizer's network to make ever more
    (1), or ever less (-1)."""
    told = set()
    for value, user in enter:
        layer, mine = last_layer(walk, user, value, masks)
        number = layer.node._sequence_nr()
        if (
            value in told
            or not mine
            or not _own_layer(walk, number, mine, masks)
            or not _linear(walk, number)
        ):
            continue
        (gradient,) = gradients((layer,))
        if gradient is None or not gradient.numel():
            continue
        low, high = float(gradient.min()), float(gradient.max())
        if low < 0 >= high or low >= 0 < high:
            told.add(value)
            yield value, mine.bit_length() - 1, 1 if low < 0 else -1


def _own_layer(walk: Any, node: int, mine: int, masks: dict[int, int]) -> bool:
    """Whether `node` joins what it is given with a parameter of that network. (An error that a network's output weighs
    goes through no layer of it: a gate, a variance, a soft target.)"""
    for parent in walk.parents[node]:
        while parent >= 0 and walk.nodes[parent].name() in SHAPES and len(walk.parents[parent]) == 1:
            (parent,) = walk.parents[parent]
        if parent < 0 and masks.get(parent) == mine:
            return True
    return False


def _linear(walk: Any, node: int) -> bool:
    """Whether what the loss does with the output of `node` is linear, but for the least of several."""
    above = {node}
    for each in sorted(n for n in walk.nodes if n > node):
        parents = [p for p in walk.parents[each] if p in above]
        if not parents:
            continue
        name, first = walk.nodes[each].name(), walk.nodes[each].next_functions[0][0]
        scaled = name == "MulBackward0" or (name == "DivBackward0" and first is walk.nodes[parents[0]])
        if not ((scaled and len(parents) == 1) or name in SHAPES or name in _SUMS or name in _LEAST):
            return False
        above.add(each)
    return walk.roots[0] in above and walk.roots[0] != node
