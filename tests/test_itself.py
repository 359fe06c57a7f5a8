"""A target that is the prediction itself: what both emitters tell of it, and what shows once it is another tensor."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix import testing
from gradfix.detect import detect
from gradfix.read import read
from gradfix.result import Settings
from gradfix.tape import Itself

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(5)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(4):
    states, following, rewards = torch.randn(5, 3), torch.randn(5, 3), torch.rand(5)
    q = model(states)
    {target}
    for k in range(5):
        target[k, k % 2] = rewards[k] + 0.9 * {best}
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAIN = {"target": "target = q", "best": "1.5", "loss": "nn.functional.mse_loss(q, target)"}
ALIASES = {
    "name": "target = q",
    "detach": "target = q.detach()",
    "data": "target = q.data",
    "view": "q = q.view(5, 2); target = q",
}
LOSSES = {
    "mse": "nn.functional.mse_loss(target, q)",
    "module": "nn.HuberLoss()(q, target)",
    "named": "nn.functional.smooth_l1_loss(q, target=target, beta=0.5)",
    "squared": "(q - target).pow(2).mean()",
    "summed": "nn.functional.l1_loss(q, target) + q.pow(2).sum()",
}
SOUND = {
    "of its own": PLAIN | {"target": "target = q.detach().clone()"},
    "nothing written": PLAIN
    | {"target": "target = torch.zeros(5, 2)", "loss": "(q - q).pow(2).sum() + q.sum()"},
    "straight through": PLAIN | {"loss": "(q.sign() + target - q).sum() + target.sum()"},
    "part": PLAIN | {"loss": "nn.functional.mse_loss(q[1:], target[:-1])"},
    "turned": PLAIN | {"loss": "nn.functional.mse_loss(q[:2], target[:2].t())"},
}


def found(tape):
    return [(c.pattern, c.at.line) for c in detect(tape) if c.severity != "note"]


@pytest.fixture
def both(run, tmp_path):
    """What is found in a recorded run of a text, and in its reading."""

    def of(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        (reading, *_) = read(path, text)
        return found(run(text, record=True).tape), found(reading.tape)

    return of


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
def test_every_other_name_is_told(alias, both):
    assert both(SCRIPT.format(**PLAIN | {"target": alias})) == ([("itself", 13)], [("itself", 13)])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_every_loss_is_told(loss, both):
    assert both(SCRIPT.format(**PLAIN | {"loss": loss})) == ([("itself", 13)], [("itself", 13)])


@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_what_is_no_target_of_itself_is_not_told(sound, both):
    assert both(SCRIPT.format(**sound)) == ([], [])


def test_the_call_is_told_each_time(run):
    tape = run(SCRIPT.format(**PLAIN), record=True).tape
    assert len({e.node for e in tape.events if isinstance(e, Itself)}) == 3


def test_the_graph_of_what_is_written_shows_behind_it(zygote, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(**PLAIN | {"best": "model(following[k]).max()"}))
    result = testing.one(path, zygote, Settings())
    cures = [(d.conflict.pattern, d.cures[0].codemod, d.cures[0].verdict.status) for d in result.diagnoses]
    assert cures == [("itself", "own-target", "intended"), ("bootstrap", "detach-target", "intended")]
    ((_, new),) = result.files.values()
    assert "target = q.detach().clone()\n" in new
    assert "0.9 * model(following[k]).max().detach()\n" in new


UNDER_NO_GRAD = SCRIPT.replace(
    "    for k in range(5):\n        target[k, k % 2] = rewards[k] + 0.9 * {best}\n",
    "    with torch.no_grad():\n        target[torch.arange(5), 0] = rewards + 0.9 * model(following).max(1).values\n",
)


def test_what_no_graph_knows_of(zygote, both, tmp_path):
    """Under no_grad, the write is in no graph."""
    text = UNDER_NO_GRAD.format(**PLAIN)
    assert both(text) == ([("itself", 13)], [("itself", 13)])
    result = testing.one(tmp_path / "train.py", zygote, Settings())
    assert [(d.cures[0].codemod, d.cures[0].verdict.status) for d in result.diagnoses] == [
        ("own-target", "intended")
    ]
    ((_, new),) = result.files.values()
    assert new == text.replace("target = q\n", "target = q.detach().clone()\n")
    assert both(new) == ([], [])
