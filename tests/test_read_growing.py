"""The symbolic run on what grows while a program trains: a replay memory, counts of steps."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

DQN = """\
import random
from collections import deque, namedtuple
import torch
from torch import nn

BATCH_SIZE = 128
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))

class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)
    def push(self, *args):
        self.memory.append(Transition(*args))
    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)
    def __len__(self):
        return len(self.memory)

policy_net, target_net = nn.Linear(4, 2), nn.Linear(4, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = torch.optim.AdamW(policy_net.parameters(), lr=1e-4, amsgrad=True)
memory = ReplayMemory(10000)

def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    transitions = memory.sample(BATCH_SIZE)
    batch = Transition(*zip(*transitions))
    non_final_mask = torch.tensor(tuple(map(lambda s: s is not None, batch.next_state)), dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_batch = torch.cat(batch.state)
    action_batch = torch.cat(batch.action)
    reward_batch = torch.cat(batch.reward)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = next_state_values * 0.99 + reward_batch
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()

for episode in range(50):
    state = torch.randn(1, 4)
    for t in range(600):
        with torch.no_grad():
            action = policy_net(state).max(1).indices.view(1, 1)
        next_state = torch.randn(1, 4) if t < 599 else None
        memory.push(state, action, next_state, torch.tensor([1.0]))
        state = next_state
        optimize_model()
"""


def found(folder: Path, text: str) -> list[tuple[str, str, str]]:
    """(kind, line, evidence) above a note."""
    path = folder / "train.py"
    path.write_text(text)
    best: dict[tuple[str, str], str] = {}
    for reading in read(path, text, root=folder, idle=False):
        for conflict in detect(reading.tape):
            if conflict.severity != "note":
                key = (conflict.kind, text.splitlines()[conflict.at.line - 1].strip())
                best[key] = min(best.get(key, "likely"), reading.evidence(conflict))
    return sorted((*key, evidence) for key, evidence in best.items())


def test_a_replay_memory_that_fills_hides_nothing(tmp_path):
    assert found(tmp_path, DQN) == []
    leaf = DQN.replace("torch.zeros(BATCH_SIZE)\n    with torch.no_grad():\n        next", "torch.zeros("
                       "BATCH_SIZE, requires_grad=True)\n    if True:\n        next")  # fmt: skip
    line = "next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values"
    assert found(tmp_path, leaf) == [("leaf-write", line, "certain")]


@pytest.mark.parametrize("name", ["state_batch", "action_batch"])
def test_what_is_drawn_and_joined_is_known(tmp_path, name):
    wrong = DQN.replace("    expected =", f"    {name} += 1\n    expected =")
    assert found(tmp_path, wrong) == [("stale-saved-tensor", f"{name} += 1", "certain")]


def test_values_that_go_into_the_memory_with_their_graph(tmp_path):
    acting = "        with torch.no_grad():\n            action"
    valued = "        value = policy_net(state).sum().view(1)\n        if True:\n            action"
    kept = DQN.replace(acting, valued).replace("torch.tensor([1.0])", "value")
    assert "freed-graph" in {kind for kind, *_ in found(tmp_path, kept)}


COUNTED = """\
import torch
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
class Buffer:
    def __init__(self):
        self.size, self.items = 0, torch.zeros(1000, 2)
    def add(self, x):
        self.items[self.size % 1000] = x
        self.size = min(self.size + 1, 1000)
def learn(net, x):
    out = net(x).exp()
    out += 1
    opt.zero_grad()
    out.sum().backward()
    opt.step()
buffer = Buffer()
steps = 0
seen = []
"""
BODY = """\
buffer.add(torch.ones(2))
steps += 1
seen.append(steps)
"""
LOOPS = ["for episode in range(90):\n  for n in range(200):", "while True:"]


def counted(loop: str, test: str) -> str:
    return COUNTED + loop + "\n" + textwrap.indent(BODY + test, "    ") + "\n"


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("if buffer.size < 640: continue\nlearn(net, buffer.items)", "certain"),
        ("if not buffer.size >= 640: continue\nlearn(net, buffer.items)", "certain"),
        ("if steps < 1000 or not seen: continue\nlearn(net, buffer.items)", "certain"),
        ("if buffer.size >= 640: learn(net, buffer.items)", "likely"),
        ("if len(seen) > 1000 and steps % 1 == 0: learn(net, buffer.items)", "likely"),
        ("learn(net, buffer.items) if 640 <= buffer.size else None", "likely"),
        ("if steps < 1000: pass\nelse: learn(net, buffer.items)", "likely"),
        ("if len(seen) > 0: pass\nelse: learn(net, buffer.items)", None),
        ("if buffer.size < 0: learn(net, buffer.items)", None),
        ("while len(seen) < 64: seen.append(0)", None),
    ],
)
def test_a_test_of_what_grows_comes_out_the_other_way_some_day(tmp_path, loop, test, expected):
    said = [("stale-saved-tensor", "out += 1", expected)] if expected else []
    assert found(tmp_path, counted(loop, test)) == said


def test_a_loop_that_is_gone_through_wholly_is_as_it_is(tmp_path):
    text = counted("for n in range(3):", "if steps > 64: learn(net, buffer.items)")
    assert found(tmp_path, text) == []


EPISODE = """\
import torch
from somewhere import env, lost
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def episode():
    values, rewards, n = [], [], 0
    while True:
        values.append(net(torch.ones(2)).mean())
        reward, done = env.step()
        rewards.append(reward)
        n += 1
        {leave}
for _ in range(5):
    values = {values}
    value = torch.stack(values).pow(2)
    value.mean().backward(){retain}
    value.sum().backward()
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize(
    ("leave", "values", "kinds"),
    [
        ("if done: return values, rewards", "episode()[0]", ["certain"]),
        ("if n > 500: return values, rewards", "episode()[0]", ["certain"]),
        ("if lost():\n            if done: return values, rewards", "episode()[0]", ["certain"]),
        (
            "if done:\n            opt.zero_grad()\n            return values, rewards",
            "episode()[0]",
            ["certain"],
        ),
        ("if done: return values, rewards\n        if lost(): return None, None", "episode()[0]", []),
        ("if done: return values, rewards\n        if lost(): break", "episode()[0]", []),
        (
            "def later():\n            return 2\n        if done: return values, rewards",
            "episode()[0]",
            ["certain"],
        ),
    ],
)
def test_a_loop_without_end_is_left_by_its_one_return(tmp_path, leave, values, kinds):
    text = EPISODE.format(leave=leave, values=values, retain="")
    assert [e for kind, _, e in found(tmp_path, text) if kind == "freed-graph"] == kinds
    text = EPISODE.format(leave=leave, values=values, retain="; value = value.detach().requires_grad_()")
    assert [e for kind, _, e in found(tmp_path, text) if kind == "freed-graph"] == []


DELAYED = """\
import torch
class Trainer:
    def __init__(self):
        self.actor, self.critic, self.count = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1), 0
        self.first = torch.optim.Adam(self.actor.parameters())
        self.second = torch.optim.Adam(self.critic.parameters())
    def train(self, x):
        self.count += 1
        loss = (self.critic(x) - 1).pow(2).mean()
        self.second.zero_grad()
        loss.backward()
        self.second.step()
        if {every} == 0:
            {clear}
            (-self.critic(self.actor(x))).mean().backward()
            self.first.step()
trainer = Trainer()
{loop}
    trainer.train(torch.randn(3, 2))
"""


@pytest.mark.parametrize("loop", ["for n in range(90):", "while True:"])
@pytest.mark.parametrize("every", ["self.count % 2", "(self.count + 1) % 5"])
def test_what_another_function_does_every_so_often_comes_twice(tmp_path, loop, every):
    line = "(-self.critic(self.actor(x))).mean().backward()"
    text = DELAYED.format(loop=loop, every=every, clear="pass")
    assert found(tmp_path, text) == [("unreset-grad", line, "certain")]
    assert found(tmp_path, text.replace("pass", "self.first.zero_grad()")) == []


SUMMED = """\
import torch
from somewhere import data
net = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
total = 0.0
for {target} in {source}:
    total = total + net(torch.ones(2)).pow(2).mean()
    if (i + 1) % {every} == 0:
        total.backward()
        opt.step()
        opt.zero_grad(){reset}
"""


@pytest.mark.parametrize(("target", "source"), [("i, x", "enumerate(data)"), ("i", "range(90)")])
@pytest.mark.parametrize("every", [2, 8])
def test_what_is_done_every_so_often_comes_twice(tmp_path, target, source, every):
    text = SUMMED.format(target=target, source=source, every=every, reset="")
    assert [kind for kind, *_ in found(tmp_path, text)] == ["freed-graph"]
    text = SUMMED.format(target=target, source=source, every=every, reset="; total = 0.0")
    assert found(tmp_path, text) == []
