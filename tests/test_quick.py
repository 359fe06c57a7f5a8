"""Plain words read from a command's signature: as typer reads them, or left to typer."""

import subprocess
import sys

import pytest

from gradfix.cli.check import check
from gradfix.cli.pages import explain
from gradfix.cli.quick import plain
from gradfix.cli.typed import app

PLAIN = [
    "",
    "a.py src",
    "-",
    "--select freed-graph --select leaf-write,cut-graph a.py",
    "--evidence likely -q -v -v --notes a.py",
    "--evidence=likely --jobs=3",
    "-j 3 --cache-dir x --stdin-filename y.py -",
    "--output-format json a.py --exit-zero --no-cache --isolated --config steps=3",
]


@pytest.mark.parametrize("words", PLAIN)
def test_as_typer_reads_them(words, monkeypatch):
    import typer.main

    command = typer.main.get_command(app).commands["check"]
    context = command.make_context("check", words.split())
    theirs = {k: v for k, v in context.params.items() if v not in (None, False, (), [], 0)}
    ours = plain(check, words.split())
    assert ours is not None
    assert ours == {k: v for k, v in theirs.items() if k in ours}
    assert all(v in ("certain", "full") for k, v in theirs.items() if k not in ours)


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--bogus",
        "--evidence maybe",
        "--jobs 0",
        "--jobs x",
        "--select",
        "--select=",
        "--evidence likely --evidence certain",
        "--notes=1",
        "-j3",
        "--config -x",
    ],
)
def test_what_is_not_plain_is_left_to_typer(words):
    assert plain(check, words.split()) is None


def test_a_missing_argument_is_left_to_typer():
    assert plain(explain, []) is None
    assert plain(explain, ["freed-graph"]) == {"name": "freed-graph"}
    assert plain(explain, ["freed-graph", "leaf-write"]) is None


TRAINING = """\
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.ones(3, 1, 3):
    optimizer.zero_grad()
    loss = model(x).exp().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "words", [["train.py"], ["--no-cache", "train.py"], ["-j", "2", "."], ["-q", "-"]], ids=str
)
def test_a_check_that_finds_nothing_loads_nothing_heavy(words, tmp_path):
    for n in range(6):
        (tmp_path / f"train{n or ''}.py").write_text(TRAINING)
    code = (
        "import sys\nfrom gradfix.cli import main\n"
        f"try:\n    main(['check', *{words!r}])\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "heavy = {'torch', 'libcst', 'numpy', 'pydantic', 'rich.console', 'importlib.metadata', 'yaml'}\n"
        "heavy |= {'typer', 'click', 'rich', 'tomllib', 'difflib'}\n"
        # (of gradfix.run, no more than the words that a reading shares with it)
        "light = ('gradfix.run.child', 'gradfix.run.child.words')\n"
        "heavy |= {m for m in sys.modules if m.startswith('gradfix.run.') and m not in light}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        input=TRAINING,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_known_from_before_needs_no_interpreter(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    code = (
        "import sys\nfrom gradfix.cli import main\n"
        "try:\n    main(['check', 'train.py'])\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "print('gradfix.read.entries' in sys.modules)\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said == ["No faults found.\nTrue\n", "No faults found.\nFalse\n"]
