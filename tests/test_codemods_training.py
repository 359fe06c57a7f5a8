"""Cures of what trains without a word on nothing, or on too much; and wrong ones that must be refused."""

import pytest
from by_hand import PATH, answers, code, site

from codemods.load_in_place import LoadInPlace
from gradfix.codemod import Effect
from gradfix.detect import Conflict, Label
from gradfix.edit import Project
from gradfix.prove import Prover, Runner
from gradfix.run import Run
from gradfix.tape import Optimizer, Ref, Tape

A2C = """\
import torch

torch.manual_seed(0)
actor, critic = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], 0.1)
for x, returns in zip(torch.randn(3, 5, 3), torch.randn(3, 5)):
    pi = torch.distributions.Categorical(logits=actor(x))
    action = pi.sample()
    gain = returns - critic(x).squeeze(1)
    loss = -(pi.log_prob(action) * gain).mean() + gain.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ("* gain)", "* gain.detach())", "intended"),
        ("* gain)", "* gain.detach()) * 2", "rejected"),
        ("gain = returns", "gain = 0 * pi.probs.sum() + returns", "rejected"),
        ("squeeze(1)\n", "squeeze(1).detach()\n", "rejected"),  # the critic learns nothing any more
        ("pi.log_prob(action) *", "pi.log_prob(action).detach() *", "rejected"),
        ("+ gain.pow(2)", "+ 0.5 * gain.pow(2)", "rejected"),
    ],
)
def test_only_the_edge_into_the_weight_is_cut(old, new, status, tmp_path, zygote):
    script = tmp_path / "a2c.py"
    script.write_text(A2C, encoding="utf-8")
    prover = Prover(Runner(zygote, Run(script, tmp_path, tmp_path)))
    path = str(script)
    baseline = prover.baseline({path: A2C})
    (conflict,) = baseline.conflicts
    assert conflict.kind == "attached-target"
    assert Project(baseline.tape, {path: A2C}).node(conflict.at)
    after = A2C.replace(old, new, 1)
    assert after != A2C
    verdict = prover.prove(baseline, {path: after}, Effect("cut-target"), conflict)
    assert verdict.status == status, verdict.reason


FOLDS = """\
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for fold in torch.randn(3, 2, 5, 3):
    model = torch.nn.Linear(3, 1)
    for x in fold:
        loss = (model(x) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MADE = "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
IN_LOOP = "    model = torch.nn.Linear(3, 1)\n"


@pytest.mark.parametrize(
    ("put", "old", "new", "status"),
    [
        (MADE, "", "", "intended"),
        (MADE.replace("0.1", "0.0"), "", "", "rejected"),
        (MADE, ".mean()", ".sum()", "rejected"),
        (MADE, "model(x)", "model(x).detach()", "rejected"),
        (MADE.replace("model.p", "torch.nn.Linear(3, 1).p"), "", "", "rejected"),
        (MADE.replace("(model.parameters()", "([model.weight]"), "", "", "rejected"),
    ],
)
def test_an_optimizer_for_each_model_trains_it_as_it_is(put, old, new, status, tmp_path, zygote):
    script = tmp_path / "folds.py"
    script.write_text(FOLDS, encoding="utf-8")
    prover = Prover(Runner(zygote, Run(script, tmp_path, tmp_path)))
    baseline = prover.baseline({str(script): FOLDS})
    (conflict,) = baseline.conflicts
    after = FOLDS.replace(MADE, "").replace(IN_LOOP, f"{IN_LOOP}    {put}").replace(old, new)
    verdict = prover.prove(baseline, {str(script): after}, Effect("adds-gradient"), conflict)
    assert verdict.status == status, verdict.reason


def test_nothing_is_loaded_into_itself():
    """The optimizer holds the very model that every run begins with a copy of."""
    program = """\
    import copy, torch
    first = torch.nn.Linear(3, 1)
    model = first
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for n in range(2):
        model = copy.deepcopy(first)
    """
    source = code(program)
    made = (site(source, "torch.optim.SGD(model.parameters(), 0.1)"),)
    ref, new = Ref(1, 0, "first.weight", (1, 3)), Ref(2, 0, "model.weight", (1, 3))
    optimizer = Optimizer(1, made, 0, "SGD", "optimizer", (ref,))
    conflict = Conflict(
        "stray-optimizer", "warning", "", (Label("made", made, ""),), 0, "replaced", new, event=optimizer
    )
    assert not answers(LoadInPlace, (conflict, Project(Tape((optimizer,)), {PATH: source})))
    other = source.replace("model = first", "model = torch.nn.Linear(3, 1)")
    assert answers(LoadInPlace, (conflict, Project(Tape((optimizer,)), {PATH: other})))
