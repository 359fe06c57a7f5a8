"""What lies around a repository's files: its index, locks of other gits, a workspace inside it, and nothing at all."""

import shutil

import pytest
from repositories import faulty, git, plain, repository, sound
from test_batch import call, migrate, said

from gradfix.batch.migrate import Wish
from gradfix.batch.state import State

BRANCH = Wish(branch="cured")


def effect(workspace, name="repo"):
    return said(workspace, name)["branch cured"]


@pytest.mark.parametrize("wish", [BRANCH, Wish(write=True)])
def test_what_is_staged_and_undone_in_the_tree_is_not_committed(tmp_path, wish):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    (repo / "train.py").write_text(faulty(steps=9))
    git(repo, "add", "train.py")
    (repo / "train.py").write_text(faulty())
    assert git(repo, "status", "--porcelain") == "MM train.py"
    (found,) = migrate(tmp_path / "ws", [repo], wish=wish).values()
    assert found.dirty == ("train.py",)
    result, why = said(tmp_path / "ws", "repo")[wish.effects[0]]
    assert (result, "not committed" in why) == ("refused", True)
    assert git(repo, "branch", "--list", "cured") == ""
    assert (repo / "train.py").read_text() == faulty()


def test_what_is_staged_to_be_taken_away_is_not_committed(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    git(repo, "rm", "--cached", "-q", "train.py")
    (found,) = migrate(tmp_path / "ws", [repo], wish=BRANCH).values()
    assert found.dirty == ("train.py",)
    assert effect(tmp_path / "ws")[0] == "refused"


def test_other_files_may_be_staged(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "other.txt": "1"})
    (repo / "other.txt").write_text("2")
    git(repo, "add", "-A")
    migrate(tmp_path / "ws", [repo], wish=BRANCH)
    assert effect(tmp_path / "ws")[0] == "done"


def test_a_lock_that_was_left_behind_is_named(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    lock = repo / ".git/refs/heads/cured.lock"
    lock.touch()
    migrate(tmp_path / "ws", [repo], wish=BRANCH)
    result, why = effect(tmp_path / "ws")
    assert result == "refused"
    assert f"{lock} is there" in why
    assert "delete that file, then call again" in why
    known = State(tmp_path / "ws")
    assert known.branches("repo") == {}  # nothing was applied
    known.close()
    lock.unlink()
    migrate(tmp_path / "ws", [repo], wish=BRANCH)
    assert effect(tmp_path / "ws")[0] == "done"


@pytest.mark.parametrize("wish", [BRANCH, Wish(write=True)])
def test_a_repository_that_has_gone_is_told_once(tmp_path, wish):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    migrate(tmp_path / "ws", [repo])
    shutil.rmtree(repo)
    migrate(tmp_path / "ws", [], wish=wish)
    assert said(tmp_path / "ws", "repo") == {wish.effects[0]: ("refused", "it is not there any more")}


def test_a_configuration_that_git_can_not_read_is_named(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    (repo / ".git/config").write_text("[core\n bad")
    (found,) = migrate(tmp_path / "ws", [repo]).values()
    assert found.sentence.startswith("git: bad config line 1 in file")


@pytest.mark.parametrize("name", ["HEAD", "@{-1}", "a..b", "-x", "x.lock", "@", "refs/heads/x"])
def test_what_git_would_not_call_a_branch(tmp_path, name):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    git(repo, "checkout", "-q", "-b", "other")
    git(repo, "checkout", "-q", "main")
    done = call(str(repo), f"--branch={name}", "--accept", "untried", cwd=repo)
    assert (done.returncode, "git takes no branch called" in done.stderr) == (2, True)


@pytest.mark.parametrize(("there", "name"), [("gradfix", "gradfix/sub"), ("a/b/c", "a/b"), ("a", "a/b/c")])
def test_a_branch_that_is_a_folder_of_another(tmp_path, there, name):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    git(repo, "branch", there)
    wish = Wish(branch=name)
    migrate(tmp_path / "ws", [repo], wish=wish)
    why = f"there is a branch {there}, and git has none called {name} beside it; name another"
    assert said(tmp_path / "ws", "repo") == {wish.effects[0]: ("refused", why)}


def test_a_workspace_that_is_a_folder_of_something_else(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/thesis.txt").write_text("mine")
    done = call(str(repo), "--workspace", "papers", cwd=tmp_path)
    assert done.returncode == 2
    assert "is a folder of something else (it holds thesis.txt); name another --workspace" in done.stderr
    assert [file.name for file in (tmp_path / "papers").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("name", ["nowhere", "train.py", "repo.zip"])
def test_a_repository_that_was_never_there_is_not_remembered(tmp_path, name):
    repository(tmp_path / "repo", {"train.py": faulty()})
    (tmp_path / "train.py").write_text(faulty())
    done = call("repo", name, "--branch", "cured", "--write", "--accept", "untried", cwd=tmp_path)
    assert (done.returncode, f"{name}: " in done.stderr) == (2, True), done.stderr
    assert "nothing was done" in done.stderr
    assert not (tmp_path / "gradfix-migrate").exists()


def test_one_that_has_gone_since_may_be_named(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    call("repo", cwd=tmp_path)
    shutil.rmtree(repo)
    done = call("repo", "--retry", "all", cwd=tmp_path)
    assert "repo: refused: there is no such folder or archive" in done.stderr


def test_what_a_list_names_and_is_not_there_is_said_and_the_rest_goes_on(tmp_path):
    repository(tmp_path / "repo", {"train.py": sound()})
    (tmp_path / "list.txt").write_text("\n".join(["typo", "repo", *(f"no{n}" for n in range(12))]))
    done = call("--from", "list.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("list.txt: typo: there is no such folder or archive\n") == 2
    assert done.stderr.count("list.txt: 3 more that are not there\n") == 2
    assert "1 repository: 1 done" in done.stdout
    assert call(cwd=tmp_path).returncode == 0


def test_a_list_of_nothing_that_is_there_begins_no_workspace(tmp_path):
    (tmp_path / "list.txt").write_text("typo\nother\n")
    done = call("--from", "list.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert "nothing that it names is there (typo: there is no such folder or archive)" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["list.txt"]


def test_the_usual_workspace_is_no_part_of_the_repository_it_lies_in(tmp_path):
    """``gradfix migrate .``: what it makes is neither read the next time nor git's to track."""
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    archive = plain(tmp_path / "src", {"p/late.py": faulty()})
    shutil.make_archive(str(tmp_path / "late"), "zip", archive)
    words = ("--branch", "cured", "--diff", "--accept", "untried")
    call(".", str(tmp_path / "late.zip"), *words, cwd=repo)
    plain(repo / "gradfix-migrate", {"scratch/left.py": faulty()})
    call("--retry", "all", *words, cwd=repo)
    assert git(repo, "status", "--porcelain") == ""
    report = (repo / "gradfix-migrate/report.md").read_text()
    assert "left.py" not in report
    assert "is a repository of its own" not in report
    assert git(repo, "show", "--stat", "--format=", "cured").startswith("train.py")


@pytest.mark.parametrize("inside", ["", "src", ".git", ".git/gradfix"])
def test_a_workspace_among_the_repository_s_own_files_is_refused(tmp_path, inside):
    repo = repository(tmp_path / "repo", {"src/train.py": sound()})
    before = sorted(repo.rglob("*"))
    done = call(".", "--workspace", str(repo / inside), cwd=repo)
    assert done.returncode == 2
    assert "--workspace" in done.stderr
    assert sorted(repo.rglob("*")) == before


def test_a_workspace_that_holds_the_repositories(tmp_path):
    """The other way round is nobody's business."""
    repository(tmp_path / "ws/repo", {"train.py": faulty()})
    plain(tmp_path / "ws/folder", {"train.py": faulty()})
    done = call("ws/repo", "ws/folder", "--workspace", "ws", cwd=tmp_path)
    assert "2 faults" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("how", ["rebase", "bisect"])
def test_a_branch_in_the_middle_of_a_rebase_is_not_moved(tmp_path, how, beside):
    """HEAD is detached then, and git would not move it either."""
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "x.txt": "0"})
    call("repo", "--branch", "cured", "--accept", "untried", cwd=tmp_path)
    tree = tmp_path / "beside" if beside else repo
    words = ["worktree", "add", str(tree)] if beside else ["checkout"]
    git(repo, *words, "cured")
    if how == "rebase":
        git(tree, "-c", "sequence.editor=sed -i 1ibreak", "rebase", "-i", "main")
    else:
        git(tree, "commit", "-q", "--allow-empty", "-m", "mine")
        git(tree, "reset", "-q", "--hard", "HEAD~1")
        git(tree, "bisect", "start", "HEAD", "HEAD~1")
        git(tree, "checkout", "-q", "--detach")
    git(repo, "checkout", "-q", "--detach", "main")
    plain(repo, {"train.py": faulty(steps=4)})
    git(repo, "commit", "-qam", "mine")
    before = git(repo, "rev-parse", "cured")
    done = call("--branch", "cured", "--accept", "untried", "--retry", "all", cwd=tmp_path)
    assert "cured is checked out, or being rebased" in done.stderr
    assert git(repo, "rev-parse", "cured") == before


@pytest.mark.parametrize("leads", ["main", "nowhere"])
def test_a_branch_that_is_another_s_name_moves_no_other(tmp_path, leads):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    call("repo", "--branch", "cured", "--accept", "untried", cwd=tmp_path)
    git(repo, "branch", "-D", "cured")
    git(repo, "symbolic-ref", "refs/heads/cured", f"refs/heads/{leads}")
    before = git(repo, "rev-parse", "main")
    call("--branch", "cured", "--accept", "untried", "--retry", "all", cwd=tmp_path)
    assert git(repo, "rev-parse", "main") == before
    assert git(repo, "branch", "--list", "nowhere") == ""
