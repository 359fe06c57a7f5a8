"""How a term of a loss changes with a value behind it: by a factor whose sign is known, where the way there goes
through sums, means, known factors and functions that are monotone, or a known loss with one known target.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.dataclass import dataclass
from gradfix.read.values import Node, Tensor

UNLIKE = 5.0  # times as much weight: a regulariser, or a target that is smoothed
FARTHEST = 24  # nodes between a term and its score
PASSED = {  # the same numbers, in another shape or type
    "alias", "view", "reshape", "_unsafe_view", "unsafe_view", "squeeze", "unsqueeze", "flatten", "t", "transpose",
    "permute", "to_copy", "clone", "contiguous", "expand",
}  # fmt: skip
_RISING = {
    "relu", "leaky_relu", "softplus", "sigmoid", "tanh", "log_sigmoid", "log_sigmoid_forward", "logsigmoid", "log",
    "log1p", "exp", "elu", "hardtanh", "clamp", "clamp_min", "clamp_max",
}  # fmt: skip
SUMS = {"add", "sub", "rsub", "mul", "div", "neg"}
_LAST = {"mean", "sum", "view", "squeeze"}


@dataclass(frozen=True, slots=True)
class Pull:
    """How a term changes with a value behind it: by a `weight` whose sign is known, and so many `sums`."""

    weight: float = 1.0
    sums: int = 0

    def times(self, factor: float, sums: int = 0) -> Pull:
        return Pull(self.weight * factor, self.sums + sums)

    def against(self, other: Pull) -> bool:
        """Whether they are opposite and weigh about the same."""
        mine, others = abs(self.weight), abs(other.weight)
        alike = mine < UNLIKE * others and others < UNLIKE * mine
        return self.weight * other.weight < 0 and alike and self.sums == other.sums


Term = tuple[Node, Pull | None]


def plain(node: Node) -> str:
    """The name of its op, without ``aten.`` and the underscore of one in place. An op that is known by the last of
    those that it is made of is not that: ``l1_loss`` is no mean."""
    name, given = node.op.removeprefix("aten.").strip("_"), node.given
    made_of = given is not None and ("self" not in given or "target" in given)
    return "composite" if made_of and name in _LAST else name


def terms(root: Node) -> Iterator[tuple[Node, Pull | None]]:
    """The nodes that `root` adds up, each once, with how it counts."""
    found, pending = set[int](), [(root, Pull())]
    while pending:
        node, pull = pending.pop()
        each = factors(node) if plain(node) in SUMS else None
        if each is not None and all(isinstance(p, Node) for p in node.parents):
            for parent, factor in zip(node.parents, each, strict=True):
                assert isinstance(parent, Node)
                pending.append((parent, pull.times(factor)))
        elif node.number not in found:
            found.add(node.number)
            yield node, pull


def factors(node: Node) -> list[float] | None:
    """What a linear op gives each of its parents; None where that is not known."""
    op, given, count = plain(node), node.given, len(node.parents)
    if node.vague or given is None or "alpha" in given:
        return None
    if op == "add":
        return [1.0] * count
    if op == "sub":
        return [1.0, -1.0] if count == 2 else [-1.0 if node.scaled else 1.0]
    if op in ("rsub", "neg"):
        return [-1.0] if count == 1 else None
    number = given.get("other")
    if op in ("mul", "div") and count == 1 and isinstance(number, int | float) and number and len(given) == 2:
        return [float(number) if op == "mul" else 1 / float(number)]
    return None


def _down(node: Node) -> tuple[float, int] | None:
    """The (sign, sums) with which an op passes on what it has one parent for; None where that is not known."""
    op, given = plain(node), node.given
    each = factors(node) if op in SUMS else None
    if each is not None:
        return (each[0], 0) if len(each) == 1 else None
    if node.vague or node.custom is not None or len(node.parents) != 1:
        return None
    if op in PASSED or op == "mean":
        return 1.0, 0
    if op == "sum":
        return 1.0, 1
    if op in _RISING:
        numbers = () if given is None else given.values()
        return (
            None
            if any(isinstance(v, int | float) and v < 0 for v in numbers) and "clamp" not in op
            else (1.0, 0)
        )
    if op in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss"):
        return _to_target(node, op)
    return None


def _to_target(node: Node, op: str) -> tuple[float, int] | None:
    """A loss falls with its input where every target is at the top of what that may be, and rises at the bottom."""
    given, target = node.given or {}, (node.given or {}).get("target")
    options = (*given.values(), *(node.module.extra.get("args", ()) if node.module is not None else ()))
    named = node.module.extra.get("kwargs", {}) if node.module is not None else {}
    weighed = {*given, *named} & {"weight", "pos_weight"} or any(
        v is not target and isinstance(v, Tensor) for v in options[1:]
    )
    if weighed or not isinstance(target, Tensor) or len(node.parents) != 1:
        return None
    wanted, bounds = _constant(node, target), (0.0, 1.0)
    if op == "mse_loss":
        before = node.parents[0]
        while isinstance(before, Node) and plain(before) in PASSED and len(before.parents) == 1:
            before = before.parents[0]
        if not isinstance(before, Node) or plain(before) not in ("sigmoid", "tanh"):
            return None
        bounds = (0.0, 1.0) if plain(before) == "sigmoid" else (-1.0, 1.0)
    if wanted is None or bounds[0] < wanted < bounds[1]:
        return None
    summed = "sum" in (given.get("reduction"), named.get("reduction")) or given.get("reduction") == 2
    return (1.0 if wanted <= bounds[0] else -1.0), int(summed)


def _constant(node: Node, target: Tensor) -> float | None:
    """The one number that a target was full of when `node` kept it."""
    storage = target.storage
    saved = next((s for s in node.saves if s.storage is storage), None)
    if saved is None or storage.filled is None or storage.filled[0] != saved.version:
        return None
    return storage.filled[1]


Link = tuple[Node, Pull, Tensor | None]  # the tensor by which the one above has it


def chain(node: Node, pull: Pull) -> Iterator[Link]:
    """`node` and what is behind it, as far as it is known how the term changes with that."""
    used: Tensor | None = None
    for _ in range(FARTHEST):
        yield node, pull, used
        passed = _down(node)
        parent = node.parents[0] if passed is not None else None
        if passed is None or not isinstance(parent, Node):
            return
        used = node.needing[0] if node.needing else None
        node, pull = parent, pull.times(*passed)
