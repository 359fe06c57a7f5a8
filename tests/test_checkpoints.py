"""torch.utils.checkpoint: what is recorded of it is what plain PyTorch gets wrong, and what is read of it the same."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Outcome
from gradfix.run.child.checkpoints import FULL
from gradfix.tape import Backward, Note

HEAD = """\
import json, torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.3)
    def forward(self, x):
        h = torch.sigmoid(self.norm(self.a(x)))
        h {op} x
        return {returned}
class Nest(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.c, self.reentrant = Block(), nn.Linear(4, 4), reentrant
    def forward(self, x):
        return self.c(checkpoint(self.inner, x, use_reentrant=self.reentrant)).tanh()
"""
TAIL = """
x = torch.randn(6, 4, requires_grad=True)
loss = {call}.square().mean()
loss.backward()
print(json.dumps([x for p in net.parameters() for x in (p.grad if p.grad is not None else p * 0).flatten().tolist()]))
"""
AHEAD, LAST = "self.drop(self.b(h))", "h"
CALLS = {
    "not_reentrant": ("Block()", "checkpoint(net, x, use_reentrant=False)"),
    "reentrant": ("Block()", "checkpoint(net, x, use_reentrant=True)"),
    "segments": (
        "nn.Sequential(Block(), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())",
        "checkpoint_sequential(net, 2, x, use_reentrant=False)",
    ),
    "reentrant_segments": (
        "nn.Sequential(Block(), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())",
        "checkpoint_sequential(net, 2, x, use_reentrant=True)",
    ),
    "nested": ("Nest(False)", "checkpoint(net, x, use_reentrant=False)"),
    "reentrant_in_another": ("Nest(True)", "checkpoint(net, x, use_reentrant=False)"),
    "in_a_reentrant": ("Nest(False)", "checkpoint(net, x, use_reentrant=True)"),
    "both_reentrant": ("Nest(True)", "checkpoint(net, x, use_reentrant=True)"),
}
RAISES = ("reentrant", "reentrant_segments", "reentrant_in_another", "both_reentrant")


def text(call: str, op: str, returned: str = AHEAD) -> str:
    net, called = CALLS[call]
    return HEAD.format(op=op, returned=returned) + f"net = {net}\n" + TAIL.format(call=called)


def norm(values: list[float]) -> float:
    return sum(x * x for x in values) ** 0.5


def told(path: Path, program: str, tape: object = None) -> list[tuple[str, str, int]]:
    """(kind, pattern, line) of what is recorded, or, without a tape, read."""
    if tape is None:
        (path / "train.py").write_text(program)
        tape = read(path / "train.py", program)[0].tape
    conflicts = [c for c in detect(tape) if c.severity != "note"]  # type: ignore[arg-type]
    return [(c.kind, c.pattern, c.at.line) for c in conflicts]


@pytest.mark.parametrize("call", CALLS)
def test_a_write_behind_a_save(run: Callable[..., Outcome], tmp_path: Path, call: str) -> None:
    """Silent without reentrance, and measured; an error with it. The recorded gradients are exact in both."""
    faulty, right = text(call, "+="), json.loads(run(text(call, "= h +")).stdout)
    plain, outcome = run(faulty), run(faulty, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(right, rel=1e-5, abs=1e-8)
    (backward,) = (e for e in outcome.tape.events if isinstance(e, Backward))
    if call in RAISES:
        assert plain.failure is not None
        assert "modified by an inplace operation" in plain.failure.message
        assert "modified by an inplace operation" in backward.refused
        expected = [("stale-saved-tensor", "write", 12)]
    else:
        off = norm([a - b for a, b in zip(json.loads(plain.stdout), right, strict=True)]) / norm(right)
        assert backward.wrong == pytest.approx(off, rel=0.05)  # (the input's gradient counts, too)
        assert off > 0.1
        expected = [("silent-overwrite", "checkpoint", 12)]
    assert told(tmp_path, faulty, outcome.tape) == expected == told(tmp_path, faulty)


@pytest.mark.parametrize("call", CALLS)
def test_a_sound_one_is_left_alone(run: Callable[..., Outcome], tmp_path: Path, call: str) -> None:
    sound = text(call, "= h +")
    outcome = run(sound, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(sound).stdout), rel=1e-6, abs=1e-9)
    assert told(tmp_path, sound, outcome.tape) == [] == told(tmp_path, sound)


def test_behind_the_last_save_nothing_is_run_again(run: Callable[..., Outcome], tmp_path: Path) -> None:
    faulty = text("not_reentrant", "+=", LAST)
    outcome = run(faulty, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(faulty).stdout), rel=1e-6, abs=1e-9)
    assert told(tmp_path, faulty, outcome.tape) == [] == told(tmp_path, faulty)


STEPPED = """\
import json, torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
G, D = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(D.parameters(), lr=0.5)
score = {call}
(score - 1).square().mean().backward(retain_graph=True)
optimizer.step()
G.zero_grad()
(-score.square().mean()).backward()
print(json.dumps(G.weight.grad.flatten().tolist()))
"""


def test_a_step_before_the_backward(run: Callable[..., Outcome], tmp_path: Path) -> None:
    """The function runs again with other parameters than those its result was made with."""
    program = STEPPED.format(call="checkpoint(D, G(torch.randn(5, 3)), use_reentrant=False)")
    outcome = run(program, record=True)
    exact = run(STEPPED.format(call="D(G(torch.randn(5, 3)))"), record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(exact.stdout), rel=1e-5)
    assert json.loads(outcome.stdout) != pytest.approx(json.loads(run(program).stdout), rel=0.05)
    kinds = [("silent-overwrite", "checkpoint", 9)]
    assert told(tmp_path, program, outcome.tape) == kinds == told(tmp_path, program)


def test_the_function_runs_as_often_as_ever(run: Callable[..., Outcome]) -> None:
    program = textwrap.dedent("""
        import torch
        from torch.utils.checkpoint import checkpoint
        w = torch.ones(3, requires_grad=True)
        def function(x):
            print("runs")
            h = x.exp()
            h += 1
            return h.sin()
        for _ in range(2):
            checkpoint(function, w * 2, use_reentrant=False).sum().backward()
    """)
    assert run(program, record=True).stdout == run(program).stdout == "runs\n" * 4


def test_what_takes_too_much_memory_is_not_kept(run: Callable[..., Outcome]) -> None:
    """A step behind it goes unnoticed then, which is said; the gradients are those of plain PyTorch."""
    big = STEPPED.replace("8", "3000").replace("3000)", "3000, bias=False)")
    program = big.format(call="checkpoint(D, G(torch.randn(9000, 3)), use_reentrant=False)")
    outcome = run(program, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(program).stdout), rel=1e-4)
    assert {c.severity for c in detect(outcome.tape)} <= {"note"}
    assert [e.text for e in outcome.tape.events if isinstance(e, Note)] == [FULL]


def test_what_has_no_name_is_told_by_what_saved_it(run: Callable[..., Outcome]) -> None:
    program = """
        import torch
        from torch import nn
        from torch.utils.checkpoint import checkpoint
        body = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.LeakyReLU(0.1, inplace=True), nn.Linear(3, 3), nn.Tanh())
        checkpoint(body, torch.randn(4, 3), use_reentrant=False).sum().backward()
    """
    (conflict,) = detect(run(textwrap.dedent(program), record=True).tape)
    assert "a tensor that the op in line 6 saved within a checkpoint is overwritten by" in conflict.message
