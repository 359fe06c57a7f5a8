"""The base of every codemod: what it holds a codemod to, and that libcst's own tool runs one on a tape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from by_hand import answers, printed_codemod, stale

from codemods.out_of_place import OutOfPlace
from gradfix import testing
from gradfix.codemod import NONE, Codemod, CodemodError, Effect, Proposal, codemods
from gradfix.edit import Replace
from gradfix.packages import unique
from gradfix.result import Settings
from gradfix.run import Run
from gradfix.tapefile import write_tape

ROOT = Path(__file__).parent.parent
EXAMPLE = OutOfPlace.examples[0]


class Undeclared(Codemod):
    """Declares `none` and means something else."""

    kinds = ("stale-saved-tensor",)

    @classmethod
    def propose(cls, conflict, project):
        view, node = project.node(conflict.at)
        yield Proposal("let it be", NONE, {view.path: ()})
        yield Proposal("drop the write", Effect("cut-round"), {view.path: (Replace(node, lambda now: now),)})


def test_an_effect_that_is_not_declared_is_an_error() -> None:
    conflict, project = stale("x = f()\nx += 1\n", "x += 1")
    with pytest.raises(CodemodError) as said:
        list(Undeclared.cures(conflict, project))
    sentence = "test_codemod.Undeclared proposed 'drop the write' with the effect 'cut-round'; "
    assert str(said.value) == f"{sentence}its `effects` declare none"


def test_two_codemods_of_one_name_are_an_error() -> None:
    assert unique([("b", "ours", 1), ("a", "theirs", 2)]) == (2, 1)
    with pytest.raises(CodemodError, match="ours and theirs both have a codemod out-of-place"):
        unique([("out-of-place", "ours", 1), ("out-of-place", "theirs", 2)])


def test_every_codemod_says_what_it_is_for() -> None:
    assert len(codemods()) > 10
    for mod in codemods():
        assert "\nWhy: " in mod.DESCRIPTION, mod
        assert "\nWhen not: " in mod.DESCRIPTION, mod
        assert mod.kinds, mod


def test_a_folder_of_the_same_name_does_not_hide_ours(tmp_path: Path) -> None:
    (tmp_path / "codemods").mkdir()
    (tmp_path / "codemods" / "__init__.py").write_text("raise RuntimeError('not ours')\n")
    code = "from gradfix.codemod import codemods; print(len(codemods()))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert int(done.stdout or 0) == len(codemods()), done.stderr


def test_the_codemod_that_contributing_prints_cures() -> None:
    facts: dict[str, type[Codemod]] = {}
    exec(compile(printed_codemod(), "exp_out_of_place.py", "exec"), facts)
    case = stale("y = x.sigmoid()\ny.exp_()\n", "y.exp_()", op="aten.exp_")
    assert [text for _, text in answers(facts["ExpOutOfPlace"], case)] == ["y = x.sigmoid()\ny = y.exp()\n"]


@pytest.fixture
def recorded(tmp_path: Path, zygote) -> Path:
    """A project with a tape of its run: the script, and a module in which the fault is."""
    there = tmp_path / "there"
    (there / "lib").mkdir(parents=True)
    (there / "lib" / "net.py").write_text(EXAMPLE.before)
    (there / "train.py").write_text("import lib.net\n")
    outcome = zygote.run(Run(there / "train.py", there, there))
    write_tape(outcome.tape, tmp_path / "run.tape")
    return there


def libcst_tool(folder: Path, file: str) -> subprocess.CompletedProcess[str]:
    """What CONTRIBUTING.md prints."""
    command = ["codemod", "-x", "--no-format", "codemods.out_of_place.OutOfPlace"]
    return subprocess.run(
        [sys.executable, "-m", "libcst.tool", *command, "--tape", "../run.tape", file],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_libcst_runs_a_codemod_on_a_tape(recorded: Path) -> None:
    done = libcst_tool(recorded, "lib/net.py")
    assert (recorded / "lib" / "net.py").read_text() == EXAMPLE.after, done.stderr
    assert done.returncode == 0, done.stderr


def test_libcst_runs_a_codemod_where_the_project_was_moved(recorded: Path, tmp_path: Path) -> None:
    here = recorded.rename(tmp_path / "here")
    done = libcst_tool(here, "lib/net.py")
    assert (here / "lib" / "net.py").read_text() == EXAMPLE.after, done.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("lib/net.py", "net.py is not the file that ../run.tape was recorded from: record it again"),
        ("other.py", "../run.tape does not speak of other.py"),
    ],
    ids=["changed", "unknown"],
)
def test_a_file_that_was_not_recorded_is_skipped(recorded: Path, file: str, said: str) -> None:
    text = EXAMPLE.before + "\n"
    (recorded / file).write_text(text)
    done = libcst_tool(recorded, file)
    assert said in done.stderr
    assert (recorded / file).read_text() == text


def test_what_a_conflict_holds(recorded: Path, zygote) -> None:
    result = testing.one(recorded / "train.py", zygote, Settings(repair=False))
    (said,) = [testing.describe(d.conflict) for d in result.diagnoses]
    first, *lines = said.splitlines()
    assert first == "stale-saved-tensor (error), pattern 'write'"
    assert "    train.py:1:0 in <module> > net.py:5:0 in <module>" in lines
    (write,) = [line for line in lines if line.startswith("  write  ")]
    assert write.startswith("  write  Mutate(op='aten.add_', ref=Ref(storage=")


def test_libcst_lists_every_codemod():
    here = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "libcst.tool", "list"], cwd=here, capture_output=True, text=True, check=True
    )
    files = {path.stem for path in (here / "codemods").glob("[a-z]*.py")}
    assert {line.partition(".")[0] for line in done.stdout.splitlines() if " - " in line} >= files
