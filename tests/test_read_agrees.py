"""Straight-line programs made up by Hypothesis: what is read is what is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradfix.detect import detect
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

NAMES = "uvwxyz"
HEAD = """\
import torch
torch.manual_seed(0)
p = torch.nn.Parameter(torch.rand(3) + 0.5)
q = torch.nn.Parameter(torch.rand(3) + 0.5)
c = torch.rand(3) + 0.5
optimizer = torch.optim.SGD([p, q], lr=0.1)
u, v = p * 1.5, q + 1
"""
OPS = [
    "exp",
    "sigmoid",
    "tanh",
    "sqrt",
    "neg",
    "relu",
    "sin",
    "log",
    "square",
    "abs",
    "clone",
    "cumsum(0)",
    "softmax(0)",
]
BINARY = ["+", "-", "*", "/", "**"]
IN_PLACE = [
    "add_(1)",
    "mul_(2)",
    "exp_()",
    "sigmoid_()",
    "zero_()",
    "clamp_(min=0.1)",
    "sub_({b})",
    "mul_({b})",
    "copy_({b})",
]
VALUES = st.sampled_from(["p", "q", "c", *"uv"])


def made(name: str) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds(
            lambda a, op: f"{name} = {a}.{op if '(' in op else op + '()'}", VALUES, st.sampled_from(OPS)
        ),
        st.builds(lambda a, b, op: f"{name} = {a} {op} {b}", VALUES, VALUES, st.sampled_from(BINARY)),
        st.builds(lambda a, b: f"{name} = {a} * {b}", VALUES, st.sampled_from(["2", "0.5"])),
        st.builds(lambda a: f"{name} = {a}[:2].sum() + {a}", VALUES),
        st.builds(lambda a: f"{name} = {a}.detach()", VALUES),
    )


def written() -> st.SearchStrategy[str]:
    targets = st.sampled_from("uv")
    return st.one_of(
        st.builds(lambda a, b, op: f"{a}.{op.format(b=b)}", targets, VALUES, st.sampled_from(IN_PLACE)),
        st.builds(lambda a, b, op: f"{a} {op}= {b}", targets, VALUES, st.sampled_from(["+", "*", "-"])),
        st.builds(lambda a: f"{a}[0] = 0.5", targets),
        st.builds(lambda a, b: f"{a}[1] = {b}[0]", targets, VALUES),
    )


TAILS = st.sampled_from(
    [
        "(u.sum() + v.sum()).backward()",
        "u.sum().backward()\nv.sum().backward()",
        "u.sum().backward(retain_graph=True)\noptimizer.step()\n(u * v).sum().backward()",
        "u.mean().backward()\noptimizer.step()\noptimizer.zero_grad()\nv.mean().backward()",
        "(u * v).mean().backward()\noptimizer.step()",
    ]
)
PROGRAMS = st.builds(
    lambda lines, tail: HEAD + "\n".join(lines) + "\n" + tail + "\n",
    st.lists(st.one_of(made("u"), made("v"), written()), min_size=1, max_size=8),
    TAILS,
)


@pytest.mark.filterwarnings("ignore")
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(text=PROGRAMS)
def test_a_straight_line_program_reads_as_it_runs(text: str, tmp_path: Path, zygote: Zygote) -> None:
    path = tmp_path / "line.py"
    path.write_text(text, encoding="utf-8")
    outcome = zygote.run(Run(path, tmp_path, tmp_path))
    assert outcome.tape is not None
    (reading,) = read(path, text)

    def told(tape):
        return {(c.kind, c.at.line, c.at.column) for c in detect(tape) if c.severity == "error"}

    assert told(reading.tape) == told(outcome.tape), text
