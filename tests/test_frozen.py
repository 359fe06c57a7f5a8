"""Parameters that are frozen between the forward and its backward, recorded and read."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

from pathlib import Path

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read

TEXT = """\
import torch
actor, critic = torch.nn.Linear(3, 1), torch.nn.Linear(4, 1)
first = torch.optim.Adam(actor.parameters())
second = torch.optim.Adam(critic.parameters())
def freeze(off):
    for p in critic.parameters():
        p.requires_grad_(not off)
def value(state):
    return critic(torch.cat([state, actor(state)], -1)).mean()
def error(state):
    return (critic(torch.cat([state, torch.zeros(5, 1)], -1)) - 1).pow(2).mean()
for _ in range(4):
    state = torch.randn(5, 3)
"""


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("loss = error(state); freeze(True)\nsecond.zero_grad(); loss.backward(); second.step()\nfreeze(False)", 15),
        ("freeze(True); loss = value(state); first.zero_grad(); loss.backward(); first.step()\nfreeze(False)", 0),
        ("loss = value(state); freeze(True); first.zero_grad(); loss.backward(); freeze(False)\n"
         "second.zero_grad(); error(state).backward(); second.step(); first.step()", 0),
        ("loss = value(state); freeze(True); first.zero_grad(); loss.backward(); freeze(False)\n"
         "first.step(); second.step()", 0),
        ("loss = error(state); freeze(_ == 1)\nsecond.zero_grad(); loss.backward(); second.step()\nfreeze(False)", 0),
    ],
)  # fmt: skip
def test_a_backward_that_fills_nothing_before_every_step(tmp_path, run, body, line):
    text = TEXT + "".join(f"    {part}\n" for part in body.split("\n"))
    path = tmp_path / "train.py"
    path.write_text(text)
    for tape in (run(text, record=True).tape, *(r.tape for r in read(path, text, idle=False))):
        said = [(c.kind, c.pattern, c.at.line) for c in detect(tape) if c.severity != "note"]
        assert said == ([("cut-graph", "frozen", line)] if line else [])
