"""Numbers that come back as a term of a loss: what a run and a reading tell of them, and when they keep still."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from test_recorder import record, warm

from gradfix.detect import detect
from gradfix.read import read
from gradfix.tape import Tape

Recorded = Callable[..., Tape]
PROGRAM = """
    import torch
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    old = 1.0
    for i in range(3):
        hidden = net[:2](torch.randn(8, 3))
        fit, size = net[2](hidden).pow(2).mean(), hidden.pow(2).mean()
        number = size.item()
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        old = number
"""


def told(tape: Tape) -> list[str]:
    return [f"{c.pattern} {c.at.line - 1}" for c in detect(tape) if c.severity != "note" and c.at is not None]


@pytest.mark.parametrize(
    "loss",
    [
        "fit + number",
        "number + fit",
        "fit + 0.1 * number / 2",
        "sum([fit, -0.5 * number])",
        "torch.add(fit, 3 * number)",
        "fit + torch.tensor(0.1 * number)",
        "fit.clone().add_(0.1 * number)",
        "torch.stack([fit, torch.tensor(number)]).sum()",
    ],
)
def test_a_number_that_is_a_term(loss: str, record: Recorded, tmp_path: Path) -> None:
    text = PROGRAM.format(loss=loss)
    assert told(record(text)) == ["constant-term 9"]
    script = tmp_path / "read.py"
    script.write_text(dedent(text), encoding="utf-8")
    assert told(read(script, script.read_text(encoding="utf-8"))[0].tape) == ["constant-term 9"]


@pytest.mark.parametrize(
    "loss",
    [
        "fit + size + 0 * number",  # nothing
        "fit + size / number",  # a weight
        "fit * number",
        "fit - number + size",  # its value is a term as well
        "fit + old",  # of the pass before
        "fit + 0.25 * size + 1e-3",  # a constant
        "((hidden - number).exp().sum().log() + number) + fit",  # taken off before
        "fit + (number / fit.item()) * size",
        "(fit + number) ** 2 * 0 + fit",  # no term of the loss
    ],
)
def test_a_number_that_is_meant_as_one(loss: str, record: Recorded, tmp_path: Path) -> None:
    text = PROGRAM.format(loss=loss)
    assert told(record(text)) == []
    script = tmp_path / "read.py"
    script.write_text(dedent(text), encoding="utf-8")
    assert told(read(script, script.read_text(encoding="utf-8"))[0].tape) == []


def test_of_single_precision(record: Recorded) -> None:
    """NumPy rounds each product to single precision: two passes more than one show that it is no chance."""
    text = PROGRAM.replace("number = size.item()", "number = size.detach().numpy()")
    assert told(record(text.format(loss="fit + 0.3 * number"))) == ["constant-term 9"]
    assert told(record(text.format(loss="fit + size + 0.5"))) == []


def test_a_critic_that_only_judges(record: Recorded) -> None:
    """What the critic says of real data is a constant of the generator's loss, and ought to be."""
    assert (
        told(
            record("""
        import torch
        torch.manual_seed(0)
        g, d = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
        og, od = torch.optim.SGD(g.parameters(), 0.1), torch.optim.SGD(d.parameters(), 0.1)
        for i in range(3):
            real, fake = torch.randn(4, 3), g(torch.randn(4, 2))
            od.zero_grad()
            (d(fake.detach()).mean() - d(real).mean()).backward()
            od.step()
            og.zero_grad()
            ((-d(fake)).mean() + d(real).mean().item()).backward()
            og.step()
    """)
        )
        == []
    )
