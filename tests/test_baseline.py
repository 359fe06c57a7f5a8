"""Faults that are known already: what keeps one known, and what makes it new."""

import json
from pathlib import Path

import pytest
from test_cli import gradfix

FAULT = """\
import torch

w = torch.nn.Linear(4, 4)
y = w(torch.randn(8, 4)).exp()
y += 1
y.sum().backward()
"""
MEANT = """\
import torch

rnn = torch.nn.RNNCell(2, 2)
h = torch.zeros(1, 2)
for _ in range(3):
    h = rnn(torch.randn(1, 2), h)
    h.sum().backward()
"""  # its cures mean to change the training: they cut the graph
CURED_LOOP = tuple(
    FAULT.split("y += 1")[0].rstrip("\n") if n == 0 else "y += 1" + FAULT.split("y += 1")[1] for n in (0, 1)
)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(FAULT)
    assert gradfix("check", "--baseline", "known.json", "--update-baseline") == 0
    return tmp_path


def check(*words: str) -> int:
    return gradfix("check", "--baseline", "known.json", *words)


def faults() -> list[dict]:
    return json.loads(Path("known.json").read_text())["faults"]


def test_a_known_fault_is_not_reported(project, capsys):
    capsys.readouterr()
    assert check() == 0
    assert capsys.readouterr().out.endswith("No new faults found. 1 fault known from known.json not shown.\n")
    assert gradfix("check") == 1


@pytest.mark.parametrize(
    "text",
    [
        "# a comment\n\n" + FAULT,
        FAULT.replace("y += 1", "y  +=  1  # the same"),
        FAULT.replace(
            "w(torch.randn(8, 4)).exp()", "w(\n    torch.randn(\n        8,\n        4,\n    ),\n).exp()"
        ),
    ],
    ids=["lines_shift", "blanks_and_comments", "a_formatter_folds_it"],
)
def test_it_stays_known(project, text):
    Path("a.py").write_text(text)
    assert check() == 0


@pytest.mark.parametrize(
    "text",
    [FAULT.replace("y += 1", "y *= 2"), FAULT + FAULT.replace("import torch\n", "")],
    ids=["another_write", "the_same_again"],
)
def test_what_is_new_is_reported(project, capsys, text):
    Path("a.py").write_text(text)
    capsys.readouterr()
    assert check("--output-format", "concise", "-q") == 1
    assert capsys.readouterr().out.count("\n") == 1


def test_the_same_fault_in_another_file_is_new(project):
    Path("b.py").write_text(FAULT)
    assert check() == 1


def test_from_another_folder(project, monkeypatch):
    Path("sub").mkdir()
    monkeypatch.chdir("sub")
    assert gradfix("check", "..", "--baseline", "../known.json") == 0


def test_what_is_gone_is_said_and_forgotten(project, capsys):
    Path("b.py").write_text(FAULT)
    check("--update-baseline")
    assert [f["path"] for f in faults()] == ["a.py", "b.py"]
    Path("a.py").write_text("x = 1\n")
    capsys.readouterr()
    assert check() == 0
    assert "1 that it knows is gone: --update-baseline forgets it." in capsys.readouterr().out
    check("b.py", "--update-baseline")
    assert [f["path"] for f in faults()] == ["a.py", "b.py"]  # a.py was not read
    check("--update-baseline")
    assert [f["path"] for f in faults()] == ["b.py"]


def test_in_a_document(project, capsys):
    capsys.readouterr()
    assert check("--output-format", "json") == 0
    assert json.loads(capsys.readouterr().out)["diagnostics"] == []


def test_of_a_run(project, zygote, capsys):
    Path("a.py").write_text(FAULT)
    words = ["run", "a.py", "--baseline", "run.json"]
    assert gradfix("run", "a.py") == 1
    assert gradfix(*words, "--update-baseline") == 0
    assert gradfix(*words) == 0
    Path("a.py").write_text("\n" + FAULT.replace("+=", "*="))
    assert gradfix(*words) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--baseline", "gone.json"], "gone.json: there is no such file; --update-baseline makes it"),
        (["--baseline", "a.py"], "a.py: this is no baseline of gradfix's"),
        (["--baseline", "."], ".: can't be read (is a directory)"),
        (["--baseline", "newer.json"], "newer.json: a baseline of version 9"),
        (["--baseline", "no/where.json", "--update-baseline"], "no/where.json: can't be written"),
        (["--update-baseline"], "--update-baseline: name the file with --baseline FILE"),
    ],
)
def test_a_file_that_can_not_be_used(project, capsys, words, said):
    Path("newer.json").write_text('{"version": 9, "faults": []}')
    capsys.readouterr()
    assert gradfix("check", *words) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert out == ""
