"""What a repository's result tells of faults that went with the cure of another."""

import pytest
from repositories import plain
from test_batch import migrate

from gradfix.batch.repository import became
from gradfix.batch.summary import totals
from gradfix.batch.values import Entry, Options, RepoResult
from gradfix.batch.words import sentence
from gradfix.batch.written import markdown

NET = """\
import torch
from torch.autograd import Variable


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        a = Variable(torch.zeros(2, 3))
        b = Variable(torch.ones(2, 3))
        return self.layer(x + a + b)
"""
TRAIN = """\
import torch

from net import Net

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""


def test_what_one_cure_took_along_is_not_told_as_left(tmp_path):
    repo = plain(tmp_path / "repo", {"train.py": TRAIN, "net.py": NET})
    found = migrate(tmp_path / "ws", [repo], Options(prove=True))["repo"]
    old, new = found.changes["net.py"]
    assert [n for n, line in enumerate(old.split("\n"), 1) if line not in new] == [11, 12]
    assert [(f.line, f.status) for f in found.faults] == [(11, "cured")]


@pytest.mark.parametrize(
    ("line", "lines"),
    [(1, None), (2, range(2, 3)), (3, None), (4, range(4, 7)), (5, range(4, 7)), (6, None), (7, range(8, 8))],
)
def test_the_lines_in_the_place_of_one(line, lines):
    assert became("a\nb\nc\nd\ne\nf\ng", "a\nB\nc\n1\n2\n3\nf", line) == lines


def test_what_kept_scripts_from_training_is_told(tmp_path):
    def failed(*what):
        entries = (
            Entry("t.py", "failed", "namespaces", 0.1, each, f"t.py fails: {each}", ()) for each in what
        )
        return RepoResult(
            "r", "done", entries=(*entries, Entry("ok.py", "steps", "namespaces", 0.1, "", "", ()))
        )

    no = "ModuleNotFoundError: No module named 'numbers_'"
    found = totals([], [failed(no, "KeyError: 1"), failed(no, "KeyError: 2\nmore", "KeyError: 3")], {})
    assert found["stopped"] == {no: 2, "KeyError: 1": 1, "KeyError: 2": 1, "KeyError: 3": 1}
    said = f"7 scripts run, 5 of them failed for reasons that are not autograd's (2 {no}, 1 KeyError: 1, "
    assert f"{said}1 KeyError: 2 and 1 reason more)" in sentence(found)
    report = "\n".join(markdown({"totals": found, "groups": [], "repositories": []}))
    assert f"| 2 | {no} |" in report
    none = totals([], [failed()], {})
    assert "0 faults and 0 notes found in 0 files; cures for 0 of them; 1 script run; a repo" in sentence(
        none
    )
    assert "failed" not in "\n".join(markdown({"totals": none, "groups": [], "repositories": []}))
