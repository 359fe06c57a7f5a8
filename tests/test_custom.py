"""Custom autograd Functions: what the recorder measures of them is what plain PyTorch gets wrong, and its own
gradients are those of the Function written as it should be."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from runs import project, run

from gradfix.detect import detect
from gradfix.run import Outcome
from gradfix.tape import Backward, Record

HEAD = """
import json, torch
def told(*leaves):
    print(json.dumps([x for leaf in leaves for x in leaf.grad.flatten().tolist()]))
w = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
v = torch.linspace(1, 2, 9).reshape(3, 3).requires_grad_()
"""
UNMARKED = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        return x
    @staticmethod
    def backward(ctx, g):
        return g * 2
h = w @ v
(Double.apply(h).sin() + h * h).sum().backward()
told(w, v)
"""
KEPT = """
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.saved = {"x": x}
        return x * x
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved["x"] * g
h = w @ v
y = Square.apply(h)
h.add_(1)
(y.sin() + h).sum().backward()
told(w, v)
"""
GIVEN = """
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, g):
        return g.clamp_(max=0.2)
h = w @ v
(h + Clip.apply(h)).sin().sum().backward()
told(w, v)
"""
EXPANDED = """
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        g[x < 0] = 0
        return g
Gate.apply(w @ v).sum().backward()
told(w, v)
"""
TWICE = """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        return x * s
    @staticmethod
    def backward(ctx, g):
        return g * ctx.s, None
h = Scale.apply(w @ v, 3.0)
(g,) = torch.autograd.grad(h.pow(3).sum(), w, create_graph=True)
g.pow(2).sum().backward()
told(w, v)
"""
RIGHT = {
    UNMARKED: UNMARKED.replace("        x.mul_", "        ctx.mark_dirty(x)\n        x.mul_"),
    KEPT: KEPT.replace("h.add_(1)", "h = h + 1"),
    GIVEN: GIVEN.replace("clamp_", "clamp"),
    EXPANDED: EXPANDED.replace("        g[x", "        g = g.clone()\n        g[x"),
    TWICE: TWICE,
}


def norm(values: list[float]) -> float:
    return sum(x * x for x in values) ** 0.5


@pytest.mark.parametrize(
    "text", [UNMARKED, KEPT, GIVEN, EXPANDED], ids=["unmarked", "kept", "given", "expanded"]
)
def test_the_measure_is_what_plain_pytorch_gets_wrong(run: Callable[..., Outcome], text: str) -> None:
    plain, right = json.loads(run(HEAD + text).stdout), json.loads(run(HEAD + RIGHT[text]).stdout)
    outcome = run(HEAD + text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(right, rel=1e-5)
    (backward,) = (e for e in outcome.tape.events if isinstance(e, Backward))
    off = norm([a - b for a, b in zip(plain, right, strict=True)]) / norm(right)
    assert backward.wrong == pytest.approx(off, rel=1e-4)
    assert off > 0.1
    assert [c.kind for c in detect(outcome.tape) if c.severity != "note"] == ["silent-overwrite"]


@pytest.mark.parametrize(
    "text", RIGHT.values(), ids=["marked", "not_written", "clipped", "own_memory", "twice"]
)
def test_a_sound_function_is_left_alone(run: Callable[..., Outcome], text: str) -> None:
    outcome = run(HEAD + text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(HEAD + text).stdout), rel=1e-6)
    assert not [e for e in outcome.tape.events if isinstance(e, Backward) and (e.wrong or e.refused)]
    assert detect(outcome.tape) == ()


def test_what_ctx_keeps_is_told(run: Callable[..., Outcome]) -> None:
    records = [e for e in run(HEAD + KEPT, record=True).tape.events if isinstance(e, Record)]
    assert {r.op: [ref.name for ref in r.held] for r in records if r.held} == {"Square": ["h"]}


@pytest.mark.parametrize(
    "written",
    ["y.add_(1)", "y[0] = 0"],
)
def test_what_an_unmarked_function_returned_is_still_refused(
    run: Callable[..., Outcome],
    written: str,
) -> None:
    text = UNMARKED.replace("(Double.apply(h).sin() + h * h)", f"y = Double.apply(h)\n{written}\ny.sin()")
    assert "custom Function" in (run(HEAD + text).failure or Outcome()).message
    patterns = [(c.kind, c.pattern) for c in detect(run(HEAD + text, record=True).tape)]
    assert patterns == [("forbidden-view-write", "custom-view")]
