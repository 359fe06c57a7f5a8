"""Which proposal wins, and several faults in one program, from end to end."""

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradfix import testing
from gradfix.choose import Candidate, Tried, Wanted, try_all
from gradfix.codemod import Proposal
from gradfix.result import Settings
from gradfix.verdict import NONE, Verdict

CHAIN = """\
import torch
from torch import nn

torch.manual_seed(1)
enc = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
dec, judge = nn.Linear(2, 4), nn.Linear(2, 1)
opt_ae = torch.optim.SGD([*enc.parameters(), *dec.parameters()], 0.05)
opt_judge, opt_enc = torch.optim.SGD(judge.parameters(), 0.05), torch.optim.SGD(enc.parameters(), 0.05)
for x in torch.randn(3, 5, 4):
    code = enc(x).tanh()
    loss = (dec(code) - x).pow(2).mean()
    opt_ae.zero_grad()
    loss.backward()
    opt_ae.step()
    loss_judge = judge(code).sigmoid().mean() - judge(torch.randn(5, 2)).sigmoid().mean()
    opt_judge.zero_grad()
    loss_judge.backward()
    opt_judge.step()
    loss_enc = -judge(code).sigmoid().mean()
    opt_enc.zero_grad()
    loss_enc.backward()
    opt_enc.step()
"""


def test_a_chain_of_faults_is_cured_link_by_link(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(CHAIN, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (text for _, text in result.files.values())
    assert len(result.diagnoses) >= 2
    assert result.verdict is not None
    assert result.verdict.status == "intended"
    script.write_text(new, encoding="utf-8")
    again = testing.one(script, zygote, Settings())
    assert not again.files
    assert again.failure is None
    assert not [d for d in again.diagnoses if d.conflict.severity != "note"]
    assert "judge(code.detach())" in new


UNSEEN = """\
import torch

torch.manual_seed(1)
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for x in torch.randn(4, 5, 3):
    net(x).pow(2).mean().backward()
    optimizer.step()
    for p in net.parameters():
        p.grad.numpy().fill(0)
"""


def test_a_warning_whose_cure_changes_nothing_is_withdrawn(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(UNSEEN, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert not result.files
    assert not [d for d in result.diagnoses if d.conflict.severity != "note"]
    assert any("unreset-grad in line 7 is not reported" in line for line in result.minor)


@pytest.mark.parametrize(("hint", "begun"), [("", "a"), ("b", "b")])
def test_where_time_is_over_the_hint_has_been_proved(hint, begun):
    proved: list[str] = []

    class Slow:
        def prove(self, baseline, after, effect, conflict):
            proved.append(after["x.py"])
            return Verdict("proved", "")

    found = [Candidate(Proposal(name, NONE, {}, codemod=name), {"x.py": name}, 1) for name in ("a", "b", "c")]
    several = Wanted(lambda *_: True, [], hinted=lambda *_: hint, late=lambda: bool(proved))
    quick = SimpleNamespace(outcome=SimpleNamespace(seconds=1.0))
    done = try_all(found, quick, None, Slow(), {}, several)
    assert begun in proved
    assert {t.candidate.proposal.codemod for t in done} == set(proved) != {"a", "b", "c"}
    proved.clear()
    unhurried = Wanted(lambda *_: True, [], hinted=lambda *_: hint)
    assert [t.candidate.proposal.codemod for t in try_all(found, quick, None, Slow(), {}, unhurried)] == [
        "a",
        "b",
        "c",
    ]


def test_of_a_slow_script_what_cannot_win_is_not_run():
    proved: list[str] = []
    first = threading.Event()

    class Proofs:
        def prove(self, baseline, after, effect, conflict):
            name = after["x.py"]
            proved.append(name)
            if name == "field":
                first.set()
                return Verdict("proved", "")
            first.wait(20)
            return Verdict("intended", "")

    ranks = {"resort": (0, True), "late": (3, False), "next": (1, False), "field": (0, False)}
    found = [
        Candidate(Proposal(name, NONE, {}, rank, name, last), {"x.py": name}, 1)
        for name, (rank, last) in ranks.items()
    ]
    every = Wanted(lambda *_: True, [])
    slow, quick = (SimpleNamespace(outcome=SimpleNamespace(seconds=t)) for t in (60.0, 1.0))
    chosen = try_all(found, slow, None, Proofs(), {}, every)[0]
    assert chosen.candidate.proposal.codemod == "field"
    assert not {"late", "resort"} & set(proved)
    assert chosen.candidate == try_all(found, quick, None, Proofs(), {}, every)[0].candidate
    assert set(ranks) == set(proved)


def tried(status, rank=0, **measured):
    return Tried(Candidate(Proposal("", NONE, {}, rank), {}, 1), Verdict(status, "", measured))


def test_what_cuts_old_gradients_alone_goes_before_what_cuts_fresh_ones():
    assert tried("intended", 1).merit < tried("intended", 0, fresh=True).merit


def test_a_whole_cure_goes_before_one_of_a_chain():
    assert tried("intended", 5).merit < tried("proved", 0, remaining=1).merit


def test_a_last_resort_goes_behind_one_of_a_chain():
    resort = Tried(Candidate(Proposal("", NONE, {}, last_resort=True), {}, 1), Verdict("proved", ""))
    assert tried("proved", 1, remaining=1).merit < resort.merit
    assert resort.merit < tried("rejected").merit


def test_of_several_ways_to_do_one_thing_the_first_that_holds_is_shown():
    verdicts = {"whole": "rejected", "next": "intended", "last": "intended", "other": "proved"}
    ideas = {"whole": "again", "next": "again", "last": "again", "other": ""}

    class Proofs:
        def prove(self, baseline, after, effect, conflict):
            return Verdict(verdicts[after["x.py"]], "the same")

    found = [
        Candidate(Proposal(name, NONE, {}, rank, "mod", idea=ideas[name]), {"x.py": name}, 1)
        for rank, name in enumerate(verdicts)
    ]
    baseline = SimpleNamespace(outcome=SimpleNamespace(seconds=1.0))
    shown = try_all(found, baseline, None, Proofs(), {}, Wanted(lambda *_: True, []))
    assert [t.candidate.texts["x.py"] for t in shown] == ["other", "next"]


def test_what_trains_goes_before_what_cancels():
    assert tried("intended", 5).merit < tried("proved", 0, zero=4).merit
    assert tried("proved", 0, zero=4).merit < tried("rejected").merit


def test_what_leaves_fewer_warnings_goes_first():
    assert tried("intended", 5).merit < tried("proved", 0, warnings=1).merit


ACTOR_CRITIC = """\
import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
actor = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
opt_actor = torch.optim.Adam(actor.parameters(), 1e-2)
opt_critic = torch.optim.Adam(critic.parameters(), 1e-2)
state = torch.randn(5, 3)
for _ in range(4):
    policy = Categorical(logits=actor(state))
    action = policy.sample()
    after = torch.randn(5, 3)
    advantage = (action - 0.5 + 0.9 * critic(after).squeeze(1)) - critic(state).squeeze(1)
    loss_actor = -(policy.log_prob(action) * advantage).mean()
    loss_critic = advantage.pow(2).mean()
    opt_actor.zero_grad()
    opt_critic.zero_grad()
    loss_actor.backward()
    opt_actor.step()
    loss_critic.backward()
    opt_critic.step()
    state = after
"""


def test_the_error_comes_first_and_the_smallest_cure_of_all_faults_is_kept(tmp_path, zygote):
    """An advantage shared by two optimizers, its target attached: the cures of an error and of a warning hold
    together, though one restricts a backward (which must not number the graph's nodes otherwise)."""
    script = tmp_path / "train.py"
    script.write_text(ACTOR_CRITIC, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert [d.conflict.kind for d in result.diagnoses if d.status == "cured"] == [
        "freed-graph",
        "attached-target",
    ]
    (new,) = (text for _, text in result.files.values())
    expected = ACTOR_CRITIC.replace("critic(after).squeeze(1)", "critic(after).squeeze(1).detach()")
    assert new == expected.replace("* advantage)", "* advantage.detach())")


EARLY = """\
import torch
from torch import nn

torch.manual_seed(1)
actor, critic = nn.Linear(3, 2), nn.Linear(5, 1)
opt_actor, opt_critic = torch.optim.SGD(actor.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)
for s in torch.randn(3, 4, 3):
    q = critic(torch.cat([s, torch.randn(4, 2)], 1))
    critic_loss = (q - 1).pow(2).mean()
    actor_loss = -critic(torch.cat([s, actor(s)], 1)).pow(2).mean()
    opt_critic.zero_grad()
    critic_loss.backward()
    opt_critic.step()
    opt_actor.zero_grad()
    actor_loss.backward()
    opt_actor.step()
"""


def test_a_last_resort_stands_back_unless_only_it_is_accepted(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(EARLY, encoding="utf-8")
    usual = testing.one(script, zygote, Settings())
    strict = testing.one(script, zygote, Settings(accept=("proved",)))
    assert [r.diagnoses[0].cures[0].codemod for r in (usual, strict)] == [
        "recompute-after-step",
        "backward-inputs",
    ]
    assert usual.verdict.status == "intended"
    assert strict.verdict.status == "proved"


RATIO = """\
import torch

torch.manual_seed(0)
policy, value = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD([*policy.parameters(), *value.parameters()], lr=0.1)
s, ret, a = torch.randn(16, 4), torch.randn(16), torch.randint(0, 2, (16,))
old = torch.distributions.Categorical(logits=policy(s)).log_prob(a)
advantage = ret - value(s).squeeze(1)
for epoch in range(4):
    logp = torch.distributions.Categorical(logits=policy(s)).log_prob(a)
    loss = -((logp - old).exp() * advantage).mean() + advantage.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_ratio_whose_both_sides_are_made_anew_is_no_repair(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(RATIO, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    moved = next(c for c in result.diagnoses[0].cures if c.summary.startswith("compute"))
    assert moved.verdict.status == "untried"
    assert "policy's 2 parameters is zero at every step" in moved.verdict.reason
    assert not result.files


GRADIENTS = """\
import torch

torch.manual_seed(0)
x = torch.randn(4, 3)
hidden = x.requires_grad_() * 2
hidden.pow(2).sum().backward()
print(hidden.grad)
w = torch.randn(3, requires_grad=True).double() * 0.1
for _ in range(3):
    loss = (x.detach().double() @ w - 1).pow(2).mean()
    loss.backward()
    w = w - 0.1 * w.grad
"""
CURED = """\
import torch

torch.manual_seed(0)
x = torch.randn(4, 3)
hidden = x.requires_grad_() * 2
hidden.retain_grad()
hidden.pow(2).sum().backward()
print(hidden.grad)
w = (torch.randn(3).double() * 0.1).requires_grad_()
for _ in range(3):
    loss = (x.detach().double() @ w - 1).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
"""


def test_missing_gradients_do_not_stand_in_each_others_way(tmp_path, zygote):
    """One that ends the script, one that does not, and one that shows once the first of its line is there."""
    script = tmp_path / "train.py"
    script.write_text(GRADIENTS, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    assert [text for _, text in result.files.values()] == [CURED]
    assert [d.status for d in result.diagnoses] == ["cured"] * 3
    assert result.lines == ()  # nothing that the script "also" fails for
    seen = testing.one(script, zygote, Settings(repair=False))
    assert (len(seen.diagnoses), seen.lines) == (2, ())


UPDATED = """\
import torch

torch.manual_seed(0)
w = torch.randn(3, 3, requires_grad=True).double()
b = torch.zeros(3, requires_grad=True).double()
for x in torch.randn(4, 6, 3).double():
    loss = (x @ w + b).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        b.sub_(0.1 * b.grad)
        w.grad = b.grad = None
"""


def test_what_its_own_gradient_updates_is_made_a_leaf(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(UPDATED, encoding="utf-8")
    (new,) = (text for _, text in testing.one(script, zygote, Settings()).files.values())
    drawn = UPDATED.replace(
        "randn(3, 3, requires_grad=True).double()", "randn(3, 3).double().requires_grad_()"
    )
    assert new == drawn.replace("requires_grad=True).double()", "dtype=torch.double, requires_grad=True)")


GROWING = """\
import torch

torch.manual_seed(0)
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1e30)
for step in range(4):
    h = (w * 2).exp()
    h += 1
    loss = h.sum() - h.sum() / 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    w.data.mul_(float("nan"))
"""


def test_a_run_that_ends_in_nan_names_the_option_that_helps(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(GROWING, encoding="utf-8")
    (found,) = (d for d in testing.one(script, zygote, Settings()).diagnoses if d.status == "left")
    assert found.cures[0].verdict.reason.endswith("a smaller --steps may end the run before that")
    (fault,) = (d for d in testing.one(script, zygote, Settings(steps=1)).diagnoses if d.status != "note")
    assert fault.cures[0].verdict.status == "proved"


def test_a_failure_beside_a_missing_gradient_is_told(tmp_path, zygote):
    script = tmp_path / "train.py"
    head, _, _ = GRADIENTS.partition("w = ")
    script.write_text(head + "print({}['hidden'])\n", encoding="utf-8")
    result = testing.one(script, zygote, Settings(repair=False))
    assert len(result.diagnoses) == 1
    assert ["KeyError" in line for line in result.lines] == [True]


TWO = """\
import torch
from torch import nn

torch.manual_seed(0)
actor, critic = nn.Linear(4, 2), nn.Linear(4, 1)
opt_a = torch.optim.SGD(actor.parameters(), lr=0.1)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
"""
SHARED_DELTA = """\
s = torch.randn(1, 4)
for _ in range(6):
    probs = torch.softmax(actor(s), -1)
    a = torch.distributions.Categorical(probs).sample()
    s2 = torch.randn(1, 4)
    delta = float(a) + 0.9 * critic(s2).detach() - critic(s)
    critic_loss = delta.pow(2).mean()
    actor_loss = -(torch.log(probs[0, a]) * delta).mean()
    opt_c.zero_grad()
    critic_loss.backward()
    opt_c.step()
    opt_a.zero_grad()
    actor_loss.backward()
    opt_a.step()
    s = s2
"""
SHARED_SCORE = """\
critic = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(4):
    fake = actor(torch.randn(8, 4))
    score = critic(fake)
    opt_c.zero_grad()
    (score.mean() - critic(torch.randn(8, 2)).mean()).backward(retain_graph=True)
    opt_c.step()
    loss = -score.mean()
    opt_a.zero_grad()
    loss.backward()
    opt_a.step()
"""
SUMMED = """\
total = 0
for _ in range(6):
    loss = critic(torch.randn(5, 4)).pow(2).mean()
    total += loss
    opt_c.zero_grad()
    total.backward()
    opt_c.step()
print(total.item() / 6)
"""
LEFT_OVER = """\
critic = nn.Linear(2, 1)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.1)
for _ in range(4):
    fake = actor(torch.randn(8, 4))
    opt_a.zero_grad()
    critic(fake).sigmoid().mean().backward()
    opt_a.step()
    loss = -critic(fake.detach()).sigmoid().mean()
    loss.backward()
    opt_c.step()
    opt_c.zero_grad()
"""

CLIPPED = """\
for _ in range(3):
    h = actor(torch.randn(8, 4)).sigmoid()
    shown = h.detach().numpy()
    np.clip(shown, 0.4, 0.6, out=shown)
    print(shown.mean())
    loss = h.pow(2).mean()
    opt_a.zero_grad()
    loss.backward()
    opt_a.step()
"""


@pytest.mark.parametrize(
    ("program", "line"),
    [
        (SHARED_DELTA, "    actor_loss = -(torch.log(probs[0, a]) * delta.detach()).mean()\n"),
        (SHARED_SCORE, "    loss = -critic(fake).mean()\n"),
        (SUMMED, "    total += loss.item()\n"),
        (LEFT_OVER, "    opt_c.zero_grad()\n    loss.backward()\n"),
        ("import numpy as np\n" + CLIPPED, "    shown = h.detach().numpy().copy()\n"),
    ],
    ids=["actor_critic", "shared_score", "summed", "left_over", "shown_alone"],
)
def test_what_a_person_would_write_wins(tmp_path, zygote, program, line):
    script = tmp_path / "train.py"
    script.write_text(TWO + program, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (text for _, text in result.files.values())
    assert line in new
    assert "inputs=" not in new


GUESSED = """\
first = {"state": (torch.zeros(5, 1),)}


def advance(state):
    return (torch.tanh(critic(torch.ones(5, 4)) + state[0]),)


h = first.get("state")
for _ in range(4):
    h = advance(h)
    loss = h[0].pow(2).mean()
    opt_c.zero_grad()
    loss.backward()
    opt_c.step()
"""


def test_a_wrong_guess_at_what_a_name_holds_is_not_shown(tmp_path, zygote):
    script = tmp_path / "train.py"
    script.write_text(TWO + GUESSED, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    reasons = [c.verdict.reason for d in result.diagnoses for c in d.cures]
    assert result.verdict is not None
    assert not [r for r in reasons if "TypeError" in r or "AttributeError" in r]


def test_a_restricted_backward_still_runs_once_its_model_is_frozen(tmp_path, zygote):
    folder = Path(__file__).parents[1] / "fixtures" / "backward_inputs" / "networks_in_a_dictionary"
    text = (folder / "before.py").read_text(encoding="utf-8")
    frozen = "    trainer.step(torch.randn(5, 3))\n"
    text = text.replace(frozen, f"{frozen}    trainer.nets['speaker'].requires_grad_(_ < 2)\n")
    script = tmp_path / "train.py"
    script.write_text(text, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (text for _, text in result.files.values())
    assert "inputs=" in new
    script.write_text(new, encoding="utf-8")
    subprocess.run([sys.executable, script], check=True, capture_output=True)


OLD_STYLE = """\
import torch
from torch.autograd import Variable

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = Variable(torch.randn(4, 3))
    y = Variable(torch.randn(4, 1))
    loss = (model(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm(model.parameters(), 1.0)
    optimizer.step()
"""


def test_as_many_notes_are_shown_as_were_promised(tmp_path, zygote):
    """One cure takes both Variables away: two notes all the same."""
    script = tmp_path / "train.py"
    script.write_text(OLD_STYLE, encoding="utf-8")
    hidden = [d.conflict for d in testing.one(script, zygote, Settings()).diagnoses if d.status == "note"]
    shown = testing.one(script, zygote, Settings(notes=True)).diagnoses
    assert len(hidden) == sum(1 + len(d.along) for d in shown if d.status == "cured") == 3


LAID_BARE = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        y = torch.tanh(self.first(x))
        y.mul_(2.0)
        return x + self.last(y)


torch.manual_seed(0)
block, head = Block(), nn.Linear(6, 2)
optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
for x in torch.randn(3, 4, 6):
    loss = head(checkpoint(block, x, use_reentrant=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_fault_that_a_cure_lays_bare_is_cured_with_it(tmp_path, zygote):
    """Nothing is saved where the block leaves no graph: it hides what the block overwrites."""
    script = tmp_path / "train.py"
    script.write_text(LAID_BARE, encoding="utf-8")
    result = testing.one(script, zygote, Settings())
    (new,) = (text for _, text in result.files.values())
    assert "use_reentrant=False" in new
    assert "y.mul_(" not in new
    script.write_text(new, encoding="utf-8")
    assert not testing.one(script, zygote, Settings()).diagnoses
