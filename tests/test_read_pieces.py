"""Writes to pieces of a tensor: what is read of them is what PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

PIECES = (
    *("split(2)", "split([1, 3])", "split_with_sizes([1, 3])", "chunk(2)", "unbind()", "unbind(1)"),
    *("tensor_split(2)", "tensor_split((1, 3))", "hsplit(2)", "vsplit(2)", "dsplit(2)"),
)
PROGRAM = """
import torch
w = torch.ones(4, 4, 4, requires_grad=True)
first, *others = (w * 2).{}
first.{}
first.sum().backward()
"""


@pytest.mark.parametrize("write", ["add_(1)", "mul_(2)"])
@pytest.mark.parametrize("pieces", PIECES)
def test_a_write_to_a_piece(pieces: str, write: str, tmp_path: Path) -> None:
    program = PROGRAM.format(pieces, write)
    refused = ""
    try:
        exec(program, {})
    except RuntimeError as refusal:
        refused = str(refusal)
    assert not refused or "function that returns multiple views" in refused
    script = tmp_path / "script.py"
    script.write_text(program)
    found = detect(read(script, program)[0].tape)
    assert [c.kind for c in found if c.severity != "note"] == ["forbidden-view-write"] * bool(refused)
