"""Two runs as they were measured: do they train the same, and if not, where and by how much do they differ?

Most comparisons end with two equal strings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradfix.prove.measured import Grad, Measured, Stepped, square, total

RTOL = 1e-4  # of a tensor's own norm
ATOL = 1e-6  # of the pass's largest gradient: a bias before BatchNorm has gradient 0 and rounding noise
STATE = 1e-3  # of a state tensor's norm: squared averages double an error
UPDATE = 0.05  # Adam makes rounding noise of tiny elements into whole steps; lr=0 is another size altogether


@dataclass(frozen=True, slots=True)
class Difference:
    """The first thing in which two runs differ. `what`: ``steps``, ``parameters``, ``lost``, ``gained``,
    ``gradient``, ``update``, ``state``, ``kept``, ``loss``, ``finite``, ``nothing``, ``leaves``."""

    what: str
    step: int = 0
    optimizer: int | None = None
    parameters: tuple[int, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a comparison asks for. `cut`: zero and None are the same (detach leaves None).
    `losses`: the losses agree too. `gains`: a parameter without a gradient may get one.
    `still`: parameters are put back after each step, so what else writes them can't be told.
    `ends`: without an optimizer, the gradients that are left at the end agree, too."""

    cut: bool = False
    losses: bool = True
    gains: bool = False
    still: bool = False
    ends: bool = True


STRICT = Terms()


def difference(
    after: Measured, before: Measured, terms: Terms = STRICT, whole: Measured | None = None
) -> Difference | None:
    """The first difference between the two runs, None where they train the same. `whole` is the run after with what its
    optimizers hold besides, which may be all that trains."""
    if not after.finite or not before.finite:
        return Difference("finite", detail="gradients that are not finite prove nothing")
    if not before.passes:
        return Difference("nothing", detail="nothing was measured before")
    if not after.passes:
        return Difference(
            "steps", detail=f"no {'step' if before.steps else 'backward'} after, {before.passes} before"
        )
    found = _steps(after, before, terms) if before.steps else _leaves(after, before, terms)
    if found is None and terms.losses:
        found = _losses(after, before, terms.gains)
    if found is None and not ((whole or after).trains and (before.trains or terms.gains)):
        return Difference("nothing", detail="every gradient is zero or None, which proves nothing")
    return found


def kept(after: Measured, before: Measured, gains: bool = False) -> Difference | None:
    """Where something beside the optimizers writes parameters between steps, otherwise than before; with `gains`, what
    had no gradient before, and was of no use, may be written."""
    for k, were in before.by_optimizer.items():
        for s, t in zip(after.by_optimizer.get(k, ()), were, strict=False):
            apart = set(s.changed) ^ set(t.changed)
            if gains:
                apart = {j for j in apart if j < len(t.grads) and t.grads[j] is not None}
            if apart:
                return Difference("kept", t.number, k, tuple(sorted(apart)))
    return None


def _steps(after: Measured, before: Measured, terms: Terms) -> Difference | None:
    mine, theirs = after.by_optimizer, before.by_optimizer
    if set(mine) != set(theirs):
        lost = sorted(set(theirs) - set(mine)) or sorted(set(mine) - set(theirs))
        said = "never steps" if set(theirs) - set(mine) else "steps and did not before"
        return Difference("steps", optimizer=lost[0], detail=said)
    lacking = _round(before) if after.ended == before.ended == "steps" else 0
    for k, were in theirs.items():
        if abs(len(mine[k]) - len(were)) > lacking * len(were):
            return Difference("steps", optimizer=k, detail=f"{len(mine[k])} steps, {len(were)} before")
    for s, t in sorted(
        ((s, t) for k, were in theirs.items() for s, t in zip(mine[k], were, strict=False)),
        key=lambda pair: (pair[1].number, pair[1].optimizer),
    ):
        found = _step(s, t, terms)
        if found is not None:
            return found
    return None


def _round(before: Measured) -> float:
    """The part of a run that its last round is. The bound ends a run in the middle of it: where the order of the steps
    is another, what comes behind the last one that was waited for is cut off."""
    return 1 / max(min(map(len, before.by_optimizer.values())), 1)


def _step(s: Stepped, t: Stepped, terms: Terms) -> Difference | None:
    k = t.optimizer
    if len(s.grads) != len(t.grads):
        return Difference(
            "parameters", t.number, k, detail=f"{len(s.grads)} parameters, {len(t.grads)} before"
        )
    noise = noise_of(t.grads)
    pairs = list(enumerate(zip(s.grads, t.grads, strict=True)))
    lost = tuple(
        j for j, (g, h) in pairs if g is None and h is not None and not (terms.cut and h.norm <= noise)
    )
    if lost:
        return Difference("lost", t.number, k, lost)
    gained = tuple(
        j for j, (g, h) in pairs if h is None and g is not None and not (terms.cut and g.norm <= noise)
    )
    if gained and not terms.gains:
        return Difference("gained", t.number, k, gained)
    new = {j for j, (_, h) in pairs if terms.gains and h is not None and h.norm == 0}
    wrong = tuple(
        j for j, (g, h) in pairs if g is not None and h is not None and j not in new and not same(g, h, noise)
    )
    if wrong:
        starved = tuple(j for j in wrong if s.grads[j].norm == 0)  # type: ignore[union-attr]
        if starved:
            return Difference("lost", t.number, k, starved)
        off = off_by((s.grads[j], t.grads[j]) for j in wrong)
        return Difference("gradient", t.number, k, wrong, f"off by {off:.2g} of its norm")
    if s.changed != t.changed and not terms.still:
        return Difference("kept", t.number, k, tuple(sorted(set(s.changed) ^ set(t.changed))))
    floor = 1e3 * noise
    for j, (u, v) in enumerate(zip(s.updates, t.updates, strict=False)):
        g = t.grads[j]
        if g is not None and g.norm > floor and abs(u[0] - v[0]) > UPDATE * v[0]:
            return Difference("update", t.number, k, (j,), f"update of norm {u[0]:.3g}, {v[0]:.3g} before")
    if terms == STRICT:
        apart = [key for key in {**t.state, **s.state} if _apart(s.state.get(key, ()), t.state.get(key, ()))]
        if apart:
            return Difference("state", t.number, k, detail=", ".join(f"`{key}`" for key in apart))
    return None


def _apart(xs: Sequence[float], ys: Sequence[float]) -> bool:
    """Whether the norms of one kind of state differ by more than rounding."""
    noise = ATOL * max((y for y in ys if math.isfinite(y)), default=0.0)
    return len(xs) != len(ys) or any(not abs(x - y) <= STATE * y + noise for x, y in zip(xs, ys, strict=True))


def _leaves(after: Measured, before: Measured, terms: Terms) -> Difference | None:
    """Without an optimizer: every backward, then what the script's globals hold."""
    noise = noise_of(before.grads())

    def alike(xs: Sequence[Grad], ys: Sequence[Grad]) -> bool:
        if terms.cut:
            xs, ys = [x for x in xs if x and x.norm > noise], [y for y in ys if y and y.norm > noise]
        ok = len(xs) == len(ys) and all(map(lambda x, y: same(x, y, noise), xs, ys))
        return ok or (len(xs) == len(ys) and _multiset(xs, ys, noise))

    shared = [name for name in before.leaves if name in after.leaves and terms.ends]
    # what is a leaf now is cleared behind its update; another name of the first one has kept its first gradient before
    filled = len(after.backwards) == len(before.backwards) and all(
        len(b.grads) >= len(c.grads) for b, c in zip(after.backwards, before.backwards, strict=True)
    )
    for name in shared:
        g, h = after.leaves[name], before.leaves[name]
        if g is None and terms.gains and filled:
            continue
        if h is not None and g is None and not (terms.cut and h.norm <= noise):
            return Difference("lost", detail=name)
        if not same(g, h, noise) and not (terms.gains and h is None) and not terms.cut:
            return Difference("leaves", detail=f"{name}: {_said(g, h)}")
    if len(after.backwards) != len(before.backwards):
        if not shared:
            detail = f"{len(after.backwards)} backwards, {len(before.backwards)} before"
            return Difference("steps", detail=detail)
    elif not terms.gains:
        for k, (b, c) in enumerate(zip(after.backwards, before.backwards, strict=True)):
            if not alike(b.grads, c.grads):
                return Difference("leaves", k, detail=f"the gradients of backward {k + 1}")
    if (
        terms.ends
        and set(after.leaves) != set(before.leaves)
        and not alike(list(after.leaves.values()), list(before.leaves.values()))
    ):
        names = sorted(n for n in before.leaves if n not in after.leaves and before.leaves[n] is not None)
        if names:
            return Difference("lost", detail=", ".join(names[:3]))
    return None


def _losses(after: Measured, before: Measured, more: bool) -> Difference | None:
    """Backwards may change order and number: their values agree as a multiset, else their sum; with `more`
    there may be further backwards after, and where the bound ended both runs, behind the last step of either."""
    mine = [b.value for b in after.backwards if b.accumulates]
    theirs = [b.value for b in before.backwards if b.accumulates and not b.raised]
    scale = max((abs(x) for x in theirs), default=0.0)
    if len(mine) == len(theirs) and all(
        _near(x, y, scale) for x, y in zip(sorted(mine), sorted(theirs), strict=True)
    ):
        return None
    if _near(total(mine), total(theirs), scale * max(len(theirs), 1)):
        return None
    if more and all(any(_near(x, y, scale) for x in mine) for y in theirs):
        return None
    if after.ended == before.ended == "steps" and _cut_off(mine, theirs, scale, before):
        return None
    first = next(
        (n for n, (x, y) in enumerate(zip(mine, theirs, strict=False)) if not _near(x, y, scale)), None
    )
    if first is None:
        return Difference("loss", detail=f"{len(mine)} losses, {len(theirs)} before")
    shown = [", ".join(f"{x:.8g}" for x in xs[first : first + 4]) for xs in (mine, theirs)]
    begun = f" from backward {first + 1} on" if first else ""
    return Difference("loss", detail=f"losses{begun} {shown[0]}; before {shown[1]}")


def _cut_off(mine: Sequence[float], theirs: Sequence[float], scale: float, before: Measured) -> bool:
    """Whether one run has all the losses of the other, and besides at most some of the last round: the bound ended the
    other before them, where a step is made earlier or later in the round."""
    fewer, longer = sorted((mine, theirs), key=len)
    more, left = len(longer) - len(fewer), list(longer)
    for x in fewer:
        match = next((n for n, y in enumerate(left) if _near(x, y, scale)), None)
        if match is None:
            return False
        del left[match]
    last = longer[-more - len(before.by_optimizer) :]
    return more <= _round(before) * len(longer) and all(y in last for y in left)


def same(g: Grad, h: Grad, noise: float) -> bool:
    """Equal within tolerance; None equals None only."""
    if g is None or h is None:
        return g is None and h is None
    if g.data == h.data and g.kind == h.kind:
        return True
    if abs(g.norm - h.norm) > noise + RTOL * h.norm or abs(g.sum - h.sum) > noise + RTOL * max(
        abs(h.sum), h.norm
    ):
        return False
    # two noises may point apart; a sketch's distance has a relative error of a few percent
    return g.distance(h) <= 2 * noise + RTOL * h.norm * (1.1 if g.kind == "cs" else 1.0)


def noise_of(grads: Iterable[Grad]) -> float:
    """What counts as rounding beside the largest of these gradients."""
    return ATOL * max((g.norm for g in grads if g is not None and g.finite), default=0.0)


def _multiset(xs: Sequence[Grad], ys: Sequence[Grad], noise: float) -> bool:
    left = list(ys)
    for x in xs:
        match = next((k for k, y in enumerate(left) if same(x, y, noise)), None)
        if match is None:
            return False
        del left[match]
    return True


def _near(x: float, y: float, scale: float) -> bool:
    return math.isfinite(x) and math.isfinite(y) and abs(x - y) <= 1e-5 * scale + 1e-12


def told_apart(x: float, y: float) -> tuple[str, str]:
    """Two numbers with as many digits as tell them apart."""
    said = f"{x:.3g}", f"{y:.3g}"
    for digits in range(4, 12):
        if said[0] != said[1]:
            break
        said = f"{x:.{digits}g}", f"{y:.{digits}g}"
    return said


def off_by(pairs: Iterable[tuple[Grad, Grad]]) -> float:
    """How far the first of each pair are from the second, beside the norm of those."""
    apart = norm = 0.0
    for g, h in pairs:
        if g is not None and h is not None:
            apart, norm = apart + square(g.distance(h)), norm + square(h.norm)
    return math.sqrt(apart / norm) if norm else math.inf


def _said(g: Grad, h: Grad) -> str:
    """A gradient and that of before in words."""
    if g is None or h is None:
        now, was = ("no gradient" if x is None else f"norm {x.norm:.4g}" for x in (g, h))
    elif abs(g.norm - h.norm) > RTOL * h.norm:
        now, was = (f"norm {x}" for x in told_apart(g.norm, h.norm))
    else:
        return f"the norm of before, {h.norm:.4g}, but off by {off_by([(g, h)]):.2g} of it"
    return f"{now}, {was} before"


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like one optimizer's gradients are in two runs, over all their common steps."""

    cosine: float
    ratio: float
    lost: tuple[int, ...]  # parameters that had a gradient and have none
    gained: tuple[int, ...]  # parameters that had none and have one
    steps: int
    off: float = 0.0  # how far the worst of those that disagree is from its own, beside the norm of that

    @property
    def equal(self) -> bool:
        alike = self.cosine > 1 - 1e-7 and abs(self.ratio - 1) < RTOL
        return alike and not self.off and not self.lost and not self.gained


def likeness(after: Measured, before: Measured) -> dict[int, Likeness]:
    """Per optimizer, cosine and norm ratio of the gradients after to those before."""
    found = {}
    for k, were in before.by_optimizer.items():
        mine = after.by_optimizer.get(k, [])
        dot = a = b = 0.0
        lost: set[int] = set()
        gained: set[int] = set()
        off = 0.0
        for s, t in zip(mine, were, strict=False):
            noise = noise_of(t.grads)
            for j, (g, h) in enumerate(zip(s.grads, t.grads, strict=False)):
                a += square(g.norm) if g else 0.0
                b += square(h.norm) if h else 0.0
                if g and h:
                    if not same(g, h, noise):
                        off = max(off, off_by([(g, h)]))
                    dot += square(h.norm) if g.data == h.data else g.dot(h)
                if h and h.norm > noise and not (g and g.norm > 0):
                    lost.add(j)
                if g and g.norm > noise and not (h and h.norm > 0):
                    gained.add(j)
        cosine = dot / math.sqrt(a * b) if a and b else math.nan
        found[k] = Likeness(
            cosine,
            math.sqrt(a / b) if b else math.nan,
            tuple(sorted(lost)),
            tuple(sorted(gained)),
            len(were),
            off,
        )
    return found
