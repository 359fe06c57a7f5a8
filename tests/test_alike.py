"""A value that is compared with what it was before: what the tape says of it, and what that means for a cure."""

# ruff: noqa: F401, F811 (fixtures are imported)

from __future__ import annotations

import pytest
from runs import project, run

from gradfix.prove import Prover, Runner
from gradfix.run import Run
from gradfix.tape import Alike
from gradfix.verdict import Effect, EffectKind, Verdict

HEAD = """\
import torch
from torch import nn
torch.manual_seed(2)
trunk, out = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*trunk.parameters(), *out.parameters()], 0.1)
probe = torch.randn(5, 3)
"""
LOOP = """\
for x in torch.randn(4, 6, 3):
    loss = (out(trunk(x)) - x.sum(1, keepdim=True)).pow(2).mean() + {term}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TERMS = {
    "mse_loss": "nn.functional.mse_loss(trunk(probe), then)",
    "difference": "(trunk(probe) - then).abs().sum()",
    "ratio": "(trunk(probe) / then).sum()",
    "cosine": "1 - nn.functional.cosine_similarity(trunk(probe), then).mean()",
    "module": "nn.SmoothL1Loss()(then, trunk(probe))",
}


@pytest.fixture
def prove(zygote, tmp_path):
    """The verdict on one text as the cure of the only fault of another."""

    def verdict(before: str, after: str, kind: EffectKind) -> Verdict:
        script = tmp_path / "train.py"
        script.write_text(before, encoding="utf-8")
        prover = Prover(Runner(zygote, Run(script, tmp_path, tmp_path, timeout=30)))
        baseline = prover.baseline({str(script): before})
        (conflict,) = baseline.conflicts
        return prover.prove(baseline, {str(script): after}, Effect(kind, ""), conflict)

    return verdict


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_equal_at_first_and_apart_later(run, term):
    tape = run(HEAD + "then = trunk(probe)\n" + LOOP.format(term=term), record=True).tape
    (told,) = (e for e in tape.events if isinstance(e, Alike))
    assert (len(told.nodes), told.apart) == (1, 2)


@pytest.mark.parametrize(
    "term",
    [
        "(trunk(probe) * then).sum()",  # no comparison
        "(trunk(probe) - then.detach()).pow(2).sum()",  # one has no graph
        "(trunk(x[:5]) - then).pow(2).mean()",  # never equal
        "(torch.relu(-trunk(probe) - 9) - torch.relu(-then - 9)).sum()",  # both nothing
    ],
)
def test_no_comparison_of_equals(run, term):
    tape = run(HEAD + "then = trunk(probe)\n" + LOOP.format(term=term), record=True).tape
    assert not [e for e in tape.events if isinstance(e, Alike)]


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)
def test_a_value_made_anew_is_no_cure_where_it_is_compared_with_itself(prove, term):
    before = HEAD + "then = trunk(probe)\n" + LOOP.format(term=term)
    anew = HEAD + LOOP.format(term=term).replace("    loss =", "    then = trunk(probe)\n    loss =")
    verdict = prove(before, anew, "later-parameters")
    assert verdict.status == "rejected"
    assert "the same value now" in verdict.reason
    kept = before.replace("then = trunk(probe)", "then = trunk(probe).detach()")
    assert prove(before, kept, "cut-round").status == "intended"


@pytest.mark.parametrize(
    "term",
    [
        "(trunk(x[:5]) - then).pow(2).mean()",  # it never was its own
        "(trunk(probe) - then).pow(2).mean() + out(then).mean()",  # it is used for more than that
    ],
)
def test_a_value_that_has_to_follow_its_parameters_goes_stale(prove, term):
    before = HEAD + "then = trunk(probe)\n" + LOOP.format(term=term)
    for kept in (
        before.replace("then = trunk(probe)", "then = trunk(probe).detach()"),
        before.replace("then = trunk(probe)", "with torch.no_grad():\n    then = trunk(probe)"),
    ):
        verdict = prove(before, kept, "cut-round")
        assert verdict.status == "rejected"
        assert "goes stale" in verdict.reason


def test_a_comparison_that_was_constant_before_is_left_alone(prove):
    term = "(trunk(probe) - trunk(probe)).pow(2).mean() + out(then).pow(2).mean()"
    before = HEAD + "then = trunk(probe)\n" + LOOP.format(term=term)
    anew = HEAD + LOOP.format(term=term).replace("    loss =", "    then = trunk(probe)\n    loss =")
    assert prove(before, anew, "later-parameters").status == "intended"
