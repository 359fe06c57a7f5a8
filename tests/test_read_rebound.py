"""``x.data = y`` gives a tensor other memory: what keeps a view of it, or made it, goes on with the old."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(3)
w = nn.Parameter(torch.rand(3, 3) + 1)
below = nn.Linear(3, 3)
convolution = nn.Conv1d(1, 2, 2)
optimizer = torch.optim.SGD([w, *below.parameters(), *convolution.parameters()], 0.1)
for x in torch.rand(4, 3, 3):
    h = below(x)
    loss = {op}.pow(2).sum()
    {write} = F.normalize({write}) * 3
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
KEPT_AS_A_VIEW = [
    "F.linear(h, w)",
    "h @ w.t()",
    "h @ w.T",
    "torch.mm(h, w.view(3, 3))",
    "torch.einsum('ij,kj->ik', h, w)",
]
KEPT_ITSELF = ["(h * w)", "(h @ w)", "torch.mm(w, h)"]


@pytest.fixture
def both(run, tmp_path):
    """The lines of faults in a recorded run of a text, and in its reading."""

    def of(op, write="w.data"):
        text = SCRIPT.format(op=op, write=write)
        path = tmp_path / "train.py"
        path.write_text(text)
        (reading, *_) = read(path, text)
        tapes = run(text, record=True).tape, reading.tape
        return [[c.at.line for c in detect(tape) if c.severity == "error"] for tape in tapes]

    return of


@pytest.mark.parametrize("op", KEPT_AS_A_VIEW)
def test_a_view_keeps_the_old_memory(op, both):
    assert both(op) == [[], []]


@pytest.mark.parametrize("op", KEPT_ITSELF)
def test_the_tensor_itself_is_found_with_the_new(op, both):
    assert both(op) == [[13], [13]]


def test_of_a_layer(both):
    assert both("below(h)", "below.weight.data") == [[], []]
    assert both("convolution(h.unsqueeze(1))", "convolution.weight.data") == [[13], [13]]


def test_a_result_is_kept_as_it_was(both):
    assert both("(-(out := h.exp()))", "out.data") == [[], []]
