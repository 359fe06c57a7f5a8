"""Cures of what trains without a word on nothing, or on too much; and wrong ones that must be refused."""

import pytest

from gradfix.codemod import Effect
from gradfix.edit import Project
from gradfix.prove import Prover, Runner
from gradfix.run import Run

A2C = """\
import torch

torch.manual_seed(0)
actor, critic = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.1)
for x, returns in zip(torch.randn(3, 5, 3), torch.randn(3, 5)):
    pi = torch.distributions.Categorical(logits=actor(x))
    action = pi.sample()
    gain = returns - critic(x).squeeze(1)
    loss = -(pi.log_prob(action) * gain).mean() + gain.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("* gain)", "* gain.detach())", "intended"),
        ("* gain)", "* gain.detach()) * 2", "rejected"),
        ("gain = returns", "gain = 0 * pi.probs.sum() + returns", "rejected"),
        ("squeeze(1)\n", "squeeze(1).detach()\n", "rejected"),  # the critic learns nothing any more
        ("pi.log_prob(action) *", "pi.log_prob(action).detach() *", "rejected"),
        ("+ gain.pow(2)", "+ 0.5 * gain.pow(2)", "rejected"),
    ],
)
def test_only_the_edge_into_the_weight_is_cut(old, new, status, tmp_path, zygote):
    script = tmp_path / "a2c.py"
    script.write_text(A2C, encoding="utf-8")
    prover = Prover(Runner(zygote, Run(script, tmp_path, tmp_path)))
    path = str(script)
    baseline = prover.baseline({path: A2C})
    (conflict,) = baseline.conflicts
    assert conflict.kind == "attached-target"
    assert Project(baseline.tape, {path: A2C}).node(conflict.at)
    after = A2C.replace(old, new, 1)
    assert after != A2C
    verdict = prover.prove(baseline, {path: after}, Effect("cut-target"), conflict)
    assert verdict.status == status, verdict.reason
