"""Whole scripts: faults of which one has to be cured first, and trainers whose networks stand under keys."""

from pathlib import Path

import pytest

from gradfix import testing
from gradfix.result import Settings
from gradfix.run.zygote import Zygote

NEVER_CLEARED = """\
import torch
from torch import nn


class GAN:
    def __init__(self):
        self.netG = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 8))
        self.netD = nn.Sequential(nn.Linear(8, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
        self.optG = torch.optim.Adam(self.netG.parameters(), 2e-4, betas=(0.5, 0.999))
        self.optD = torch.optim.Adam(self.netD.parameters(), 2e-4, betas=(0.5, 0.999))
        self.criterion = nn.BCEWithLogitsLoss()

    def step_D(self, real, fake):
        self.optD.zero_grad()
        loss = self.criterion(self.netD(real), torch.ones(len(real), 1))
        loss = loss + self.criterion(self.netD(fake), torch.zeros(len(fake), 1))
        loss.backward()
        self.optD.step()

    def step_G(self, fake):
        loss = self.criterion(self.netD(fake), torch.ones(len(fake), 1))
        loss.backward()
        self.optG.step()

    def train(self, real):
        fake = self.netG(torch.randn(len(real), 5))
        self.step_D(real, fake)
        self.step_G(fake)


torch.manual_seed(4)
gan = GAN()
for _ in range(5):
    gan.train(torch.randn(6, 8))
"""

OF_THE_TARGET = """\
import copy

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.target = copy.deepcopy(self.critic)
        self.opt_actor = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.opt_critic = torch.optim.Adam(self.target.parameters(), lr=1e-3)

    def update(self, seen, done, reward, then):
        with torch.no_grad():
            aim = reward + 0.9 * self.target(torch.cat([then, self.actor(then)], 1))
        loss_critic = (self.critic(torch.cat([seen, done], 1)) - aim).pow(2).mean()
        self.opt_critic.zero_grad()
        loss_critic.backward()
        self.opt_critic.step()
        loss_actor = -self.critic(torch.cat([seen, self.actor(seen)], 1)).mean()
        loss_actor.backward()
        self.opt_actor.step()
        for kept, new in zip(self.target.parameters(), self.critic.parameters()):
            kept.data.copy_(0.95 * kept.data + 0.05 * new.data)


torch.manual_seed(13)
agent = Agent()
for _ in range(5):
    agent.update(torch.randn(6, 3), torch.rand(6, 1), torch.randn(6, 1), torch.randn(6, 3))
"""

ONE_SCORE = """\
import torch
from torch import nn

torch.manual_seed(8)
G = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
D = nn.Sequential(nn.Linear(2, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
step_g, step_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce, far = nn.BCEWithLogitsLoss(), nn.L1Loss()
yes, no = torch.ones(9, 1), torch.zeros(9, 1)
for real in torch.randn(3, 9, 2):
    fake = G(torch.randn(9, 3))
    score = D(fake.detach())
    loss_d = bce(D(real), yes) + bce(score, no)
    step_d.zero_grad()
    loss_d.backward({retain})
    step_d.step()
    loss_g = bce(score, yes){more}
    step_g.zero_grad()
    loss_g.backward()
    step_g.step()
"""

LEAST_SQUARES = """\
import torch
from torch import nn


class Trainer:
    def __init__(self):
        self.nets = {
            "G": nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)),
            "D": nn.Sequential(nn.Linear(5, 8), nn.LeakyReLU(0.2), nn.utils.spectral_norm(nn.Linear(8, 1))),
        }
        self.steps = {k: torch.optim.Adam(net.parameters(), lr=1e-3) for k, net in self.nets.items()}
        self.loss = nn.MSELoss()

    def forward(self, given):
        self.fake = self.nets["G"](given)

    def judged(self, given, made, good):
        score = self.nets["D"](torch.cat((made, given), 1))
        return self.loss(score, torch.tensor(float(good)).expand_as(score))

    def fit(self, given, real):
        self.forward(given)
        for optimizer in self.steps.values():
            optimizer.zero_grad()
        (self.judged(given, self.fake.detach(), False) + self.judged(given, real, True)).backward()
        (self.judged(given, self.fake, True) + (self.fake - real).abs().mean()).backward()
        for optimizer in self.steps.values():
            optimizer.step()


torch.manual_seed(6)
trainer = Trainer()
for _ in range(4):
    trainer.fit(torch.randn(6, 3), torch.randn(6, 2))
"""


def cured(text: str, folder: Path, zygote: Zygote) -> str:
    """`text` with all its faults cured; a second call must have nothing to do."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert {d.status for d in result.diagnoses if d.conflict.severity != "note"} == {"cured"}
    ((_, new),) = result.files.values()
    script.write_text(new, encoding="utf-8")
    again = testing.one(script, zygote, Settings())
    assert not [d for d in again.diagnoses if d.conflict.severity != "note"]
    return new


def test_what_another_loss_leaves_in_a_generator_is_not_kept_for_it(tmp_path: Path, zygote: Zygote) -> None:
    """Its gradients are never cleared, so all that arrives there is stepped with: that is cured first, and the
    discriminator's loss is detached from it as anywhere else."""
    new = cured(NEVER_CLEARED, tmp_path, zygote)
    assert new == NEVER_CLEARED.replace(
        "        loss.backward()\n        self.optG",
        "        self.optG.zero_grad()\n        loss.backward()\n        self.optG",
    ).replace("step_D(real, fake)\n        self.step_G", "step_D(real, fake.detach())\n        self.step_G")


def test_a_stray_optimizer_and_gradients_never_cleared_are_cured_together(
    tmp_path: Path, zygote: Zygote
) -> None:
    new = cured(OF_THE_TARGET, tmp_path, zygote)
    assert new == OF_THE_TARGET.replace("Adam(self.target.", "Adam(self.critic.").replace(
        "        loss_actor.backward", "        self.opt_actor.zero_grad()\n        loss_actor.backward"
    )


@pytest.mark.parametrize("retain", ["", "retain_graph=True"])
@pytest.mark.parametrize("more", ["", " + 10 * far(fake, real)"])
def test_the_score_of_a_detached_fake_is_no_score_for_the_generator(
    tmp_path: Path, zygote: Zygote, retain: str, more: str
) -> None:
    """Detaching the score as well would raise no more, and train nothing: it is computed anew, then with the graph."""
    text = ONE_SCORE.format(retain=retain, more=more)
    new = cured(text, tmp_path, zygote)
    assert new == text.replace("retain_graph=True", "").replace("bce(score, yes)", "bce(D(fake), yes)")


def test_least_squares_want_one_score_at_two_numbers(tmp_path: Path, zygote: Zygote) -> None:
    """At first no score is near either, and the gradients of the two say little; the targets do."""
    new = cured(LEAST_SQUARES, tmp_path, zygote)
    assert new == LEAST_SQUARES.replace(
        ".abs().mean()).backward()", '.abs().mean()).backward(inputs=list(self.nets["G"].parameters()))'
    )
