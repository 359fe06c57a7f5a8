"""Where nothing can be run: what is offered, what is said, and what a pasted traceback confirms."""

import json
from pathlib import Path

import pytest

from gradfix import cli

TRAIN = """\
import torch
{imports}
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    h = model(torch.randn(4, 3)).exp()
    h += 1
    other = model(torch.randn(4, 3)).exp()
    other *= 2
    loss = h.sum()
    loss.backward()
    total = other.sum()
    total.backward()
    optimizer.step()
"""
MISSING = TRAIN.format(imports="import no_such_package")
ERROR = """\
Traceback (most recent call last):
  File "/cluster/job/train.py", line {line}, in <module>
    {code}
  File "/opt/lib/python3.11/site-packages/torch/_tensor.py", line 525, in backward
    torch.autograd.backward(
RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation: \
[torch.FloatTensor [4, 3]], which is output 0 of ExpBackward0, is at version 1; expected version 0 instead.
"""


@pytest.fixture
def fix(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words: str, text: str = MISSING, traceback: str = "") -> tuple[int, str, str]:
        (tmp_path / "train.py").write_text(text)
        (tmp_path / "err.txt").write_text(traceback)
        with pytest.raises(SystemExit) as caught:
            cli.main(["fix", "train.py", *words])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_what_the_compiler_warns_of_in_the_script_is_not_said_for_every_cure(fix, recwarn):
    fix(text=MISSING.replace("for step", 'if "train" is "test":\n    raise SystemExit\nfor step'))
    assert [str(w.message) for w in recwarn if w.category is SyntaxWarning] == []


def test_a_script_that_cannot_run_is_read_instead(fix, tmp_path):
    code, out, err = fix()
    assert code == 2
    assert "ModuleNotFoundError: No module named 'no_such_package'" in err
    assert out.count("error[stale-saved-tensor]") == 2
    assert "help: out-of-place (untried)" in out
    assert "--accept untried applies the first of each as it is" in " ".join(out.split())
    assert (tmp_path / "train.py").read_text() == MISSING


def test_only_untried_accepted_is_applied(fix, tmp_path):
    assert fix("--write")[0] == 2
    assert (tmp_path / "train.py").read_text() == MISSING
    code, out, _ = fix("--write", "--accept", "untried")
    new = (tmp_path / "train.py").read_text()
    assert (code, "h += 1" in new, "other *= 2" in new) == (0, False, False)
    assert "2 cured (untried) and written" in out
    assert "No module named 'no_such_package'" in " ".join(out.split())


def test_a_module_of_functions_is_no_state_that_passes_hand_on(tmp_path, capsys):
    text = """\
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)
    def forward(self, x, state):
        y, state = self.lstm(x, state)
        return y, state

reader = Reader()
optimizer = torch.optim.SGD(reader.parameters(), lr=0.1)
for epoch in range(2):
    state = torch.zeros(1, 2, 4), torch.zeros(1, 2, 4)
    for chunk in torch.randn(3, 6, 2, 4):
        predicted, state = reader(chunk, state)
        loss = predicted.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 5)
        optimizer.step()
"""
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(SystemExit):
        cli.main(["check", "-v", "--isolated", "--no-cache", str(tmp_path / "train.py")])
    out = capsys.readouterr().out
    assert "detach `state` between passes" in out
    assert "detach `nn.utils`" not in out


def test_a_script_that_fails_and_shows_nothing_is_left_alone(fix):
    code, out, err = fix(text=MISSING.replace("h += 1", "").replace("other *= 2", ""))
    assert (code, "error[" in out) == (2, False)
    assert "No module named" in err


def test_an_interpreter_that_cannot_be_used_is_no_end(fix):
    code, out, err = fix("--python", "/no/such/python")
    assert (code, out.count("error[stale-saved-tensor]")) == (2, 2)
    assert "/no/such/python" in err


@pytest.mark.parametrize(("line", "code"), [(12, "loss.backward()"), (14, "total.backward()")])
def test_what_the_traceback_shows_comes_first(fix, line, code):
    ended, out, err = fix("--traceback", "err.txt", traceback=ERROR.format(line=line, code=code))
    assert (ended, err) == (1, "")
    first, second = out.split("error[stale-saved-tensor]")[1:]
    assert "evidence: the traceback shows it" in first
    assert code in first
    assert "the traceback shows it" not in second


def test_lines_that_have_moved_since_are_found_by_their_text(fix):
    ended, out, _ = fix("--traceback", "err.txt", traceback=ERROR.format(line=99, code="total.backward()"))
    assert ended == 1
    assert "the traceback shows it" in out.split("error[stale-saved-tensor]")[1]


def test_nothing_is_run_with_a_traceback(fix, tmp_path):
    text = TRAIN.format(imports="open('ran', 'w')")
    value = json.loads(
        fix(
            "--traceback",
            "err.txt",
            "--output-format",
            "json",
            text=text,
            traceback=ERROR.format(line=12, code="loss.backward()"),
        )[1]
    )
    assert [d["evidence"] for d in value["diagnostics"]] == ["traceback", "certain"]
    assert {c["verdict"] for d in value["diagnostics"] for c in d["cures"]} == {"untried"}
    assert not (tmp_path / "ran").exists()


def test_a_traceback_that_nothing_explains(fix):
    frozen = "RuntimeError: Trying to backward through the graph a second time\n"
    error = (
        'Traceback (most recent call last):\n  File "train.py", line 12, in <module>\n    loss.backward()\n'
        + frozen
    )
    code, out, _ = fix("--traceback", "err.txt", traceback=error)
    assert code == 1
    said = "the traceback shows freed-graph, raised in line 12 of train.py; how it comes about does not show"
    assert said in " ".join(out.split())


@pytest.mark.parametrize(
    ("traceback", "sentence"),
    [
        ("", "there is nothing in it"),
        ("all is well\n", "there is no error in it"),
        ("ValueError: no\n", "this is not an autograd error: ValueError: no"),
    ],
)
def test_what_is_no_traceback_of_autograds(fix, traceback, sentence):
    code, out, err = fix("--traceback", "err.txt", traceback=traceback)
    assert (code, out) == (2, "")
    assert sentence in err


def test_notes_are_applied_where_they_were_asked_for(fix, tmp_path):
    old = "import torch\nfrom torch.autograd import Variable\n\nw = torch.ones(3, requires_grad=True)\n"
    old += "loss = (w * Variable(torch.ones(3))).sum()\nloss.backward()\nprint(loss.data)\n"
    words = ("--no-run", "--accept", "untried", "--write")
    fix(*words, text=old)
    assert (tmp_path / "train.py").read_text() == old
    fix(*words, "--notes", text=old)
    new = "import torch\n\nw = torch.ones(3, requires_grad=True)\n"
    new += "loss = (w * torch.ones(3)).sum()\nloss.backward()\nprint(loss.detach())\n"
    assert (tmp_path / "train.py").read_text() == new


AGENT = """\
import torch
from torch import nn


class Agent:
    def __init__(self):
        self.net = nn.Linear(3, 3)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def update(self, x):
        y = self.net(x).exp()
        y += 1
        loss = y.sum()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
"""
GAME = """\
import games
from agent import Agent

game, agent = games.make("chess"), Agent()
while game.state() != games.OVER:
    if game.ready(agent):
        agent.update(game.state())
"""


def test_files_of_its_own_are_read_where_the_script_waits_for_a_library(fix, tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    code, out, _ = fix(text=GAME)
    assert (code, "agent.py:12" in out) == (2, True)
    assert fix("--write", "--accept", "untried", text=GAME)[0] == 0
    assert "y = y + 1" in (tmp_path / "agent.py").read_text()


TWO = """\
import torch
from torch import nn

actor, critic = nn.Linear(3, 3), nn.Linear(3, 1)
temperature = torch.zeros(1, requires_grad=True)
actors = torch.optim.SGD(actor.parameters(), lr=0.1)
critics = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(5):
    x = torch.randn(4, 3)
    action = torch.tanh(actor(x))
    value = critic(action)
    loss = (temperature.exp() * action.sum() - value).mean()
    critic_loss = critic(action.detach()).pow(2).mean()
    critics.zero_grad()
    critic_loss.backward()
    critics.step()
    actors.zero_grad()
    loss.backward()
    actors.step()
"""


def test_a_cure_after_which_the_text_shows_the_fault_still_is_not_offered(fix):
    said = fix("--no-run", text=TWO)[1]
    assert "stale-saved-tensor" in said
    assert "recompute-after-step (untried)" in said
    assert "detach-boundary" not in said


EPISODES = """\
import torch
import no_such_package

cell = torch.nn.LSTMCell(4, 8)
optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)
done, count = True, 0
for episode in range(4):
    if done:
        hx, cx = torch.zeros(1, 8), torch.zeros(1, 8)
    values = []
    for step in range(5):
        hx, cx = cell(torch.randn(1, 4), (hx, cx))
        values.append(hx.sum())
        count += 1
        done = episode == 2 and step == 4
    optimizer.zero_grad()
    sum(values).backward()
    optimizer.step()
"""


def test_a_truth_value_that_is_kept_is_no_state(fix):
    _, out, _ = fix("-v", text=EPISODES)
    out = " ".join(out.split())
    assert "detach `hx`, `cx` between passes" in out
    assert "`done`" not in out
