"""A module by itself, without anybody who trains it: what its forward writes over that a backward through it needs."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

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
