"""What one run computed: the gradients at each step and backward, as its measurement lines say.

Standard library only: the host never imports torch.
"""

from __future__ import annotations

import binascii
import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import mul
from typing import Any

Parameter = tuple[int, int]  # (optimizer in order of creation, index in its param_groups)


def total(values: Iterable[float]) -> float:
    """Their sum, exact where it is a number: of infinities, or beyond the range, it is an infinity or NaN."""
    held = list(values)
    try:
        return math.fsum(held)
    except (ValueError, OverflowError):
        return sum(held)


def square(x: float) -> float:
    """x², infinite beyond the range (where ``x**2`` raises)."""
    return x * x


@dataclass(frozen=True)
class Vector:
    """A gradient: norm and sum in float64, and its elements (or a sketch of them) in base64."""

    norm: float
    sum: float
    kind: str
    data: str

    @cached_property
    def elements(self) -> array[float]:
        found = array("d" if self.kind == "f8" else "f")
        found.frombytes(binascii.a2b_base64(self.data))
        return found

    @property
    def finite(self) -> bool:
        return math.isfinite(self.norm) and math.isfinite(self.sum)

    def dot(self, other: Vector) -> float:
        """The inner product; of sketches an estimate, which the norms bound."""
        if len(self.elements) != len(other.elements):
            return math.nan
        found = total(map(mul, self.elements, other.elements))
        if self.kind != "cs" or not found:
            return found
        sketched = math.hypot(*self.elements) * math.hypot(*other.elements)
        return found * (self.norm * other.norm / sketched)

    def distance(self, other: Vector) -> float:
        if self.data == other.data and self.kind == other.kind:
            return 0.0
        if len(self.elements) != len(other.elements):
            return math.inf
        return math.sqrt(total(square(x - y) for x, y in zip(self.elements, other.elements, strict=True)))


Grad = Vector | None


@dataclass(frozen=True)
class Stepped:
    """One optimizer.step(): gradients before it, its updates, and what stood around it."""

    optimizer: int
    number: int  # among this optimizer's steps, from 0
    grads: tuple[Grad, ...]
    changed: tuple[int, ...]  # parameters that something else wrote since this optimizer's last step
    random: tuple[int, ...]  # digests of torch's, Python's and NumPy's generators
    updates: tuple[Sequence[float], ...] = ()
    buffers: tuple[Sequence[float], ...] = ()
    state: Mapping[str, Sequence[float]] = field(default_factory=dict)  # norms, in order of parameter


@dataclass(frozen=True)
class Backwarded:
    """One backward: the values of its roots, what it filled, how many steps there were before it."""

    value: float
    accumulates: bool
    steps: int
    reached: frozenset[Parameter] = frozenset()
    grads: tuple[Grad, ...] = ()
    raised: bool = False


@dataclass(frozen=True)
class Measured:
    """What one run computed, read from its measurement lines (see gradfix.run.child.measure)."""

    steps: tuple[Stepped, ...] = ()
    backwards: tuple[Backwarded, ...] = ()
    order: tuple[
        tuple[str, int], ...
    ] = ()  # ("b", backward), ("z", optimizer), ("s", optimizer) in order of time
    leaves: Mapping[str, Grad] = field(default_factory=dict)
    retained: Mapping[str, Grad] = field(default_factory=dict)
    draws: Mapping[str, Sequence[int]] = field(default_factory=dict)
    writes: Mapping[str, int] = field(default_factory=dict)
    ended: str = ""

    @cached_property
    def by_optimizer(self) -> dict[int, list[Stepped]]:
        found: dict[int, list[Stepped]] = defaultdict(list)
        for step in self.steps:
            found[step.optimizer].append(step)
        return dict(found)

    @property
    def drawn(self) -> tuple[tuple[int, ...], ...]:
        """The random states at the steps: what differs here drew other random numbers."""
        return tuple(s.random for s in self.steps)

    @property
    def passes(self) -> int:
        """How much was measured: steps, or backwards where nothing stepped."""
        return len(self.steps) or len(self.backwards)

    def grads(self) -> Iterable[Grad]:
        """Every gradient that a comparison would look at."""
        if self.steps:
            return (g for s in self.steps for g in s.grads)
        return (*(g for b in self.backwards for g in b.grads), *self.leaves.values())

    @cached_property
    def trains(self) -> bool:
        """Whether any gradient is other than zero: what is all zero or None proves nothing."""
        return any(g is not None and g.norm > 0 for g in self.grads())

    @cached_property
    def finite(self) -> bool:
        return all(g is None or g.finite for g in self.grads())


def read(lines: Iterable[Mapping[str, Any]]) -> Measured:
    """The Measured of a run's raw lines."""
    steps: list[Stepped] = []
    backwards: list[Backwarded] = []
    order: list[tuple[str, int]] = []
    rest: dict[str, Any] = {}
    counts: Counter[int] = Counter()
    for line in lines:
        what = line["m"]
        if what == "b":
            order.append(("b", len(backwards)))
            reached = frozenset((o, j) for o, j in line.get("r", ()))
            value = total(v[1] for v in line["v"])
            grads = tuple(map(_vector, line.get("g", ())))
            accumulates = bool(line["a"])
            backwards.append(
                Backwarded(value, accumulates, len(steps), reached, grads, raised=bool(line.get("raised")))
            )
        elif what == "z":
            order.append(("z", line["o"]))
        elif what == "s":
            order.append(("s", line["o"]))
            grads = tuple(map(_vector, line["g"]))
            steps.append(Stepped(line["o"], counts[line["o"]], grads, tuple(line["c"]), tuple(line["rng"])))
            counts[line["o"]] += 1
        elif what == "u" and steps and steps[-1].optimizer == line["o"]:
            more = {"updates": tuple(line["u"]), "buffers": tuple(line["b"]), "state": line["st"]}
            steps[-1] = replace(steps[-1], **more)
        elif what == "l":
            rest["leaves"] = {k: _vector(v) for k, v in line.get("leaves", {}).items()}
            rest["retained"] = {k: _vector(v) for k, v in line.get("retained", {}).items()}
            rest["ended"] = line.get("how", "")
        elif what == "d":
            rest["draws"], rest["writes"] = line["draws"], line["writes"]
    return Measured(tuple(steps), tuple(backwards), tuple(order), **rest)


def _vector(value: Any) -> Grad:
    return None if value is None else Vector(*value)


def head(after: Measured, before: Measured) -> Measured:
    """As much of `after` as was measured of `before`, which broke off, maybe in the middle of a step."""
    done = {k: sum(bool(s.updates) for s in steps) for k, steps in before.by_optimizer.items()}
    steps = tuple(s for s in after.steps if s.updates and s.number < done.get(s.optimizer, 0))
    backwards = after.backwards[: len(before.backwards)]
    return replace(after, steps=steps, backwards=backwards, leaves={})


def aligned(after: Measured, kept: Mapping[int, Sequence[int]]) -> Measured:
    """`after` with only the parameters `kept` of each optimizer (indices, in the order of before)."""
    places = {k: {j: n for n, j in enumerate(which)} for k, which in kept.items()}

    def only(step: Stepped) -> Stepped:
        which = kept.get(step.optimizer)
        if which is None or len(step.grads) <= max(which, default=-1):
            return step
        place = places[step.optimizer]
        return replace(
            step,
            grads=tuple(step.grads[j] for j in which),
            updates=tuple(step.updates[j] for j in which if j < len(step.updates)),
            changed=tuple(place[j] for j in step.changed if j in place),
        )

    backwards = tuple(
        replace(
            b,
            reached=frozenset(
                (k, places[k][j] if k in places else j)
                for k, j in b.reached
                if k not in places or j in places[k]
            ),
        )
        for b in after.backwards
    )
    return replace(after, steps=tuple(map(only, after.steps)), backwards=backwards)


def merged(after: Measured, heirs: Mapping[int, int]) -> Measured:
    """`after` with the steps of each optimizer in `heirs` counted as those of the one whose place it took."""
    counts: Counter[int] = Counter()
    steps = []
    for step in after.steps:
        k = heirs.get(step.optimizer, step.optimizer)
        steps.append(replace(step, optimizer=k, number=counts[k]))
        counts[k] += 1
    backwards = tuple(
        replace(b, reached=frozenset((heirs.get(o, o), j) for o, j in b.reached)) for b in after.backwards
    )
    order = tuple((what, k if what == "b" else heirs.get(k, k)) for what, k in after.order)
    return replace(after, steps=tuple(steps), backwards=backwards, order=order)
