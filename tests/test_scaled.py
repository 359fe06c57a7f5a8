"""Gradients that a GradScaler has scaled, and divides again before the step: what the step leaves of them weighs
nothing beside those of the next backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

PROGRAM = """\
import torch
from torch.nn.functional import mse_loss

torch.manual_seed(0)
net, other = torch.nn.Linear(3, 2), torch.nn.Linear(2, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
second = torch.optim.SGD(other.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu"{options})
for _ in range(6):
    x = torch.randn(4, 3)
    hidden = net(x)
    scaler.scale(mse_loss(hidden, x[:, :2])).backward()
    {before}
    scaler.step(opt)
    scaler.scale(mse_loss(other(hidden.detach()), x)).backward()
    scaler.step(second)
    scaler.update()
"""


def said(tmp_path: Path, zygote: Zygote, text: str) -> set[tuple[str, str]]:
    """What the text shows, which is what the run does."""
    program = tmp_path / "train.py"
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    tapes = (main.tape, zygote.run(Run(program, tmp_path, tmp_path)).tape)
    found = [{(c.kind, c.pattern, c.at) for c in detect(t) if c.severity != "note"} for t in tapes]
    assert found[0] == found[1]
    return {(kind, pattern) for kind, pattern, _ in found[0]}


@pytest.mark.parametrize(
    "before", ["pass", "scaler.unscale_(opt); torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)"]
)
def test_what_is_left_of_them_is_nothing(tmp_path: Path, zygote: Zygote, before: str) -> None:
    assert said(tmp_path, zygote, PROGRAM.format(options="", before=before)) == set()


def test_a_scaler_that_is_switched_off(tmp_path: Path, zygote: Zygote) -> None:
    text = PROGRAM.format(options=", enabled=False", before="pass")
    assert said(tmp_path, zygote, text) == {("unreset-grad", "never-cleared")}


GAN = """\
import torch
from torch.nn.functional import softplus

torch.manual_seed(0)
G, D = torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optG, optD = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (G, D))
scaler = torch.amp.GradScaler("cpu")
for _ in range(6):
    fake = G(torch.randn(8, 3))
    scaler.scale((softplus(D(fake.detach())) + softplus(-D(torch.randn(8, 4)))).mean()).backward()
    scaler.step(optD)
    optG.zero_grad()
    scaler.scale(softplus(-D(fake)).mean()).backward()
    scaler.step(optG)
    scaler.update()
"""


def test_what_another_loss_adds_is_scaled_as_well(tmp_path: Path, zygote: Zygote) -> None:
    assert said(tmp_path, zygote, GAN) == {("mixed-gradient", "left-over")}
