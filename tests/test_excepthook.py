"""At the moment of need: a diagnosis under PyTorch's traceback, in scripts and in IPython."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_baseline import FAULT

DIAGNOSIS = """\
error[stale-saved-tensor]: `y` is overwritten by `y += 1` before"""


def python(*words: str, cwd: Path, given: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "IPYTHONDIR": str(cwd / "ipython")}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, input=given, capture_output=True, text=True, check=False
    )


@pytest.fixture
def script(tmp_path) -> Path:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv, __name__, __file__)\n" + FAULT)
    return tmp_path


def test_below_the_traceback_and_nothing_is_run_again(script):
    done = python("-m", "gradfix.excepthook", "train.py", "--lr", "1", cwd=script)
    assert done.returncode == 1
    assert done.stdout == "['train.py', '--lr', '1'] __main__ train.py\n"
    theirs, _, ours = done.stderr.partition("\n\n")
    assert theirs.startswith('Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n')
    assert "inplace operation" in theirs
    assert "excepthook.py" not in theirs
    assert ours.startswith(DIAGNOSIS)
    assert "train.py:7:1" in ours
    assert "out-of-place (untried)" in ours
    assert ours.endswith("To try cures and prove them: gradfix fix train.py -- --lr 1\n")


def test_installed_by_the_script_itself(script):
    text = (script / "train.py").read_text()
    (script / "train.py").write_text(text.replace("import sys\n", "import sys, gradfix; gradfix.install()\n"))
    done = python("train.py", cwd=script)
    assert done.returncode == 1
    assert DIAGNOSIS in done.stderr


def test_an_error_the_text_does_not_explain(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nw = eval('torch.ones(2, requires_grad=True)')\nfor _ in '12':\n"
        "    loss = locals().setdefault('kept', (w * w).sum())\n    loss.backward()\n"
    )
    done = python("-m", "gradfix.excepthook", "train.py", cwd=tmp_path)
    theirs, _, ours = done.stderr.partition("\n\n")
    assert "second time" in theirs
    assert ours.startswith("freed-graph (error)")
    assert "gradfix fix train.py" in ours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt\n"),
        ("import sys\nsys.exit('bye')\n", "bye\n"),
    ],
    ids=["an_error", "interrupted", "an_exit"],
)
def test_what_is_not_autograds_is_left_alone(tmp_path, text, said):
    (tmp_path / "train.py").write_text(text)
    done = python("-m", "gradfix.excepthook", "train.py", cwd=tmp_path)
    assert done.returncode != 0
    assert done.stderr.endswith(said)
    plain = python("train.py", cwd=tmp_path)
    assert (done.stderr, done.returncode) == (plain.stderr.replace(f"{tmp_path}/", ""), plain.returncode)


def test_siblings_are_found_and_a_module_in_the_way_is_not(script):
    (script / "sub").mkdir()
    (script / "sub/train.py").write_text("import mine\n")
    (script / "sub/mine.py").write_text("print('mine')\n")
    (script / "mine.py").write_text("print('the wrong one')\n")
    assert python("-m", "gradfix.excepthook", "sub/train.py", cwd=script).stdout == "mine\n"


def test_an_existing_hook_goes_first(script):
    first = "import sys\nsys.excepthook = lambda *_: print('theirs', file=sys.stderr)\nimport gradfix\n"
    text = first + "gradfix.install()\ngradfix.install()\n" + FAULT
    (script / "train.py").write_text(text)
    said = python("train.py", cwd=script).stderr
    assert said.startswith("theirs\n\n" + DIAGNOSIS)
    assert said.count("error[") == 1


def test_two_hooks_with_somebodys_between_them_speak_once(script):
    wrapped = (
        "import sys, gradfix\ngradfix.install()\nours = sys.excepthook\n"
        "sys.excepthook = lambda *raised: ours(*raised)\ngradfix.install()\n"
    )
    (script / "train.py").write_text(wrapped + FAULT)
    said = python("train.py", cwd=script).stderr
    assert said.count("Traceback") == 1
    assert said.count("error[") == 1


def test_nobody_hears_without_standard_error(script):
    quiet = "import sys, gradfix\ngradfix.install()\nsys.stderr = sys.stdout = None\n"
    (script / "train.py").write_text(quiet + FAULT)
    done = python("train.py", cwd=script)
    assert (done.stdout, done.returncode) == ("", 1)
    assert "gradfix" not in done.stderr


def test_a_thread(script):
    body = "".join(f"    {line}\n" for line in FAULT.replace("import torch\n", "").strip().splitlines())
    text = "import threading\nimport gradfix\nimport torch\ngradfix.install()\n\ndef work():\n" + body
    text += "\nthread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
    (script / "train.py").write_text(text)
    said = python("train.py", cwd=script).stderr
    theirs, _, ours = said.partition("\n\n")
    assert theirs.startswith("Exception in thread Thread-1 (work):")
    assert ours.startswith(DIAGNOSIS)


@pytest.mark.parametrize("raised", ["ValueError('a bad step') from e", "ValueError(f'step: {e}')"])
def test_an_error_raised_out_of_autograds(script, raised):
    *body, backward = FAULT.strip().splitlines()
    caught = ["try:", f"    {backward}", "except RuntimeError as e:", f"    raise {raised}"]
    (script / "train.py").write_text("\n".join(["import gradfix", "gradfix.install()", *body, *caught, ""]))
    said = python("train.py", cwd=script).stderr
    assert "ValueError: " in said
    assert "\n\n" + DIAGNOSIS in said
    assert "To try cures" in said


def test_our_own_fault_is_one_line(script):
    (script / "gradfix.toml").write_text("")
    broken = "import gradfix.messages\ngradfix.messages.recognise = None\nimport gradfix\ngradfix.install()\n"
    (script / "train.py").write_text(broken + FAULT)
    done = python("train.py", cwd=script)
    assert done.stderr.splitlines()[-1].startswith("gradfix: no diagnosis (TypeError")
    assert done.returncode == 1


def test_recording_when_it_is_asked_for(script):
    done = python("-m", "gradfix.excepthook", "--record", "train.py", cwd=script)
    assert "cure: out-of-place (proved)" in done.stderr


def test_without_a_script(tmp_path):
    assert python("-m", "gradfix.excepthook", cwd=tmp_path).stderr.startswith("usage: ")
    assert "can't be read (no such file" in python("-m", "gradfix.excepthook", "x.py", cwd=tmp_path).stderr


def test_installing_loads_nothing_more(tmp_path):
    code = (
        "import sys, typing, types, threading, __future__\n"
        "before = set(sys.modules)\nimport gradfix\ngradfix.install()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    assert python("-c", code, cwd=tmp_path).stdout == "gradfix gradfix.excepthook\n"


def test_ipython(tmp_path):
    head, tail = FAULT.split("y += 1\n")
    cells = ["%load_ext gradfix", *head.strip().splitlines(), "y += 1", tail.strip(), "%gradfix", ""]
    words = ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=NoColor", "--quick"]
    done = python(*words, cwd=tmp_path, given="\n".join(x for x in cells if x) + "\n")
    assert "inplace operation" in done.stdout
    assert DIAGNOSIS in done.stderr
    assert "notebook.ipynb:cell 5:1:1" in done.stderr
    assert "%gradfix puts the cell with out-of-place below" in done.stderr
