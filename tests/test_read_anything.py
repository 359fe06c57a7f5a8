"""Every function, method and layer of torch's, called with what it was not made for, is read without a failure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradfix.detect import detect
from gradfix.read import read

TENSORS = (
    "torch.tensor(0.5, requires_grad=True)",
    "torch.rand(3, requires_grad=True)",
    "torch.rand(2, 3, 4, 5, 6, requires_grad=True)",
    "torch.rand(0, requires_grad=True)",
    "None",
    "unknown()",
)
ARGUMENTS = (
    "", "1", "x", "(1, 2)", "x, x", "-7", "None", "'a'", "[x, x]", "dim=9", "0, 1", "1, 2, 3", "x, x, x",
)  # fmt: skip
MADE = ("", "1", "4, 4", "4, 4, 3", "None", "x", "(2, 3)", "4, 4, 3, padding='same', bias=False")
CALLED = ("x", "x, x", "", "(x, x)", "x, None", "x, (x, x)", "input=x", "hidden=x")
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def _functions(owner: object, private: bool = False) -> list[str]:
    names = [n for n in dir(owner) if callable(getattr(owner, n)) and not n[0].isupper()]
    return [n for n in names if private or not n.startswith("_")]


def calls() -> Iterator[tuple[str, ...]]:
    """The lines of every program there is."""
    owners = (("torch", torch), ("F", F), ("nn.init", nn.init))
    for name, owner in owners:
        for function in _functions(owner):
            for given in ARGUMENTS:
                yield f"y = {name}.{function}(x{', ' if given else ''}{given})", "z, w = y, y[0]"
            yield f"y = {name}.{function}(input=x)", "z, w = y, y[0]"
            yield f"y = {name}.{function}()", "z, w = y, y[0]"
    for method in _functions(torch.Tensor, private=True):
        if method != "__class__":
            for given in (*ARGUMENTS, "other=x", "**{}"):
                yield f"y = x.{method}({given})", "z, w = y, y[0]"
    for layer in [n for n in dir(nn) if n[0].isupper()]:
        for made in MADE:
            for given in CALLED:
                yield f"m = nn.{layer}({made})", f"y = m({given})"


def _survive(programs: Iterable[tuple[str, ...]], folder: Path) -> None:
    for lines in programs:
        for tensor in TENSORS:
            text = "\n".join((HEAD, f"x = {tensor}", *lines, "(y * 2).sum().backward()", ""))
            try:
                for reading in read(folder / "made.py", text):
                    list(detect(reading.tape))
            except Exception as problem:
                raise AssertionError(text) from problem


def test_a_sample_of_calls(tmp_path: Path) -> None:
    _survive(random.Random(0).sample(list(calls()), 150), tmp_path)


@pytest.mark.soak
def test_every_call(tmp_path: Path) -> None:
    _survive(calls(), tmp_path)


@pytest.mark.parametrize(
    "lines",
    [
        ("m = nn.Conv2d(3, 4, 3)", "y = m(x)"),
        ("y = F.linear(x, x)",),
        ("m = nn.Flatten()", "y = m()"),
        ("y = F.avg_pool1d(input=x)",),
    ],
    ids=["image_of_no_dimension", "weight_of_no_dimension", "layer_of_nothing", "input_by_name"],
)
def test_calls_that_once_failed(tmp_path: Path, lines: tuple[str, ...]) -> None:
    _survive([lines], tmp_path)


def test_a_module_whose_names_are_made_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("globals()[input()] = 1\n")
    path = tmp_path / "train.py"
    text = f"{HEAD}from made import *\nx = torch.rand(3, requires_grad=True)\ny = x.exp()\ny += 1\ny.sum().backward()\n"
    kinds = {c.kind for reading in read(path, text) for c in detect(reading.tape)}
    assert kinds == {"stale-saved-tensor"}
