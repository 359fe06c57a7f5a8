"""What goes along with a step that is put behind a later backward."""

from textwrap import dedent

import libcst as cst
import pytest

from gradfix.rewrite.behind import along
from gradfix.rewrite.statements import units

BEGIN = """
opt_d.step()
"""
END = """
loss = judge(score)
loss.backward()
"""


def goes(between: str, *bound: str) -> "list[str] | None":
    """The statements of `between` that go with opt_d.step() behind loss.backward()."""
    module = cst.parse_module(BEGIN + dedent(between) + END)
    body = units(module)
    found = along(body, 0, len(body) - 1, {0}, {len(body) - 1}, {"score", "loss_d", *bound})
    return None if found is None else [module.code_for_node(body[n].node).strip() for n in found]


def test_what_changes_the_stepper_keeps_the_step_before_it():
    body = units(cst.parse_module("scaler.step(opt_d)\nscaler.update()\nscaler.scale(loss).backward()\n"))
    assert along(body, 0, 2, {0}, {2}, {"loss"}) is None


def test_reads_of_the_model_go():
    assert goes("accuracy = (D(real) > 0).float().mean()") == ["accuracy = (D(real) > 0).float().mean()"]
    assert goes("ema.update(D)\nscheduler.step()") == ["ema.update(D)", "scheduler.step()"]
    assert goes("print(D.weight.mean().item())") == ["print(D.weight.mean().item())"]


def test_looks_at_losses_stay():
    assert goes("losses.append(loss_d.item())\nprint(f'{loss_d.item():.3f}')") == []


def test_what_reads_a_metric_goes_with_it():
    assert goes("m = D(real).mean().item()\nprint(m)", "m") == ["m = D(real).mean().item()", "print(m)"]


def test_what_the_loss_is_computed_from_stays():
    assert goes("score = score * weight") == []


@pytest.mark.parametrize(
    "between",
    ["if bad(loss_d):\n    continue", "seen = D(kept)\nkept = score\nscore = kept"],
    ids=["the_pass_may_end", "bound_anew_on_the_way"],
)
def test_what_cannot_be_taken_apart_is_left(between):
    lines = (BEGIN + between + END).strip().replace("\n", "\n    ")
    loop = cst.parse_module(f"for x in data:\n    {lines}\n").body[0]
    assert isinstance(loop, cst.For)
    body = units(loop.body)
    assert along(body, 0, len(body) - 1, {0}, {len(body) - 1}, {"score", "loss_d", "kept"}) is None
