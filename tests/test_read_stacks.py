"""contextlib.ExitStack: what is put on it is done when it is left, the last first."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

BEGIN = """\
from contextlib import ExitStack, contextmanager
import torch
net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def found(text: str) -> list[tuple[str, int]]:
    program = BEGIN + text
    readings = read(Path("train.py"), program)
    assert all(r.tape.events[-1].how == "finished" for r in readings)
    first = BEGIN.count("\n")
    return sorted(
        {
            (c.kind, c.at.line - first)
            for r in readings
            for c in detect(r.tape)
            if c.severity != "note" and c.at.file == "train.py"
        }
    )


LOOP = "for step in range(3):\n    loss = net(torch.randn(4, 3)).pow(2).mean()\n"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            LOOP + "    with ExitStack() as stack:\n"
            "        stack.callback(opt.step)\n"
            "        stack.callback(loss.backward)\n"
            "        stack.callback(opt.zero_grad)\n",
            [],
        ),
        (  # the other way round: nothing is left to step with
            LOOP + "    with ExitStack() as stack:\n"
            "        stack.callback(opt.step)\n"
            "        stack.callback(opt.zero_grad)\n"
            "        stack.callback(loss.backward)\n",
            [("unreset-grad", 3)],
        ),
        (
            "for step in range(3):\n"
            "    with ExitStack() as stack:\n"
            "        stack.enter_context(torch.no_grad())\n"
            "        loss = net(torch.randn(4, 3)).mean()\n"
            "    opt.zero_grad()\n"
            "    loss.backward()\n"
            "    opt.step()\n",
            [("cut-graph", 4)],
        ),
        (
            "for step in range(3):\n"
            "    stack = ExitStack()\n"
            "    stack.enter_context(torch.no_grad())\n"
            "    stack.pop_all().close()\n"
            "    loss = net(torch.randn(4, 3)).mean()\n"
            "    opt.zero_grad()\n"
            "    loss.backward()\n"
            "    opt.step()\n",
            [],
        ),
        (
            "for step in range(3):\n"
            "    y = net(torch.randn(4, 3)).exp()\n"
            "    stack = ExitStack()\n"
            "    stack.callback(y.add_, 1.0)\n"
            "    opt.zero_grad()\n"
            "    stack.close()\n"
            "    y.mean().backward()\n"
            "    opt.step()\n",
            [("stale-saved-tensor", 6)],
        ),
        (
            "class Stepping:\n"
            "    def __enter__(self):\n"
            "        opt.zero_grad()\n"
            "    def __exit__(self, *why):\n"
            "        opt.step()\n"
            + LOOP
            + "    with ExitStack() as stack:\n"
            + "        stack.enter_context(Stepping())\n"
            + "        loss.backward()\n",
            [],
        ),
        (
            "@contextmanager\n"
            "def stepping():\n"
            "    opt.zero_grad()\n"
            "    yield\n"
            "    opt.step()\n"
            + LOOP
            + "    with ExitStack() as stack:\n"
            + "        stack.enter_context(stepping())\n"
            + "        loss.backward()\n",
            [],
        ),
    ],
)
def test_what_a_stack_does_when_it_is_left(text, faults):
    assert found(text) == faults
