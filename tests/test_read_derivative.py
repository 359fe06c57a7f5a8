"""Custom Functions that write into what they keep: the text tells which of them mean it, as a run does."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

TEXT = """\
import torch, torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
LIMIT = 1.0


class Fn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, c):
{forward}

    @staticmethod
    def backward(ctx, g):
{backward}


net, weight = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5)
optimizer = torch.optim.SGD([*net.parameters(), weight], lr=0.05)
for step in range(3):
    y = Fn.apply(net(torch.randn(5, 3)), weight, 0.7)
    optimizer.zero_grad()
    (y - 1).pow(2).mean().backward()
    optimizer.step()
"""
FAULTY = {  # forward, backward; the line of the forward that writes ends in two spaces and a #
    "overwrites-its-gate": (
        """
        s = torch.sigmoid(x * w)
        ctx.save_for_backward(x, w, s)
        s *= x  #
        return s
        """,
        """
        x, w, s = ctx.saved_tensors
        d = s * (1 - s)
        return g * (s + x * w * d), (g * x * x * d).sum(0), None
        """,
    ),
    "on-ctx": (
        """
        e = x.exp()
        ctx.e, ctx.w, ctx.c = e, w, c
        e.add_(c)  #
        return e * w
        """,
        "return g * ctx.e * ctx.w, (g * (ctx.e + ctx.c)).sum(0), None",
    ),
    "through-a-view": (
        """
        e = x.exp()
        ctx.save_for_backward(e, w)
        e.view(-1).mul_(c)  #
        return e * w
        """,
        """
        e, w = ctx.saved_tensors
        return g * e * w * 0.7, (g * e * 0.7).sum(0), None
        """,
    ),
    "part-of-it": (
        """
        r = x.abs() + c
        ctx.save_for_backward(x, w, r)
        y = w * x / r
        r[y.abs() < 0.4] = 1.0  #
        return y
        """,
        """
        x, w, r = ctx.saved_tensors
        return g * w * 0.7 / r**2, (g * x / r).sum(0), None
        """,
    ),
    "its-input-s-copy": (
        """
        x = x.clone()
        ctx.save_for_backward(x, w)
        return torch.tanh_(x) * w  #
        """,
        """
        x, w = ctx.saved_tensors
        return g * w * (1 - torch.tanh(x) ** 2), (g * torch.tanh(x)).sum(0), None
        """,
    ),
}
MEANT = {
    "keeps-the-result": (
        """
        e = x * 1
        ctx.save_for_backward(e, w)
        e.exp_()
        return e * w
        """,
        """
        e, w = ctx.saved_tensors
        return g * e * w, (g * e).sum(0), None
        """,
    ),
    "what-is-not-looked-at": (
        """
        s = x * 2
        ctx.save_for_backward(w, s)
        s += 1
        return x * w + 0 * s.detach()
        """,
        """
        w, s = ctx.saved_tensors
        return g * w, (g * 0).sum(0) + g.new_zeros(4), None
        """,
    ),
    "written-before-it-is-kept": (
        """
        e = x.exp()
        e += c
        ctx.save_for_backward(e, w)
        return e * w
        """,
        """
        e, w = ctx.saved_tensors
        return g * (e - 0.7) * w, (g * e).sum(0), None
        """,
    ),
    "wrong-either-way": (
        """
        e = x.exp()
        ctx.save_for_backward(e, w)
        e += c
        return e * w
        """,
        """
        e, w = ctx.saved_tensors
        return g * 3 * w, (g * e).sum(0), None
        """,
    ),
    "only-the-sign": (
        """
        r = x * 1
        ctx.save_for_backward(r, w)
        r *= 2
        return r.abs() / 2 * w
        """,
        """
        r, w = ctx.saved_tensors
        return g * torch.sign(r) * w, (g * r.abs() / 2).sum(0), None
        """,
    ),
}


def told(tmp_path: Path, zygote: Zygote, forward: str, backward: str) -> set[tuple[str, str, int]]:
    """(kind, pattern, line) of what is above a note: of the reading, which is that of the run."""
    program = tmp_path / "train.py"
    forward, backward = (textwrap.indent(textwrap.dedent(t).strip(), " " * 8) for t in (forward, backward))
    program.write_text(TEXT.format(forward=forward, backward=backward), encoding="utf-8")
    main, *_ = read(program, program.read_text(encoding="utf-8"))
    ran = zygote.run(Run(program, tmp_path, tmp_path))
    assert ran.failure is None
    by_run = {(c.kind, c.pattern, c.at.line) for c in detect(ran.tape) if c.severity != "note"}
    assert {(c.kind, c.pattern, c.at.line) for c in detect(main.tape) if c.severity != "note"} == by_run
    return by_run


@pytest.mark.parametrize("name", FAULTY)
def test_what_the_backward_needs_as_it_was_kept(tmp_path: Path, zygote: Zygote, name: str) -> None:
    forward, backward = FAULTY[name]
    (found,) = told(tmp_path, zygote, forward, backward)
    text = (tmp_path / "train.py").read_text(encoding="utf-8")
    (line,) = (n for n, each in enumerate(text.splitlines(), 1) if each.endswith("  #"))
    assert found == ("silent-overwrite", "spoilt-save", line)


@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant(tmp_path: Path, zygote: Zygote, name: str) -> None:
    assert told(tmp_path, zygote, *MEANT[name]) == set()
