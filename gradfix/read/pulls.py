"""How a term of a loss changes with a value behind it: by a factor whose sign is known, where the way there goes
through sums, means, known factors and functions that are monotone, or a known loss with one known target; and the one
number that a distance is taken from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradfix.dataclass import dataclass
from gradfix.read.values import Node, Storage, Tensor, Value

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
_DISTANCES = {"mse_loss", "smooth_l1_loss", "huber_loss"}
_LAST = {"mean", "sum", "view", "squeeze"}


@dataclass(frozen=True, slots=True)
class Pull:
    """How a term changes with a value behind it: by a `weight`, and so many `sums`. Where it is `least` at one number,
    the sign of the weight says nothing, unless all that the value may be lies on one side of that (`sided`)."""

    weight: float = 1.0
    sums: int = 0
    least: float | None = None
    sided: bool = True

    def times(self, factor: float, sums: int = 0) -> Pull:
        """That of what this value rises with by a factor, in so many sums."""
        return Pull(self.weight * factor, self.sums + sums)

    def against(self, other: Pull) -> bool:
        """Whether they weigh about the same, and are opposite: no one value is the best for both."""
        mine, others = abs(self.weight), abs(other.weight)
        if mine >= UNLIKE * others or others >= UNLIKE * mine or self.sums != other.sums:
            return False
        if self.least is not None and other.least is not None:
            return self.least != other.least
        return self.sided and other.sided and self.weight * other.weight < 0


Term = tuple[Node, Pull | None]


def plain(node: Node) -> str:
    """The name of its op, without ``aten.`` and the underscore of one in place. An op that is known by the last of
    those that it is made of is not that: ``l1_loss`` is no mean."""
    name, given = node.op.removeprefix("aten.").strip("_"), node.given
    made_of = given is not None and ("self" not in given or "target" in given)
    return "composite" if made_of and name in _LAST else name


def terms(root: Node, averaged: bool = False) -> Iterator[tuple[Node, Pull | None]]:
    """The nodes that `root` adds up, each once, with how it counts; if `averaged`, those too that are added up before
    their mean, or sum, is taken."""
    found, pending = set[int](), [(root, Pull())]
    while pending:
        node, pull = pending.pop()
        each = factors(node) if plain(node) in SUMS else None
        if each is not None and all(isinstance(p, Node) for p in node.parents):
            for parent, factor in zip(node.parents, each, strict=True):
                assert isinstance(parent, Node)
                pending.append((parent, pull.times(factor)))
        elif averaged and plain(node) in ("mean", "sum") and _added(node):
            (inner,) = node.parents
            assert isinstance(inner, Node)
            pending.append((inner, pull.times(1.0, int(plain(node) == "sum"))))
        elif node.number not in found:
            found.add(node.number)
            yield node, pull


def _added(node: Node) -> bool:
    """Whether the one tensor that `node` has is a sum of others, scaled maybe."""
    inner = node.parents[0] if len(node.parents) == 1 else None
    while isinstance(inner, Node) and plain(inner) in SUMS and factors(inner) is not None:
        if len(inner.parents) > 1:
            return True
        inner = inner.parents[0]
    return False


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


def _behind(node: Node, pull: Pull) -> Pull | None:
    """That of what an op has one parent for; None where it is not known."""
    op, given = plain(node), node.given or {}
    if node.vague or node.custom is not None or len(node.parents) != 1:
        return None
    if op in _DISTANCES or op == "abs" or (op == "pow" and given.get("exponent", 2) == 2):
        return _distance(node, op, pull)
    each = factors(node) if op in SUMS else [1.0] if op in PASSED else None
    if each is not None and pull.least is not None:
        moved = _summand(node) if op in ("add", "sub", "rsub") else 0.0
        least = None if moved is None else (pull.least - moved) / each[0]
        pull = replace(pull, least=least, weight=pull.weight * each[0])
        return pull if pull.sided or least is not None else None
    if not pull.sided:
        return None
    if each is not None or op in _RISING | {"mean", "sum"}:
        falling = any(isinstance(v, int | float) and v < 0 for v in given.values())
        known = op not in _RISING or not falling or "clamp" in op
        return pull.times(each[0] if each is not None else 1.0, int(op == "sum")) if known else None
    if op in ("binary_cross_entropy", "binary_cross_entropy_with_logits"):
        sign = _to_target(node, op)
        return None if sign is None else pull.times(sign, _summed(node))
    return None


def _distance(node: Node, op: str, pull: Pull) -> Pull | None:
    """It is least where there is none."""
    given = node.given or {}
    least: float | None = 0.0
    sums, sign = pull.sums, None
    if op in _DISTANCES:
        least, sums, sign = _constant(node, given.get("target")), sums + _summed(node), _to_target(node, op)
    if not pull.sided:
        return None
    if pull.weight < 0 or pull.least is not None or _weighed(node):
        least = None
    known = least is not None or sign is not None
    return Pull(pull.weight * (sign or 1.0), sums, least, sign is not None) if known else None


def _summand(node: Node) -> float | None:
    """The one number that is added to what has a graph: ``score - 1``, ``score - ones``, ``1 - score``."""
    others = [v for v in (node.given or {}).values() if not any(v is t for t in node.needing)]
    number = others[0] if len(others) == 1 else None
    if isinstance(number, Tensor):
        storage = number.storage
        still = storage.version == storage.counted and storage.touched < node.time
        number = _full(storage, storage.version) if still else None
    if not isinstance(number, int | float):
        return None
    return -number if plain(node) == "sub" and not node.scaled else float(number)


def _to_target(node: Node, op: str) -> float | None:
    """1 where every target is at the bottom of what its input may be, with which the loss rises; -1 at the top."""
    wanted, bounds = _constant(node, (node.given or {}).get("target")), (0.0, 1.0)
    if wanted is None or _weighed(node) or len(node.parents) != 1:
        return None
    if op in _DISTANCES:
        before = node.parents[0]
        while isinstance(before, Node) and plain(before) in PASSED and len(before.parents) == 1:
            before = before.parents[0]
        if op != "mse_loss" or not isinstance(before, Node) or plain(before) not in ("sigmoid", "tanh"):
            return None
        bounds = (0.0, 1.0) if plain(before) == "sigmoid" else (-1.0, 1.0)
    return None if bounds[0] < wanted < bounds[1] else 1.0 if wanted <= bounds[0] else -1.0


def _weighed(node: Node) -> bool:
    """Whether a loss may weigh what it compares."""
    given, module = node.given or {}, node.module.extra if node.module is not None else {}
    options = (*list(given.values())[1:], *module.get("args", ()))
    return not {*given, *module.get("kwargs", {})}.isdisjoint(("weight", "pos_weight")) or any(
        v is not given.get("target") and isinstance(v, Tensor) for v in options
    )


def _summed(node: Node) -> int:
    """1 where a loss is a sum and no mean, else 0."""
    given, module = node.given or {}, node.module.extra if node.module is not None else {}
    asked = (given.get("reduction"), module.get("kwargs", {}).get("reduction"))
    return int("sum" in asked or given.get("reduction") == 2)


def _constant(node: Node, target: Value) -> float | None:
    """The one number that a target was full of when `node` kept it."""
    if not isinstance(target, Tensor):
        return None
    saved = next((s for s in node.saves if s.storage is target.storage), None)
    return None if saved is None else _full(target.storage, saved.version)


def _full(storage: Storage, version: int) -> float | None:
    """The one number that the memory was full of in that version."""
    return storage.filled[1] if storage.filled is not None and storage.filled[0] == version else None


Link = tuple[Node, Pull, Tensor | None]  # the tensor by which the one above has it


def chain(node: Node, pull: Pull) -> Iterator[Link]:
    """`node` and what is behind it, as far as it is known how the term changes with that."""
    used: Tensor | None = None
    for _ in range(FARTHEST):
        yield node, pull, used
        passed = _behind(node, pull)
        parent = node.parents[0] if passed is not None else None
        if passed is None or not isinstance(parent, Node):
            return
        used = node.needing[0] if node.needing else None
        node, pull = parent, passed
