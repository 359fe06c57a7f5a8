"""--branch where some of what is cured is not in the commit that is checked out."""

from repositories import faulty, git, plain, repository, sound, state
from test_batch import call

from gradfix.batch.values import RepoResult, Step


def test_an_untracked_file_costs_no_other_its_commit(tmp_path):
    repo = repository(tmp_path / "repo", {"a.py": faulty()})
    plain(repo, {"new.py": faulty("b"), "new2.py": sound("c")})
    before = state(repo, "cured")
    words = ("repo", "--branch", "cured", "--accept", "untried")
    for _ in range(2):  # said until it is settled
        done = call(*words, cwd=tmp_path)
        assert done.returncode == 2
        said_ = (
            "without the rest: new.py is not in the commit that is checked out; commit it first, or --write"
        )
        assert (said_ in done.stderr, done.stderr.count("new.py")) == (True, 1), done.stderr
        assert "1 on a branch, 1 not applied" in done.stdout
    assert git(repo, "diff", "--name-only", "main..cured") == "a.py"
    assert state(repo, "cured") == before
    text = (tmp_path / "gradfix-migrate/pull-requests/repo.md").read_text()
    assert text.startswith("Fix 1 autograd fault (stale-saved-tensor)\n")
    assert "- new.py is not in the commit that is checked out" in text
    assert "branch cured: cured at " in (tmp_path / "gradfix-migrate/report.md").read_text()
    git(repo, "add", "new.py")
    git(repo, "commit", "-qm", "new")
    done = call(*words, "--retry", "repo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert git(repo, "diff", "--name-only", "main..cured").split() == ["a.py", "new.py"]


def test_a_fix_of_two_files_is_committed_whole_or_not_at_all(tmp_path):
    """Both are proved in one run of the script; its other cure goes with them, another script's does not."""
    model = "def grow(value):\n    value += 1\n    return value\n"
    script = (
        faulty()
        .replace("value += 1", "value = grow(value)")
        .replace("torch\n", "torch\nfrom m import grow\n", 1)
    )
    both = script + "w = net(torch.ones(2, 3)).exp()\nw *= 2\nw.sum().backward()\n"
    repo = repository(tmp_path / "repo", {"train.py": both, "other.py": faulty("b")})
    plain(repo, {"m.py": model})
    done = call("repo", "--branch", "cured", "--prove", cwd=tmp_path)
    assert git(repo, "diff", "--name-only", "main..cured") == "other.py"
    assert "m.py is not in the commit" in done.stderr
    assert "1 on a branch, 2 not applied" in done.stdout


def step(entry: str, *files: str) -> Step:
    return Step("c", ("k",), ("f",), "", "", "proved", "", entry, dict.fromkeys(files, "x"))


def test_what_goes_on_from_a_text_that_is_left_out_is_left_out():
    steps = (
        step("a", "a", "lib"),
        step("b", "lib", "new"),
        step("b", "b"),
        step("c", "lib"),
        step("d", "d"),
        step("e", "c2", "b"),
    )
    assert RepoResult("r", "done", steps=steps, untracked=("new",)).committed == (steps[0], steps[4])
    assert RepoResult("r", "done", steps=steps).committed == steps
