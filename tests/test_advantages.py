"""Parts of one pass that are regressed on each other: a fault where their difference is an advantage."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
actor, critic = nn.Linear(3, 2), nn.Linear(3, 1)
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-2)
for _ in range(4):
    states, rewards, going = torch.randn(7, 3), torch.randn(6), torch.ones(6)
    values = critic(states).view(-1)
    chosen = F.log_softmax(actor(states[:-1]), 1)[:, 0]
    target = rewards + 0.9 * {following}
    error = target - values[:-1]
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ATTACHED = {
    "squared": ("values[1:]", "error.pow(2).mean() - (chosen * error.detach()).mean()"),
    "masked": (
        "going * values[1:]",
        "F.smooth_l1_loss(values[:-1], target) - (chosen * error.detach()).sum()",
    ),
    "rolled": ("values.roll(-1)[:-1]", "error.abs().mean() - (chosen * error.data).mean()"),
    "normalised": (
        "values[1:]",
        "error.pow(2).mean() - (chosen * ((error - error.mean()) / (error.std() + 1e-5)).detach()).mean()",
    ),
}
SOUND = {
    "no policy": ("values[1:]", "error.pow(2).mean() + chosen.pow(2).mean()"),
    "detached": ("values[1:].detach()", "error.pow(2).mean() - (chosen * error.detach()).mean()"),
    "other weight": (
        "values[1:]",
        "error.pow(2).mean() - (chosen * (rewards - values[:-1]).detach()).mean()",
    ),
    "no log-probability": (
        "values[1:]",
        "error.pow(2).mean() - (actor(states[:-1])[:, 0] * error.detach()).mean()",
    ),
}


@pytest.fixture
def both(run, tmp_path):
    """The faults of a recorded run of a text, and of its reading."""

    def of(following, loss):
        text = SCRIPT.format(following=following, loss=loss)
        path = tmp_path / "train.py"
        path.write_text(text)
        (reading, *_) = read(path, text)
        tapes = run(text, record=True).tape, reading.tape
        return [[(c.kind, c.pattern) for c in detect(t) if c.severity != "note"] for t in tapes]

    return of


@pytest.mark.parametrize("program", ATTACHED.values(), ids=ATTACHED)
def test_the_target_of_an_advantage_is_attached(program, both):
    assert both(*program) == [[("attached-target", "bootstrap")]] * 2


@pytest.mark.parametrize("program", SOUND.values(), ids=SOUND)
def test_without_an_advantage_nothing_is_told(program, both):
    assert both(*program) == [[], []]
