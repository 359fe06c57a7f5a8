"""Optimizers that nothing in a program steps: what is read of them is what a run shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradfix.check import check_text
from gradfix.detect import detect
from gradfix.examine import seen
from gradfix.read import read
from gradfix.read.kept import Kept
from gradfix.result import Settings
from gradfix.run import Run
from gradfix.run.zygote import Zygote
from gradfix.source import Source

TEXT = """\
import torch
from torch import nn

{head}


def train(first, second, other, model):
    for i in range(40):
        first.zero_grad()
        model(torch.randn(3, 2)).sum().backward()
        ours.step()
        {clear}
        other(torch.randn(3, 2)).sum().backward()
        {step}


def build(net):
    return torch.optim.Adam(net.parameters(), lr=0.1)


model, other = nn.Linear(2, 1), nn.Linear(2, 1)
ours = torch.optim.SGD(model.parameters(), lr=0.1)
late = {late}
train(ours, late, other, model)
"""
ADAM = "torch.optim.Adam(other.parameters(), lr=0.1)"
LINE = 13


def found(
    tmp_path: Path, step: str, zygote: Zygote | None = None, **parts: str
) -> list[tuple[str, int, str, str]]:
    """(pattern, line, evidence, message) of what is above a note in the main part."""
    program = tmp_path / "train.py"
    text = TEXT.format(**{"head": "", "clear": "second.zero_grad()", "late": ADAM, **parts}, step=step)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    conflicts = [c for c in detect(main.tape) if c.severity != "note"]
    if zygote is not None:
        ran = detect(zygote.run(Run(program, tmp_path, tmp_path)).tape)
        assert {(c.pattern, c.at, c.message) for c in conflicts} == {
            (c.pattern, c.at, c.message) for c in ran if c.severity != "note"
        }
    return [(c.pattern, c.at.line, main.evidence(c), c.message) for c in conflicts]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"late": "build(other)"},
        {"step": "schedule = torch.optim.lr_scheduler.StepLR(ours, 3); schedule.step()"},
    ],
)
def test_an_optimizer_that_no_call_may_step(tmp_path: Path, zygote: Zygote, parts: dict[str, str]) -> None:
    ((pattern, line, evidence, said),) = found(tmp_path, zygote=zygote, **{"step": "pass", **parts})
    assert (pattern, line, evidence) == ("never-stepped", LINE, "certain")
    assert said.startswith("`late` never steps")


@pytest.mark.parametrize(
    "step",
    [
        "if i > 90: second.step()",
        "if i > 90: late.step()",
        "if i > 90:\n            for o in (first, second): o.step()",
        "if i > 90:\n            every = [first, second]; every[1].step()",
        "if i > 90:\n            it = second; it.step()",
        "if i > 90:\n            it = vars()['second']; it.step()",
        "if i > 90: torch.amp.GradScaler().step(second)",
        "if i > 90: getattr(second, 'step')()",
        "if i > 90: getattr(second, 'st' + 'ep')()",
        "go = second.step",
        "if i > 90:\n            [o.step() for o in (first, second)]",
        "if i > 90:\n            with open(second) as o: o.step()",
        "if i > 90: (second or first).step()",
        "if i > 90: update(second)",
        "if i > 90: imported.update(second)",
    ],
)
def test_an_optimizer_that_some_call_may_step(tmp_path: Path, step: str) -> None:
    head = "from somewhere import imported\ndef update(given): given.step()"
    assert found(tmp_path, step, head=head) == []


HELD = "every.append(second)\n        for o in every: o.zero_grad()"


@pytest.mark.parametrize("clear", [HELD, "every.extend([first, second]); second.zero_grad()"])
def test_a_list_that_is_filled_and_cleared_steps_nothing(tmp_path: Path, zygote: Zygote, clear: str) -> None:
    ((pattern, line, evidence, said),) = found(tmp_path, "pass", zygote, head="every = []", clear=clear)
    assert (pattern, line, evidence) == ("never-stepped", LINE + clear.count("\n"), "certain")
    assert said.startswith("`late` never steps")


@pytest.mark.parametrize(
    "step",
    [
        "if i > 90: every[1].step()",
        "if i > 90:\n            for o in every: o.step()",
        "if i > 90:\n            for o in every: torch.amp.GradScaler().step(o)",
        "if i > 90: torch.amp.GradScaler().step(every[1])",
        "if i > 90: torch.amp.GradScaler().step(*every)",
        "if i > 90: list(map(update, every))",
        "if i > 90: imported.every = every",
        "if i > 90: imported.update({'optimizers': every})",
    ],
)
def test_what_else_a_list_is_used_for_may_step_its_items(tmp_path: Path, step: str) -> None:
    head = "import imported\nevery = []\nupdate = imported.update"
    assert found(tmp_path, step, head=head, clear=HELD) == []


@pytest.mark.parametrize(
    ("clear", "late"),
    [
        ("pass", ADAM),
        ("second.zero_grad()", "unknown(" + ADAM + ")"),
        ("unknown(second); second.zero_grad()", ADAM),
        ("if i == 0: second.zero_grad()", ADAM),
    ],
)
def test_what_is_not_cleared_again_and_again_or_not_known(tmp_path: Path, clear: str, late: str) -> None:
    told = found(tmp_path, "pass", head="from somewhere import unknown", clear=clear, late=late)
    assert "never-stepped" not in {pattern for pattern, *_ in told}


def test_weights_that_something_else_writes(tmp_path: Path, zygote: Zygote) -> None:
    follow = "[p.data.mul_(0.9) for p in other.parameters()]"
    assert found(tmp_path, follow, zygote=zygote) == []
    both = "torch.optim.Adam([*other.parameters(), *model.parameters()], lr=0.1)"
    assert found(tmp_path, "pass", late=both) == []


def test_a_library_may_step_what_its_class_holds(tmp_path: Path) -> None:
    base = "class Trainer({base}):\n    def __init__(self): self.second = None"
    head = "from somewhere import Loop\n" + base.format(base="Loop")
    assert found(tmp_path, "pass", head=head) == []
    assert found(tmp_path, "pass", head=base.format(base="nn.Module"))


def test_a_file_that_is_not_read_may_step_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def update(given): given.step()\n", encoding="utf-8")
    assert found(tmp_path, "if i > 90: update(late)", head="from helper import update") == []


def test_a_step_that_is_written_meanwhile(tmp_path: Path) -> None:
    """Also where nothing that runs comes to it."""
    kept, path = Kept(seen), tmp_path / "train.py"
    base = TEXT.format(head="", clear="second.zero_grad()", late=ADAM, step="pass")
    more = "\n\ndef later(second):\n    {body}\n"
    told = []
    for body in ("pass", "second.step()", "return 1"):
        text = base + more.format(body=body)
        results = check_text(Source(path, text.encode(), text), Settings(repair=False), None, kept)
        told.append([d.conflict.pattern for r in results for d in r.diagnoses])
    assert told == [["never-stepped"], [], ["never-stepped"]]


OWN = """\
import torch
class Plain(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.count = 0
    def step(self, closure=None):
        self.count += 1
        super().step(closure)
net = torch.nn.Linear(2, 2)
optimizer = Plain(net.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    net(torch.ones(2)).sum().backward()
    optimizer.step()
"""


def test_an_optimizer_of_the_programs_own_is_not_called_self(tmp_path: Path) -> None:
    main, *_ = read(tmp_path / "train.py", OWN.replace("    optimizer.zero_grad()\n", ""))
    (found,) = detect(main.tape)
    assert "gradients of `optimizer` between its steps" in found.message
