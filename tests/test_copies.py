"""An optimizer without a single gradient: each loss trains copies, which an inner update has changed off the graph.
What takes the copies' gradients, or what is updated otherwise, is left alone."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.run import Outcome

HEAD = """
import copy
import torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 2):
    fast = copy.deepcopy(net)
    inner = (fast(x) - 1).pow(2).mean()
    gradients = torch.autograd.grad(inner, fast.parameters())
"""
BY_DATA = "for p, g in zip(fast.parameters(), gradients): p.data -= 0.1 * g"
UNDER_NO_GRAD = "with torch.no_grad(): [p.sub_(0.1 * g) for p, g in zip(fast.parameters(), gradients)]"
OUTER = "loss = (fast(x) - 1).pow(2).mean(); optimizer.zero_grad(); loss.backward()"
FIRST_ORDER = "for p, q in zip(net.parameters(), fast.parameters()): p.grad = q.grad.clone()"
TOWARDS = "for p, q in zip(net.parameters(), fast.parameters()): p.data.add_(q.data - p.data, alpha=0.5)"
ON_ITS_WAY = (
    "fast = {n: p - 0.1 * g for (n, p), g in zip(net.named_parameters(), gradients)}",
    "loss = (torch.func.functional_call(net, fast, (x,)) - 1).pow(2).mean(); optimizer.zero_grad(); loss.backward()",
)


def found(outcome: Outcome) -> list[tuple[str, str]]:
    return [(c.kind, c.pattern) for c in detect(outcome.tape) if c.severity != "note"]


@pytest.mark.parametrize("update", [BY_DATA, UNDER_NO_GRAD])
@pytest.mark.parametrize("halves", [1, 2])
def test_updated_copies_keep_the_gradients_from_the_model(
    run: Callable[..., Outcome], update: str, halves: int
) -> None:
    lines = [update, OUTER, "optimizer.step()"]
    if halves == 2:
        other = "other = copy.deepcopy(net); [p.data.mul_(0.9) for p in other.parameters()]"
        lines = [update, other, OUTER.replace("loss = ", "loss = other(x).mean() + "), "optimizer.step()"]
    outcome = run(HEAD + "".join(f"    {line}\n" for line in lines), record=True)
    assert found(outcome) == [("cut-graph", "updated-copies")]
    conflict = next(c for c in detect(outcome.tape) if c.severity != "note")
    assert conflict.label("cut").at.line == 1 + HEAD.count("\n")


@pytest.mark.parametrize(
    "lines",
    [
        (BY_DATA, OUTER, FIRST_ORDER, "optimizer.step()"),
        (BY_DATA, OUTER, TOWARDS),
        (*ON_ITS_WAY, "optimizer.step()"),
    ],
)
def test_gradients_that_find_their_way_are_sound(run: Callable[..., Outcome], lines: tuple[str, ...]) -> None:
    assert found(run(HEAD + "".join(f"    {line}\n" for line in lines), record=True)) == []
