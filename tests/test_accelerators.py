"""Programs that train by Hugging Face's Accelerator, read: its backward is the loss's."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import Reading, read

HEAD = """
    import torch
    from torch import nn
    from {source} import {name}

    accelerator = {made}
    net, rate = nn.Linear(3, 3), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*net.parameters(), rate], lr=0.1)
    loader = [torch.ones(2, 3)] * 8
"""
OVERWRITTEN = """
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    for x in loader:
        with accelerator.accumulate(net):
            optimizer.zero_grad()
            out = torch.tanh(net(x))
            out /= 2.0
            accelerator.backward(out.sum())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
"""


def readings(
    tmp_path: Path,
    text: str,
    made: str = "Accelerator()",
    source: str = "accelerate",
    name: str = "Accelerator",
) -> tuple[Reading, ...]:
    path = tmp_path / "train.py"
    head = textwrap.dedent(HEAD).format(made=made, source=source, name=name)
    return read(path, head + textwrap.dedent(text))


def kinds(found: tuple[Reading, ...]) -> list[tuple[str, str, int]]:
    return [
        (reading.evidence(c), c.kind, c.at.line - 10)
        for reading in found
        for c in detect(reading.tape)
        if c.severity != "note"
    ]


@pytest.mark.parametrize(
    ("made", "source", "name"),
    [
        ("Accelerator()", "accelerate", "Accelerator"),
        ("Accelerator(mixed_precision='no')", "accelerate.accelerator", "Accelerator"),
        ("accelerate.Accelerator(log_with='wandb')", "accelerate", "*; import accelerate"),
        ("Own()", "accelerate", "Accelerator\nclass Own(Accelerator): pass"),
    ],
)
def test_its_backward_is_that_of_the_loss(tmp_path, made, source, name):
    found = readings(tmp_path, OVERWRITTEN, made, source, name)
    assert [(e, k) for e, k, _ in kinds(found)] == [("certain", "stale-saved-tensor")]
    assert found[0].reached == found[0].total != frozenset()


def test_what_it_prepares_steps_and_clears_as_before(tmp_path):
    text = """
    net, optimizer = accelerator.prepare(net, optimizer)
    for x in loader:
        loss = net(accelerator.unwrap_model(net)(x)).sum()
        accelerator.backward(loss, retain_graph=True)
        optimizer.step()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=0)
    """
    assert {k for _, k, _ in kinds(readings(tmp_path, text))} == {"stale-saved-tensor", "unreset-grad"}


@pytest.mark.parametrize("precision", ["'fp16'", "input()"])
def test_under_mixed_precision_weights_are_kept_as_copies(tmp_path, precision):
    text = """
    net, optimizer = accelerator.prepare(net, optimizer)
    for x in loader:
        optimizer.zero_grad()
        first, second = net(net(x)).sum(), net(net(x)).pow(2).sum()
        accelerator.backward(first)
        optimizer.step()
        accelerator.backward(second)
    """
    assert [k for _, k, _ in kinds(readings(tmp_path, text))] == ["stale-saved-tensor"]
    found = readings(tmp_path, text, f"Accelerator(mixed_precision={precision})")
    assert kinds(found) == []


def test_what_others_gave_it_is_not_known(tmp_path):
    text = """
    scores = accelerator.gather(net(loader[0]))
    scores.sum().backward()
    net, *rest = accelerator.prepare(*input())
    accelerator.backward(net(loader[0]).sum())
    """
    assert kinds(readings(tmp_path, text)) == []
