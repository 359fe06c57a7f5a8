"""The symbolic run on what is drawn at random of a memory, and on memories that let the oldest go."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

HEAD = """\
import random
from collections import deque, namedtuple
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn
Transition = namedtuple("Transition", "state value")
@dataclass
class Step:
    state: torch.Tensor
    value: torch.Tensor
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def found(body: str) -> list[tuple[str, str]]:
    """(kind, evidence) of what the main part of HEAD and `body` shows above a note."""
    main, *_ = read(Path("train.py"), HEAD + textwrap.dedent(body))
    return [(c.kind, main.evidence(c)) for c in detect(main.tape) if c.severity != "note"]


LEARNING = """\
memory = {memory}
def learn():
    {drawn}
    loss = sum(values)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
for episode in range(10):
    state = torch.randn(3)
    value = net(state).sum()
    memory.append({record})
    learn()
"""
DRAWS = [
    "values = [v for _, v in random.sample(memory, 2)]",
    "values = [v for _, v in random.choices(memory, [1.0] * len(memory), k=2)]",
    "values = [random.choice(memory)[1] for _ in range(2)]",
    "values = [memory[i][1] for i in np.random.choice(len(memory), 2)]",
    "values = [memory[i][1] for i in np.random.randint(0, len(memory), size=2)]",
    "values = [memory[i][1] for i in torch.randint(0, len(memory), (2,))]",
    "values = [memory[random.randrange(len(memory))][1] for _ in range(2)]",
]


@pytest.mark.parametrize("drawn", DRAWS)
@pytest.mark.parametrize("memory", ["[]", "deque(maxlen=100)"])
def test_what_is_drawn_may_be_of_an_earlier_pass(memory: str, drawn: str) -> None:
    kept = LEARNING.format(memory=memory, drawn=drawn, record="(state, value)")
    assert found(kept) == [("freed-graph", "likely")]
    detached = kept.replace("(state, value)", "(state, value.detach())")
    assert all(kind != "freed-graph" for kind, _ in found(detached))


def test_one_that_is_drawn_in_every_pass_may_be_the_new_one_every_time() -> None:
    for drawn in ("random.choice(memory)", "memory[random.randrange(len(memory))]"):
        text = LEARNING.format(memory="[]", drawn=f"values = [{drawn}[1]]", record="(state, value)")
        assert found(text) == []


@pytest.mark.parametrize(
    ("record", "value"),
    [
        ("Transition(state, value)", "t.value"),
        ("Step(state, value)", "t.value"),
        ("{'state': state, 'value': value}", "t['value']"),
        ("(state, {'value': value})", "t[1]['value']"),
    ],
)
def test_a_record_may_be_an_object_or_a_dictionary(record: str, value: str) -> None:
    drawn = f"values = [{value} for t in random.sample(memory, 2)]"
    assert found(LEARNING.format(memory="[]", drawn=drawn, record=record)) == [("freed-graph", "likely")]


@pytest.mark.parametrize("size", ["2", "size=2, replace=False"])
def test_numpy_draws_objects(size: str) -> None:
    drawn = f"values = [t.value for t in np.random.choice(memory, {size})]"
    text = LEARNING.format(memory="[]", drawn=drawn, record="Step(state, value)")
    assert found(text) == [("freed-graph", "likely")]
    text = LEARNING.format(memory="[]", drawn=drawn, record="Transition(state, value)")
    assert found(text) == []  # NumPy refuses: its array of them has two dimensions


RECENT = """\
recent = {made}
for step in range(10):
    recent.{put}(net(torch.randn(3)).sum())
    optimizer.zero_grad()
    sum(recent).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("made", "put", "kinds"),
    [
        ("deque(maxlen=1)", "append", []),
        ("deque([], 1)", "appendleft", []),
        ("deque(maxlen=2)", "append", ["freed-graph"]),
        ("deque()", "appendleft", ["freed-graph"]),
        ("deque(deque(maxlen=3), maxlen=1)", "append", []),
        ("deque(maxlen=1).copy()", "append", []),
    ],
)
def test_a_deque_lets_go_of_the_oldest(made: str, put: str, kinds: list[str]) -> None:
    assert kinds == [kind for kind, _ in found(RECENT.format(made=made, put=put))]


@pytest.mark.parametrize(
    ("call", "left"),
    [
        ("popleft()", [2, 3]),
        ("rotate(1)", [3, 1, 2]),
        ("rotate(-1)", [2, 3, 1]),
        ("extendleft([4, 5])", [5, 4, 1]),
        ("extend((4, 5))", [3, 4, 5]),
        ("appendleft(4)", [4, 1, 2]),
        ("clear()", []),
    ],
)
def test_a_deque_does_what_pythons_does(call: str, left: list[int]) -> None:
    fault = "w = torch.ones(2, requires_grad=True)\ny = w.exp()\ny += 1\ny.sum().backward()\n"
    body = f"d = deque([1, 2, 3], maxlen=3)\nd.{call}\nif list(d) == {left} and d.maxlen == 3:\n"
    text = body + textwrap.indent(fault, "    ")
    assert found(text) == [("stale-saved-tensor", "certain")]


def test_an_alternative_is_its_last_one() -> None:
    body = (
        "w = torch.ones(2, requires_grad=True)\ny = None or w.exp()\ny += 1\n(True and y).sum().backward()\n"
    )
    assert found(body) == [("stale-saved-tensor", "certain")]
