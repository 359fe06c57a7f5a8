"""Hooks of tensors that write into the gradient they are given, whatever it is that is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

PROGRAM = """\
import functools

import torch

torch.manual_seed(3)


def clip(limit, grad):
    {write}


class Clip:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, grad):
        return clip(self.limit, grad)

    def method(self, grad):
        return clip(self.limit, grad)


cell, head = torch.nn.Linear(9, 6), torch.nn.Linear(6, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for _ in range(3):
    state, total = torch.zeros(4, 6), torch.zeros(4, 6)
    for x in torch.randn(5, 4, 3):
        state = torch.tanh(cell(torch.cat([x, state], 1)))
        state.register_hook({hook})
        total = total + state
    optimizer.zero_grad()
    head(total).pow(2).mean().backward()
    optimizer.step()
"""
HOOKS = {
    "lambda": "lambda grad: clip(0.001, grad)",
    "partial": "functools.partial(clip, 0.001)",
    "partial of a partial": "functools.partial(functools.partial(clip), 0.001)",
    "object": "Clip(0.001)",
    "method": "Clip(0.001).method",
    "partial of an object": "functools.partial(Clip(0.001))",
}


def told(tmp_path: Path, zygote: Zygote, hook: str, write: str) -> list[tuple[str, int]]:
    """What the text shows, which is what the run does."""
    program, text = tmp_path / "train.py", PROGRAM.format(hook=hook, write=write)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    tapes = (main.tape, zygote.run(Run(program, tmp_path, tmp_path)).tape)
    said = [[(c.kind, c.at.line) for c in detect(t) if c.severity != "note"] for t in tapes]
    assert said[0] == said[1]
    return said[0]


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_what_writes_into_the_gradient_of_others(tmp_path: Path, zygote: Zygote, hook: str) -> None:
    assert told(tmp_path, zygote, hook, "grad.clamp_(-limit, limit)") == [("silent-overwrite", 9)]


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_what_gives_one_of_its_own(tmp_path: Path, zygote: Zygote, hook: str) -> None:
    assert told(tmp_path, zygote, hook, "return grad.clamp(-limit, limit)") == []
