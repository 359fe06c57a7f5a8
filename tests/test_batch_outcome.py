"""What became of cures, as a batch tells it: applied, refused, or only shown; now, and by earlier calls."""

import json
from pathlib import Path

import pytest
from repositories import faulty, git, plain, repository, sound
from test_batch import UNTRIED, call, migrate

from gradfix.batch.migrate import Wish
from gradfix.batch.outcome import applied, outcome
from gradfix.batch.state import State
from gradfix.batch.values import Branch, Fault, Options, Tried


def told(folder: Path) -> tuple[dict, str, str]:
    """The three reports of a workspace."""
    names = ("report.json", "report.md", "report.html")
    document, *texts = ((folder / "gradfix-migrate" / name).read_text() for name in names)
    return json.loads(document), *texts


@pytest.mark.parametrize(
    ("status", "verdict", "effects", "said"),
    [
        ("cured", "proved", {"branch x": ("done", ""), "diff": ("done", "")}, "on branch x, in a patch"),
        ("cured", "proved", {"branch x": ("refused", "")}, "not applied"),
        ("left", "intended", {"write": ("done", "")}, "only shown"),
        ("left", "rejected", {"write": ("done", "")}, ""),
    ],
)
def test_what_became_of_a_fault(status, verdict, effects, said):
    cure = Tried("c", "", "none", "", verdict, "")
    assert outcome(Fault("f", "k", "error", "certain", "a.py", 1, "", status, cures=(cure,)), effects) == said


def test_what_says_most_comes_first():
    effects = {"branch x": ("done", ""), "diff": ("done", ""), "write": ("done", "")}
    assert applied(effects) == ["written", "on branch x", "in a patch"]


def test_a_refused_branch_is_no_cure(tmp_path):
    repository(tmp_path / "repo", {"train.py": faulty()})
    done = call("repo", "--accept", "untried", "--branch", "main", cwd=tmp_path)
    said = "cures for 1 of them (1 untried): 1 not applied; "
    said += "what was to be done with them was refused in 1 repository;"
    assert said in done.stdout
    assert "repo: 1 fault, 1 cure (1 untried), 1 not applied, branch main refused" in done.stderr
    document, markdown, page = told(tmp_path)
    assert document["totals"]["outcomes"] == {"not applied": 1}
    assert document["repositories"][0]["faults"][0]["outcome"] == "not applied"
    assert "| repo | done, branch main refused | 1 | 0 | 1 | 1 untried | 1 not applied |" in markdown
    assert said in markdown
    assert "branch main refused: main is checked out" in page
    assert "repo  branch main refused: main is checked out" in call("--status", cwd=tmp_path).stdout


def test_a_cure_that_is_not_accepted_is_only_shown(tmp_path):
    plain(tmp_path / "repo", {"train.py": faulty()})
    done = call("repo", cwd=tmp_path)
    assert (done.returncode, "cures for 0 of them: 1 only shown" in done.stdout) == (1, True)
    assert "repo: 1 fault, 1 only shown, " in done.stderr
    _, markdown, page = told(tmp_path)
    assert "| repo | done | 1 | 0 | 0 | none | 1 only shown |" in markdown
    assert "· only shown ·" in page


def test_what_an_earlier_call_has_written_is_not_forgotten(tmp_path):
    folder = plain(tmp_path / "repo", {"train.py": faulty()})
    assert call("repo", "--accept", "untried", "--write", cwd=tmp_path).returncode == 0
    text = (tmp_path / "gradfix-migrate/pull-requests/repo.md").read_text()
    assert "earlier calls" not in told(tmp_path)[1]
    done = call("--retry", "all", "--accept", "untried", cwd=tmp_path)
    assert (
        "0 faults and 0 notes found in 1 file; cures for 0 of them; applied by earlier calls: 1 cure, 1 written;"
        in (done.stdout)
    )
    document, markdown, page = told(tmp_path)
    (cure,) = document["repositories"][0]["earlier"]["written"]
    assert (cure["codemod"], cure["files"], cure["verdict"]) == ("out-of-place", ["train.py"], "untried")
    assert "| repo | written | out-of-place | stale-saved-tensor | train.py | untried |" in markdown
    assert "written by an earlier call: out-of-place (untried) for stale-saved-tensor in train.py" in page
    assert (tmp_path / "gradfix-migrate/pull-requests/repo.md").read_text() == text
    (folder / "more.py").write_text(faulty("critic"))
    call("--retry", "all", "--accept", "untried", "--write", cwd=tmp_path)
    text = (tmp_path / "gradfix-migrate/pull-requests/repo.md").read_text()
    assert "Written into the working tree before:" in text
    assert "(`out-of-place`, untried) in `train.py`" in text
    call("--accept", "untried", "--revert", "out-of-place", cwd=tmp_path)
    assert told(tmp_path)[0]["totals"]["earlier"] == {}
    assert (folder / "train.py").read_text() != sound()


def test_a_branch_of_an_earlier_call_is_not_forgotten(tmp_path):
    repository(tmp_path / "repo", {"train.py": faulty()})
    assert call("repo", "--accept", "untried", "--branch", "cured", cwd=tmp_path).returncode == 0
    done = call("--accept", "untried", "--no-notes", cwd=tmp_path)
    assert done.returncode == 1
    assert "1 not applied; applied by earlier calls: 1 cure, 1 on a branch;" in done.stdout
    assert "| repo | on branch cured | out-of-place |" in told(tmp_path)[1]


def test_a_kill_between_the_note_and_the_branch(tmp_path):
    """The branch is at the commit before; the same call goes on."""
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    branch = Wish(branch="cured")
    migrate(tmp_path / "ws", [repo], wish=branch)
    before = git(repo, "rev-parse", "cured")
    known = State(tmp_path / "ws")
    known.making("repo", "cured", Branch((before, "0" * 40)))
    known.close()
    only = Options(accept=UNTRIED.accept, codemods=("clone-before-write",))
    migrate(tmp_path / "ws", options=only, wish=branch)
    assert git(repo, "log", "-1", "--format=%s", "cured") == "gradfix: clone-before-write in train.py"


NOTES = "import torch\nx = torch.ones(2, requires_grad=True)\n" + "print(x.data)\n" * 3


def test_what_is_wrong_comes_before_what_is_noted(tmp_path):
    plain(tmp_path / "a", {"old.py": NOTES})
    plain(tmp_path / "b", {"train.py": faulty()})
    call("a", "b", cwd=tmp_path)
    document, markdown, page = told(tmp_path)
    assert [(g["severity"], g["faults"], g["place"], g["code"]) for g in document["groups"]] == [
        ("error", 1, "b: train.py:7", "value += 1"),
        ("note", 3, "a: old.py:3", "x.data"),
    ]
    assert document["totals"]["kinds"] == {"stale-saved-tensor": 1}
    assert document["totals"]["noted"] == {"data-attribute": 3}
    faults = markdown.partition("## Faults")[2].partition("## Groups")[0].splitlines()[4:-1]
    assert len(faults) == 1
    assert faults[0].startswith("| b | train.py:7 | stale-saved-tensor | ")
    assert faults[0].endswith(" | out-of-place (untried) | only shown |")
    rows = markdown.partition("## Repositories")[2].splitlines()
    assert [row.split(" | ")[:4] for row in rows[4:6]] == [
        ["| b", "done", "1", "0"],
        ["| a", "done", "0", "3"],
    ]
    assert page.index('href="#repo-b"') < page.index('href="#repo-a"')
