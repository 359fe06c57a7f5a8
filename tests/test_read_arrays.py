"""Arrays of NumPy's that share their memory with a tensor: what is read of them is what a run shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

TEXT = """\
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
net, device = nn.Linear(3, 3), torch.device("cpu")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
a = {made}
for step in range(4):
    x = {taken}
    loss = net(x).pow(2).mean()
    {written}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MADE, TAKEN, WRITTEN = "np.ones((2, 3), dtype=np.float32)", "torch.from_numpy(a)", "a += 1.0"


def found(
    tmp_path: Path, zygote: Zygote, made: str = MADE, taken: str = TAKEN, written: str = WRITTEN
) -> list[tuple[str, int, str]]:
    """(kind, line, evidence) of what is above a note in the main part, which is what the run shows."""
    program = tmp_path / "train.py"
    text = TEXT.format(made=made, taken=taken, written=written)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    conflicts = [c for c in detect(main.tape) if c.severity != "note"]
    ran = detect(zygote.run(Run(program, tmp_path, tmp_path)).tape)
    told = {(c.kind, c.pattern, c.at.line) for c in ran if c.severity != "note"}
    assert {(c.kind, c.pattern, c.at.line) for c in conflicts} == told
    return [(c.kind, c.at.line, main.evidence(c)) for c in conflicts]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"written": "a[0] = 5.0"},
        {"written": "a[:, 1:] *= 3.0"},
        {"written": "a -= np.ones((2, 3), dtype=np.float32)"},
        {"written": "a += net.bias.detach().numpy() + 1"},
        {"taken": "torch.as_tensor(a)"},
        {"taken": "torch.from_numpy(a[:1])"},
        {"taken": "torch.from_numpy(a).float().unsqueeze(0)"},
        {"taken": "torch.autograd.Variable(torch.from_numpy(np.asarray(a)))"},
        {"made": "np.full((2, 3), 2.0, 'float32')"},
        {"made": "np.random.rand(2, 3).astype(np.float32)"},
        {"made": "np.zeros((2, 3)).astype('float32')"},
    ],
)
def test_a_write_to_an_array_is_one_to_its_tensor(
    tmp_path: Path, zygote: Zygote, parts: dict[str, str]
) -> None:
    assert found(tmp_path, zygote, **parts) == [("silent-overwrite", 12, "certain")]


@pytest.mark.parametrize(
    "parts",
    [
        {"taken": "torch.from_numpy(a).clone()"},
        {"taken": "torch.from_numpy(a.copy())"},
        {"taken": "torch.from_numpy(np.array(a))"},
        {"taken": "torch.from_numpy(a * 2)"},
        {"taken": "torch.from_numpy(-a)"},
        {"taken": "torch.tensor(a)"},
        {"taken": "torch.Tensor(a)"},
        {"taken": "torch.as_tensor(a, dtype=torch.float64).float()"},
        {"made": "np.ones((2, 3))", "taken": "torch.from_numpy(a).float()"},
        {"made": "np.ones((2, 3)).tolist()", "taken": "torch.tensor(a)", "written": "a += [[1.0] * 3]"},
        {"taken": "torch.from_numpy(a) + 1"},
        {"written": "a = a + 1.0"},
        {"written": "b = a.copy(); b += 1.0"},
        {"written": "b = list(a); b[0] = 5"},
        {"written": "b = -a; b += 1"},
        {"written": "b = 2 * a; b += 1"},
        {"written": "import copy; b = copy.deepcopy(a); b += 1"},
        {"written": "b = np.add(a, 1.0); b += 1"},
        {"written": "loss.backward(); optimizer.step(); a += 1.0; loss = net.bias.sum()"},
        {"written": "a = np.zeros((2, 3), dtype=np.float32); a += 1.0"},
    ],
)
def test_a_copy_is_another_array(tmp_path: Path, zygote: Zygote, parts: dict[str, str]) -> None:
    assert found(tmp_path, zygote, **parts) == []


@pytest.mark.parametrize("taken", ["torch.from_numpy(a).to(device)", "torch.as_tensor(a, device=device)"])
def test_what_may_lie_on_a_gpu_is_not_known_to_share(tmp_path: Path, taken: str) -> None:
    program = tmp_path / "train.py"
    text = TEXT.format(made=MADE, taken=taken, written=WRITTEN)
    program.write_text(text, encoding="utf-8")
    assert not [c for c in detect(read(program, text)[0].tape) if c.severity != "note"]


@pytest.mark.parametrize(
    "written",
    ["np.add(a, 1.0, out=a)", "np.copyto(a, 5.0)", "a.fill(5.0)", "np.random.shuffle(a.T)", "a.sort()"],
)
def test_functions_that_write(tmp_path: Path, written: str) -> None:
    """(A run tells of these where the memory is shared.)"""
    program = tmp_path / "train.py"
    text = TEXT.format(made=MADE, taken=TAKEN, written=written)
    program.write_text(text, encoding="utf-8")
    assert [c.kind for c in detect(read(program, text)[0].tape)] == ["silent-overwrite"]


def test_a_write_that_may_not_be(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    text = TEXT.format(made=MADE, taken=TAKEN, written="if input(): a[0] = 2.0")
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    assert [(c.kind, main.evidence(c)) for c in detect(main.tape)] == [("silent-overwrite", "likely")]
