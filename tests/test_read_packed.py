"""Packed sequences: their `data` is within the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

TEXT = """\
import torch
from torch import nn
from torch.nn.utils import rnn

torch.manual_seed(0)
words, cell, head = nn.Embedding(9, 3), nn.{cell}(3, 4, batch_first=True), nn.Linear(4, 9)
optimizer = torch.optim.SGD([*words.parameters(), *cell.parameters(), *head.parameters()], lr=0.1)
for step in range(3):
    ids, lengths = torch.randint(0, 9, (2, 5)), torch.tensor([5, 3])
    packed = rnn.pack_padded_sequence(words(ids), lengths, batch_first=True)
    targets = rnn.pack_padded_sequence(ids, lengths, batch_first=True).data
    output, state = cell(packed)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CROSS = "nn.functional.cross_entropy(head({}), targets)"


def found(tmp_path: Path, zygote: Zygote, loss: str, cell: str) -> set[tuple[str, int]]:
    """(kind, line) of what is above a note, which is what the run shows."""
    program = tmp_path / "train.py"
    text = TEXT.format(loss=loss, cell=cell)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    ran = zygote.run(Run(program, tmp_path, tmp_path))
    assert ran.failure is None
    told = {(c.kind, c.at.line) for c in detect(main.tape) if c.severity != "note"}
    assert told == {(c.kind, c.at.line) for c in detect(ran.tape) if c.severity != "note"}
    return told


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize(
    "loss",
    [
        CROSS.format("output.data"),
        CROSS.format("output[0]"),
        CROSS.format("output.to('cpu').data"),
        CROSS.format("rnn.PackedSequence(output.data, output.batch_sizes).data"),
        "head(rnn.pad_packed_sequence(output, batch_first=True)[0]).pow(2).mean()",
        CROSS.format("output.data") + " if isinstance(output, rnn.PackedSequence) else output.data.sum()",
        "head(rnn.pad_sequence([output.data, packed.data @ torch.ones(3, 4)])).mean()",
        "head(cell(rnn.pack_sequence([words(ids[0]), words(ids[1])], enforce_sorted=False))[0].data).mean()",
    ],
)
def test_it_is_in_the_graph(tmp_path: Path, zygote: Zygote, loss: str, cell: str) -> None:
    assert found(tmp_path, zygote, loss, cell) == set()


@pytest.mark.parametrize(
    "cut", ["output.data.detach()", "output.data.data", "output[0].detach()", "output.data.clone().data"]
)
def test_it_is_cut_off_where_its_tensor_is(tmp_path: Path, zygote: Zygote, cut: str) -> None:
    assert {kind for kind, _ in found(tmp_path, zygote, CROSS.format(cut), "GRU")} == {"cut-graph"}
