"""A module by itself, without anybody who trains it: what its forward writes over that a backward through it needs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import might_matter, read

MODULE = """\
import torch
from torch import nn
class Mine(nn.Module):
    def __init__(self, dim, n=2):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.w = nn.Parameter(torch.ones(dim))
        self.register_parameter("b", nn.Parameter(torch.zeros(dim)))
        self.rows = nn.ParameterList([nn.Parameter(torch.randn(dim)) for _ in range(n)])
        for i in range(n):
            setattr(self, f"part{i}", nn.Parameter(torch.ones(dim)))
    @property
    def scale(self):
        return self.w.exp()
    def forward(self, %s):
"""
STALE = {  # faulty -> its sound neighbour
    "return x * self.w.exp().add_(1e-6)": "return x * (self.w + 1).add_(1e-6)",
    "x = self.fc(x).sigmoid(); x *= self.w; return x": "x = self.fc(x) + self.b; x *= self.w; return x",
    "s = self.scale; s.add_(self.b); return x * s": "s = self.scale + 1; s.add_(self.b); return x * s",
    "s = self.b.tanh(); s[0] = 0; return x + s": "s = self.b + 0; s[0] = 0; return x + s",
    "for i in range(2): w = getattr(self, f'part{i}').sigmoid(); x = x + w; w *= 2\nreturn x": (
        "for i in range(2): w = getattr(self, f'part{i}').clone(); x = x + w; w *= 2\nreturn x"
    ),
    "for w in self.rows: x = torch.tanh(x + w); x += 1\nreturn x": "for w in self.rows: x = x + w; x += 1\nreturn x",
    "w = self.w[:2].exp(); y = x / w; w /= w.sum(); return y": "w = self.w[:2] * 2; w /= w.sum(); return x / w",
}
SEVERAL = {
    "s = self.w.exp(); y = xs[0] / s; s += 1; return y": "s = self.w.exp() * 2; s += 1; return xs[0] / s",
    "y = 0\nfor x in xs: s = self.b.sqrt(); y = y + x * s; s += 1\nreturn y": (
        "y = 0\nfor x in xs: s = self.b * 2; s += 1; y = y + x * s\nreturn y"
    ),
}


def found(tmp_path: Path, arguments: str, body: str) -> set[tuple[str, str]]:
    text = MODULE % arguments + textwrap.indent(body, " " * 8) + "\n"
    return {
        (c.kind, reading.evidence(c))
        for reading in read(tmp_path / "layers.py", text)
        for c in detect(reading.tape)
        if c.severity == "error"
    }


@pytest.mark.parametrize("body", STALE)
def test_what_is_made_of_a_parameter_and_spoilt_is_certain(tmp_path: Path, body: str) -> None:
    assert ("stale-saved-tensor", "certain") in found(tmp_path, "x", body)
    assert ("stale-saved-tensor", "certain") not in found(tmp_path, "x", STALE[body])


@pytest.mark.parametrize("body", SEVERAL)
def test_arguments_of_which_nothing_is_said_are_given(tmp_path: Path, body: str) -> None:
    assert ("stale-saved-tensor", "certain") in found(tmp_path, "*xs", body)
    assert not found(tmp_path, "*xs", SEVERAL[body])


STANDING = """\
import torch
from torch import nn
class Mine(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Parameter(torch.ones(dim)){frozen}
        self.table = nn.Parameter(torch.ones(dim))
        {made}
        self.fc = nn.Linear(dim, dim)
    def forward(self, x):
        {begin}
        return self.fc(x) * {used}
    {more}
"""


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, True),
        ({"made": "self.bias = self.table[torch.arange(3)].sigmoid()"}, True),
        ({"made": "self.w = self.w.exp()", "used": "self.w"}, False),  # (it is bound twice)
        ({"made": "self.bias = self.w.unsqueeze(0)"}, False),  # keeps nothing for its backward
        ({"made": "self.bias = self.w.exp().detach()"}, False),
        ({"made": "with torch.no_grad(): self.bias = self.w.exp()"}, False),
        ({"frozen": ".requires_grad_(False)"}, False),
        ({"begin": "self.bias = self.w.exp()"}, False),
        ({"more": "def refresh(self): self.bias = self.w.exp()"}, False),
        ({"more": "def refresh(self): setattr(self, 'bias', self.w.exp())"}, False),
        ({"more": "def hook(self): self.register_forward_pre_hook(print)"}, False),
        ({"used": "self.bias.detach()"}, False),
    ],
)
def test_a_graph_that_a_module_was_made_with(tmp_path: Path, parts: dict[str, str], told: bool) -> None:
    default = {"frozen": "", "made": "self.bias = self.w.exp()", "begin": "", "used": "self.bias", "more": ""}
    text = STANDING.format(**{**default, **parts})
    readings = read(tmp_path / "layers.py", text)
    found = {
        (c.kind, c.at.line, r.evidence(c)) for r in readings for c in detect(r.tape) if c.severity == "error"
    }
    assert found == ({("freed-graph", 8, "likely")} if told else set())


@pytest.mark.parametrize(
    ("made", "matters"),
    [
        ("nn.Parameter(torch.ones(3)).exp()", True),
        ("nn.Parameter(torch.ones(3, 4).view(2, 6)) * 0.1", True),
        ("nn.Parameter(torch.ones(3).exp())", False),
        ("nn.Parameter(torch.ones(3)).to(device)", False),
    ],
)
def test_a_file_is_read_for_what_stands_on_a_parameter(made: str, matters: bool) -> None:
    text = "import torch\nfrom torch import nn\nclass Mine(nn.Module):\n    def __init__(self):\n"
    text += (
        f"        super().__init__()\n        self.w = {made}\n    def forward(self, x): return x * self.w\n"
    )
    assert might_matter(text.encode()) is matters
