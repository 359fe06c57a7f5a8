"""Parameters that every loss knows through an op alone whose derivative is zero: which, and which not."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.run import Outcome

LOOP = """
import torch
from torch import nn
a, b, c = nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD([*a.parameters(), *b.parameters(), *c.parameters()], 0.1)
for x in torch.randn(3, 4, 3):
    {prepare}
    hidden = a(x)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "prepare", "lost"),
    [
        ("c(b(hidden).round()).mean() + hidden.pow(2).mean()", "pass", ["b.bias", "b.weight"]),
        ("c(b(hidden).round()).mean()", "a.requires_grad_(False)", ["b.bias", "b.weight"]),
        ("(c(b(hidden)) - c(b(hidden)).round()).pow(2).mean()", "pass", []),
    ],
)
def test_only_what_gets_zeros_is_named(
    run: Callable[..., Outcome], loss: str, prepare: str, lost: list[str]
) -> None:
    """(What another term trains gets more, and what is frozen gets nothing.)"""
    outcome = run(LOOP.format(loss=loss, prepare=prepare), record=True)
    said = [c.message for c in detect(outcome.tape) if c.pattern == "zero-derivative"]
    assert len(said) == bool(lost)
    names = [f"{net}.{part}" for net in "abc" for part in ("bias", "weight")]
    assert [name for name in names if said and f"`{name}`" in said[0]] == lost
