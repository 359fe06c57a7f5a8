"""Batches of a DataLoader in the text: tensors without gradient, as far as their data set is known."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
torch.manual_seed(0)
encoder, net = nn.Linear(3, 3), nn.Linear(3, 1)
X, Y = torch.randn(12, 3), torch.randn(12, 1)
class Points(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        if i > 4:
            return self.x[i].clone(), self.y[i]
        return self.x[i] * 2, self.y[i]
class Named(Points):
    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i], "weight": 0.5, "name": f"point {i}"}
optimizer = torch.optim.SGD([*encoder.parameters(), *net.parameters()], lr=0.05)
"""
PAIR = "for x, y in {}:"
SETS = {
    "tensors": PAIR.format("DataLoader(TensorDataset(X, Y), batch_size=4)"),
    "numbered": "for i, (x, y) in enumerate(DataLoader(TensorDataset(X, Y), 4, shuffle=True)):",
    "own": PAIR.format("DataLoader(Points(X, Y), batch_size=4, drop_last=True)"),
    "named": "for batch in DataLoader(Named(X, Y), batch_size=4):\n    x, y = batch['x'], batch['y']",
    "split": PAIR.format("DataLoader(random_split(TensorDataset(X, Y), [8, 4])[0], batch_size=4)"),
    "subset": PAIR.format("DataLoader(Subset(Points(X, Y), [0, 2, 4]))"),
    "list": PAIR.format("DataLoader([(X[0], Y[0]), (X[1], Y[1])])"),
    "whole": PAIR.format("DataLoader(TensorDataset(X, Y), batch_size=None)"),
    "no-loader": PAIR.format("TensorDataset(X, Y)"),
    "rows": "for x in DataLoader(X, batch_size=4):\n    y = torch.ones(1)",
    "drawn": "for _ in range(3):\n    x, y = next(iter(DataLoader(TensorDataset(X, Y), batch_size=4)))",
}
BODIES = {
    "trains": "loss = (net(encoder(x).tanh()) - y).pow(2).mean()",
    "asks-and-writes": "x.requires_grad_()\nx += 0.1\nloss = (net(encoder(x)) - y).pow(2).mean()",
    "detached": "loss = (net(encoder(x)).detach() * y).mean()",
    "only-data": "x = x / x.abs().max()\nloss = (x.sum() - y).pow(2).mean()",
}


def told(tape: object) -> set[tuple[str, str, int]]:
    return {(c.kind, c.pattern, c.at.line) for c in detect(tape) if c.severity == "error"}  # type: ignore[arg-type]


def certain(folder: Path, text: str) -> set[tuple[str, str, int]]:
    main, *_ = read(folder / "train.py", text)
    found = [c for c in detect(main.tape) if c.severity == "error"]
    assert all(main.evidence(c) == "certain" for c in found)
    return told(main.tape)


def agrees(zygote: Zygote, folder: Path, text: str) -> set[tuple[str, str, int]]:
    (folder / "train.py").write_text(text, encoding="utf-8")
    ran = told(zygote.run(Run(folder / "train.py", folder, folder)).tape)
    assert certain(folder, text) == ran
    return ran


def loop(head: str, body: str) -> str:
    lines = f"{body}\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()\n"
    return HEAD + head + "\n" + textwrap.indent(lines, "    ")


@pytest.mark.parametrize("data", SETS)
@pytest.mark.parametrize("body", BODIES)
def test_batches_are_tensors_without_gradient(zygote: Zygote, tmp_path: Path, data: str, body: str) -> None:
    assert bool(agrees(zygote, tmp_path, loop(SETS[data], BODIES[body]))) == (body != "trains")


OUTSIDE = """\
F = encoder(X).tanh()
for x, y in DataLoader({}):
    loss = (net(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("given", "faulty"),
    [
        ("TensorDataset(F, Y), batch_size=4", True),
        ("TensorDataset(F.detach(), Y), batch_size=4", False),
    ],
)
def test_a_set_of_what_has_a_graph_keeps_it(zygote: Zygote, tmp_path: Path, given: str, faulty: bool) -> None:
    assert bool(agrees(zygote, tmp_path, HEAD + OUTSIDE.format(given))) == faulty


@pytest.mark.parametrize(
    "given",
    [
        "TensorDataset(F, Y), batch_size=4, num_workers=2",  # (PyTorch sends no graph)
        "TensorDataset(X, Y), batch_size=4, collate_fn=collate",
        "somewhere.points()",
        "Points(F, Y), batch_size=4",
    ],
)
def test_of_other_batches_nothing_is_known(tmp_path: Path, given: str) -> None:
    text = HEAD + "import somewhere\nfrom somewhere import collate\n" + OUTSIDE.format(given)
    assert certain(tmp_path, text) == set()
    assert certain(tmp_path, text.replace("net(x)", "x")) == set()


PICTURES = """\
import torch
from torch import nn
from torchvision import datasets, transforms
data = datasets.MNIST("data", train=True, download=True, transform={})
net = nn.Linear(784, 10)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for x, y in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
    target = nn.functional.one_hot(y, 10).float()
    loss = (net(x.view(-1, 784)).argmax(1) != y).float().mean() + 0 * target.sum() + x.mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("transform", "known"),
    [
        ("transforms.ToTensor()", True),
        ("transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,), (0.5,))])", True),
        ("transforms.Compose([transforms.Resize(32), transforms.ToTensor()])", True),
        ("transforms.Compose([transforms.ToTensor(), transforms.Lambda(lambda x: net(x))])", False),
        ("transforms.Compose([transforms.ToTensor(), net])", False),
        ("None", False),
    ],
)
def test_pictures_are_tensors_behind_to_tensor(tmp_path: Path, transform: str, known: bool) -> None:
    found = certain(tmp_path, PICTURES.format(transform))
    assert [(kind, pattern) for kind, pattern, _ in found] == [("cut-graph", "no-graph")] * known
