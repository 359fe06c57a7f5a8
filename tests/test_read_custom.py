"""Custom autograd Functions in the text: what is read of them is what their run shows."""

from __future__ import annotations

import textwrap
from itertools import product
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import Reading, read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

HEAD = """\
import torch
from torch import nn
torch.manual_seed(0)
net, head = nn.Linear(3, 6), nn.Linear(6, 6)
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.05)
"""
FUNCTIONS = {  # what forward does with x, what backward does with g
    "clears-its-own": ("ctx.save_for_backward(x); return x.clamp(min=0)",
                       "x, = ctx.saved_tensors; g = g.clone(); g[x < 0] = 0; return g"),
    "clears-the-gradient": ("ctx.save_for_backward(x); return x.clamp(min=0)",
                            "x, = ctx.saved_tensors; g[x < 0] = 0; return g"),
    "straight-through": ("return x.round()", "return g"),
    "reverse": ("return x.view_as(x)", "return -g"),
    "as-it-is": ("return x", "return g * 2"),
    "saves-its-result": ("y = x.exp(); ctx.save_for_backward(y); return y", "y, = ctx.saved_tensors; return g * y"),
    "keeps-its-result": ("y = x.exp(); ctx.y = y; return y", "return g * ctx.y"),
    "keeps-in-a-list": ("ctx.kept = [x, 2]; return x ** 2", "x, n = ctx.kept; return g * x * n"),
    "keeps-for-the-shape": ("ctx.x = x; return x.exp()", "return g * torch.ones(ctx.x.shape)"),
    "marked": ("x.mul_(2); ctx.mark_dirty(x); return x", "return g * 2"),
    "unmarked": ("x.mul_(2); return x", "return g * 2"),
    "unmarked-and-harmless": ("x.add_(2); return x", "return g"),
    "changed": ("x.mul_(2); return x.exp()", "return 2 * g"),
    "changed-and-back": ("x.mul_(2); y = x.exp(); x.div_(2); return y", "return 2 * g"),
}  # fmt: skip
BODIES = {
    "read-again": "y = Fn.apply(h)\nloss = (head(y) + h).pow(2).mean()",
    "skipped": "y = Fn.apply(head(h))\nloss = (h + y - 1).pow(2).mean()",
    "skipped-by-what-is-newer": "y = Fn.apply(h)\nloss = (head(h) + y - 1).pow(2).mean()",
    "result-written": "y = Fn.apply(h)\ny += 1\nloss = y.pow(2).mean()",
    "input-written": "y = Fn.apply(h)\nh += 1\nloss = (y.pow(2) + h).mean()",
    "without-gradients": "with torch.no_grad():\n    y = Fn.apply(h)\nloss = (y + h).mean()",
}
SHARED = {  # a gradient that the backward of Clip writes into, and who else is given it
    "neighbour": "y = Clip.apply(b)\nloss = (a + y).pow(2).mean()",
    "neighbour-that-was-read-before": "y = Clip.apply(a)\nloss = (b.sin() + y).pow(2).mean()",
    "neighbour-behind-a-view": "y = Clip.apply(b)\nloss = (a.view(-1) + y.reshape(-1)).pow(2).mean()",
    "neighbour-of-the-sum": "y = Clip.apply(b)\nloss = ((y + 1).clone() + a).pow(2).mean()",
    "weighed": "y = Clip.apply(b)\nloss = torch.add(a, y, alpha=0.5).pow(2).mean()",
    "subtracted": "y = Clip.apply(b)\nloss = (a - y).pow(2).mean()",
    "subtracted-from": "y = Clip.apply(b)\nloss = (y - a).pow(2).mean()",
    "multiplied": "y = Clip.apply(b)\nloss = (a * y).pow(2).mean()",
    "used-twice": "y = Clip.apply(b)\nloss = (a + y + y.sin()).pow(2).mean()",
    "summed-up-by-then": "y = Clip.apply(a)\nloss = (a.cos() + a + y).pow(2).mean()",
    "joined": "y = Clip.apply(b)\nloss = torch.cat([a, y]).pow(2).mean()",
    "joined-then-shared": "y = Clip.apply(b)\nloss = (torch.cat([a, y]) + torch.cat([b, a]).sin()).pow(2).mean()",
    "handed-on": "y = Same.apply(Clip.apply(b))\nloss = (a + y).pow(2).mean()",
    "spread": "y = Clip.apply(b)\nloss = y.sum()",
    "of-the-mean": "y = Clip.apply(b)\nloss = y.mean()",
    "subtracted-behind": "y = Clip.apply(b)\nloss = ((y - 1) + (a - y.detach())).pow(2).mean()",
    "row-of-a-sum": "y = Clip.apply(b)\nloss = (torch.stack([y, y.detach()]).sum(0) + 1).pow(2).sum()",
}
PASSING = """\
class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0
    @staticmethod
    def backward(ctx, g):
        return g.mul_(0.3)
class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 0.1
    @staticmethod
    def backward(ctx, g):
        return g
"""


def function(forward: str, backward: str) -> str:
    lines = ["class Fn(torch.autograd.Function):"]
    for name, argument, body in (("forward", "x", forward), ("backward", "g", backward)):
        lines += ["    @staticmethod", f"    def {name}(ctx, {argument}):"]
        lines += [f"        {statement}" for statement in body.split("; ")]
    return "\n".join([*lines, ""])


def loop(body: str) -> str:
    begin = "optimizer.zero_grad()\nh = net(torch.randn(8, 3))\na = h * 2\nb = head(h)"
    lines = f"{begin}\n{body}\nloss.backward()\noptimizer.step()\n"
    return "for _ in range(3):\n" + textwrap.indent(lines, "    ")


def told(reading: Reading | None, tape: object = None) -> set[tuple[str, str, int]]:
    found = detect(reading.tape if reading is not None else tape)  # type: ignore[arg-type]
    return {(c.kind, c.pattern, c.at.line) for c in found if c.severity != "note"}


def agrees(zygote: Zygote, folder: Path, text: str) -> set[tuple[str, str, int]]:
    program = folder / "train.py"
    program.write_text(text, encoding="utf-8")
    ran = told(None, zygote.run(Run(program, folder, folder)).tape)
    main, *_ = read(program, text)
    assert told(main) == ran
    return ran


@pytest.mark.parametrize(("kind", "body"), [*product(FUNCTIONS, BODIES)])
def test_what_a_function_does_is_read(zygote: Zygote, tmp_path: Path, kind: str, body: str) -> None:
    agrees(zygote, tmp_path, HEAD + function(*FUNCTIONS[kind]) + loop(BODIES[body]))


@pytest.mark.parametrize("body", SHARED)
def test_who_else_is_given_a_gradient_is_read(zygote: Zygote, tmp_path: Path, body: str) -> None:
    ran = agrees(zygote, tmp_path, HEAD + PASSING + loop(SHARED[body]))
    wrong = {
        "neighbour",
        "neighbour-behind-a-view",
        "neighbour-of-the-sum",
        "handed-on",
        "spread",
        "subtracted-behind",
    }
    assert bool(ran) == (body in wrong)


def found(tmp_path: Path, text: str) -> list[tuple[str, str, int, str]]:
    """(kind, pattern, line of the text, evidence), above a note, of every entry."""
    text = textwrap.dedent(text)
    return list(
        dict.fromkeys(
            (c.kind, c.pattern, c.at.line, reading.evidence(c))
            for reading in read(tmp_path / "train.py", text)
            for c in detect(reading.tape)
            if c.severity != "note"
        )
    )


SQUARE = """\
import torch
from torch.autograd import Function
class Square(Function):
    @staticmethod
    def forward(ctx, x, scale=1):
        ctx.save_for_backward(x)
        return scale * x * x
    @staticmethod
    def backward(ctx, g):
        {asked}
        return 2 * x * g, None
w = torch.ones(3, requires_grad=True)
x = w * 2
y = {applied}
x += 1
y.sum().backward()
"""
ASKED = "x, = ctx.saved_tensors"
STALE = ("stale-saved-tensor", "write", 15)


@pytest.mark.parametrize(
    "applied", ["Square.apply(x)", "Square.apply(x, 2)", "Square().apply(x)", "square(x)"]
)
def test_every_way_to_apply_a_function_is_known(tmp_path: Path, applied: str) -> None:
    text = SQUARE.format(asked=ASKED, applied=applied).replace("w = ", "square = Square.apply; w = ")
    assert found(tmp_path, text) == [(*STALE, "certain")]


@pytest.mark.parametrize(
    ("asked", "evidence"),
    [
        ("x, = ctx.saved_variables", "certain"),
        ("x = ctx.saved_tensors[0] if ctx.needs_input_grad[0] else 1", "certain"),
        ("x = ctx.saved_tensors[0] if ctx.needs_input_grad[1] else 1", ""),
        ("x = torch.ones(3)", ""),
        ("x = ctx.saved_tensors[0] if torch.rand(1) < 0.5 else 1", "likely"),
    ],
)
def test_what_a_backward_does_not_ask_for_no_write_spoils(tmp_path: Path, asked: str, evidence: str) -> None:
    text = SQUARE.format(asked=asked, applied="Square.apply(x, 2)")
    assert found(tmp_path, text) == ([(*STALE, evidence)] if evidence else [])


def test_a_function_with_a_context_of_its_own_gets_its_defaults(tmp_path: Path) -> None:
    text = """\
    import torch
    class Power(torch.autograd.Function):
        @staticmethod
        def forward(x, n=2):
            return x ** n
        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.n = inputs
            if ctx.n == 2:
                ctx.save_for_backward(x)
        @staticmethod
        def backward(ctx, g):
            return g * ctx.n * ctx.saved_tensors[0] ** (ctx.n - 1), None
    x = torch.ones(3, requires_grad=True) * 2
    y = Power.apply(x)
    z = Power.apply(x, n=3)
    x += 1
    y.sum().backward()
    """
    assert found(tmp_path, text) == [("stale-saved-tensor", "write", 17, "certain")]


def test_a_marked_leaf_is_refused(tmp_path: Path) -> None:
    text = """\
    import torch
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)
        @staticmethod
        def backward(ctx, g):
            return 2 * g
    x = torch.ones(3, requires_grad=True)
    Twice.apply(x)
    y = x.exp()
    x.data.add_(1)
    y.sum().backward()
    """
    assert found(tmp_path, text) == []  # PyTorch raises in line 11


def test_a_function_of_the_old_style_is_told(tmp_path: Path) -> None:
    text = """\
    import torch
    from torch import nn
    class Sign(torch.autograd.Function):
        def forward(self, x):
            self.save_for_backward(x)
            return x.sign()
        def backward(self, g):
            x, = self.saved_tensors
            return g * (x.abs() < 1)
    class Net(nn.Module):
        def forward(self, x):
            return Sign()(x)
    """
    assert found(tmp_path, text) == [("legacy-api", "removed", 12, "certain")]


@pytest.mark.parametrize(
    "backward",
    [
        "return kernels.backward(g, ctx.x)",  # of which nothing is known
        "return None",
        "return g * ctx.x.detach().abs().max().item()",
        "raise NotImplementedError",
    ],
)
def test_what_a_backward_uses_is_not_guessed(tmp_path: Path, backward: str) -> None:
    text = f"""\
    import torch, kernels
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x * 2
        @staticmethod
        def backward(ctx, g):
            {backward}
    x = torch.ones(3, requires_grad=True) * 2
    y = Fn.apply(x)
    x += 1
    y.sum().backward()
    """
    assert found(tmp_path, text) == []


def test_a_hook_may_make_a_gradient_of_its_own(tmp_path: Path) -> None:
    text = HEAD + PASSING + loop("y = Clip.apply(b)\n{hook}loss = (a + y).pow(2).mean()")
    assert found(tmp_path, text.format(hook="")) == [("silent-overwrite", "grad-output", 12, "certain")]
    assert found(tmp_path, text.format(hook="y.register_hook(lambda g: g * 2)\n    ")) == []


def test_several_writes_may_have_put_back_what_was_there(tmp_path: Path) -> None:
    text = """\
    import torch
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            before = x.clone()
            x.exp_()
            y = x.sum()
            {second}
            return y
        @staticmethod
        def backward(ctx, g):
            return g.expand(3)
    x = torch.ones(3, requires_grad=True) * 2
    (Fn.apply(x) + x.sum()).backward()
    """
    changed = ("silent-overwrite", "input-changed", 6)
    assert found(tmp_path, text.format(second="")) == [(*changed, "certain")]
    assert found(tmp_path, text.format(second="x.copy_(before)")) == [(*changed, "likely")]


ASSIGNS = """\
import torch
from typing import cast
from torch.amp import custom_bwd
class Undo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.kept = [x]
        return x * 2
    @staticmethod
    def backward(ctx, g):
        for t in (ctx.kept{popped}, ):
            t.grad = g
        return 2 * g, None
    {bound}
x = torch.ones(3, requires_grad=True) * 2
y = cast(torch.Tensor, Undo.apply(x, 1))
y.sum().backward()
print(x.grad.norm())
"""


@pytest.mark.parametrize(
    "bound", ["", "backward = custom_bwd(backward)", "backward = somewhere.wrapped(backward)"]
)
def test_a_gradient_that_a_backward_sets_by_hand_may_be_there(tmp_path: Path, bound: str) -> None:
    assert found(tmp_path, ASSIGNS.format(popped=".pop()", bound=bound)) == []
    never = ASSIGNS.format(popped=".pop()", bound="").replace("t.grad = g", "t")
    assert found(tmp_path, never) == [("missing-grad", "read", 18, "certain")]
