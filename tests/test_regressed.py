"""Least-squares GANs: a score that two losses regress on two numbers, told from the text and by the run alike."""

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


class Wanted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("good", torch.tensor(1.0))
        self.register_buffer("bad", torch.tensor(0.0))
        self.loss = nn.MSELoss()

    def forward(self, score, real):
        return self.loss(score, (self.good if real else self.bad).expand_as(score))


G = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))
D = nn.Sequential(nn.Linear({width}, 8), nn.LeakyReLU(0.2), nn.Linear(8, 2))
optG, optD = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
mse, wanted = nn.MSELoss(), Wanted()
yes, no, ramp = torch.ones(8, 2), torch.zeros(8, 2), torch.linspace(0, 1, 16).view(8, 2)
for step in range(4):
    z = torch.randn(8, 4)
    real, fake = torch.randn(8, 6) + 1, G(z)
    optG.zero_grad()
    optD.zero_grad()
    {losses}
    optD.step()
    optG.step()
"""
DETACHED = "({}).backward(); ({}).backward()"
CUT = ("D(real)", "D(fake.detach())", "D(fake)", 6)
PAIR = ("D(torch.cat([real, z], 1))", "D(torch.cat([fake.detach(), z], 1))", "D(torch.cat([fake, z], 1))", 10)


def told(tmp_path: Path, zygote: Zygote, losses: str, width: int) -> set[tuple[str, str]]:
    """What the text shows, which is what the run does."""
    program = tmp_path / "train.py"
    text = GAN.format(losses=losses, width=width)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    tapes = (main.tape, zygote.run(Run(program, tmp_path, tmp_path)).tape)
    said = [{(c.kind, c.pattern, c.at) for c in detect(t) if c.severity != "note"} for t in tapes]
    assert said[0] == said[1]
    return {(kind, pattern) for kind, pattern, _ in said[0]}


@pytest.mark.parametrize(("on_real", "on_fake", "fooled", "width"), [CUT, PAIR])
@pytest.mark.parametrize(
    "losses",
    [
        "mse({real}, yes) + mse({fake}, no)|mse({fooled}, yes)",
        "(({real} - 1) ** 2).mean() + ({fake} ** 2).mean()|((1 - {fooled}) ** 2).mean()",
        "({real} - yes).pow(2).mean() + torch.square({fake} + 1).mean()|0.5 * ({fooled} - yes).pow(2).mean()",
        "wanted({real}, True) + wanted({fake}, False)|2 * wanted({fooled}, True) + F.l1_loss(fake, real)",
        "F.mse_loss({real}, torch.full((8, 2), 0.9)) + F.mse_loss({fake}, torch.zeros_like(no))|mse({fooled}, yes)",
    ],
    ids=["loss", "squares", "tensors", "module", "smoothed"],
)  # fmt: skip
def test_one_score_and_two_numbers(
    tmp_path: Path, zygote: Zygote, losses: str, on_real: str, on_fake: str, fooled: str, width: int
) -> None:
    both = DETACHED.format(*losses.format(real=on_real, fake=on_fake, fooled=fooled).split("|"))
    assert told(tmp_path, zygote, both, width) == {("mixed-gradient", "flows-back")}


@pytest.mark.parametrize(
    ("losses", "pattern"),
    [
        ("(mse(D(real), yes) + mse(D(fake), no) + mse(D(fake), yes)).backward()", "opposed"),
        (
            "s = D(fake); (mse(D(real), yes) + s.pow(2).mean()).backward(retain_graph=True); mse(s, yes).backward()",
            "flows-back",
        ),
    ],
)
def test_with_its_graph_in_both(tmp_path: Path, zygote: Zygote, losses: str, pattern: str) -> None:
    assert told(tmp_path, zygote, losses, 6) == {("mixed-gradient", pattern)}


@pytest.mark.parametrize(
    "losses",
    [
        # sound: D's gradient is cleared, or nothing wants the score elsewhere
        DETACHED.format("mse(D(fake), yes)", "mse(D(real), yes) + mse(D(fake.detach()), no)").replace(
            ";", "; optD.zero_grad();"
        ),
        DETACHED.format("mse(D(real), yes) + mse(D(fake.detach()), yes)", "mse(D(fake), yes)"),
        # supervised: what the two are regressed on is no one number
        DETACHED.format("mse(D(real), yes) + mse(D(fake.detach()), ramp)", "mse(D(fake), yes)"),
        DETACHED.format("mse(D(real), ramp) + mse(D(fake.detach()), ramp)", "mse(D(fake), ramp)"),
        # two heads
        DETACHED.format("mse(D(real), no) + (D(fake.detach())[:, 0] ** 2).mean()", "((D(fake)[:, 1] - 1) ** 2).mean()"),
        # a regulariser
        DETACHED.format("mse(D(real), yes) + 0.01 * mse(D(fake.detach()), no)", "mse(D(fake), yes)"),
        # another pair
        DETACHED.format("mse(D(real), yes) + mse(D(fake.detach().flip(0)), no)", "mse(D(fake), yes)"),
    ],
)  # fmt: skip
def test_that_may_be_meant(tmp_path: Path, zygote: Zygote, losses: str) -> None:
    assert told(tmp_path, zygote, losses, 6) == set()


def test_not_the_same_pair(tmp_path: Path, zygote: Zygote) -> None:
    other = "mse(D(torch.cat([z, fake.detach()], 1)), no)"
    losses = DETACHED.format(
        f"mse(D(torch.cat([real, z], 1)), yes) + {other}", "mse(D(torch.cat([fake, z], 1)), yes)"
    )
    assert told(tmp_path, zygote, losses, 10) == set()


@pytest.mark.parametrize(("wanted", "found"), [("no", {("mixed-gradient", "opposed")}), ("yes", set())])
def test_data_and_fakes_in_one_batch(
    tmp_path: Path, zygote: Zygote, wanted: str, found: set[tuple[str, str]]
) -> None:
    """The gradient of the data's part of the batch, which has no graph, says nothing of what the fakes are pulled to;
    the text says nothing of it, either way."""
    of_d, of_g = f"bce(s, torch.cat([yes, {wanted}]))", "bce(s[8:], yes)"
    losses = f"bce, s = nn.BCEWithLogitsLoss(), D(torch.cat([real, fake])); ({of_d} + {of_g}).backward()"
    program = tmp_path / "train.py"
    program.write_text(GAN.format(losses=losses, width=6), encoding="utf-8")
    tape = zygote.run(Run(program, tmp_path, tmp_path)).tape
    assert tape is not None
    assert {(c.kind, c.pattern) for c in detect(tape) if c.severity != "note"} == found
