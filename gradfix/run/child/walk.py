"""The graph behind the roots of a backward, node by node as the engine will find it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .leaves import Leaves

_ACCUMULATE: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


class Walk:
    """What the engine will execute: `numbers` of nodes and leaves, the `nodes` by number and the `parents` of each, all
    in order of discovery; `accumulated` leaves; the root `tensors`."""

    __slots__ = ("accumulated", "nodes", "numbers", "parents", "roots", "tensors")

    def __init__(self, roots: tuple[int, ...]) -> None:
        self.roots = roots
        self.numbers: list[int] = []
        self.nodes: dict[int, Any] = {}
        self.parents: dict[int, tuple[int, ...]] = {}
        self.accumulated: list[Any] = []
        self.tensors: list[Any] = []


def walk_from(outputs: Any, inputs: Any, accumulate: bool, known: Leaves) -> Walk:
    """The Walk of a backward from `outputs`; only what `inputs` need, if there are any. Leaves are numbered as `known`
    has them, and become `accumulated` if their gradients are. What is done for every node is kept from running bytecode
    where C will do: a pass has hundreds, in every step."""
    roots = []
    for output in outputs:
        if isinstance(output, torch.Tensor):
            roots.append(output.grad_fn if output.grad_fn is not None else _accumulator(output))
        else:
            roots.append(output.node)
    numbers: dict[Any, int] = {}
    children: dict[Any, Sequence[Any]] = {}
    leaves: dict[Any, Any] = {}
    todo: list[Any] = [n for n in roots if n is not None]
    while todo:
        node = todo.pop()
        if node in numbers:
            continue
        if type(node) is _ACCUMULATE:
            leaves[node] = node.variable
            numbers[node] = 0  # in its place; all of them are told below
            continue
        numbers[node] = node._sequence_nr()
        edges = node.next_functions
        follow: Sequence[Any] = next(zip(*edges)) if edges else ()  # noqa: B905 (Python 3.9)
        if None in follow:
            follow = [child for child in follow if child is not None]
        children[node] = follow
        todo += follow
    storages = known.storages(list(leaves.values()))
    numbers.update(zip(leaves, [~storage.number for storage in storages]))  # noqa: B905 (Python 3.9)
    number_of = numbers.__getitem__
    walk = Walk(tuple([number_of(n) for n in roots if n is not None]))
    walk.tensors += [t for t in outputs if isinstance(t, torch.Tensor)]
    if inputs:
        needed = _needed(inputs, list(numbers), children, leaves, accumulate)
        children = {n: follow for n, follow in children.items() if n in needed}
        leaves = {n: leaf for n, leaf in leaves.items() if n in needed}
        walk.numbers += [number for n, number in numbers.items() if n in needed]
    else:
        walk.numbers += numbers.values()
    if accumulate:
        walk.accumulated += leaves.values()
    for node, follow in children.items():
        number = number_of(node)
        walk.nodes[number] = node
        walk.parents[number] = tuple(map(number_of, follow))
    return walk


def _needed(
    inputs: Any,
    order: list[Any],
    children: dict[Any, Sequence[Any]],
    leaves: dict[Any, Any],
    accumulate: bool,
) -> Any:
    """Nodes on a way from the roots to one of `inputs` (the engine's exec_info)."""
    # (asking autograd for a leaf's accumulator makes a node, and would number the later ones otherwise)
    accumulators = {id(leaf): node for node, leaf in leaves.items()}
    targets = set()
    for x in inputs:
        if not isinstance(x, torch.Tensor):
            targets.add(x.node)
        else:
            targets.add(x.grad_fn if x.grad_fn is not None else accumulators.get(id(x)))
    targets.discard(None)
    users: dict[Any, list[Any]] = {}
    for node in order:
        for child in children.get(node, ()):
            users.setdefault(child, []).append(node)
    needed = set()
    todo = [u for t in targets for u in users.get(t, ())]
    while todo:
        node = todo.pop()
        if node not in needed:
            needed.add(node)
            todo.extend(users.get(node, ()))
    if accumulate:
        needed.update(targets)
    else:
        needed.update(t for t in targets if type(t) is _ACCUMULATE)
    return needed


def _accumulator(leaf: Any) -> Any:
    with torch.enable_grad():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]
