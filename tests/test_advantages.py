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


RECURRENT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(5)
cell, actor, critic = nn.LSTMCell(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)
trained = [*cell.parameters(), *actor.parameters(), *critic.parameters()]
optimizer, hidden = torch.optim.Adam(trained, 1e-2), (torch.zeros(1, 4), torch.zeros(1, 4))
for _ in range(4):
    hidden, steps = tuple(h.detach() for h in hidden), []
    for _ in range(3):
        hidden = cell(torch.randn(1, 3), hidden)
        chosen = F.log_softmax(actor(hidden[0]), 1)[0, 0]
        steps.append((critic(hidden[0]), chosen, {reward}))
    R = following = {last}
    loss, gae = 0, torch.zeros(1, 1)
    for value, chosen, reward in steps[::-1]:
        gae = reward + 0.9 * gae + 0.9 * following{cut} - value{cut}
        R, following = 0.9 * R + reward, value
        loss = loss + {losses}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LAST = "critic(cell(torch.randn(1, 3), hidden)[0])"
BOTH = "(R - value).pow(2).sum() - (chosen * gae).sum()"


@pytest.fixture
def recurrent(run, tmp_path):
    """The same of a recurrent agent."""

    def of(last=LAST, cut=".detach()", losses=BOTH, reward="float(torch.rand(()))"):
        text = RECURRENT.format(last=last, cut=cut, losses=losses, reward=reward)
        path = tmp_path / "train.py"
        path.write_text(text)
        (reading, *_) = read(path, text)
        tapes = run(text, record=True).tape, reading.tape
        return [[(c.kind, c.pattern) for c in detect(t) if c.severity != "note"] for t in tapes]

    return of


@pytest.mark.parametrize("given", [{}, {"cut": ".data"}, {"reward": "torch.rand(())"}], ids=str)
def test_a_return_that_shares_the_state_of_what_it_is_regressed_on(recurrent, given):
    assert recurrent(**given) == [[("attached-target", "return")]] * 2


@pytest.mark.parametrize(
    "given",
    [
        {"last": LAST + ".detach()"},
        {"losses": "(R - value).pow(2).sum() - chosen.sum()"},
        {"losses": "(R.detach() - value).pow(2).sum() - (chosen * gae).sum()"},
    ],
    ids=str,
)
def test_what_is_no_return_or_no_value(recurrent, given):
    assert recurrent(**given) == [[], []]


def test_gradients_that_the_program_hands_on(run, tmp_path):
    """A3C's optimizer has a shared model's parameters, which are given the gradients of the one that was trained."""
    text = RECURRENT.format(last=LAST, cut=".detach()", losses=BOTH, reward="torch.rand(())")
    text = text.replace(
        "torch.optim.Adam(trained,",
        "torch.optim.Adam(shared := [p.detach().clone().requires_grad_() for p in trained],",
    )
    text = text.replace("    optimizer.zero_grad()\n", "    for p in trained:\n        p.grad = None\n")
    handed = "    for p, q in zip(shared, trained):\n        p.grad = q.grad.clone()\n    optimizer.step()\n"
    text = text.replace("    optimizer.step()\n", handed)
    path = tmp_path / "train.py"
    path.write_text(text)
    (reading, *_) = read(path, text)
    for tape in (run(text, record=True).tape, reading.tape):
        assert [(c.kind, c.pattern) for c in detect(tape) if c.severity != "note"] == [
            ("attached-target", "return")
        ]
