"""gradfix migrate --revert: what a codemod has done is taken back whole, or it is said why not, each time."""

from repositories import faulty, git, plain, repository, sound, state
from test_batch import call

from gradfix.batch.values import RepoResult, Step, Written


def test_a_codemod_is_taken_back(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty(), "old.py": LEAF})
    folder = plain(tmp_path / "folder", {"train.py": faulty(), "old.py": LEAF})
    words = ["--accept", "untried"]
    assert call("repo", "--branch", "cured", *words, cwd=tmp_path).returncode == 0
    assert call("folder", "--workspace", "two", "--write", *words, cwd=tmp_path).returncode == 0
    assert git(repo, "rev-list", "--count", "main..cured") == "2"
    assert "no_grad" in (folder / "old.py").read_text()
    before = state(repo, "cured")
    call("--branch", "cured", *words, "--revert", "out-of-place", cwd=tmp_path)
    call("--workspace", "two", "--write", *words, "--revert", "out-of-place", cwd=tmp_path)
    told = git(repo, "log", "--format=%s", "main..cured").splitlines()
    assert told == [
        "gradfix: clone-before-write in train.py",
        "gradfix: no-grad-write in old.py",
    ]  # the next best
    assert state(repo, "cured") == before
    assert (folder / "train.py").read_text() == faulty().replace(
        "value += 1", "value = value.clone()\n    value += 1"
    )
    assert "no_grad" in (folder / "old.py").read_text()
    rest = ["--revert", "clone-before-write,clone-weight", "--revert", "no-grad-write"]
    call("--branch", "cured", *words, *rest, cwd=tmp_path)
    assert git(repo, "rev-parse", "cured") == git(repo, "rev-parse", "main")
    (folder / "old.py").write_text("mine = 1\n")
    done = call("--workspace", "two", "--write", *words, "--revert", "no-grad-write", cwd=tmp_path)
    assert "old.py has changed since it was written" in done.stderr
    assert (folder / "old.py").read_text() == "mine = 1\n"


def test_a_refused_revert_is_said_until_it_is_settled(tmp_path):
    folder = plain(tmp_path / "folder", {"train.py": faulty(), "old.py": LEAF})
    words = ["--accept", "untried"]
    assert call("folder", "--write", *words, cwd=tmp_path).returncode == 0
    (folder / "old.py").write_text("mine = 1\n")
    written = (folder / "train.py").read_text()
    first = call(*words, "--revert", "out-of-place", cwd=tmp_path)
    again = call("--accept", "untried,intended", "--revert", "no-grad-write", cwd=tmp_path)
    later = call("--accept", "untried", "--write", cwd=tmp_path)
    for done in (first, again, later):
        assert done.returncode == 2, done.stdout
        assert "folder: revert: old.py has changed since it was written" in done.stderr
        assert (folder / "train.py").read_text() == written
    assert "old.py has changed" in call("--status", cwd=tmp_path).stdout
    (folder / "old.py").write_text(LEAF)  # by hand
    done = call(*words, cwd=tmp_path)
    assert "old.py has changed" not in done.stderr
    assert (folder / "train.py").read_text() == faulty()


def test_what_was_written_is_taken_back_after_another_look(tmp_path):
    """The result that it was written from is not there any more; what was written is known all the same."""
    folder = plain(tmp_path / "folder", {"train.py": faulty()})
    assert call("folder", "--write", "--accept", "untried", cwd=tmp_path).returncode == 0
    assert (folder / "train.py").read_text() == sound()
    call("--retry", "all", "--accept", "untried", "--no-notes", cwd=tmp_path)
    call("--accept", "untried", "--revert", "out-of-place", cwd=tmp_path)
    assert (folder / "train.py").read_text() == faulty()


def test_a_committed_cure_is_not_taken_back_behind_its_commit(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    words = ["--accept", "untried", "--write"]
    assert call("repo", *words, cwd=tmp_path).returncode == 0
    git(repo, "commit", "-am", "cured")
    done = call(*words, "--revert", "out-of-place", cwd=tmp_path)
    assert done.returncode == 2
    assert "train.py was committed since it was written" in done.stderr
    assert git(repo, "status", "--porcelain") == ""
    git(repo, "revert", "--no-edit", "HEAD")
    done = call(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "value.clone()" in (repo / "train.py").read_text()  # the next best


LEAF = """\
import torch

w = torch.ones(2, requires_grad=True)
for step in range(3):
    (w * 2).sum().backward()
    w -= 0.1 * w.grad
    w.grad.zero_()
"""


def test_a_second_writing_noted_twice_keeps_the_first_text():
    """A kill between the note and the file: the same call notes it again."""
    first, second = writing("old", "once"), writing("once", "twice")
    noted = Written().then(first).then(second)
    assert noted.changes == {"a.py": ("old", "twice")}
    assert noted.then(second) == noted


def writing(old: str, new: str) -> RepoResult:
    step = Step("out-of-place", ("leaf-write",), ("0" * 12,), "", "", "untried", "", "a.py", {"a.py": new})
    return RepoResult("x", "done", originals={"a.py": old}, steps=(step,))


def test_a_branch_that_still_has_what_was_taken_back_is_named(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    words = ["--accept", "untried"]
    assert call("repo", "--branch", "cured", *words, cwd=tmp_path).returncode == 0
    still = "repo: revert: branch cured still has out-of-place: --branch cured takes it back"
    for more in (["--revert", "out-of-place"], []):  # and it is said again
        done = call(*words, *more, cwd=tmp_path)
        assert (still in done.stderr, done.returncode) == (True, 2), done.stderr
    done = call("--branch", "cured", *words, cwd=tmp_path)
    assert ("still has" in done.stderr, done.returncode) == (False, 0), done.stderr
    assert git(repo, "log", "--format=%s", "main..cured") == "gradfix: clone-before-write in train.py"
    assert "still has" not in call("--status", cwd=tmp_path).stdout


def test_a_branch_that_somebody_has_removed_is_not(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    assert call("repo", "--branch", "cured", "--accept", "untried", cwd=tmp_path).returncode == 0
    git(repo, "branch", "-D", "cured")
    assert "still has" not in call("--accept", "untried", "--revert", "out-of-place", cwd=tmp_path).stderr


def test_a_repository_is_dropped_and_what_was_done_to_it_is_said(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    folder = plain(tmp_path / "folder", {"train.py": faulty(), "old.py": LEAF})
    repository(tmp_path / "other", {"train.py": faulty()})
    words = ["--accept", "untried", "--diff"]
    call("repo", "folder", "other", "--branch", "cured", *words, cwd=tmp_path)
    call("--only", "folder", "--write", *words, cwd=tmp_path)
    before = state(repo), state(folder)
    done = call("--drop", "folder", "--drop", str(repo), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    stays = "dropped. This stays, and --revert can't take it back any more: "
    assert done.stdout.splitlines()[:2] == [
        f"repo: {stays}branch cured (out-of-place)",
        f"folder: {stays}old.py, train.py written (no-grad-write, out-of-place)",
    ]
    assert (state(repo), state(folder)) == before
    left = tmp_path / "gradfix-migrate"
    assert sorted(p.name for p in left.rglob("*") if p.stem in ("repo", "folder")) == []
    assert (left / "patches/other.patch").is_file()
    assert [x.split()[1] for x in call("--status", cwd=tmp_path).stdout.splitlines()[:-2]] == ["other"]
    assert "folder" not in (left / "report.md").read_text()
    (folder / "train.py").write_text(faulty())
    again = call("folder", "--write", *words, cwd=tmp_path)  # as one that was never seen
    assert ((folder / "train.py").read_text(), "Traceback" in again.stderr) == (sound(), False)


def test_dropping_does_nothing_else(tmp_path):
    repo = repository(tmp_path / "repo", {"train.py": faulty()})
    call("repo", cwd=tmp_path)
    before = sorted((p, p.read_bytes()) for p in (tmp_path / "gradfix-migrate").glob("report.*"))
    for words in (["--drop", "rpo"], ["--drop", "repo", "--revert", "out-of-place"], ["--drop", "repo", "x"]):
        done = call(*words, cwd=tmp_path)
        assert (done.returncode, "--drop" in done.stderr) == (2, True), done.stderr
    assert before == sorted((p, p.read_bytes()) for p in (tmp_path / "gradfix-migrate").glob("report.*"))
    done = call("--drop", "repo", "--workspace", "none", cwd=tmp_path)
    assert (done.returncode, "none holds no migration" in done.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    assert (call("--drop", "*", cwd=tmp_path).returncode, repo.is_dir()) == (0, True)
    assert call("repo", cwd=tmp_path).returncode == 1
