"""Which proposal wins, and several faults in one program, from end to end."""

from gradfix import testing
from gradfix.choose import Candidate, Tried, _merit
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


def tried(status, rank=0, **measured):
    return Tried(Candidate(Proposal("", NONE, {}, rank), {}, 1), Verdict(status, "", measured))


def test_a_whole_cure_goes_before_one_of_a_chain():
    assert _merit(tried("intended", 5)) < _merit(tried("proved", 0, remaining=1))


def test_what_trains_goes_before_what_cancels():
    assert _merit(tried("intended", 5)) < _merit(tried("proved", 0, zero=4))
    assert _merit(tried("proved", 0, zero=4)) < _merit(tried("rejected"))
