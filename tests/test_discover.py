"""Which files a directory stands for."""

import os
import subprocess
from pathlib import Path

import pytest

from gradfix.discover import Search, discover, project_root
from gradfix.repair import repair
from gradfix.result import Settings
from gradfix.run.zygote import Zygote
from gradfix.source import SourceError


@pytest.fixture
def tree(tmp_path: Path):
    def make(*names: str, **texts: str) -> Path:
        for name in names:
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("")
        for name, text in texts.items():
            file = tmp_path / name.replace("__", "/").replace("_gitignore", ".gitignore")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path

    return make


def below(folder: Path, **options: object) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in Search(**options).below(folder)]  # type: ignore[arg-type]


def test_discover_skips_environments_builds_and_hidden_folders(tmp_path):
    for name in ["b.py", "a/c.py", ".h/x.py", "venv/x.py", "e/pyvenv.cfg", "e/x.py", "build/x.py", "n.txt"]:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("")
    assert [str(p.relative_to(tmp_path)) for p in discover([tmp_path])] == ["b.py", "a/c.py"]
    assert [tmp_path / "n.txt"] == list(discover([tmp_path / "n.txt"]))


def test_discover_says_what_is_missing(tmp_path):
    with pytest.raises(SourceError, match="no such file"):
        list(discover([tmp_path / "gone.py"]))
    with pytest.raises(SourceError, match="no Python file"):
        list(discover([tmp_path]))


def test_nested_gitignores_the_deepest_decides(tree):
    folder = tree(
        *("a.py", "gen/x.py", "gen/keep.py", "src/b.py", "src/tmp_c.py", "src/old/d.py", "src/new/gen/e.py"),
        _gitignore="gen/*\n!gen/keep.py\n# a comment\ntmp_*\n",
        src___gitignore="/old\n!tmp_c.py\n",
    )
    assert below(folder) == ["a.py", "gen/keep.py", "src/b.py", "src/tmp_c.py", "src/new/gen/e.py"]


def test_what_git_itself_leaves_out(tree):
    names = [
        "a.py",
        "b/c.py",
        "b/d.py",
        "b/e/f.py",
        "g/h.py",
        "build2/i.py",
        "x y.py",
        "g/gen_1.py",
        "g/sub/gen_2.py",
    ]
    folder = tree(
        *names, _gitignore="/b/c.py\n**/e\nbuild2/\nx\\ y.py\ng/gen_*.py\n", g___gitignore="h.py\n!gen_1.py\n"
    )
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".git/info/exclude").write_text("d.py\n")
    asked = ["git", "ls-files", "--others", "--exclude-standard", "*.py"]
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=True)
    assert sorted(below(folder)) == sorted(done.stdout.split())
    assert below(folder / "b") == []  # the rules of the folders above count too


def test_a_folder_that_is_named_counts_though_it_is_ignored(tree):
    folder = tree("out/a.py", "out/b/c.py", _gitignore="out/\n")
    (folder / ".git").mkdir()
    assert below(folder) == []
    assert below(folder / "out") == ["a.py", "b/c.py"]


def test_exclusions(tree):
    folder = tree("a.py", "old/b.py", "src/old/c.py", "src/d_test.py")
    assert below(folder, exclude=((folder, ("old/",)),)) == ["a.py", "src/d_test.py"]
    assert below(folder, exclude=((folder, ("/old", "*_test.py")),)) == ["a.py", "src/old/c.py"]
    assert below(folder, exclude=((folder / "src", ("old",)),)) == ["a.py", "old/b.py", "src/d_test.py"]


def test_links_that_go_round_or_nowhere(tree):
    folder = tree("a/b.py")
    os.symlink(folder, folder / "a" / "up")
    os.symlink("loop.py", folder / "loop.py")
    os.symlink("gone", folder / "gone.py")
    os.symlink("a/b.py", folder / "linked.py")
    os.mkfifo(folder / "pipe.py")
    assert below(folder) == ["linked.py", "a/b.py"]


def test_notebooks_where_they_are_asked_for(tree):
    folder = tree("a.py", "b.ipynb", ".ipynb_checkpoints/b.ipynb")
    assert below(folder, suffixes=(".py", ".ipynb")) == ["a.py", "b.ipynb"]


def test_the_project_of_a_script(tree, tmp_path, monkeypatch):
    tree("here/src/train.py", "here/marked/setup.py", "here/marked/a/train.py", "beside/train.py")
    monkeypatch.chdir(tmp_path / "here")
    assert project_root(tmp_path / "here/src/train.py") == tmp_path / "here"
    assert project_root(tmp_path / "here/marked/a/train.py") == tmp_path / "here/marked"
    assert project_root(tmp_path / "beside/train.py") == tmp_path / "beside"
    monkeypatch.setenv("HOME", str(tmp_path / "here"))
    assert project_root(tmp_path / "here/src/train.py") == tmp_path / "here/src"


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_a_script_of_no_project_runs_where_the_person_stands(tree, tmp_path, monkeypatch, sandbox):
    tree("data/x.txt", "src/train.py")
    (tmp_path / "data/x.txt").write_text("1 2")
    script = tmp_path / "src/train.py"
    script.write_text(
        """\
import torch

x = torch.tensor([float(t) for t in open("data/x.txt").read().split()], requires_grad=True)
for step in range(2):
    y = x.exp()
    y += 1
    y.sum().backward()
"""
    )
    monkeypatch.chdir(tmp_path)
    with Zygote(sandbox=sandbox) as zygote:
        result = repair(script, Settings(), None, lambda _: None, zygote, {})
    assert [d.conflict.kind for d in result.diagnoses if d.status == "cured"] == ["stale-saved-tensor"]
