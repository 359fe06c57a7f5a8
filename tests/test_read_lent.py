"""Functions that code which isn't known was given: what they set is not known when it has run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

TEXT = """\
import torch, torchvision, somewhere
from torch import nn

class Keeper:
    def __init__(self):
        self.out, self.all = torch.zeros(1), []
    def hook(self, module, given, out):
        self.out = out
    def many(self, module, given, out):
        self.all.append(out)

def closed():
    out = torch.zeros(1)
    def hook(module, given, made):
        nonlocal out
        out = made
    def get():
        return out
    return hook, get

def to_global(module, given, made):
    global kept
    kept = made

keeper, kept, listed = Keeper(), torch.zeros(1), [torch.zeros(1)]
hook, get = closed()
network = {network}
{given}
for step in range(3):
    {again}
    network(torch.rand(1, 3, 8, 8))
    {loss}.sum().backward()
"""
NETWORKS = ["somewhere.network()", "torchvision.models.resnet18()"]


def told(tmp_path: Path, network: str, given: str, loss: str, again: str = "pass") -> list[str]:
    program = tmp_path / "train.py"
    text = TEXT.format(network=network, given=given, loss=loss, again=again)
    return [c.kind for c in detect(read(program, text)[0].tape) if c.severity != "note"]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ("network.layer4.register_forward_hook(keeper.hook)", "keeper.out"),
        ("network.layer4.register_forward_hook(keeper.many)", "sum(keeper.all, torch.zeros(1))"),
        ("network.layer4.register_forward_hook(hook)", "get()"),
        ("network.layer4.register_forward_hook(to_global)", "kept"),
        ("network.layer4.register_forward_hook(hook=to_global)", "kept"),
        ("network.layer4.register_forward_hook(lambda m, i, o: listed.append(o))", "listed[-1]"),
        ("network.layer4.register_forward_hook(lambda m, i, o: listed.__setitem__(0, o))", "sum(listed)"),
        ("somewhere.watch(network, keeper.hook)", "keeper.out"),
    ],
)
def test_what_a_hook_keeps(tmp_path: Path, network: str, given: str, loss: str) -> None:
    assert told(tmp_path, network, given, loss) == []
    assert (
        told(tmp_path, network, given, loss, again="keeper.out, kept = torch.zeros(1), torch.zeros(1)") == []
    )


@pytest.mark.parametrize("network", NETWORKS)
def test_what_it_does_not_set_is_known(tmp_path: Path, network: str) -> None:
    given = "network.layer4.register_forward_hook(keeper.hook)"
    assert told(tmp_path, network, given, "kept") == ["cut-graph"]
    assert told(tmp_path, network, "pass", "keeper.out") == ["cut-graph"]


def test_one_that_is_given_again_and_again_is_one(tmp_path: Path) -> None:
    given = (
        "for layer in range(99): somewhere.watch(network, keeper.many)\nsomewhere.watch(network, keeper.hook)"
    )
    assert told(tmp_path, NETWORKS[0], given, "keeper.out") == []
    given = "".join(f"somewhere.watch(network, keeper.many, {n})\n" for n in range(40))
    assert told(tmp_path, NETWORKS[0], given + "somewhere.watch(network, keeper.hook)", "keeper.out") == []
