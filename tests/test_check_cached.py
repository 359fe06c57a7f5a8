"""A cached result rests on every file that was read or looked for: none of them can change and leave the old answer."""

import pytest

from gradfix import cli

MAIN = """\
import torch
from middle import step
model = torch.nn.Linear(3, 3)
for _ in range(3):
    step(model(torch.randn(4, 3)).exp())
"""
MIDDLE = "from pack.last import finish\ndef step(h):\n    finish(h)\n"
SOUND = "def finish(h):\n    h.sum().backward()\n"
FAULTY = "def finish(h):\n    h += 1\n    h.sum().backward()\n"
PLACES = {"main": "main.py", "middle": "middle.py", "package": "middle/__init__.py", "last": "pack/last.py"}
HARMLESS = "def finish(h):\n    return h\n"


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "pack").mkdir()

    def run(**files: str) -> bool:
        for name, text in files.items():
            (tmp_path / PLACES[name]).write_text(text)
        with pytest.raises(SystemExit) as ended:
            cli.main(["check", "-q", "main.py"])
        out = capsys.readouterr().out
        assert ended.value.code == bool(out)
        return bool(out)

    return run


@pytest.mark.parametrize("before", [SOUND, HARMLESS], ids=["sound", "no_backward_at_all"])
def test_a_module_behind_a_module_changes(check, before):
    assert not check(main=MAIN, middle=MIDDLE, last=before)
    assert not check()
    assert check(last=FAULTY)
    assert check()
    assert not check(last=before)


def test_a_module_that_was_not_there_comes(check):
    assert not check(main=MAIN, middle=MIDDLE)
    assert check(last=FAULTY)


def test_a_module_goes(check, tmp_path):
    assert check(main=MAIN, middle=MIDDLE, last=FAULTY)
    (tmp_path / "pack" / "last.py").unlink()
    assert not check()


def test_a_package_comes_in_a_modules_place(check, tmp_path):
    """The import means another file now."""
    assert not check(main=MAIN, middle=MIDDLE, last=SOUND)
    assert not check()
    (tmp_path / "middle.py").unlink()
    (tmp_path / "middle").mkdir()
    assert check(package="def step(h):\n    h += 1\n    h.sum().backward()\n")
