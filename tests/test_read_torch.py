"""What is read of hooks, of gradients that are None, of numbers and of draws."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

HEAD = "import random\nimport torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LINES = HEAD.count("\n")


def found(tmp_path: Path, text: str, zygote: Zygote | None = None) -> list[tuple[str, str, int, str]]:
    """(kind, pattern, line of the text, evidence) of everything above a note in the main part, which is what the run
    shows."""
    program = tmp_path / "train.py"
    text = HEAD + textwrap.dedent(text)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    conflicts = [c for c in detect(main.tape) if c.severity != "note"]
    if zygote is not None:
        ran = detect(zygote.run(Run(program, tmp_path, tmp_path)).tape)
        told = {(c.kind, c.pattern, c.at) for c in ran if c.severity != "note"}
        assert {(c.kind, c.pattern, c.at) for c in conflicts} == told
    return [(c.kind, c.pattern, c.at.line - LINES, main.evidence(c)) for c in conflicts]


HOOKED = """\
inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
outer = nn.Linear(4, 1)
handle = inner{hooked}.register_{kind}(lambda *args: None)
{between}
h = inner(torch.randn(5, 3))
{written}
outer(h).sum().backward()
"""
VIEW = ("forbidden-view-write", "custom-view")


@pytest.mark.parametrize(
    ("hooked", "kind", "between", "written", "line"),
    [
        ("[0]", "full_backward_hook", "", "", 5),
        ("[0]", "full_backward_pre_hook", "", "", 5),
        ("[1]", "full_backward_hook", "", "", 5),  # its input is a view as well
        ("", "full_backward_hook", "", "h += 1", 6),
        ("", "full_backward_hook", "", "h = h + 1", 0),
        ("", "full_backward_hook", "handle.remove()", "h += 1", 0),
        ("", "forward_hook", "", "h += 1", 0),
        (
            "",
            "full_backward_hook",
            "torch.set_grad_enabled(False)",
            "h += 1; torch.set_grad_enabled(True)",
            0,
        ),
    ],
)
def test_what_passes_a_module_with_a_full_backward_hook_is_a_view(
    tmp_path: Path, zygote: Zygote, hooked: str, kind: str, between: str, written: str, line: int
) -> None:
    text = HOOKED.format(hooked=hooked, kind=kind, between=between, written=written)
    if hooked == "[1]":  # (the recorder knows the outputs alone)
        assert found(tmp_path, text) == [(*VIEW, line, "certain")]
    else:
        assert found(tmp_path, text, zygote) == ([(*VIEW, line, "certain")] if line else [])


def test_a_hook_that_may_not_be_there_is_none(tmp_path: Path) -> None:
    hooked = "if input(): inner.register_full_backward_hook(print)"
    text = HOOKED.format(hooked="", kind="forward_hook", between=hooked, written="h += 1")
    assert found(tmp_path, text) == []


CLEARED = """\
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    {cleared}
    {between}
    size = sum({read} for p in net.parameters())
"""
GONE = ("legacy-api", "cleared", 8, "certain")


@pytest.mark.parametrize("cleared", ["optimizer.zero_grad()", "net.zero_grad()", "net.weight.grad = None"])
def test_a_gradient_that_was_taken_away_is_none(tmp_path: Path, zygote: Zygote, cleared: str) -> None:
    text = CLEARED.format(cleared=cleared, between="", read="p.grad.norm()")
    assert found(tmp_path, text, zygote) == [GONE]


@pytest.mark.parametrize(
    ("cleared", "between", "read"),
    [
        ("optimizer.zero_grad(set_to_none=False)", "", "p.grad.norm()"),
        ("net.zero_grad(set_to_none=False)", "", "p.grad.norm()"),
        ("optimizer.zero_grad(bool(input()))", "", "p.grad.norm()"),
        ("optimizer.zero_grad()", "net(torch.ones(3)).sum().backward()", "p.grad.norm()"),
        ("optimizer.zero_grad()", "unknown(net)", "p.grad.norm()"),
        ("optimizer.zero_grad()", "", "0 if p.grad is None else p.grad.norm()"),
        ("pass", "", "p.grad.norm()"),
    ],
)
def test_a_gradient_that_may_be_there_is_not_missed(
    tmp_path: Path, cleared: str, between: str, read: str
) -> None:
    imported = "from somewhere import unknown\n"
    told = found(tmp_path, imported + CLEARED.format(cleared=cleared, between=between, read=read))
    assert "legacy-api" not in {kind for kind, *_ in told}


def test_the_list_of_one_number_is_a_number(tmp_path: Path, zygote: Zygote) -> None:
    text = """\
    loss = nn.Linear(3, 1)(torch.randn(2, 3)).{reduced}
    loss.mean().backward()
    print(loss.detach().tolist()[0])
    """
    assert found(tmp_path, text.format(reduced="mean()"), zygote) == [("legacy-api", "removed", 3, "certain")]
    assert found(tmp_path, text.format(reduced="mean(1)"), zygote) == []


LIMITED = """\
w = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([w], lr=0.1)
k = 0.0
for x in torch.rand(8, 3):
    loss = (w * x).pow(2).mean() - k * w.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    k = {limited}
"""


@pytest.mark.parametrize("limited", ["min(1, 0.01 * loss + k)", "max(0.01 * loss + k, -1)"])
def test_of_a_number_and_a_tensor_it_is_likely_the_tensor(
    tmp_path: Path, zygote: Zygote, limited: str
) -> None:
    text = LIMITED.format(limited=limited)
    assert [(kind, evidence) for kind, _, _, evidence in found(tmp_path, text, zygote)] == [
        ("freed-graph", "likely")
    ]
    detached = text.replace("loss + k", "loss.detach() + k")
    assert found(tmp_path, detached, zygote) == []


DRAWN = """\
encode, value = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*encode.parameters(), *value.parameters()], lr=0.1)
memory = []
for step in range(6):
    memory.append({kept})
    if step < 2:
        continue
    loss = sum(value({encoded}).pow(2).sum() for x in {drawn})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "drawn", ["random.sample(memory, 3)", "random.choices(memory, k=3)", "[random.choice(memory)]"]
)
def test_what_is_drawn_of_what_has_a_graph_likely_has_been_drawn_before(tmp_path: Path, drawn: str) -> None:
    text = DRAWN.format(kept="encode(torch.randn(4))", encoded="x", drawn=drawn)
    assert {evidence for *_, evidence in found(tmp_path, text)} <= {"likely"}
    assert bool(found(tmp_path, text)) == ("choice(" not in drawn)  # one item may be the new one every time
    without = DRAWN.format(kept="torch.randn(4)", encoded="encode(x)", drawn=drawn)
    assert found(tmp_path, without) == []
