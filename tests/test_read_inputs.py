"""The symbolic run on ``autograd.grad`` of what may not require grad; PyTorch is the judge of every program."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

PROGRAM = """
import torch
critic = torch.nn.Linear(4, 1)
def penalty(real, fake):
    mixed = 0.5 * real + 0.5 * fake
    {made}
    score = critic(mixed)
    grad, = torch.autograd.grad({asked}, create_graph=True)
    return (grad.norm(2, 1) - 1).pow(2).mean()
penalty(torch.randn(2, 4), torch.randn(2, 4)).backward()
"""
ASKED = "outputs=score.sum(), inputs=mixed"


def reported(folder: Path, made: str, asked: str) -> tuple[bool, list[tuple[str, int]]]:
    """Whether PyTorch refuses the program, and what is said of it."""
    text = PROGRAM.format(made=made, asked=asked)
    refused = False
    try:
        exec(compile(text, "program", "exec"), {"setting": True, "prepare": lambda x: x.requires_grad_()})
    except RuntimeError as problem:
        refused = "differentiated Tensors does not require grad" in str(problem)
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    readings = read(path, path.read_text(), root=folder, idle=False)
    return refused, sorted({(c.kind, c.at.line) for r in readings for c in detect(r.tape)})


@pytest.mark.parametrize("made", ["pass", "mixed = mixed.detach()", "mixed.requires_grad_(False)"])
@pytest.mark.parametrize("asked", [ASKED, "score.sum(), [critic.weight, mixed], allow_unused=True"])
def test_an_input_that_does_not_require_grad(tmp_path: Path, made: str, asked: str) -> None:
    assert reported(tmp_path, made, asked) == (True, [("cut-graph", 8)])


@pytest.mark.parametrize(
    "made",
    [
        "mixed.requires_grad_()",
        "mixed.requires_grad = True",
        "mixed.requires_grad_(setting)",
        "mixed = torch.randn(2, 4, **dict(requires_grad=setting))",
        "prepare(mixed)",
        "[prepare(each) for each in (mixed,)]",
        "mixed = mixed * critic.weight",
    ],
)
def test_an_input_that_may_require_grad(tmp_path: Path, made: str) -> None:
    assert reported(tmp_path, made, ASKED) == (False, [])
