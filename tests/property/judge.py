"""What gradfix should say of a program, and whether two runs train alike: nothing here is gradfix's own."""

from __future__ import annotations

from collections import defaultdict

import hypothesis
import plain
import reference
import torch
from language import Program

KINDS = frozenset(
    {"stale-saved-tensor", "silent-overwrite", "freed-graph", "leaf-write", "forbidden-view-write"}
)
NOISE, WRONG = 2e-6, 1e-4  # of the largest gradient: below is rounding, above is another gradient
ROUNDING = 1e-7  # a gradient that is no more is zero

Grads = dict[str, torch.Tensor | None]


def fault(program: Program) -> str:
    """``""`` for a sound program, the kind of the fault that plain PyTorch raises, or ``differs``.

    Programs without a meaning, or too near to the border, are assumed away.
    """
    try:
        meant = reference.meaning(program)
    except reference.NoOracle:
        meant = None
    ran = plain.run(program.text(), program.parameters)
    if ran.error is not None:
        hypothesis.assume(ran.kind != "other")
        return ran.kind
    hypothesis.assume(meant is not None)
    assert meant is not None
    assert len(ran.after_backward) == len(meant.after_backward)
    for mine, exact in zip(ran.after_backward, meant.after_backward, strict=True):
        apart = distance(mine, exact)
        hypothesis.assume(not NOISE < apart < WRONG)
        if apart >= WRONG:
            return "differs"
    return ""


def distance(mine: Grads, exact: Grads) -> float:
    """The largest difference between gradients, as a part of the largest gradient; None is zero."""
    norm = max((float(g.norm()) for g in exact.values() if g is not None), default=0.0) or 1.0
    return max((_apart(mine.get(name), grad) / norm for name, grad in exact.items()), default=0.0)


def _apart(mine: torch.Tensor | None, exact: torch.Tensor | None) -> float:
    if mine is None or exact is None:
        one = mine if exact is None else exact
        return 0.0 if one is None else float(one.norm())
    return float((mine - exact).norm())


def alike(ran: plain.Ran, meant: reference.Meaning) -> bool:
    """Whether every optimizer steps with the exact gradients, and all parameters end the same."""
    mine, exact = _by_optimizer(ran.at_step), _by_optimizer(meant.at_step)
    if set(mine) != set(exact) or any(len(mine[k]) != len(exact[k]) for k in exact):
        return False
    if any(distance(a, b) > WRONG for k in exact for a, b in zip(mine[k], exact[k], strict=True)):
        return False
    if not exact and distance(ran.grads, meant.grads) > WRONG:
        return False
    for name, value in meant.values.items():
        apart = (ran.values[name] - value).masked_fill(_by_rounding(name, meant.at_step), 0.0)
        if float(apart.norm()) > 1e-3 * (1.0 + float(value.norm())):
            return False
    return True


def _by_rounding(name: str, steps: list[Grads]) -> torch.Tensor:
    """Where a gradient of the parameter is zero but for rounding, which Adam makes whole steps of."""
    given = [g for step in steps if (g := step.get(name)) is not None]
    return torch.stack([g.abs() < ROUNDING for g in given]).any(0) if given else torch.tensor(False)


def _by_optimizer(steps: list[Grads]) -> dict[frozenset[str], list[Grads]]:
    found = defaultdict(list)
    for step in steps:
        found[frozenset(step)].append(step)
    return dict(found)
