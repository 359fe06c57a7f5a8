"""Two terms of one loss that pull the same value apart: what is told of them from the text alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

GAN = """\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x, c=1.0, noise=None):
        h = F.leaky_relu(self.first(x), 0.2) * c
        return self.last(h if noise is None else h + noise)


G, D = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)), {critic}
optG, optD = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce, logits, mse = nn.BCELoss(), nn.BCEWithLogitsLoss(), nn.MSELoss()
label, state, noise = torch.ones(8, 2), torch.zeros(8, 2), torch.randn(8, 8)
for step in range(4):
    real, fake = torch.randn(8, 6) + 1, G(torch.randn(8, 4))
    optG.zero_grad()
    optD.zero_grad()
    {losses}
    (loss_d + loss_g).backward()
    {between}
    optD.step()
    optG.step()
"""
LINE = GAN[: GAN.index("(loss_d + loss_g)")].count("\n") + 1
DEEP = "nn.Sequential(nn.Linear(6, 8), {norm}nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 2){last})"
PLAIN, NORMED = DEEP.format(norm="", last=""), DEEP.format(norm="nn.BatchNorm1d(8), ", last="")
PROBABLE = DEEP.format(norm="", last=", nn.Sigmoid()")
WHOLE = "loss_d, loss_g = {on_real} + {on_fake}, {fooled}"


def told(
    tmp_path: Path, losses: str, critic: str = PLAIN, between: str = "pass", zygote: Zygote | None = None
) -> bool:
    """Whether the losses are said to pull apart, of the main part, which is what the run shows."""
    program = tmp_path / "train.py"
    text = GAN.format(critic=critic, losses=losses, between=between)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    found = {
        (c.kind, c.pattern, c.at.line, main.evidence(c)) for c in detect(main.tape) if c.severity != "note"
    }
    if zygote is not None:
        ran = detect(zygote.run(Run(program, tmp_path, tmp_path)).tape)
        assert {(c.kind, c.pattern, c.at.line) for c in ran if c.severity != "note"} == {f[:3] for f in found}
    assert found <= {("mixed-gradient", "opposed", LINE, "certain")}
    return bool(found)


@pytest.mark.parametrize(
    ("critic", "on_real", "on_fake", "fooled"),
    [
        (NORMED, "-D(real).mean()", "D(fake).mean()", "-D(fake).mean()"),
        (PLAIN, "F.relu(1 - D(real)).mean()", "F.relu(1 + D(fake)).mean()", "-torch.mean(D(fake)) / 2"),
        (PLAIN, "F.softplus(-D(real)).mean()", "F.softplus(D(fake)).mean()", "F.softplus(-D(fake)).mean()"),
        (PLAIN, "logits(D(real), label)", "logits(D(fake), torch.zeros_like(label))", "logits(D(fake), label)"),
        (PROBABLE, "mse(D(real), label)", "mse(D(fake), torch.zeros(8, 2))", "mse(D(fake), label)"),
        (PROBABLE, "bce(D(real), label)", "0.5 * bce(D(fake), real.new_zeros(8, 2))", "bce(D(fake), label)"),
        (PROBABLE, "-D(real).log().mean()", "-torch.log(1 - D(fake)).mean()", "-torch.log(D(fake)).mean()"),
        ("Critic()", "-D(real).sum()", "D(fake).sum()", "-D(fake).sum()"),
        ("Critic()", "-D(real).mean()", "D(fake, noise=noise).mean()", "-D(fake, noise=noise).mean()"),
    ],
)  # fmt: skip
def test_two_terms_that_pull_apart(
    tmp_path: Path, zygote: Zygote, critic: str, on_real: str, on_fake: str, fooled: str
) -> None:
    losses = WHOLE.format(on_real=on_real, on_fake=on_fake, fooled=fooled)
    assert told(tmp_path, losses, critic, zygote=zygote)


@pytest.mark.parametrize(
    ("critic", "on_fake", "fooled"),
    [
        (PLAIN, "D(fake.detach()).mean()", "-D(fake).mean()"),
        (PLAIN, "D(fake).mean()", "D(fake).mean()"),
        (PLAIN, "D(fake).mean()", "-D(fake).sum()"),  # (of how many is not asked)
        (PLAIN, "D(fake)[:, 0].mean()", "-D(fake)[:, 1].mean()"),
        (PLAIN, "D(fake).chunk(2, 1)[0].mean()", "-D(fake).chunk(2, 1)[1].mean()"),
        (PLAIN, "D(fake).select(1, 0).mean()", "-D(fake).select(1, 1).mean()"),
        (PLAIN, "D(fake.chunk(2)[0]).mean()", "-D(fake.chunk(2)[1]).mean()"),
        (PLAIN, "D(fake).mean()", "-0.01 * D(fake).mean()"),
        (PLAIN, "D(fake).mean()", "-float(input()) * D(fake).mean()"),
        (PLAIN, "D(fake).mean()", "-(D(fake) * noise[:, :2]).mean()"),
        (PLAIN, "D(fake + torch.randn(8, 6)).mean()", "-D(fake).mean()"),
        (PLAIN, "D(fake + torch.randn(8, 6)).mean()", "-D(fake + torch.randn(8, 6)).mean()"),
        (PLAIN, "D(F.dropout(fake)).mean()", "-D(F.dropout(fake)).mean()"),
        (PLAIN, "logits(D(fake), torch.full((8, 2), 0.1))", "logits(D(fake), torch.full((8, 2), 0.9))"),
        (PLAIN, "logits(D(fake), label * 0)", "logits(D(fake), label)"),
        (PLAIN, "logits(D(fake), torch.rand(8, 2).round())", "logits(D(fake), label)"),
        (PLAIN, "logits(D(fake), state.fill_(1))", "logits(D(fake), label)"),
        (PROBABLE, "F.binary_cross_entropy(D(fake), torch.zeros(8, 2), noise[:, :2])", "bce(D(fake), label)"),
        (PLAIN, "nn.BCEWithLogitsLoss(noise[:, :2])(D(fake), torch.zeros(8, 2))", "logits(D(fake), label)"),
        (PLAIN, "F.gelu(D(fake)).mean()", "-D(fake).mean()"),
        ("Critic()", "D(fake, torch.ones(8)).mean()", "-D(fake, torch.zeros(8)).mean()"),
        ("Critic()", "D(fake, 1.0).mean()", "-D(fake, 2.0).mean()"),
        ("Critic()", "D(fake, noise=noise).mean()", "-D(fake, noise=noise.normal_()).mean()"),
        (DEEP.format(norm="nn.Dropout(0.5), ", last=""), "D(fake).mean()", "-D(fake).mean()"),
    ],
)  # fmt: skip
def test_two_terms_that_may_go_together(tmp_path: Path, critic: str, on_fake: str, fooled: str) -> None:
    losses = WHOLE.format(on_real="-D(real).mean()", on_fake=on_fake, fooled=fooled)
    assert not told(tmp_path, losses, critic)


def test_a_score_that_is_to_be_confused(tmp_path: Path) -> None:
    losses = "loss_d, loss_g = logits(D(fake), label), logits(D(fake), torch.zeros_like(label))"
    assert not told(tmp_path, losses, "Critic()")  # (a run tells of it)


@pytest.mark.parametrize(
    "more", ["", " + 1e-3 * D.first.weight.pow(2).sum()", " + 1e-3 * D.last.weight.abs().mean()"]
)
def test_a_label_that_is_soft(tmp_path: Path, more: str) -> None:
    losses = "loss_d, loss_g = 0.7 * logits(D(fake), label), 0.3 * logits(D(fake), torch.zeros_like(label))"
    assert not told(tmp_path, losses + more, "Critic()")
    both = WHOLE.format(on_real="logits(D(real), label)", on_fake="0.9 * logits(D(fake), label)", fooled="{}")
    smoothed = both.format("0.1 * logits(D(fake), torch.zeros_like(label))")
    assert not told(tmp_path, smoothed + more, "Critic()")


def test_gradients_that_nobody_steps_with(tmp_path: Path) -> None:
    losses = WHOLE.format(on_real="-D(real).mean()", on_fake="D(fake).mean()", fooled="-D(fake).mean()")
    assert told(tmp_path, losses)
    again = "optD.zero_grad(); (D(fake.detach()).mean() - D(real).mean()).backward()"
    assert not told(tmp_path, losses, between=again)


def test_signs_are_known_where_directions_are_not(tmp_path: Path) -> None:
    """What is measured of scores that lie far apart is no direction (the cosine is above the detector's limit)."""
    fooled = "-torch.log(torch.sigmoid(D(fake))).mean()"
    losses = WHOLE.format(on_real="-D(real).mean()", on_fake="F.softplus(D(fake)).mean()", fooled=fooled)
    assert told(tmp_path, losses, NORMED)
