"""Losses without a best value in the network that they go through: what the text and the run say of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

AGENT = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
pi, q, other = nn.Linear(3, 2), nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)), nn.Linear(5, 1)
step_pi = torch.optim.Adam(pi.parameters(), lr=1e-3)
step_q = torch.optim.Adam([*q.parameters(), *other.parameters()], lr=1e-3)
for _ in range(4):
    s, y, w = torch.randn(8, 3), torch.randn(8, 1), torch.rand(8, 1)
    seen, tried = torch.cat([s, torch.rand(8, 2)], 1), torch.cat([s, pi(s)], 1)
    step_q.zero_grad()
    step_pi.zero_grad()
    ({own}).backward()
    ({made}).backward()
    step_q.step()
    step_pi.step()
"""
OWN = "F.mse_loss(q(seen), y)"
EVER = "-q(tried).mean()"


def told(tmp_path: Path, zygote: Zygote, own: str, made: str) -> str:
    """What is said of the second loss by the text, which is what the run shows; nothing where nothing is."""
    program, text = tmp_path / "train.py", AGENT.format(own=own, made=made)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    tapes = (main.tape, zygote.run(Run(program, tmp_path, tmp_path)).tape)
    found = [[c for c in detect(tape) if c.severity != "note"] for tape in tapes]
    assert [c.labels for c in found[0]] == [c.labels for c in found[1]]
    assert {(c.kind, c.pattern) for c in found[0]} <= {("mixed-gradient", "flows-back")}
    return " ".join(label.text for c in found[0] for label in c.labels)


@pytest.mark.parametrize(
    ("own", "made", "wanted"),
    [
        (OWN, EVER, "higher"),
        (OWN, "q(tried).squeeze(1).sum() / 8", "lower"),
        ("F.smooth_l1_loss(q(seen).view(-1), y.view(-1))", "(pi(s).pow(2).mean(1, True) - q(tried)).mean()", "higher"),
        (OWN + " + F.mse_loss(other(seen), y)", "-torch.min(q(tried), other(tried)).mean()", "higher"),
        ("(w * (q(seen) - y) ** 2).mean()", EVER, "higher"),
    ],
)  # fmt: skip
def test_a_loss_that_wants_ever_more(
    tmp_path: Path, zygote: Zygote, own: str, made: str, wanted: str
) -> None:
    assert f"wants ever {wanted} values from that model" in told(tmp_path, zygote, own, made)


@pytest.mark.parametrize(
    ("own", "made"),
    [
        (OWN, "(q(tried) - 9).abs().mean()"),
        (OWN, "F.l1_loss(q(tried), y)"),
        (OWN, "nn.L1Loss()(q(tried), y)"),
        (OWN, "-torch.sigmoid(q(tried)).mean()"),
        (OWN, "-(q(tried) * (y - w)).mean()"),
        (OWN, "F.relu(1 - q(tried)).mean()"),
        (OWN, "(torch.sigmoid(q(seen)) * (pi(s) - y).pow(2)).mean()"),
        (OWN, "F.kl_div(pi(s).log_softmax(1), torch.cat([q(seen), other(seen)], 1).softmax(1))"),
        (OWN, "(torch.exp(-q(seen)) * (pi(s) - y).pow(2) + q(seen)).mean()"),
        (OWN + " + (q(seen) * (pi(s) - y).abs()).mean()", "pi(s).pow(2).mean()"),
        (OWN, "-q(tried.detach()).mean() + pi(s).pow(2).mean()"),
        ("-q(seen).mean()", EVER),
        ("F.mse_loss(q(tried), y).detach().requires_grad_()", EVER),
    ],
)
def test_a_loss_that_may_be_meant_for_both(tmp_path: Path, zygote: Zygote, own: str, made: str) -> None:
    assert told(tmp_path, zygote, own, made) == ""
