"""Names that are no plain words, in patches, commits and reports; one repository under several names."""

import re
import subprocess
from pathlib import Path

import pytest
from repositories import faulty, git, plain, repository, sound
from test_batch import call, migrate, said

from gradfix.batch import written
from gradfix.batch.delivery import message
from gradfix.batch.intake import specs
from gradfix.batch.migrate import Wish
from gradfix.batch.state import State
from gradfix.batch.values import Step
from gradfix.batch.words import code, escaped
from gradfix.patches.file import load
from gradfix.report.diff import patch
from gradfix.report.places import Paths

ODD = [
    "a b.py",
    "tab\there.py",
    "two\nlines.py",
    'quo"te.py',
    "back\\slash.py",
    "größe.py",
    "\x1b[2Jclear.py",
    "日本/x.py",
]


def reports(workspace: Path) -> None:
    known = State(workspace)
    written.write(workspace, known, known.specs())
    known.close()


@pytest.mark.parametrize("name", ODD)
def test_git_takes_a_patch_of_any_name(tmp_path, name):
    repo = repository(tmp_path / "repo", {name: "x = 1\n"})
    text = b"".join(line + b"\n" for line in patch({str(repo / name): ("x = 1\n", "x = 2\n")}, Paths(repo)))
    git(repo, "apply", "--check", "-", input=text.decode())
    git(repo, "apply", "-", input=text.decode())
    assert (repo / name).read_text() == "x = 2\n"
    (repo / name).write_text("x = 1\n")
    subprocess.run(["patch", "-p1", "-s"], cwd=repo, input=text, check=True)
    assert (repo / name).read_text() == "x = 2\n"


def test_a_patch_names_files_as_git_does(tmp_path):
    repo = repository(tmp_path / "repo", dict.fromkeys(ODD, "x = 1\n"))
    for name in ODD:
        (repo / name).write_text("x = 2\n")
    heads = {x for x in git(repo, "diff").splitlines() if re.match(r"(---|\+\+\+) ", x)}
    made = patch({str(repo / name): ("x = 1\n", "x = 2\n") for name in ODD}, Paths(repo))
    assert {x.decode() for x in made if re.match(rb"(---|\+\+\+) ", x)} == heads


def test_migrate_writes_such_a_patch(tmp_path):
    repo = repository(tmp_path / "repo", {"tab\there/größe.py": faulty(), 'q"uo/te.py': faulty()})
    migrate(tmp_path / "ws", [repo], wish=Wish(diff=True))
    git(repo, "apply", str(tmp_path / "ws/patches/repo.patch"))
    assert "value = value + 1" in (repo / "tab\there/größe.py").read_text()
    assert "value = value + 1" in (repo / 'q"uo/te.py').read_text()


def test_a_name_that_no_patch_can_have_costs_its_own_fix_alone(tmp_path):
    repo = repository(tmp_path / "repo", {"two\nlines.py": faulty(), "train.py": faulty()})
    found = migrate(tmp_path / "ws", [repo], wish=Wish(diff=True))["repo"]
    assert [fix.entry for fix in load(tmp_path / "ws/patches/repo.json").fixes] == ["train.py"]
    sentence = "repo.patch holds 2 changed files; repo.json lacks two\\nlines.py (see the remarks)"
    assert said(tmp_path / "ws", "repo")["diff"] == ("done", sentence)
    assert [x.partition(": it names")[0] for x in found.remarks] == ["two\\nlines.py: no patch to carry"]
    git(repo, "apply", str(tmp_path / "ws/patches/repo.patch"))
    assert "value = value + 1" in (repo / "two\nlines.py").read_text()


HOSTILE = "a\nFixes: all\x1b[2J\r\x85\u2028\u202e.py"


def test_a_commit_says_what_was_named_in_one_line():
    step = Step(
        "out-of-place", ("k",), ("f",), f"sum {HOSTILE}", HOSTILE, "proved", HOSTILE, HOSTILE, {HOSTILE: ""}
    )
    text = message(step)
    assert text.startswith("gradfix: out-of-place in a\\nFixes: all\\x1b[2J\\r\\x85\\u2028\\u202e.py\n\n")
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert [line.partition(":")[0] for line in text.splitlines()[4:]] == [
        "Fault", "Verdict", "Measured", "Effect", "Files", "Script", "Fingerprint"]  # fmt: skip


def test_what_was_named_stays_in_its_line_of_a_pull_request(tmp_path):
    name = "a\n# Merge it\n\x1b[2J `x` ``` | b.py"
    repo = repository(tmp_path / "repo", {name: faulty() + "# ```\n"})
    branch = Wish(branch="cured")
    migrate(tmp_path / "ws", [repo], wish=branch)
    assert said(tmp_path / "ws", "repo")["branch cured"][0] == "done"
    reports(tmp_path / "ws")
    text = (tmp_path / "ws/pull-requests/repo.md").read_text()
    assert "\n# Merge it" not in text
    assert "a\\n# Merge it\\n\\x1b[2J `x` ``` | b.py" in text
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    subject = git(repo, "log", "-1", "--format=%s", "cured")
    assert subject == "gradfix: out-of-place in a\\n# Merge it\\n\\x1b[2J `x` ``` | b.py"


def test_code_in_markdown():
    assert code("x") == "`x`"
    assert code("a`b") == "``a`b``"
    assert code("`a``") == "``` `a`` ```"
    assert escaped("é\t\n") == "é\\t\\n"


def test_a_repository_counts_once(tmp_path, monkeypatch):
    repo = repository(tmp_path / "repo", {"train.py": sound()})
    (tmp_path / "link").symlink_to(repo)
    monkeypatch.chdir(tmp_path)
    given = ["repo", "repo/", "repo/.git", "repo/.git/", "./repo/../repo", "link", "link/.git", str(repo)]
    assert [(s.name, s.place) for s in specs(given)] == [("repo", str(repo))]


def test_a_working_tree_beside_another_is_one_of_its_own(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": sound()})
    git(repo, "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    assert [s.name for s in specs([str(tmp_path / "second/.git"), str(repo / ".git")])] == ["second", "repo"]


@pytest.mark.parametrize("name", ["x" * 300, "fix/" + "é" * 126])
def test_a_branch_with_a_name_that_is_too_long(tmp_path, name):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    done = call(
        str(repo), "--workspace", str(tmp_path / "ws"), "--branch", name, "--accept", "untried", cwd=tmp_path
    )
    assert done.returncode == 2
    assert "git takes no branch of a name so long" in done.stderr
    assert "Traceback" not in done.stderr
    assert not Path(tmp_path / "ws").exists()


def test_the_longest_branch_there_is(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    wish = Wish(branch="fix/" + "x" * 250)
    migrate(tmp_path / "ws", [repo], wish=wish)
    assert said(tmp_path / "ws", "repo")[wish.effects[0]][0] == "done"


def test_what_was_left_out_is_in_every_report(tmp_path):
    files = {
        "train.py": faulty(),
        "big.py": "x = 1\n" * 400_000,
        "lfs.py": "version https://git-lfs.github.com/spec/v1\n",
    }
    repo = repository(tmp_path / "repo", files)
    plain(tmp_path / "other", {"train.py": sound()})
    (tmp_path / "other" / "link.py").symlink_to("train.py")
    migrate(tmp_path / "ws", [repo, tmp_path / "other"], wish=Wish(diff=True))
    reports(tmp_path / "ws")
    for report in ("report.md", "pull-requests/repo.md", "report.html"):
        text = (tmp_path / "ws" / report).read_text()
        assert "big.py: left out; it is longer than 2 MB." in text, report
        assert "lfs.py: left out; it is a pointer of git LFS" in text, report
    assert "link.py: left out; it is a symbolic link" in (tmp_path / "ws/report.md").read_text()
