"""A tensor is written behind the outputs of unbind, split or chunk: PyTorch refuses whatever reads one of them
afterwards, and the write is at fault."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Outcome

HEAD = """
import json, torch
w = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
h = w * 2
"""
TAIL = """
loss.backward()
print(json.dumps(w.grad.flatten().tolist()))
"""
REFUSED = "its base or another view of its base has been modified inplace"
SPLITS = (
    "a, b, *_ = h.unbind()",
    "a, b = h.split(2)",
    "a, b = torch.chunk(h, 2)",
    "a, b, c = h.tensor_split(3)",
)
WRITES = (
    "h[0, 0] = 0.5",
    "h.mul_(3)",
    "h.view(-1)[1:3] += 1",
    "torch.exp(h.detach(), out=h)",
    "with torch.no_grad(): h[0] = 0.5",
)
USES = ("loss = a.tanh().sum()", "loss = torch.cat([b, a]).sum()", "loss = h.sum() + 2 * a.sum()")


def found_in(text: str) -> list[tuple[str, str, int, str]]:
    """What reading the text shows."""
    main = next(iter(read(Path("train.py"), text)))
    found = (c for c in detect(main.tape) if c.severity == "error")
    return [(c.kind, c.pattern, c.at.line, main.evidence(c)) for c in found]


@pytest.mark.parametrize(
    ("split", "write"), [*((s, WRITES[0]) for s in SPLITS), *((SPLITS[1], w) for w in WRITES[1:])]
)
def test_is_found_where_pytorch_refuses(run: Callable[..., Outcome], split: str, write: str) -> None:
    for use in USES:
        text = HEAD + f"{split}\n{write}\n{use}" + TAIL
        found = detect(run(text, record=True).tape)
        plain = run(text)
        said = plain.failure.message if plain.failure is not None else ""
        if REFUSED in said:
            (conflict,) = (c for c in found if c.severity == "error")
            assert (conflict.kind, conflict.pattern) == ("forbidden-view-write", "behind-views")
            assert conflict.at.line == text.splitlines().index(write) + 1
            assert said in conflict.event.refused
            assert found_in(text) == [(conflict.kind, conflict.pattern, conflict.at.line, "certain")]
        else:
            assert not [c for c in found if c.pattern == "behind-views"]
            assert not found_in(text)


@pytest.mark.parametrize("split", SPLITS[:2])
@pytest.mark.parametrize(
    "rest",
    [
        "h = h.clone()\nh[0, 0] = 0.5\nloss = a.tanh().sum() + h.sum()",
        "loss = a.tanh().sum() + b.sum()\nh[0, 0] = 0.5\nloss = loss + h.sum()",
        "h[0, 0] = 0.5\nloss = h.tanh().sum() + float(a.detach().sum())",
        "h[0, 0] = 0.5\nloss = h.tanh().sum() * a.size(0)",
        "h[0, 0] = 0.5\nwith torch.no_grad(): shown = a.sum()\nloss = h.tanh().sum()",
        "h.data[0, 0] = 0.5\nloss = a.sum() + h.sum()",
        "loss = (a * 1).sum()\nh = h * 2\nh[0] = 0\nloss = loss + h.sum() + b.sum()",
    ],
    ids=["cloned", "read_before", "detached", "size", "no_grad", "uncounted", "another"],
)
def test_what_pytorch_allows_is_left_alone(run: Callable[..., Outcome], split: str, rest: str) -> None:
    text = HEAD + f"{split}\n{rest}" + TAIL
    plain, outcome = run(text), run(text, record=True)
    assert plain.failure is None
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(plain.stdout), rel=1e-6)
    assert not [c for c in detect(outcome.tape) if c.severity == "error"]


def test_the_recorded_run_has_the_gradient_of_views_taken_behind_the_write(
    run: Callable[..., Outcome],
) -> None:
    text = HEAD + "a, b = h.chunk(2)\nh[0, 0] = 0.5\nloss = a.tanh().sum() + b.sum()" + TAIL
    right = HEAD + "h[0, 0] = 0.5\na, b = h.chunk(2)\nloss = a.tanh().sum() + b.sum()" + TAIL
    assert json.loads(run(text, record=True).stdout) == json.loads(run(right).stdout)


def test_views_of_an_op_each_may_be_written(run: Callable[..., Outcome]) -> None:
    text = HEAD + "a, b, c = h.tensor_split(3)\na += 1\nloss = a.tanh().sum() + b.sum()" + TAIL
    plain, outcome = run(text), run(text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(plain.stdout), rel=1e-6)
    assert detect(outcome.tape) == ()
    assert not found_in(text)


def test_a_row_is_read_behind_the_write_of_the_pass_before(run: Callable[..., Outcome]) -> None:
    text = HEAD + "for i, row in enumerate(h):\n    h[i] = row * 2\nloss = h.sum()" + TAIL
    assert REFUSED in run(text).failure.message
    line = text.splitlines().index("    h[i] = row * 2") + 1
    assert [c.at.line for c in detect(run(text, record=True).tape) if c.severity == "error"] == [line]
    assert found_in(text) == [("forbidden-view-write", "behind-views", line, "certain")]
    own = text.replace("h[i] = row", "g[i] = row").replace("h = w * 2", "h = w * 2; g = h.clone()")
    assert run(own).failure is None
    assert not found_in(own)


STEPS = """
import torch
w = torch.nn.Parameter(torch.linspace(-1, 1, 12).reshape(4, 3))
optimizer = torch.optim.SGD([w], lr=0.1)
{}
for _ in range(3):
    loss = {}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(torch.isfinite(w).all().item())
"""


@pytest.mark.parametrize(
    ("views", "loss"),
    [
        ("a, b = w.chunk(2)", "(a.tanh() * b).sum()"),
        ("a, *_ = w", "a.tanh().sum()"),
        ("a = w.split(2)", "(a[0].tanh() * a[1]).sum()"),
        ("a = [v.tanh for v in w.unbind()]", "sum(f().sum() for f in a)"),
        ("a = w[:2]", "a.tanh().sum()"),
        ("a = w.t()", "a.tanh().sum()"),
        ("a = w.view(-1)", "a.tanh().sum()"),
        ("a, b = w.tensor_split(2)", "(a.tanh() * b).sum()"),
        ("a, b = w.detach().chunk(2)", "(a.tanh() * b).sum() + w.tanh().sum()"),
        ("a, b = w.chunk(2)", "w.tanh().sum()"),
    ],
)
def test_a_step_outdates_the_views_that_one_op_made(
    run: Callable[..., Outcome], views: str, loss: str
) -> None:
    text = STEPS.format(views, loss)
    plain, found = run(text), [c for c in detect(run(text, record=True).tape) if c.severity == "error"]
    assert [c.pattern for c in found] == (["behind-views"] if plain.failure is not None else [])
    for conflict in found:
        assert REFUSED in plain.failure.message
        assert [x.role for x in conflict.labels] == ["made", "overwritten", "used"]
        assert conflict.at.line == text.splitlines().index("    optimizer.step()") + 1
        assert conflict.record.stack[-1].line == text.splitlines().index(views) + 1


def test_a_step_that_comes_before_the_views_is_no_fault(run: Callable[..., Outcome]) -> None:
    text = STEPS.format("", "sum(v.tanh().sum() for v in w.unbind())")
    assert run(text).failure is None
    assert not [c for c in detect(run(text, record=True).tape) if c.severity == "error"]


@pytest.mark.parametrize("split", ["a, b = rows.unbind()", "a, b = rows.split(1)"])
def test_saved_output_of_what_is_written_to_with_a_graph(run: Callable[..., Outcome], split: str) -> None:
    """What PyTorch says of it says nothing of what was saved: that view may no longer be asked who made it."""
    text = HEAD + f"rows = torch.ones(2, 4)\n{split}\nrows[0] = (a @ w).mean()\nloss = rows.mean()" + TAIL
    plain = run(text).failure
    assert plain is not None
    assert REFUSED in plain.message
    found = [(c.kind, c.at.line) for c in detect(run(text, record=True).tape)]
    assert found == [("stale-saved-tensor", 7)] == [(kind, line) for kind, _, line, _ in found_in(text)]


UNGRADED = """
import torch
from torch import nn
torch.manual_seed(0)
net, table = nn.Linear(3, 1), nn.Parameter(torch.randn(5, 3))
optimizer = torch.optim.SGD([table, *net.parameters()], lr=0.1)
with torch.no_grad():
    first = table[0]
for _ in range(3):
    optimizer.zero_grad()
    net(torch.randn(4, 3) * {read} + table[1]).pow(2).mean().backward()
    {step}
"""


@pytest.mark.parametrize("step", ["optimizer.step()", "with torch.no_grad(): table.sub_(table.grad)"])
def test_a_view_made_without_gradients_is_not_read_behind_a_write(
    run: Callable[..., Outcome], step: str
) -> None:
    outcome = run(UNGRADED.format(read="first", step=step), record=True)
    (found,) = detect(outcome.tape)
    assert (found.kind, found.pattern, found.at.line) == ("forbidden-view-write", "behind-views", 12)
    before, after = found.message.split(" after a view of it was made where gradients are off")
    assert (" by " in before) == step.startswith("optimizer")
    assert "`first` read" in after
    assert outcome.failure is not None
    assert "A view was created in no_grad mode" in outcome.failure.message


@pytest.mark.parametrize("made", ["table[0].clone()", "table.detach()[0]"])
def test_what_is_no_view_of_a_leaf_may_be_read(run: Callable[..., Outcome], made: str) -> None:
    text = UNGRADED.format(read="first", step="optimizer.step()").replace("= table[0]", f"= {made}")
    outcome = run(text, record=True)
    assert outcome.failure is None
    assert detect(outcome.tape) == ()


def test_a_backward_that_reads_one_says_what_pytorch_says(run: Callable[..., Outcome]) -> None:
    text = HEAD + "a, b, *_ = h.unbind()\nh[0] = a * a\nloss = h.mean()" + TAIL
    (found,) = detect(run(text, record=True).tape)
    assert found.kind == "stale-saved-tensor"
    assert found.backward is not None
    plain = run(text).failure
    assert plain is not None
    assert found.backward.refused == plain.message
