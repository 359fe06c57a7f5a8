"""A policy's ratio to itself: told where both sides are equal each time, as far as rounding lets them be."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix import testing
from gradfix.detect import detect
from gradfix.result import Settings

SCRIPT = """\
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
for _ in range(4):
    states, actions, old = [], [], []
    for _ in range(12):
        state = torch.randn(4)
        distribution = Categorical(logits=policy(state))
        action = distribution.sample()
        states.append(state)
        actions.append(action)
        old.append({kept})
    states, actions = torch.stack(states), torch.stack(actions)
    for _ in range({epochs}):
        new = Categorical(logits=policy(states)).log_prob(actions)
        ratio = {ratio}
        loss = -(ratio * states[:, 0]).mean() + {term}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ROLLOUT = {
    "kept": "distribution.log_prob(action)",
    "epochs": "1",
    "ratio": "torch.exp(new - torch.stack(old))",
    "term": "0",
}
SOUND = {
    "kept as numbers": ROLLOUT | {"kept": "distribution.log_prob(action).detach()"},
    "the graph is the new one's": ROLLOUT | {"ratio": "torch.exp(new - new.detach())"},
    "of another action": ROLLOUT | {"kept": "distribution.log_prob(1 - action)"},
    "no ratio": ROLLOUT | {"ratio": "new - torch.stack(old)", "term": "policy(states).mean()"},
    "of states, not of a policy": ROLLOUT
    | {"kept": "policy(state)[0]", "ratio": "torch.exp(policy(states)[:, 0] - torch.stack(old))"},
}


def found(tape):
    return [(c.kind, c.pattern, c.at.line) for c in detect(tape) if c.severity != "note"]


@pytest.mark.parametrize("term", ["0", "policy(states).pow(2).mean()"])
def test_a_rollout_one_by_one_is_equal_to_its_batch_but_for_rounding(term, run):
    tape = run(SCRIPT.format(**ROLLOUT | {"term": term}), record=True).tape
    assert found(tape) == [("attached-target", "ratio", 20)]


@pytest.mark.parametrize("sound", SOUND.values(), ids=SOUND)
def test_what_is_no_ratio_of_equals_is_not_told(sound, run):
    assert found(run(SCRIPT.format(**sound), record=True).tape) == []


def test_what_fails_in_the_second_epoch_is_told_as_pytorch_says_it(run):
    tape = run(SCRIPT.format(**ROLLOUT | {"epochs": "2"}), record=True).tape
    assert [kind for kind, *_ in found(tape)] == ["freed-graph"]


def test_the_old_ones_are_detached_where_they_are_joined(zygote, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(**ROLLOUT))
    (diagnosis,) = testing.one(path, zygote, Settings()).diagnoses
    told = [(cure.codemod, cure.summary, cure.verdict.status) for cure in diagnosis.cures[:1]]
    assert told == [("detach-target", "detach `torch.stack(old)`", "intended")]
