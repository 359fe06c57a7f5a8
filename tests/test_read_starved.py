"""A learner's class by itself, which nobody makes an object of: what its update steps without a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.check import check_text
from gradfix.detect import detect
from gradfix.read import read
from gradfix.result import Settings
from gradfix.source import Source

LEARNER = """\
import numpy as np
import torch
from torch import nn

class Learner:
    def __init__(self, states, actions, memory):
        self.actor = nn.Linear(states, actions)
        self.critic = nn.Linear(states, 1)
        self.actor_optim = torch.optim.Adam(self.actor.parameters())
        self.critic_optim = torch.optim.Adam(self.critic.parameters())
        self.memory = memory
        self.turn = 0

    def best(self, scores):
        mask = np.zeros(scores.shape)
        for i in range(len(scores)):
            mask[i, np.argsort(scores[i])[-2:]] = 1
        return mask

    def update(self):
        states, following, rewards = (torch.from_numpy(a).float() for a in self.memory.sample())
        self.turn += 1
        {early}
        target = rewards + 0.9 * self.critic(self.actor(following).detach()).detach()
        {critic}.zero_grad()
        nn.functional.mse_loss(self.critic(states), target).backward()
        {between}
        {clear}
        chosen = {chosen}
        loss = -self.critic(chosen).mean()
        if {test}:
            loss.backward()
        self.actor_optim.step()
        {late}
"""
PARTS = {
    "early": "pass",
    "critic": "self.critic",
    "between": "self.critic_optim.step()",
    "clear": "self.actor_optim.zero_grad()",
    "chosen": "torch.from_numpy(self.best(self.actor(states).detach().numpy())).float()",
    "test": "True",
    "late": "pass",
}


def told(tmp_path: Path, parts: dict[str, str]) -> set[tuple[str, str]]:
    text = LEARNER.format(**PARTS | parts)
    readings = read(tmp_path / "learner.py", text)
    return {(c.kind, c.pattern) for r in readings for c in detect(r.tape) if c.severity != "note"}


@pytest.mark.parametrize("clear", ["self.actor_optim.zero_grad()", "self.actor.zero_grad()"])
def test_a_loss_for_nobody_before_a_step_without_a_gradient(tmp_path: Path, clear: str) -> None:
    assert told(tmp_path, {"clear": clear}) == {("cut-graph", "dead-parameter")}


@pytest.mark.parametrize(
    "parts",
    [
        {"chosen": "self.actor(states)"},
        {"clear": "pass"},  # somebody else may fill them
        {"clear": "self.actor_optim.zero_grad(); self.memory.prepare(self.actor)"},
        {"test": "self.turn % 2 == 0"},  # another pass has a gradient
        # the loss before the step is the critic's, and the actor's own comes in other passes
        {
            "early": "self.actor_optim.zero_grad()",
            "between": "pass",
            "clear": "pass",
            "chosen": "self.actor(states)",
            "test": "self.turn % 2 == 0",
            "late": "self.critic_optim.step()",
        },
    ],
)
def test_a_step_that_may_have_a_gradient(tmp_path: Path, parts: dict[str, str]) -> None:
    assert told(tmp_path, parts) == set()


def test_nothing_is_offered_for_an_array_that_a_function_gives(tmp_path: Path) -> None:
    text = LEARNER.format(
        **PARTS | {"chosen": "torch.from_numpy(self.best(as_array(self.actor(states)))).float()"}
    )
    text += "\ndef as_array(x):\n    return x.cpu().detach().numpy() if x.is_cuda else x.detach().numpy()\n"
    path = tmp_path / "learner.py"
    (result,) = check_text(Source(path, text.encode(), text), Settings())
    assert [(d.conflict.pattern, d.cures) for d in result.diagnoses] == [("dead-parameter", ())]
