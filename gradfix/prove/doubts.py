"""Why two runs that agree prove less than they seem to, and what differs beside their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradfix.detect import Conflict
from gradfix.prove import words
from gradfix.prove.compare import kept, likeness
from gradfix.prove.effects import Attempt
from gradfix.prove.measured import Measured, Parameter, Stepped, square, total
from gradfix.prove.words import Names
from gradfix.tape import Optimizer, Record, Step, Tape
from gradfix.verdict import Effect

STARVED = 1e-6  # of the pass's gradient: rounding where parts of a loss cancel


def weak(
    attempt: Attempt, before: Measured, now: Measured, after: Measured, oracle: Measured, names: Names
) -> str:
    """Why an equality proves less than it seems to, or ""."""
    raw, mine = likeness(before, oracle), now.by_optimizer
    for k, like in raw.items():
        silent = all(g is None or g.norm == 0 for s in mine.get(k, ()) for g in s.grads)
        if attempt.effects and silent and like.lost:
            return f"{names.optimizer(k)} gets no gradient at all (had one before)"
    starved = _starved(after, oracle)
    cuts = {"cut-round", "cut-own-loss"} & set(attempt.effects)
    if (
        starved
        and attempt.effects
        and not attempt.starves
        and (not cuts or "places" in (attempt.before or {}))
    ):
        return f"the gradient of {names.parameters(*starved)} is zero at every step (was not before)"
    if not attempt.effects and attempt.before is not None:
        lost = next(((k, x.lost) for k, x in likeness(now, oracle).items() if x.lost), None)
        if lost:
            return f"{names.parameters(*lost)} without a gradient (had one before)"
    if {"write", "clips"} & set(attempt.before or {}) and not _as_often(now, before):
        return (
            f"the write is made {sum(now.writes.values())} times, {sum(before.writes.values())} times before"
        )
    if attempt.after is not None and "write" not in attempt.after:
        written = kept(after, oracle, attempt.terms.gains)
        if written is not None:
            return words.differs(written, names)
    if attempt.frozen and "draws" not in (attempt.after or {}):
        still = [b.value for b in now.backwards]
        if len(still) > 1 and still == [b.value for b in after.backwards][: len(still)]:
            return "the steps change no later loss"
    if attempt.frozen:
        free = list(now.backwards)
        dead = _never_given(oracle) if attempt.terms.gains else frozenset()
        for b in before.backwards:
            live = b.reached - dead
            match = next((c for c in free if live <= c.reached and c.accumulates == b.accumulates), None)
            if match is None:
                return "a pass no longer reads the parameters that are trained"
            free.remove(match)
    return ""


def _never_given(run: Measured) -> frozenset[Parameter]:
    """The parameters that have no gradient at any step of their optimizer."""
    counts = {k: max(len(s.grads) for s in steps) for k, steps in run.by_optimizer.items()}
    return frozenset(
        (k, j)
        for k, steps in run.by_optimizer.items()
        for j in range(counts[k])
        if not any(j < len(s.grads) and s.grads[j] is not None for s in steps)
    )


def unmoved(
    effects: Sequence[Effect], conflicts: Sequence[Conflict], before: Measured, after: Measured
) -> str:
    """Why nothing is known of a rewrite that has to do with what steps change, where no step changed anything (a
    warm-up that begins at a learning rate of 0); or "". An op out of place is judged at one and the same parameters."""
    writers = {w for c in conflicts if (w := _stepper(c)) is not None}
    about = writers or set(before.by_optimizer)
    steps = [s for k in about for s in before.by_optimizer.get(k, ()) if any(g and g.norm for g in s.grads)]
    if not steps or any(u[0] > 0 for s in steps for u in s.updates):
        return ""
    if not writers and all(e.kind == "none" for e in effects) and _order(after) == _order(before):
        return ""
    if all(c.pattern == "ratio" for c in conflicts):
        return ""  # (whose gradients cancel, but for rounding)
    return (
        f"none of {len(steps)} steps changed a parameter (is the learning rate still 0?), so what its "
        "updates do to the later losses was not seen; a larger --steps gets to steps that do"
    )


def idle(tape: Tape, before: Measured, after: Measured) -> tuple[int, tuple[int, ...]] | None:
    """(optimizer, its parameters) that every pass uses and that get a gradient before, and after a cut in the first
    passes at most: what they make is used in the pass after alone, and there it is cut off now. A learned first
    state, or an encoder that runs once, is used in the first pass only."""
    made = [e for e in tape.events if isinstance(e, Record)]
    for k, were in before.by_optimizer.items():
        mine = after.by_optimizer.get(k, [])
        optimizer = next((e for e in tape.events if isinstance(e, Optimizer) and e.optimizer == k), None)
        steps = [e.time for e in tape.events if isinstance(e, Step) and e.optimizer == k]
        if optimizer is None or len(were) < 2 or len(mine) < 2 or len(steps) < 2:
            continue
        used = {~p for r in made if steps[0] < r.time < steps[-1] for p in r.parents if p < 0}
        lost = tuple(
            j
            for j, ref in enumerate(optimizer.refs)
            if ref.storage in used and _share(were[1:], j) > STARVED and _share(mine[1:], j) < STARVED
        )
        if lost:
            return k, lost
    return None


def _stepper(conflict: Conflict) -> int | None:
    """The optimizer whose step wrote what the conflict is about."""
    if isinstance(conflict.event, Step) and conflict.kind in ("stale-saved-tensor", "silent-overwrite"):
        return conflict.event.optimizer
    return conflict.write.optimizer if conflict.write is not None else None


def _order(run: Measured) -> list[tuple[str, int]]:
    return [e for e in run.order if e[0] != "z"]


def _starved(after: Measured, before: Measured) -> tuple[int, tuple[int, ...]] | None:
    """(optimizer, its parameters) that have a gradient before and, but for rounding, none at any step after: a
    loss whose parts cancel, as where both sides of a ratio are made anew."""
    for k, were in before.by_optimizer.items():
        mine = after.by_optimizer.get(k, [])
        count = max((len(t.grads) for t in were), default=0)
        lost = [
            j for j in range(count) if mine and _share(were, j) > 10 * STARVED and _share(mine, j) < STARVED
        ]
        if lost:
            return k, tuple(lost)
    return None


def zeros(after: Measured) -> int:
    """How many parameters a loss reaches and, but for rounding, gives no gradient at any step."""
    return sum(map(len, _zero(after).values()))


def cancelled(after: Measured, names: Names) -> tuple[int, tuple[int, ...]] | None:
    """(optimizer, parameters) of a module that a loss reaches and whose every parameter gets nothing but zeros: both
    sides of a ratio are made alike. One zero alone is no sign: a bias before BatchNorm has none."""
    for k, zero in _zero(after).items():
        refs = names.optimizers[k].refs if k in names.optimizers else ()
        owners: dict[str, list[int]] = {}
        for j, ref in enumerate(refs):
            owners.setdefault(ref.name.rpartition(".")[0], []).append(j)
        for owner, whose in owners.items():
            if owner and len(whose) > 1 and set(whose) <= set(zero):
                return k, tuple(whose)
    return None


def _zero(after: Measured) -> dict[int, tuple[int, ...]]:
    found = {}
    for k, steps in after.by_optimizer.items():
        count = max((len(s.grads) for s in steps), default=0)
        reached = [j for j in range(count) if any(j < len(s.grads) and s.grads[j] is not None for s in steps)]
        found[k] = tuple(j for j in reached if _share(steps, j) < STARVED)
    return found


def _share(steps: Sequence[Stepped], j: int) -> float:
    """A parameter's part of an optimizer's gradient, where it is largest."""
    parts = [0.0]
    for s in steps:
        g = s.grads[j] if j < len(s.grads) else None
        whole = math.sqrt(total(square(h.norm) for h in s.grads if h is not None))
        parts.append(g.norm / whole if g is not None and whole else 0.0)
    return max(parts)


def _as_often(now: Measured, before: Measured) -> bool:
    """Whether the write that is left out in both runs is made as often. One that comes behind the last step
    now is cut off by the bound: then a round's worth may be missing."""
    rounds = max(min(map(len, before.by_optimizer.values()), default=1), 1)
    due = now.ended == "steps"
    return bool(before.writes and now.writes) and all(
        count - (math.ceil(count / rounds) if due else 0) <= now.writes.get(what, 0) <= count
        for what, count in before.writes.items()
    )


def drift(after: Measured, before: Measured) -> list[str]:
    """Differences beside the gradients."""
    said = []
    pairs_of = ((after.by_optimizer.get(k, ()), steps) for k, steps in before.by_optimizer.items())
    last = [list(zip(mine, were, strict=False))[-1] for mine, were in pairs_of if mine]
    for i, whose in enumerate(("", "Python's ", "NumPy's ")):
        pairs = ((s.random[i : i + 1], t.random[i : i + 1]) for s, t in last)
        if any(x and y and x != y for x, y in pairs):  # (one that never imported NumPy drew nothing of it)
            said.append(f"the number of {whose}random draws differs")
    if any(_apart(s.buffers, t.buffers) for s, t in last):
        said.append("running statistics differ")
    return said


def _apart(xs: Sequence[Sequence[float]], ys: Sequence[Sequence[float]]) -> bool:
    return len(xs) != len(ys) or any(
        abs(x - y) > 1e-4 * (abs(y) + abs(v[0]))
        for u, v in zip(xs, ys, strict=True)
        for x, y in zip(u, v, strict=True)
    )
