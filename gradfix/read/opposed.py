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
from gradfix.read.pulls import Pull, Term, chain, terms
from gradfix.read.unbounded import meetings, several, unbounded
from gradfix.read.values import Node, Storage, Tensor, Value
from gradfix.tape import Stack

MOST = 4  # terms that reach two networks
SAMPLES = 4  # in a batch, as where it is measured
RANDOM = ("dropout", "rrelu", "bernoulli", "normal", "uniform", "rand", "gumbel", "fractional", "poisson")
_LAYERS = ("Conv", "Norm", "Pool", "Pad", "Upsample", "LU", "Sigmoid", "Tanh", "Mish", "Hard", "Drop")


@dataclass(frozen=True, slots=True)
class Loss:
    """What a backward at `stack` has differentiated: what was added up, and the `terms` that reach two networks; of
    numbers, and of what is averaged (`parts`)."""

    stack: Stack
    root: Node
    every: Sequence[Term]
    terms: Sequence[Term]
    masks: dict[int, int]
    parts: Sequence[Term]


def look(m: Machine, root: Node, nodes: list[Node], filled: list[Tensor]) -> None:
    """A backward has walked `nodes` from `root`, and filled the gradients of these leaves."""
    owners = {t.storage.number: i for i, o in enumerate(m.optimizers) for t in optimizers.owned(o)}
    own = {owners[t.storage.number] for t in filled if t.storage.number in owners}
    if not own:
        return
    masks = _masks(nodes, owners)
    every = list(terms(root))
    both = [(t, pull) for t, pull in every if several(masks[t.number])] if len(own) > 1 else []
    parts = list(terms(root, averaged=True))
    this = Loss(m.stack(), root, every, both, masks, parts)
    # losses that are differentiated one by one, and no step between
    since = [loss for loss in m.losses if loss.stack != this.stack][-MOST:]
    m.losses = [*since, this]
    for before in since:
        if _of_one_term(m, before, this):
            continue
        if before.terms and both and len(before.terms) + len(both) <= MOST:
            each = ([t for t in loss.parts if several(loss.masks[t[0].number])] for loss in (before, this))
            _apart(m, product(*each), [*before.parts, *parts], {**before.masks, **masks}, (before.root, root))
        elif len(before.terms) + len(both) == 1:
            _parted(m, since, before, this)
    if 2 <= len(both) <= MOST:
        _apart(m, combinations(both, 2), every, masks)
    for term, pull in both:
        for value, mask, sign in unbounded(term, pull, masks) if pull is not None else ():
            number = m.optimizers[mask.bit_length() - 1].extra["number"]
            m.trace.unbounded(value, number, sign)


def _of_one_term(m: Machine, before: Loss, this: Loss) -> bool:
    """Whether two losses have a term in common; told where one is to be high and the other low by it."""
    pulls = {id(t): pull for t, pull in before.terms}
    common = [(t, pull, pulls[id(t)]) for t, pull in this.terms if id(t) in pulls]
    for term, one, other in common:
        if one is not None and other is not None and one.weight * other.weight < 0:
            for value in meetings(term, this.masks):
                m.trace.opposed(before.root, this.root, value)
    return bool(common)


def _parted(m: Machine, since: Sequence[Loss], before: Loss, this: Loss) -> None:
    """The same of two losses, of which one was given the value without its graph: the discriminator's of
    ``fake.detach()``. It has to have another term, or another loss of the same network alone has, as above."""
    one, both = (this, before) if before.terms else (before, this)
    t, other = both.terms[0]
    own = one.masks[one.root.number]
    made = {number for number, mask in both.masks.items() if mask and not mask & own}
    for s, pull in one.every:
        for a, b in _scores(s, pull, t, other, made):
            used = _used(_below(a).values())
            others = (u for loss in (*since, this) if not loss.terms for u, _ in loss.every if u is not s)
            value = _handed(a, b, made)
            if value and _many(value) and any(used & _used(_below(u).values()) for u in others):
                m.trace.opposed(before.root, this.root, value)


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
            if not several(masks[one.number]):
                break
            below = _below(two)
            used = _used(below.values())
            for value in meetings(one, masks):
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


def _scores(
    s: Node, pull: Pull | None, t: Node, other: Pull | None, parted: set[int] | None = None
) -> Iterator[tuple[Node, Node]]:
    """The first score behind both terms that is the same in either, where they want it to go opposite ways. With
    `parted`, the numbers of nodes that another network made, the same but for the graph of one of these."""
    if pull is None or other is None:
        return
    mine, others = list(chain(s, pull)), list(chain(t, other))
    for one, at, used in mine:
        for two, there, by in others:
            if parted is not None:
                same = _handed(one, two, parted) is not None
            else:
                same = (used is not None and used is by) if one is two else _same(one, two)
            if same:
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
        if not _alike(a, b) or len(a.parents) != len(b.parents):
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


def _handed(one: Node, other: Node, made: set[int]) -> Node | None:
    """The node, one of those `made` by a network, whose value another is given, with its graph behind `other` and
    without behind `one`, which are the same else; None where they are not. (What a dropout leaves of it is as good.)"""
    pending, seen, found = [(one, other)], set[tuple[int, int]](), set[Node]()
    while pending:
        a, b = pending.pop()
        if (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if not _alike(a, b, RANDOM[1:]):
            return None
        mine = list(zip(a.parents, a.needing, strict=True))
        for p, tensor in zip(b.parents, b.needing, strict=True):
            parted = isinstance(p, Node) and p.number in made and _kept(a, b, tensor)
            if isinstance(p, Node) and parted and len(a.parents) == len(b.parents) - 1:
                found.add(p)
                break
        given = [(p, t) for p, t in zip(b.parents, b.needing, strict=True) if p not in found]
        if len(given) != len(mine):
            return None
        for (p, x), (q, y) in zip(mine, given, strict=True):
            if isinstance(p, Node) and isinstance(q, Node) and p is not q:
                pending.append((p, q))
            elif p is not q or x is not y:
                return None
    return found.pop() if len(found) == 1 else None


def _kept(one: Node, other: Node, value: Tensor) -> bool:
    """Whether both nodes keep what is in the memory of `value`, as it was at the same time, or the same joined anew."""
    both = (one, other)
    kept = [{(s.version, s.shape) for s in n.saves if _alike_in(s.storage, value.storage)} for n in both]
    return bool(kept[0] & kept[1])


def _alike_in(one: Storage, other: Storage) -> bool:
    """Whether it is the same memory, or such as holds the same, joined anew."""
    return one is other or (one.joined != () and one.joined == other.joined)


def _alike(a: Node, b: Node, random: Sequence[str] = RANDOM) -> bool:
    """Whether two nodes do the same with their parents."""
    known = not (a.vague or b.vague or a.custom or b.custom or a.checkpoint or b.checkpoint)
    if not known or a.op != b.op or a.module is not b.module:
        return False
    if len(a.needing) != len(a.parents) or len(b.needing) != len(b.parents):
        return False
    said = (a.op if a.module is None else a.op + a.module.kind).lower()
    if any(word in said for word in random):
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
        if any(y is t for t in others) and (any(x is t for t in mine) or _alike_in(x.storage, y.storage)):
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


def _many(value: Node) -> bool:
    """Whether the value has, or may have, so many samples as are looked at where it is measured."""
    shape = value.output.shape if value.output is not None else None
    return shape is None or (len(shape) > 1 and (shape[0] is None or shape[0] >= SAMPLES))
