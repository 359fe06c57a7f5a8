"""Which faults are reported and cured: kinds, files and comments, in a real run."""

from pathlib import Path

import pytest

from gradfix.pipeline import fix
from gradfix.registry import catalogue
from gradfix.result import Exempt, Settings

FAULT = """\
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    y = w.exp()
    y += 1{comment}
    y.sum().backward()
    optimizer.step()
"""


@pytest.fixture
def train(zygote, tmp_path: Path):
    def run(comment: str = "", **settings: object):
        script = tmp_path / "train.py"
        script.write_text(FAULT.format(comment=comment))
        (result,) = fix(script, Settings(**settings), zygote=zygote)  # type: ignore[arg-type]
        return result

    return run


def test_a_comment_in_the_source_suppresses_report_and_cure(train):
    assert [d.status for d in train().diagnoses] == ["cured"]
    result = train("  # gradfix: ignore[stale-saved-tensor]")
    assert (result.diagnoses, dict(result.files)) == ((), {})
    assert [d.status for d in train("  # gradfix: ignore[freed-graph]").diagnoses] == ["cured"]


def test_a_misspelt_comment_is_said(train):
    (line,) = train("  # gradfix: ignore[stale-saved-tensr]", repair=False).lines
    assert line.endswith("train.py:7: there is no kind 'stale-saved-tensr'; did you mean stale-saved-tensor?")


def test_files_are_exempt_by_pattern(train, tmp_path):
    exempt = Exempt(tmp_path, "train*.py", ("stale-saved-tensor",))
    assert train(repair=False, exempt=(exempt,)).diagnoses == ()
    elsewhere = Exempt(tmp_path / "other", "train*.py", ("stale-saved-tensor",))
    assert len(train(repair=False, exempt=(elsewhere,)).diagnoses) == 1


def test_the_catalogue_is_what_the_codemods_say():
    from gradfix.codemod import codemods

    said = [(a.name, a.kinds, a.effects, a.description, len(a.examples)) for a in catalogue()]
    mods = codemods()
    assert said == [(m.name(), m.kinds, m.effects, m.DESCRIPTION, len(m.examples)) for m in mods]
    assert said


RESIDUAL = '''\
import torch
value = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(value.parameters(), 0.1)

def other():
    """{other}"""

{above}
def learn(state, following, reward):
    bellman_residual = reward + 0.9 * value(following) - value(state)
    bellman_residual.pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()

for _ in range(3):
    learn(torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 1))
'''


@pytest.mark.parametrize(
    ("above", "other", "reported"),
    [
        ("# the residual gradient of Baird, 1995", "", False),
        ("# residual-gradient update", "", False),
        ("# DQN", "", True),
        ("# semi-gradient, not the residual gradient", "", True),
        ("# DQN", "The residual gradient.", True),
        ("# the residual gradually vanishes", "", True),
    ],
)
def test_a_residual_gradient_is_meant_where_the_program_says_so(
    zygote, tmp_path: Path, above, other, reported
):
    script = tmp_path / "train.py"
    script.write_text(RESIDUAL.format(above=above, other=other))
    (result,) = fix(script, Settings(), zygote=zygote)
    assert [d.conflict.kind for d in result.diagnoses] == ["attached-target"] * reported
