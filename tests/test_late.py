"""Faults behind the first steps, which the text shows and a short run does not come to."""

from pathlib import Path

import pytest

from gradfix import testing
from gradfix.result import Settings
from gradfix.run.zygote import Zygote

LATE = """\
import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 6), nn.Linear(6, 2)
net = nn.Sequential(body, nn.Tanh(), head)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def learn(steps):
    for _ in range(steps):
        loss = net(torch.randn(5, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(learn(9))
net[2] = nn.Linear(6, 3){anew}
print(learn(4))
"""

PENALTY = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
usual = torch.zeros(2)
for n in range(12):
    out = net(torch.randn(5, 4)).tanh()
    loss = out.pow(2).mean()
    if n % 4 == 0:
        usual = 0.9 * usual + 0.1 * out.mean(0)
        loss = loss + (out - usual).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def one(text: str, folder: Path, zygote: Zygote, settings: Settings | None = None):
    script = folder / "late.py"
    script.write_text(text, encoding="utf-8")
    return script, testing.one(script, zygote, settings or Settings())


def test_a_layer_replaced_after_many_steps(tmp_path, zygote):
    script, result = one(LATE.replace("{anew}", ""), tmp_path, zygote)
    (diagnosis,) = result.diagnoses
    assert (diagnosis.conflict.kind, diagnosis.status) == ("stray-optimizer", "cured")
    new = result.files[str(script)][1]
    assert 'net[2] = nn.Linear(6, 3)\noptimizer.add_param_group({"params": net[2].parameters()})\n' in new
    assert any("first 3 steps" in line for line in result.lines)


def test_a_graph_kept_until_a_later_pass(tmp_path, zygote):
    script, result = one(PENALTY, tmp_path, zygote)
    (diagnosis,) = (d for d in result.diagnoses if d.conflict.severity != "note")
    assert (diagnosis.conflict.kind, diagnosis.status) == ("freed-graph", "cured")
    assert "detach()" in result.files[str(script)][1]


def test_what_the_text_does_not_show_is_not_waited_for(tmp_path, zygote):
    anew = "\noptimizer = torch.optim.SGD(net.parameters(), lr=0.1)"
    _, result = one(LATE.replace("{anew}", anew), tmp_path, zygote)
    assert not [d for d in result.diagnoses if d.conflict.severity != "note"]
    assert not result.files
    assert not any("first 3 steps" in line for line in result.lines)


ENDLESS = """\
import time

import torch

G, D = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)
optG = torch.optim.SGD(G.parameters(), lr=0.01)
optD = torch.optim.SGD(D.parameters(), lr=0.01)
{spare}
while True:
    fake = G(torch.randn(8, 4))
    score = D(fake)
    optD.zero_grad()
    score.mean().backward(retain_graph=True)
    optD.step()
    optG.zero_grad()
    (-score.mean()).backward()
    optG.step()
    time.sleep({seconds})
"""
SPARE = "spare = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.01)"


def test_a_run_that_ends_with_its_time_has_its_cures_proved_on_a_short_one(tmp_path, zygote):
    _, result = one(ENDLESS.format(spare=SPARE, seconds=0.01), tmp_path, zygote, Settings(timeout=3))
    (diagnosis,) = result.diagnoses
    assert (diagnosis.conflict.kind, diagnosis.status) == ("stale-saved-tensor", "cured")
    assert (result.ended, result.seconds < 9) == ("timeout", True)  # a dozen candidates, 3 s for each run
    assert any("`spare` (made in line 8) had not stepped yet" in line for line in result.lines)


IDLE = (
    ENDLESS.replace("while True:", "for n in range(2):").replace("{spare}", "")
    + "while True:\n    time.sleep(0.01)\n"
)


def test_a_script_that_has_trained_and_goes_on_for_ever(tmp_path, zygote):
    """All of its steps are few: they end the runs that its cures are proved with."""
    _, result = one(IDLE.format(seconds=0.01), tmp_path, zygote, Settings(timeout=4))
    (diagnosis,) = (d for d in result.diagnoses if d.conflict.severity != "note")
    assert (diagnosis.conflict.kind, diagnosis.status) == ("stale-saved-tensor", "cured")
    assert (result.ended, result.seconds < 10) == ("timeout", True)


def test_proofs_of_a_script_that_took_all_of_its_time_get_as_much_together(tmp_path, zygote):
    _, result = one(ENDLESS.format(spare="", seconds=1.2), tmp_path, zygote, Settings(timeout=2))
    diagnosis = result.diagnoses[0]
    assert (diagnosis.conflict.kind, result.ended) == ("stale-saved-tensor", "timeout")
    assert result.seconds < 9
    assert diagnosis.status == "cured" or any("not every cure was tried" in line for line in result.lines)


OLDER = """\
import time

import torch

one, two, three = 0, 0, 0
nets = [torch.nn.Linear(3, 2) for _ in range(3)]
first = torch.optim.Adam(nets[0].parameters(), 0.1, betas=(one, 0.9))
second = torch.optim.Adam(nets[1].parameters(), 0.1, betas=(two, 0.9))
third = torch.optim.Adam(nets[2].parameters(), 0.1, betas=(three, 0.9))
while True:
    time.sleep(1.5)
    for net, optimizer in zip(nets, (first, second, third)):
        optimizer.zero_grad()
        net(torch.ones(3)).sum().backward()
        optimizer.step()
"""


def test_proofs_of_a_script_that_fails_before_it_takes_its_time_get_as_much_together(tmp_path, zygote):
    _, result = one(OLDER, tmp_path, zygote, Settings(timeout=2))
    assert {d.conflict.kind for d in result.diagnoses} == {"legacy-api"}
    assert result.seconds < 9
    assert any("not every cure was tried" in line for line in result.lines)


ANOTHER = """\
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for n in range(6):
    optimizer.zero_grad()
    net(torch.randn(2, 3)).pow(2).sum().backward()
    optimizer.step()
cell = nn.Linear(3, 3)
second = torch.optim.SGD(cell.parameters(), lr=0.1)
state = torch.zeros(2, 3)
for n in range(4):
    state = torch.tanh(cell(state) + 1)
    second.zero_grad()
    state.pow(2).sum().backward()
    second.step()
"""


def test_an_optimizer_that_is_made_when_the_first_has_done(tmp_path, zygote):
    _, result = one(ANOTHER, tmp_path, zygote)
    assert [(d.conflict.kind, d.status) for d in result.diagnoses] == [("freed-graph", "cured")]


TWO = """\
import torch
from torch import nn

torch.manual_seed(0)
G, D = nn.Linear(3, 2), nn.Linear(2, 1)
optG = torch.optim.Adam(G.parameters())
optD = torch.optim.Adam(D.parameters())
for n in range(6):
    score = D(G(torch.randn(4, 3)))
    loss = (score - D(torch.randn(4, 2))).mean()
    optD.zero_grad()
    loss.backward(retain_graph=True)
    optD.step()
    optG.zero_grad()
    (-score.mean()).backward()
    optG.step()
net = nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
state = torch.zeros(2, 3)
for n in range(4):
    state = torch.tanh(net(state{detach}) + 1)
    opt.zero_grad()
    state.pow(2).sum().backward()
    opt.step()
"""


def test_a_fault_in_each_of_two_loops(tmp_path, zygote):
    """Behind an optimizer that is made only when the first loop has done; the rounds of either are known."""
    _, result = one(TWO.replace("{detach}", ""), tmp_path, zygote)
    kinds = [(d.conflict.kind, d.status, d.cures[0].codemod) for d in result.diagnoses]
    assert kinds == [
        ("stale-saved-tensor", "cured", "recompute-after-step"),
        ("freed-graph", "cured", "detach-carried-state"),
    ]
    assert any("first 3 steps do not come to" in line for line in result.lines)


def test_a_fault_in_the_first_of_two_loops(tmp_path, zygote):
    _, result = one(TWO.replace("{detach}", ".detach()"), tmp_path, zygote)
    assert [(d.conflict.kind, d.status) for d in result.diagnoses] == [("stale-saved-tensor", "cured")]
    assert not any("first 3 steps" in line for line in result.lines)


IN_TURN = """\
import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 6), nn.Linear(6, 2)
opt_body, opt_head = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (body, head))


def fixed(x):
    return body(x).detach()


def fit(features, passes):
    for x in torch.randn(passes, 5, 4):
        loss = head(features(x)).pow(2).mean()
        opt_body.zero_grad()
        opt_head.zero_grad()
        loss.backward()
        opt_body.step()
        opt_head.step()


fit(fixed, 6)
"""


@pytest.mark.parametrize(("more", "told"), [("fit(body, 6)\n", False), ("fit(fixed, 6)\n", True)])
def test_an_optimizer_whose_model_is_trained_later_on(tmp_path, zygote, more, told):
    script = tmp_path / "train.py"
    script.write_text(IN_TURN + more, encoding="utf-8")
    found = testing.one(script, zygote, Settings()).diagnoses
    assert [d.conflict.pattern for d in found] == ["dead-parameter"] * told
