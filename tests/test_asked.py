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
