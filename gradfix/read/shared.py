"""Whose memory a gradient lies in: the engine hands the gradient of a sum to both terms as it is, that of a view as a
view. Who writes into it writes into what others are given, unless they have read theirs by then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from gradfix.read.values import Node, Shape, Tensor

# ops whose gradient for their one input is the gradient of their result, or a view of it
_HANDING = {
    "alias", "clone", "contiguous", "flatten", "movedim", "permute", "reshape", "squeeze", "t", "transpose",
    "unflatten", "unsafe_view", "unsqueeze", "view", "view_as",
}  # fmt: skip
_JOINING = {
    "cat",
    "concat",
    "hstack",
    "stack",
    "vstack",
}  # to each of their inputs a part, that none of the others has
Edge = Node | Tensor
Same = Callable[[Node], Sequence[Edge]]


class Users:
    """Who is given to whom in one walk: by edge, the nodes that have it as parent, and where among their parents."""

    def __init__(self, nodes: Sequence[Node], leaves: Sequence[Tensor], roots: Sequence[Edge]) -> None:
        self._walked = {id(e) for e in (*nodes, *leaves)}
        self._roots = {id(e) for e in roots}
        self._users: dict[int, list[tuple[Node, int]]] = {}
        for node in nodes:
            for at, parent in enumerate(node.parents):
                self._users.setdefault(id(parent), []).append((node, at))

    def of(self, edge: Edge) -> list[tuple[Node, int]]:
        return self._users.get(id(edge), [])

    def alone(self, edge: Edge) -> tuple[Node, int] | None:
        """The one that gives `edge` its gradient; None where several do, whose sum has a memory of its own."""
        found = self.of(edge)
        return found[0] if len(found) == 1 and id(edge) not in self._roots else None

    def walked(self, edge: Edge) -> bool:
        return id(edge) in self._walked


def users(nodes: Sequence[Node], leaves: Sequence[Tensor], roots: Sequence[Edge]) -> Users:
    """The users in the walk over `nodes` and `leaves` from `roots`."""
    return Users(nodes, leaves, roots)


def with_others(users: Users, node: Node, same: Same) -> bool | None:
    """Whether the backward of `node`, which writes into the gradient it is given, spoils that of others: True
    for certain, False in all likelihood (sizes are not known), None not that anyone could see."""
    edge: Node = node
    sure = whole = True
    while (user := users.alone(edge)) is not None:
        giver, at = user
        name = giver.op.removeprefix("aten.")
        if name == "sum":  # one number for many elements
            return sure if whole and _spread(giver, edge) else None
        handed = _handed(giver, same)
        if at not in handed and name not in _JOINING:
            return None
        sure, whole = sure and handed.get(at, True), whole and at in handed
        for n, alike in handed.items():
            if n != at and users.walked(giver.parents[n]) and _late(users, giver.parents[n], node, same):
                return sure and alike
        edge = giver
    return None


def _spread(giver: Node, edge: Node) -> bool:
    """Whether one number is the gradient of several elements of `edge`, as far as their sizes are known."""
    counts = [_count(n.output.shape) if n.output is not None else None for n in (giver, edge)]
    return counts[0] is not None and counts[1] is not None and counts[1] > counts[0]


def _count(shape: Shape) -> int | None:
    if shape is None or None in shape:
        return None
    return prod(n or 0 for n in shape)


def _handed(giver: Node, same: Same) -> dict[int, bool]:
    """Which of its parents `giver` hands the gradient that it is given, or a view: for certain, or unless sizes
    differ."""
    parents = giver.parents
    if giver.custom is not None:
        given = {id(e) for e in same(giver)}
        return {n: True for n, p in enumerate(parents) if id(p) in given}
    name = giver.op.removeprefix("aten.")
    if name in _HANDING and len(parents) == 1:
        return {0: True}
    if giver.scaled or name not in ("add", "sub"):
        return {}
    known = {n: _alike(giver.output, p) for n, p in enumerate(parents) if name == "add" or n == 0}
    return {n: alike for n, alike in known.items() if alike is not None}


def _alike(output: Tensor | None, parent: Edge) -> bool | None:
    """Whether a term has the sizes of the sum: its gradient is summed up otherwise. None where it has not."""
    term = parent.output if isinstance(parent, Node) else parent
    if output is None or term is None or output.shape is None or term.shape is None:
        return False
    if len(output.shape) != len(term.shape) or output.dtype != term.dtype:
        return None
    if any(None not in (a, b) and a != b for a, b in zip(output.shape, term.shape, strict=True)):
        return None
    return None not in output.shape and None not in term.shape


def _late(users: Users, edge: Edge, node: Node, same: Same) -> bool:
    """Whether `edge`, which is handed the memory that `node` writes into, reads it after that. Of the nodes that are
    ready the engine takes the one made last; a leaf takes a copy as soon as all have given."""
    all_ = [user.number for user, _ in users.of(edge)]
    given = sum(1 for number in all_ if number > node.number)
    if isinstance(edge, Tensor) or len(all_) > 1:
        return given == 1 and len(all_) > 1  # of two that have given, the sum is there
    if edge.number < node.number:
        return True
    handed = [edge.parents[n] for n, certain in _handed(edge, same).items() if certain]
    return any(_late(users, parent, node, same) for parent in handed if users.walked(parent))
