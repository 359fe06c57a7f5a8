"""Gradients that a call turned off for good: when the tape says so."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.tape import Off

TEXT = """\
import torch
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def show(x):
    {off}
    return net(x).sum().item()
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    {train}
    optimizer.step()
    show(x)
"""


@pytest.mark.parametrize(
    "off", ["torch.set_grad_enabled(False)", "x = [torch.autograd.set_grad_enabled(mode=False), x][1]"]
)
def test_a_call_that_nothing_takes_back(run, off):
    tape = run(TEXT.format(off=off, train="loss.backward()"), record=True).tape
    off_events = [e for e in tape.events if isinstance(e, Off)]
    assert {e.stack[-1].line for e in off_events} == {5}
    (conflict,) = detect(tape)
    assert (conflict.kind, conflict.pattern, conflict.at.line) == ("cut-graph", "turned-off", 5)
    assert "turned gradients off" in conflict.message


@pytest.mark.parametrize(
    "off",
    [
        "torch.set_grad_enabled(False).__exit__(None, None, None)",
        "torch.set_grad_enabled(False); torch.set_grad_enabled(True)",
        "with torch.set_grad_enabled(False): net(x)",
        "torch.set_grad_enabled(False)(net)(x)",
    ],
)
def test_what_is_taken_back_is_not_to_blame(run, off):
    train = "loss.detach().backward()"  # refused for another reason
    tape = run(TEXT.format(off=off, train=train), record=True).tape
    assert not [e for e in tape.events if isinstance(e, Off)]
    assert "turned-off" not in {c.pattern for c in detect(tape)}
    tape = run(TEXT.format(off=off, train="loss.backward()"), record=True).tape
    assert not detect(tape)
