"""Several passes for one step: gathered, or each cleared before the next (unreset-grad, cleared-between)."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from gradfix.detect import detect
from gradfix.run import Run
from gradfix.run.zygote import Zygote

PROGRAM = """\
import torch
torch.manual_seed(0)
net, other = torch.nn.Linear(3, 1), torch.nn.Linear(1, 1)
optimizer = torch.optim.{optimizer}(net.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
both = torch.optim.Adam([*net.parameters(), *other.parameters()], lr=0.1)
def loss_of():
    return net(torch.randn(4, 3)).pow(2).mean()
for i in range(24):
"""


def found(tmp_path: Path, zygote: Zygote, body: str, optimizer: str = "SGD") -> list[str]:
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.format(optimizer=optimizer) + indent(dedent(body), "    "))
    tape = zygote.run(Run(program, tmp_path, tmp_path)).tape
    return [c.message for c in detect(tape) if c.severity != "note"]


def test_a_clearing_in_every_pass(tmp_path: Path, zygote: Zygote) -> None:
    body = """
    optimizer.zero_grad()
    loss = loss_of() / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
    """
    (said,) = found(tmp_path, zygote, body)
    assert said.startswith("18 of 24 passes of ")


def test_a_clearing_before_each_loss(tmp_path: Path, zygote: Zygote) -> None:
    """Each loss has a model of its own, and the optimizer has both."""
    body = """
    both.zero_grad(set_to_none={none})
    other(torch.randn(4, 1)).pow(2).mean().backward()
    both.zero_grad(set_to_none={none})
    loss_of().backward()
    both.step()
    """
    for none in (True, False):
        (said,) = found(tmp_path, zygote, body.format(none=none))
        assert said.startswith("`other.weight` and `other.bias` of `both` are never trained"), said


SOUND = {
    "gathered": """
        (loss_of() / 4).backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    """,
    "skipped at first": """
        optimizer.zero_grad()
        loss_of().backward()
        if i > 5:
            optimizer.step()
    """,
    "skipped once": """
        optimizer.zero_grad()
        loss_of().backward()
        if i not in (2, 3):
            optimizer.step()
    """,
    "looked at": """
        for _ in range(3):
            optimizer.zero_grad()
            loss_of().backward()
            size = net.weight.grad.norm()
        optimizer.step()
    """,
    "a part is left as it is": """
        optimizer.zero_grad()
        (net(torch.randn(4, 3)) - 1).pow(2).mean().backward()
        net.bias.grad = None
        optimizer.step()
    """,
    "two losses of one model": """
        both.zero_grad()
        other(net(torch.randn(4, 3))).mean().backward()
        both.zero_grad()
        (other(net(torch.randn(4, 3))) - 1).pow(2).mean().backward()
        both.step()
    """,
    "the other is stepped before": """
        both.zero_grad()
        other(torch.randn(4, 1)).pow(2).mean().backward()
        second.step()
        both.zero_grad()
        loss_of().backward()
        both.step()
    """,
    "seen to now and then": """
        both.zero_grad()
        other(torch.randn(4, 1)).pow(2).mean().backward()
        if i % 2:
            both.zero_grad()
        loss_of().backward()
        both.step()
    """,
    "the norm of the other's": """
        both.zero_grad()
        other(torch.randn(4, 1)).pow(2).mean().backward()
        size = other.weight.grad.norm()
        both.zero_grad()
        loss_of().backward()
        both.step()
    """,
    "a loss of the other's": """
        second.zero_grad()
        other(net(torch.randn(4, 3))).mean().backward()
        second.step()
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    """,
}


@pytest.mark.parametrize("name", SOUND)
def test_passes_that_serve(tmp_path: Path, zygote: Zygote, name: str) -> None:
    assert not [m for m in found(tmp_path, zygote, SOUND[name]) if "for nothing" in m]


def test_a_closure_is_called_as_often_as_the_step_wants(tmp_path: Path, zygote: Zygote) -> None:
    body = """
    def closure():
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        return loss
    optimizer.step(closure)
    """
    assert found(tmp_path, zygote, body, optimizer="LBFGS") == []
