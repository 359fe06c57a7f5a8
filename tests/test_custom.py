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


SPOILT = """
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        {keep}
        {write}
        return {given}
    @staticmethod
    def backward(ctx, g):
        x, s = {kept}
        return {gradient}
Swish.apply(w @ v).sin().sum().backward()
told(w, v)
"""
KEEPS = {
    "saved": {"keep": "ctx.save_for_backward(x, s)", "kept": "ctx.saved_tensors"},
    "attribute": {"keep": "ctx.x, ctx.s = x, s", "kept": "ctx.x, ctx.s"},
}
SWISH = "g * s * (1 + x * (1 - s))"


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize("write", ["s.mul_(x)", "s *= x", "torch.mul(s, x, out=s)"])
def test_a_forward_that_overwrites_what_its_backward_needs(
    run: Callable[..., Outcome], keep: dict[str, str], write: str
) -> None:
    wrong = SPOILT.format(write=write, given="s", gradient=SWISH, **keep)
    right = SPOILT.format(write="s = s * x", given="s", gradient=SWISH, **keep).replace("s = s", "y = s")
    right = right.replace("return s\n", "return y\n")
    outcome = run(HEAD + wrong, record=True)
    exact, plain = json.loads(run(HEAD + right).stdout), json.loads(run(HEAD + wrong).stdout)
    assert json.loads(outcome.stdout) == pytest.approx(exact, rel=1e-5)
    (backward,) = (e for e in outcome.tape.events if isinstance(e, Backward))
    off = norm([a - b for a, b in zip(plain, exact, strict=True)]) / norm(exact)
    assert backward.wrong == pytest.approx(off, rel=1e-4)
    (conflict,) = detect(outcome.tape)
    assert (conflict.kind, conflict.pattern) == ("silent-overwrite", "spoilt-save")
    assert conflict.at.line == 1 + (HEAD + wrong).splitlines().index(f"        {write}")
    assert conflict.write is not None
    assert "mul" in conflict.write.op


@pytest.mark.parametrize("keep", KEEPS.values(), ids=KEEPS)
@pytest.mark.parametrize(
    ("write", "given", "gradient"),
    [
        ("s.exp_()", "s", "g * s * (s.log() * (1 - s.log()))"),  # it is the result that the backward reads
        ("s.copy_(x.round())", "s", "g * (s.abs() < 2)"),  # a gradient that is none of the forward's
        ("s.mul_(x)", "s", "g"),  # wrong whatever was kept
        ("s.mul_(torch.rand_like(s))", "s * x", "g * s + 0 * x"),  # (s is taken for a number; drawn)
        ("s.zero_()", "x * x", "2 * g * x"),  # not read
    ],
    ids=["result", "straight_through", "wrong_anyhow", "drawn", "unread"],
)
def test_what_a_forward_may_overwrite(
    run: Callable[..., Outcome], keep: dict[str, str], write: str, given: str, gradient: str
) -> None:
    text = HEAD + SPOILT.format(write=write, given=given, gradient=gradient, **keep)
    outcome = run(text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(text).stdout), rel=1e-6)
    assert detect(outcome.tape) == ()


RESULT = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        result = {result}
        ctx.save_for_backward({saved})
        return result
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0]
        return {gradient}, None
h = w @ v
(Own.apply(h, 2.0).sin() + h).sum().backward()
told(w, v)
"""
SILU = "g * (x.sigmoid() + x * x.sigmoid() * (1 - x.sigmoid()))"


def test_a_result_that_is_saved_in_place_of_the_input(run: Callable[..., Outcome]) -> None:
    wrong, right = (
        HEAD + RESULT.format(result="x * x.sigmoid()", saved=s, gradient=SILU) for s in ("result", "x")
    )
    outcome = run(wrong, record=True)
    exact, plain = json.loads(run(right).stdout), json.loads(run(wrong).stdout)
    assert json.loads(outcome.stdout) == pytest.approx(exact, rel=1e-5)
    (backward,) = (e for e in outcome.tape.events if isinstance(e, Backward))
    off = norm([a - b for a, b in zip(plain, exact, strict=True)]) / norm(exact)
    assert backward.wrong == pytest.approx(off, rel=1e-4)
    (conflict,) = detect(outcome.tape)
    assert (conflict.kind, conflict.pattern) == ("silent-overwrite", "result-saved")
    assert conflict.at.line == 1 + wrong.splitlines().index("        ctx.save_for_backward(result)")


@pytest.mark.parametrize(
    ("result", "saved", "gradient"),
    [
        ("x.tanh()", "result", "g * (1 - x * x)"),
        ("x.round()", "result", "g"),  # straight through
        ("x * x.sigmoid()", "result", "g * x"),  # wrong whatever is saved
        ("x * x.sigmoid()", "result, x", SILU.replace("x", "ctx.saved_tensors[1]")),
        ("x * torch.rand_like(x)", "result", "g * x / 2"),
    ],
    ids=["of_the_result", "straight_through", "wrong_anyhow", "both", "drawn"],
)
def test_a_result_that_may_be_saved(
    run: Callable[..., Outcome], result: str, saved: str, gradient: str
) -> None:
    text = HEAD + RESULT.format(result=result, saved=saved, gradient=gradient)
    outcome = run(text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(text).stdout), rel=1e-6)
    assert detect(outcome.tape) == ()


WITHIN = """
class Wave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {keep}
        return x.sin()
    @staticmethod
    def backward(ctx, g):
        x = {kept}
        x.cos_()
        return x * g
"""
ONE = {
    "saved": {"keep": "ctx.save_for_backward(x)", "kept": "ctx.saved_tensors[0]"},
    "attribute": {"keep": "ctx.x = x", "kept": "ctx.x"},
}


@pytest.mark.parametrize("keep", ONE.values(), ids=ONE)
def test_a_backward_may_overwrite_what_nobody_needs_any_more(
    run: Callable[..., Outcome], keep: dict[str, str]
) -> None:
    text = HEAD + WITHIN.format(**keep) + "Wave.apply(w @ v).sum().backward()\ntold(w, v)\n"
    outcome = run(text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(run(text).stdout), rel=1e-6)
    assert not [e for e in outcome.tape.events if isinstance(e, Backward) and (e.wrong or e.refused)]
    assert detect(outcome.tape) == ()


@pytest.mark.parametrize("keep", ONE.values(), ids=ONE)
@pytest.mark.parametrize(
    ("rest", "kinds"),
    [
        ("y = Wave.apply(w @ v).sum()\ny.backward(retain_graph=True)\ny.backward()\n", "twice"),
        ("Wave.apply((w @ v).exp()).sum().backward()\n", "another"),
    ],
    ids=["twice", "another"],
)
def test_a_backward_that_overwrites_what_is_needed_later(
    run: Callable[..., Outcome], keep: dict[str, str], rest: str, kinds: str
) -> None:
    text = HEAD + WITHIN.format(**keep) + rest + "told(w, v)\n"
    right = run(text.replace("x.cos_()", "x = x.cos()"))
    outcome = run(text, record=True)
    assert json.loads(outcome.stdout) == pytest.approx(json.loads(right.stdout), rel=1e-5)
    raises = "modified by an inplace operation" in run(text).stderr
    assert raises == (kinds == "another" or "ctx.x" not in text)
    (conflict,) = (c for c in detect(outcome.tape) if c.severity == "error")
    assert conflict.kind == ("stale-saved-tensor" if raises else "silent-overwrite")
    assert conflict.at.line == 1 + text.splitlines().index("        x.cos_()")
