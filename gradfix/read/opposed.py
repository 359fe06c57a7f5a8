"""Two terms of one loss that pull the same value apart, told from the text: where each is a function of one score that
only rises, or only falls, and the score is the same function of the value in both.

The recorder measures how the gradients of such terms lie (`gradfix.run.child.opposed`); their signs are known where the
score goes through sums, means, known factors and functions that are monotone, or a known loss with one known target.
The other network's score of something else (of real data) has to be among the terms, too: the two of a domain that is
to be confused are meant to pull apart, and so are those of a soft label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from gradfix.dataclass import dataclass
from gradfix.read import optimizers
from gradfix.read.frames import Machine
from gradfix.read.values import Node, Tensor, Value

MOST = 4  # terms that reach two networks
SAMPLES = 4  # in a batch, as where it is measured
UNLIKE = 5.0  # times as much weight: a regulariser, or a target that is smoothed
FARTHEST = 24  # nodes between a term and its score
RANDOM = ("dropout", "rrelu", "bernoulli", "normal", "uniform", "rand", "gumbel", "fractional", "poisson")
_PASSED = {  # the same numbers, in another shape or type
    "alias", "view", "reshape", "_unsafe_view", "unsafe_view", "squeeze", "unsqueeze", "flatten", "t", "transpose",
    "permute", "to_copy", "clone", "contiguous", "expand",
}  # fmt: skip
_RISING = {
    "relu", "leaky_relu", "softplus", "sigmoid", "tanh", "log_sigmoid", "log_sigmoid_forward", "logsigmoid", "log",
    "log1p", "exp", "elu", "hardtanh", "clamp", "clamp_min", "clamp_max",
}  # fmt: skip
_LAYERS = ("Conv", "Norm", "Pool", "Pad", "Upsample", "LU", "Sigmoid", "Tanh", "Mish", "Hard")
_SUMS = {"add", "sub", "rsub", "mul", "div", "neg"}


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


@dataclass(frozen=True, slots=True)
class Loss:
    """What a backward has differentiated: the numbers that were added up, and the `terms` that reach two networks."""

    root: Node
    every: Sequence[Term]
    terms: Sequence[Term]
    masks: dict[int, int]


def look(m: Machine, root: Node, nodes: list[Node], filled: list[Tensor]) -> None:
    """A backward has walked `nodes` from `root`, and filled the gradients of these leaves."""
    owners = {t.storage.number: i for i, o in enumerate(m.optimizers) for t in optimizers.owned(o)}
    if len({owners[t.storage.number] for t in filled if t.storage.number in owners}) < 2:
        return
    masks = _masks(nodes, owners)
    every = list(_terms(root))
    terms = [(t, pull) for t, pull in every if _several(masks[t.number])]
    this = Loss(root, every, terms, masks)
    before = m.trace.loss_before(this)
    if isinstance(before, Loss) and len(before.terms) + len(terms) <= MOST:
        # losses that are differentiated one by one, and no step between
        pairs = product(before.terms, terms)
        _apart(m, pairs, [*before.every, *every], {**before.masks, **masks}, (before.root, root))
    if 2 <= len(terms) <= MOST:
        _apart(m, combinations(terms, 2), every, masks)


def _apart(
    m: Machine,
    pairs: Iterable[tuple[Term, Term]],
    every: Sequence[Term],
    masks: dict[int, int],
    losses: tuple[Node, Node] | None = None,
) -> None:
    """Tell of each pair that pulls a value apart, or of the `losses` that they are terms of."""
    for (s, pull), (t, other) in pairs:
        for one, two in _scores(s, pull, t, other):
            if not _several(masks[one.number]):
                break
            below = _below(two)
            used = _used(below.values())
            for value in _meetings(one, masks):
                others = (u for u, _ in every if not masks[u.number] & masks[value.number])
                alone = any(used & _used(_below(u).values()) for u in others)
                if id(value) in below and alone and _many(value):
                    m.trace.opposed(*(losses or (s, t)), value)
            break


def _masks(nodes: list[Node], owners: dict[int, int]) -> dict[int, int]:
    """node -> the optimizers whose parameters it reaches, as a bit mask."""
    masks: dict[int, int] = {}
    for node in sorted(nodes, key=lambda n: n.number):
        masks[node.number] = 0
        for parent in node.parents:
            if isinstance(parent, Node):
                masks[node.number] |= masks.get(parent.number, 0)
            elif parent.storage.number in owners:
                masks[node.number] |= 1 << owners[parent.storage.number]
    return masks


def _several(mask: int) -> bool:
    return bool(mask & (mask - 1))


def _plain(node: Node) -> str:
    return node.op.removeprefix("aten.").strip("_")


def _terms(root: Node) -> Iterator[tuple[Node, Pull | None]]:
    """The nodes that `root` adds up, each once, with how it counts."""
    found, pending = set[int](), [(root, Pull())]
    while pending:
        node, pull = pending.pop()
        factors = _factors(node) if _plain(node) in _SUMS else None
        if factors is not None and all(isinstance(p, Node) for p in node.parents):
            for parent, factor in zip(node.parents, factors, strict=True):
                assert isinstance(parent, Node)
                pending.append((parent, pull.times(factor)))
        elif node.number not in found:
            found.add(node.number)
            yield node, pull


def _factors(node: Node) -> list[float] | None:
    """What a linear op gives each of its parents; None where that is not known."""
    op, given, count = _plain(node), node.given, len(node.parents)
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
    op, given = _plain(node), node.given
    factors = _factors(node) if op in _SUMS else None
    if factors is not None:
        return (factors[0], 0) if len(factors) == 1 else None
    if node.vague or node.custom is not None or len(node.parents) != 1:
        return None
    if op in _PASSED or op == "mean":
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
        while isinstance(before, Node) and _plain(before) in _PASSED and len(before.parents) == 1:
            before = before.parents[0]
        if not isinstance(before, Node) or _plain(before) not in ("sigmoid", "tanh"):
            return None
        bounds = (0.0, 1.0) if _plain(before) == "sigmoid" else (-1.0, 1.0)
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


def _chain(node: Node, pull: Pull) -> Iterator[Link]:
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


def _scores(s: Node, pull: Pull | None, t: Node, other: Pull | None) -> Iterator[tuple[Node, Node]]:
    """The first score behind both terms that is the same in either, where they want it to go opposite ways."""
    if pull is None or other is None:
        return
    mine, others = list(_chain(s, pull)), list(_chain(t, other))
    for one, at, used in mine:
        for two, there, by in others:
            if (used is not None and used is by) if one is two else _same(one, two):
                if at.against(there):
                    yield one, two
                return


def _same(one: Node, other: Node) -> bool:
    """Whether two nodes are the same function of what they share."""
    pending, seen = [(one, other)], set[tuple[int, int]]()
    while pending:
        a, b = pending.pop()
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if not _alike(a, b):
            return False
        for i, (p, q) in enumerate(zip(a.parents, b.parents, strict=True)):
            if p is q:
                if a.needing[i] is not b.needing[i]:
                    return False  # two outputs of one op, maybe
            elif isinstance(p, Node) and isinstance(q, Node):
                pending.append((p, q))
            else:
                return False
    return True


def _alike(a: Node, b: Node) -> bool:
    """Whether two nodes do the same with their parents."""
    known = not (a.vague or b.vague or a.custom or b.custom or a.checkpoint or b.checkpoint)
    if not known or a.op != b.op or a.module is not b.module or len(a.parents) != len(b.parents):
        return False
    if len(a.needing) != len(a.parents) or len(b.needing) != len(b.parents):
        return False
    said = (a.op if a.module is None else a.op + a.module.kind).lower()
    if any(word in said for word in RANDOM):
        return False
    if a.given is None or b.given is None:  # a convolution, say, which has one argument when it is called
        layer = a.module.kind if a.module is not None else ""
        return a.given is b.given and any(word in layer for word in _LAYERS)
    if a.given.keys() != b.given.keys():
        return False
    first = min(a.time, b.time)
    return all(_equal(a.given[k], a.needing, b.given[k], b.needing, first) for k in a.given)


def _equal(x: Value, mine: Sequence[Tensor], y: Value, others: Sequence[Tensor], first: int) -> bool:
    """Whether two arguments are the same; those that need a gradient are compared as parents."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if any(x is t for t in mine) and any(y is t for t in others):
            return True
        storage = x.storage
        still = storage.version == storage.counted and storage.touched < first
        return x is y and (storage.version == 0 or still)
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(_equal(v, mine, w, others, first) for v, w in zip(x, y, strict=True))
    return x is y or (isinstance(x, int | float | str) and type(x) is type(y) and bool(x == y))


def _below(node: Node) -> dict[int, Node]:
    found, pending = {id(node): node}, [node]
    while pending:
        for parent in pending.pop().parents:
            if isinstance(parent, Node) and id(parent) not in found:
                found[id(parent)] = parent
                pending.append(parent)
    return found


def _used(nodes: Iterable[Node]) -> set[tuple[str, int]]:
    """What these nodes do with which parameters."""
    return {(n.op, id(p)) for n in nodes for p in n.parents if not isinstance(p, Node)}


def _meetings(score: Node, masks: dict[int, int]) -> Iterator[Node]:
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
            if _several(masks[node.number]) and mask and not _several(mask) and _made(parent):
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


def _many(value: Node) -> bool:
    """Whether the value has, or may have, so many samples as are looked at where it is measured."""
    shape = value.output.shape if value.output is not None else None
    return shape is None or (len(shape) > 1 and (shape[0] is None or shape[0] >= SAMPLES))
