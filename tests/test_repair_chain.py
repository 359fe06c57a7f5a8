"""Faults of one helper that are told apart by who calls it, and chains that need another way, from end to end."""

from pathlib import Path

import pytest

from gradfix import testing
from gradfix.result import Result, Settings
from gradfix.run.zygote import Zygote

HELPER = '''\
"""One helper steps for three losses; two of them are computed too early."""

import torch
from torch import nn

torch.manual_seed(0)


def step(loss, optimizer, keep=False):
    optimizer.zero_grad()
    loss.backward(retain_graph=keep)
    optimizer.step()
    return loss.item()


class Agent:
    def __init__(self):
        self.policy = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.q = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.of_policy = torch.optim.Adam(self.policy.parameters(), 1e-3)
        self.of_q = torch.optim.Adam(self.q.parameters(), 1e-3)
        self.of_alpha = torch.optim.Adam([self.log_alpha], 1e-3)

    def update(self, s, a, target):
        alpha = self.log_alpha.exp()
        q_loss = (self.q(torch.cat([s, a], -1)) - target).pow(2).mean()
        action = torch.tanh(self.policy(s))
        log_prob = -action.pow(2).sum(-1, keepdim=True)
        policy_loss = (alpha * log_prob - self.q(torch.cat([s, action], -1))).mean()
        alpha_loss = -(self.log_alpha * (log_prob + 2)).mean()
        of_q = step(q_loss, self.of_q)
        of_policy = step(policy_loss, self.of_policy, keep=True)
        return of_q, of_policy, step(alpha_loss, self.of_alpha)


agent = Agent()
for _ in range(4):
    print(agent.update(torch.randn(6, 3), torch.randn(6, 2), torch.randn(6, 1)))
'''

CHAIN = '''\
"""Three losses over one forward pass, each stepped before the next is differentiated."""

import torch
from torch import nn
from torch.nn.functional import softplus

torch.manual_seed(0)
coder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
maker = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4))
judge_features, judge_score = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 1)
judges = nn.ModuleList([judge_features, judge_score])
of_judge, of_maker, of_coder = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (judges, maker, coder))
for x in torch.randn(4, 5, 4):
    code = coder(x)
    made = maker(code + torch.randn_like(code))
    real, fake = judge_features(x), judge_features(made)
    like = (real - fake).pow(2).mean()
    judged = softplus(-judge_score(real)).mean() + softplus(judge_score(fake)).mean()
    maker_loss = 5 * like - judged
    coder_loss = code.pow(2).mean() + like

    of_judge.zero_grad()
    judged.backward(retain_graph=True)
    of_judge.step()

    of_maker.zero_grad()
    maker_loss.backward(retain_graph=True)
    of_maker.step()

    of_coder.zero_grad()
    coder_loss.backward()
    of_coder.step()
    print(judged.item(), maker_loss.item(), coder_loss.item())
'''


def cured(text: str, folder: Path, zygote: Zygote) -> tuple[Result, str]:
    """What becomes of a script, and the result; a second run finds nothing."""
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (after for _, after in result.files.values())
    script.write_text(new, encoding="utf-8")
    again = testing.one(script, zygote, Settings())
    assert again.failure is None
    assert not again.files
    assert not [d for d in again.diagnoses if d.conflict.severity != "note"]
    return result, new


def test_two_faults_of_one_helper_are_cured_one_by_one(tmp_path: Path, zygote: Zygote) -> None:
    result, new = cured(HELPER, tmp_path, zygote)
    assert [d.status for d in result.diagnoses if d.conflict.severity == "error"] == ["cured", "cured"]
    lines = new.splitlines()
    assert "        alpha_loss = -(self.log_alpha * (log_prob + 2).detach()).mean()" in lines
    stepped, made = (
        next(n for n, line in enumerate(lines) if part in line) for part in ("of_q = step", "policy_loss =")
    )
    assert stepped < made


def test_a_chain_that_comes_to_nothing_goes_another_way(tmp_path: Path, zygote: Zygote) -> None:
    """Computed again for the second loss, nothing is left that cures the third: every gradient is taken first."""
    result, new = cured(CHAIN, tmp_path, zygote)
    assert result.verdict is not None
    assert result.verdict.status == "proved"
    assert new.index("coder_loss.backward(inputs=") < new.index("of_judge.step()")


STANDSTILL = """\
import copy
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
mean = copy.deepcopy(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for n in range(8):
    loss = net(torch.randn(5, 4)).pow(2).mean() / 2
    loss.backward()
    if n % 2:
        optimizer.zero_grad()
        optimizer.step()
        for average, weight in zip(mean.parameters(), net.parameters()):
            average.mul_(0.9).add_(weight, alpha=0.1)
"""


def test_what_nothing_proves_while_nothing_trains_is_tried_again(tmp_path: Path, zygote: Zygote) -> None:
    """The write into the leaves ends the script, and its cure can't be measured before something trains."""
    script = tmp_path / "standstill.py"
    script.write_text(STANDSTILL, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert {d.conflict.kind: d.status for d in result.diagnoses} == {
        "leaf-write": "cured",
        "unreset-grad": "cured",
    }
    (_, text) = result.files[str(script)]
    assert "with torch.no_grad():" in text
    assert text.index("optimizer.step()") < text.index("optimizer.zero_grad()")


ONE_BOOTSTRAP = """\
import torch
from torch import nn

torch.manual_seed(0)
value = nn.Linear(4, 1)
optimizer = torch.optim.SGD(value.parameters(), lr=0.05)
for _ in range(4):
    seen, rewards = torch.randn(4, 4), torch.randn(3)
    goal, loss = value(seen[-1]), 0
    for t in reversed(range(3)):
        goal = rewards[t] + 0.9 * goal
        loss = loss + (value(seen[t]) - goal).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_goes_with_the_cure_of_another_is_not_told_as_left(tmp_path: Path, zygote: Zygote) -> None:
    """The goals of the later steps are detached with the first, of which they are made."""
    result, new = cured(ONE_BOOTSTRAP, tmp_path, zygote)
    assert [d.status for d in result.diagnoses if d.conflict.severity != "note"] == ["cured"]
    assert "goal, loss = value(seen[-1]).detach(), 0" in new


CUT_AND_CLEARED = """\
import torch
from torch import nn


class Maker(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        x = self.first(x).detach()
        return self.last(x)


torch.manual_seed(0)
maker, critic = Maker(), nn.Linear(3, 1)
of_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(3):
    made = maker(torch.randn(2, 3))
    loss = critic(made).tanh().mean()
    of_maker.zero_grad()
    loss.backward()
    of_maker.step()
    loss = critic(made).mean() - critic(torch.randn(2, 3)).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
"""


def test_a_cure_behind_one_that_changes_nothing_is_measured_from_there(
    tmp_path: Path, zygote: Zygote
) -> None:
    """The critic's pass reaches the maker no more by the first, and the second imposes parameters that stand."""
    result, text = cured(CUT_AND_CLEARED, tmp_path, zygote)
    assert [d.status for d in result.diagnoses] == ["cured", "cured"], result.held_back
    assert "critic(made.detach()).mean()" in text
    assert "self.first(x)\n" in text


BY_HAND = """\
import torch

torch.manual_seed(0)
w = torch.randn(3, 4, requires_grad=True) * 0.1
b = torch.zeros(4, requires_grad=True)
inputs, labels = torch.randn(8, 3), torch.randn(8, 4)
for epoch in range(5):
    loss = (inputs @ w + b - labels).pow(2).mean()
    loss.backward()
    b -= 0.1 * b.grad
    w -= 0.1 * w.grad
    w.grad = b.grad = None
"""


def test_an_update_by_hand_of_what_should_be_a_leaf(tmp_path: Path, zygote: Zygote) -> None:
    """Its update goes under no_grad with those of the leaves: as a leaf it is refused like them."""
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    result = testing.one(script, zygote, Settings())
    assert {(d.conflict.kind, d.status) for d in result.diagnoses} == {
        ("leaf-write", "cured"),
        ("missing-grad", "cured"),
    }
    new = result.files[str(script)][1]
    assert "w = (torch.randn(3, 4) * 0.1).requires_grad_()\n" in new
    assert "    with torch.no_grad():\n        b -= 0.1 * b.grad\n        w -= 0.1 * w.grad\n" in new


WINDOWS = """\
import torch
from torch import nn

torch.manual_seed(0)
cell = nn.GRUCell(3, 6)
optimizer = torch.optim.Adam(cell.parameters(), lr=1e-2)
sequence = torch.randn(40, 2, 3)
h, loss = torch.zeros(2, 6), 0.0
for t in range(40):
    h = cell(sequence[t], h)
    loss = loss + h.pow(2).mean()
    if (t + 1) % 5 == 0:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def test_a_fault_that_is_still_there_is_told_as_it_was(tmp_path: Path, zygote: Zygote) -> None:
    """Its places are those of the script as it is, where a cure that does not help has moved lines."""
    script = tmp_path / "train.py"
    script.write_text(WINDOWS)
    (diagnosis,) = testing.one(script, zygote, Settings()).diagnoses
    said = [c.verdict.reason for c in diagnosis.cures if "still there" in c.verdict.reason]
    assert said
    assert all("`loss.backward()` meets what it has freed" in reason for reason in said)


LOSSES = """\
from torch.nn.functional import softplus


def losses(critic, made, real):
    of_made, of_real = critic(made), critic(real)
    return softplus(of_made).mean() + softplus(-of_real).mean(), softplus(-of_made).mean()
"""
SHARED = """\
import torch
from terms import losses

torch.manual_seed(0)
maker, critic = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
of_maker = torch.optim.SGD(maker.parameters(), 0.1)
of_critic = torch.optim.SGD(critic.parameters(), 0.1)
for _ in range(4):
    made = maker(torch.randn(5, 3))
    of_critics, of_makers = losses(critic, made, torch.randn(5, 2))
    of_critic.zero_grad()
    of_critics.backward(retain_graph=True)
    of_critic.step()
    of_maker.zero_grad()
    of_makers.backward()
    of_maker.step()
"""


@pytest.mark.parametrize("used", [True, False])
def test_a_function_stays_where_a_file_that_did_not_run_uses_it(
    tmp_path: Path, zygote: Zygote, used: bool
) -> None:
    (tmp_path / "terms.py").write_text(LOSSES)
    (tmp_path / "evaluate.py").write_text(f"from terms import {'losses' if used else 'softplus'}\n")
    script = tmp_path / "train.py"
    script.write_text(SHARED)
    result = testing.one(script, zygote, Settings())
    _, text = result.files[str(tmp_path / "terms.py")]
    assert text.count("def ") == 2 + used
    assert ("def losses(" in text) == used


BETAS = """\
import torch
from critic import penalty

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.Adam(net.parameters(), 1e-3, betas=(0, 0.9))
for x in torch.randn(3, 5, 3):
    loss = net(x).mean() + penalty(net, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PENALTY = """\
import torch


def penalty(net, x):
    x.requires_grad_()
    grad, = torch.autograd.grad(net(x).sum(), x)
    return (grad.norm(dim=1) - 1).pow(2).mean()
"""


def test_a_file_that_the_first_cure_lets_run_is_cured_too(tmp_path: Path, zygote: Zygote) -> None:
    (tmp_path / "critic.py").write_text(PENALTY)
    program = tmp_path / "train.py"
    program.write_text(BETAS)
    result = testing.one(program, zygote, Settings())
    new = {Path(path).name: text for path, (_, text) in result.files.items()}
    assert new == {
        "train.py": BETAS.replace("(0, 0.9)", "(0.0, 0.9)"),
        "critic.py": PENALTY.replace(", x)\n    return", ", x, create_graph=True)\n    return"),
    }
    assert [d.status for d in result.diagnoses] == ["cured", "cured"]


DECAYED = '''\
"""A loss of before the step is needed again after it, and the weights decay by hand before that backward."""

import torch

torch.manual_seed(0)
w = torch.randn(3, 3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for x in torch.randn(2, 4, 3):
    near = ((x @ w) @ w).pow(2).mean()
    optimizer.zero_grad()
    near.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = near + (x @ w).abs().mean()
    with torch.no_grad():
        w.mul_(0.99)
    total.backward()
    optimizer.step()
'''


def test_a_loss_made_again_behind_the_step_stays_where_it_is_written(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(DECAYED)
    result = testing.one(script, zygote, Settings())
    assert [d.cures[0].codemod for d in result.diagnoses] == ["recompute-after-step", "write-after-step"]
    assert "is read after `optimizer.step()`" in result.diagnoses[0].cures[0].summary
    head, _ = DECAYED.split("    total = near")
    ((_, after),) = result.files.values()
    again = head + "    total = ((x @ w) @ w).pow(2).mean() + (x @ w).abs().mean()\n"
    assert after == again + (
        "    total.backward()\n    optimizer.step()\n    with torch.no_grad():\n        w.mul_(0.99)\n"
    )


WINDOW = """\
import torch
from torch import nn

torch.manual_seed(0)
rnn = nn.GRU(3, 5, batch_first=True)
head = nn.Linear(5, 1)
opt = torch.optim.Adam([*rnn.parameters(), *head.parameters()], lr=1e-2)
data = torch.randn(8, 4, 7, 3)


def frames():
    h = None
    for x in data:
        out, h = rnn(x, h)
        yield out


stream = frames()
for window in range(3):
    total = head(next(stream)).pow(2).mean() + head(next(stream)).pow(2).mean()
    opt.zero_grad()
    total.backward()
    opt.step()
"""


def test_a_state_is_not_detached_within_the_window_of_one_backward(tmp_path: Path, zygote: Zygote) -> None:
    program = tmp_path / "train.py"
    program.write_text(WINDOW)
    result = testing.one(program, zygote, Settings())
    assert [(d.conflict.kind, d.status) for d in result.diagnoses] == [("freed-graph", "left")]
    assert not result.files
