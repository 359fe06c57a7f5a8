"""gradfix apply: whole patches in whole trees, as real processes where a person would see the difference."""

import codecs
import io
import json
import os
import re
import stat
import subprocess
import sys
import unicodedata
from pathlib import Path

import jsonschema
import pytest
from placing import fix

from gradfix.patches import file, make
from gradfix.patches.values import Fix

ROOT = Path(__file__).parent.parent
SCHEMA = json.loads((ROOT / "gradfix/patches/applied.json").read_text())
OLD = """\
import torch

net = torch.nn.Linear(4, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    hidden = net(torch.ones(2, 4)).exp()
    hidden += 1
    loss = hidden.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
NEW = OLD.replace("hidden += 1", "hidden = hidden + 1")


def patch(root: Path, *fixes: Fix) -> Path:
    path = root / "fix.json"
    file.save(make.patch(fixes, "2.13.0"), path)
    return path


def run(root: Path, *words: str) -> tuple[int, str, str]:
    """A real process in `root`."""
    done = subprocess.run(
        [sys.executable, "-m", "gradfix", *words], cwd=root, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def gradfix(capsys, monkeypatch, root: Path, *words: str) -> tuple[int, str, str]:
    """The same in this process, which is quicker."""
    from gradfix import cli

    monkeypatch.chdir(root)
    with pytest.raises(SystemExit) as left:
        cli.main(words)
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def apply(capsys, monkeypatch, tmp_path):
    return lambda *words: gradfix(capsys, monkeypatch, tmp_path, "apply", "fix.json", *words)


# ---- from one end to the other


def test_made_here_applied_there_and_proved_again(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    (here / "train.py").write_text(OLD)
    code, _, err = run(here, "fix", "train.py", "--output-patch", "../fix.json")
    assert (code, err) == (1, "1 fix in ../fix.json.\n")
    drifted = OLD.replace("hidden", "features").replace("net = ", "print('begins')\nnet = ")
    (there / "train.py").write_text(drifted)
    code, out, _ = run(there, "apply", "../fix.json", "--reprove", "--write")
    assert code == 0, out
    assert "proved here: every gradient equal to the exact one" in out
    assert "features = features + 1" in (there / "train.py").read_text()
    assert (here / "train.py").read_text() == OLD
    code, out, _ = run(there, "apply", "../fix.json")
    assert (code, out.splitlines()[0]) == (0, "applied already: train.py")


def test_a_proof_that_fails_is_the_last_word(tmp_path):
    """The text looks as it did, and the run says otherwise."""
    wrong = OLD.replace("hidden += 1", "hidden = hidden.detach() + 1")
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, wrong)}))
    code, out, _ = run(tmp_path, "apply", "fix.json", "--reprove", "--write")
    assert code == 1
    assert "refused: here it is rejected" in out
    assert (tmp_path / "train.py").read_text() == OLD


def test_the_run_does_not_show_the_fault(tmp_path):
    old, new = OLD.replace(".exp()", " * 2"), NEW.replace(".exp()", " * 2")
    patch(tmp_path, fix(tmp_path, {"train.py": (old, new)}))
    code, out, _ = run(tmp_path, "apply", "fix.json", "--reprove")
    assert code == 1
    assert "a run of train.py does not show the fault any more" in out


def test_a_run_that_does_not_come_as_far_says_nothing_of_the_fault(tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    (tmp_path / "train.py").write_text(OLD.replace("import torch\n", "import torch\nimport nothing_there\n"))
    code, out, _ = run(tmp_path, "apply", "fix.json", "--reprove", "--write")
    assert (code, "any more" in out) == (1, False)
    assert "a run does not show whether the fault is there: train.py" in out
    assert "No module named 'nothing_there'" in out


# ---- what is written


def test_diff_writes_nothing(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    code, out, _ = apply()
    assert code == 1
    assert "+    hidden = hidden + 1" in out
    assert out.endswith("1 fix: 1 placed. Write with --write.\n")
    assert (tmp_path / "train.py").read_text() == OLD


def test_bytes_and_mode_and_links_stay(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    real = tmp_path / "real.py"
    raw = codecs.BOM_UTF8 + b"# caf\xc3\xa9\r\n" + OLD.replace("\n", "\r\n").encode()
    real.write_bytes(raw)
    real.chmod(0o750)
    (tmp_path / "train.py").unlink()
    (tmp_path / "train.py").symlink_to("real.py")
    assert apply("--write")[0] == 0
    assert real.read_bytes() == raw.replace(b"hidden += 1", b"hidden = hidden + 1")
    assert stat.S_IMODE(real.stat().st_mode) == 0o750
    assert (tmp_path / "train.py").is_symlink()


def test_a_notebook(apply, tmp_path):
    def notebook(*cells: str) -> str:
        made = [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": [
            f"{x}\n" for x in c.split("\n")[:-1]] + [c.split("\n")[-1]]} for c in cells]  # fmt: skip
        return (
            json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
        )

    from gradfix.source import Source

    first, second = OLD.rstrip().split("\nfor ")
    path = tmp_path / "train.ipynb"
    path.write_text(notebook(first, "for " + second))
    old = Source.read(path).text
    new = old.replace("hidden += 1", "hidden = hidden + 1")
    made = fix(tmp_path, {"train.ipynb": (old, new)}, entry="train.ipynb")
    assert made.files[0].hunks[0].cell == 1
    patch(tmp_path, made)
    path.write_text(notebook("%matplotlib inline", first, "print(net)", "for " + second))
    code, out, _ = apply("--write")
    assert code == 0, out
    assert path.read_text() == notebook(
        "%matplotlib inline",
        first,
        "print(net)",
        "for " + second.replace("hidden += 1", "hidden = hidden + 1"),
    )


def test_all_files_of_a_fix_or_none(apply, tmp_path):
    texts = {
        "train.py": (OLD, NEW),
        "lib.py": ("def f(x):\n    x += 1\n    return x\n", "def f(x):\n    return x + 1\n"),
    }
    patch(tmp_path, fix(tmp_path, texts))
    (tmp_path / "lib.py").write_text("def f(x):\n    return x\n")
    code, out, _ = apply("--write")
    assert code == 1
    assert "refused: lib.py: `x += 1`" in out
    assert (tmp_path / "train.py").read_text() == OLD
    (tmp_path / "lib.py").write_text("import torch\n\n\n" + texts["lib.py"][0])
    assert apply("--write")[0] == 0
    assert (tmp_path / "train.py").read_text() == NEW
    assert (tmp_path / "lib.py").read_text() == "import torch\n\n\n" + texts["lib.py"][1]


def test_a_caller_that_came_to_another_file(apply, tmp_path):
    """The file of the fix is as it was; the script takes its function's work another way."""
    lib = "def f(x):\n    x += 1\n    return x\n", "def f(x):\n    x = x + 1\n    return x\n"
    script = "from lib import f\nx = f(make())\nx.sum().backward()\n"
    (tmp_path / "train.py").write_text(script)
    patch(tmp_path, fix(tmp_path, {"lib.py": lib}))
    (tmp_path / "train.py").write_text(script.replace("x.sum", "y = g(x)\nx.sum"))
    assert apply()[1].endswith("1 fix: 1 placed. Write with --write.\n")
    (tmp_path / "train.py").write_text(script.replace("x.sum", "f(table)\nx.sum"))
    code, out, _ = apply("--write")
    assert code == 1
    assert "train.py: line 3 (`f(table)`) takes what the fix changes (`f`)" in out
    assert (tmp_path / "lib.py").read_text() == lib[0]


def test_one_file_that_can_not_be_written_keeps_the_others(apply, tmp_path):
    texts = {"train.py": (OLD, NEW), "lib.py": ("x = 1\ny = 2\n", "x = 1\ny = 3\n")}
    patch(tmp_path, fix(tmp_path, texts))
    (tmp_path / "lib.py").chmod(0o444)
    code, out, _ = apply("--write")
    assert code == 1
    assert "refused: lib.py is read-only; nothing was written." in out
    assert (tmp_path / "train.py").read_text() == OLD


# ---- two fixes


def test_two_fixes_of_one_file(apply, tmp_path):
    old = (
        OLD
        + "\n\ndef late():\n    other = net(torch.ones(1, 4)).exp()\n    other += 2\n    other.sum().backward()\n"
    )
    first = old.replace("hidden += 1", "hidden = hidden + 1")
    second = old.replace("other += 2", "other = other + 2")
    patch(tmp_path, *(fix(tmp_path, {"train.py": (old, new)}) for new in (first, second)))
    code, out, _ = apply("--write")
    assert code == 0, out
    assert (tmp_path / "train.py").read_text() == first.replace("other += 2", "other = other + 2")


def test_two_fixes_that_are_the_same(apply, tmp_path):
    one = fix(tmp_path, {"train.py": (OLD, NEW)})
    patch(tmp_path, one, one)
    code, out, _ = apply("--write")
    assert (code, out.splitlines()[-1]) == (0, "2 fixes: 1 written, 1 there already.")
    assert (tmp_path / "train.py").read_text() == NEW


def test_two_fixes_of_the_same_lines(apply, tmp_path):
    other = OLD.replace("hidden += 1", "hidden = hidden.add(1)")
    patch(tmp_path, *(fix(tmp_path, {"train.py": (OLD, new)}) for new in (NEW, other)))
    code, out, _ = apply("--write")
    assert (code, out.splitlines()[-1]) == (1, "2 fixes: 1 written, 1 refused.")
    assert (tmp_path / "train.py").read_text() == NEW


def test_what_two_fixes_share(apply, tmp_path):
    """Two scripts, and the module that both of their fixes change."""
    lib = ("def f(x):\n    x += 1\n    return x\n", "def f(x):\n    return x + 1\n")
    one = fix(tmp_path, {"train.py": (OLD, NEW), "lib.py": lib})
    two = fix(tmp_path, {"late.py": (OLD, NEW), "lib.py": lib}, entry="late.py")
    patch(tmp_path, one, two)
    code, out, _ = apply("--write")
    assert (code, out.splitlines()[-1]) == (0, "2 fixes: 2 written.")
    assert [(tmp_path / x).read_text() for x in ("train.py", "late.py", "lib.py")] == [NEW, NEW, lib[1]]


def test_half_of_a_fix_is_there(apply, tmp_path):
    patch(
        tmp_path,
        fix(tmp_path, {"train.py": (OLD, NEW), "lib.py": ("a = 1\nb = 2\nc = 3\n", "a = 1\nb = 4\nc = 3\n")}),
    )
    (tmp_path / "train.py").write_text("import sys\n" + NEW)
    code, out, _ = apply("--write")
    assert code == 1
    assert "train.py is changed as the fix has it, and the other files are not" in out
    assert (tmp_path / "lib.py").read_text() == "a = 1\nb = 2\nc = 3\n"


# ---- what a reader says


def test_the_conflict_is_not_there_any_more(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    (tmp_path / "train.py").write_text(
        OLD.replace("net(torch.ones(2, 4)).exp()", "net(torch.ones(2, 4)) * 2")
    )
    code, out, _ = apply("--write")
    assert code == 1
    assert "stale-saved-tensor does not show in the text any more, as it did in the source of the fix" in out
    assert "hidden += 1" in (tmp_path / "train.py").read_text()


def test_a_fix_that_does_not_cure(apply, tmp_path):
    """A second write does the same harm here."""
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    twice = "def twice(x):\n    y = x.exp()\n    y *= 2\n    return y\n\n\n"
    now = OLD.replace("net = ", f"{twice}net = ").replace(
        "net(torch.ones(2, 4)).exp()", "twice(net(torch.ones(2, 4)))"
    )
    (tmp_path / "train.py").write_text(now)
    code, out, _ = apply()
    assert code == 1
    assert "shows in the text after the fix as it does before" in out


def test_what_the_text_does_not_show_is_not_claimed(apply, tmp_path):
    old, new = (
        f"import torch\nfrom elsewhere import thing\nx = thing()\nx += {x}\nx.backward()\n" for x in "12"
    )
    patch(tmp_path, fix(tmp_path, {"train.py": (old, new)}))
    code, out, _ = apply("--write")
    assert code == 0
    assert "is still there does not show in the text alone, nor did it in the source of the fix" in out


# ---- what is not there, and what is not meant well


def test_a_file_that_was_moved(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    (tmp_path / "src").mkdir()
    (tmp_path / "train.py").rename(tmp_path / "src/main.py")
    code, out, _ = apply("--write")
    assert code == 1
    assert "refused: train.py is not there; its lines are in src/main.py: was it moved?\n" in out
    assert (tmp_path / "src/main.py").read_text() == OLD


def hostile(tmp_path: Path, change) -> None:
    path = patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    value = json.loads(path.read_text())
    change(value["fixes"][0]["files"][0])
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    "path", ["../victim.py", "/tmp/victim.py", ".git/hooks/x.py", "link/victim.py", "victim.sh"]
)
def test_a_way_out_is_refused(apply, tmp_path, path):
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (outside / "victim.py").write_text(OLD)
    (tmp_path / "link").symlink_to(outside)
    hostile(tmp_path, lambda f: f.update(path=path))
    code, out, err = apply("--write")
    assert (code, out) == (2, "")
    assert "fix.json: it names" in err
    assert (outside / "victim.py").read_text() == OLD


def test_a_link_out_of_the_root_is_refused_before_anything_is_written(apply, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-away.py"
    outside.write_text(OLD)
    good, bad = fix(tmp_path, {"train.py": (OLD, NEW)}), fix(tmp_path, {"late.py": (OLD, NEW)})
    patch(tmp_path, good, bad)
    (tmp_path / "late.py").unlink()
    (tmp_path / "late.py").symlink_to(outside)
    code, _, err = apply("--write")
    assert code == 2
    assert "'late.py', which leads out of" in err
    assert outside.read_text() == (tmp_path / "train.py").read_text() == OLD


def test_lines_that_are_not_the_file_s(apply, tmp_path):
    """A digest that fits, and lines that do not."""
    hostile(tmp_path, lambda f: f["hunks"][0].update(line=3))
    code, out, _ = apply("--write")
    assert code == 1
    assert "its line 3 is not the fix's" in out
    assert (tmp_path / "train.py").read_text() == OLD


@pytest.mark.parametrize(
    ("raw", "said"),
    [(b"{}", "this is no patch"), (b"\x00\xff", "this is no JSON"), (b"[" * 99_999, "this is no JSON"),
     (b'{"format": "gradfix-patch", "version": 9}', "another version")],
)  # fmt: skip
def test_what_is_no_patch(apply, tmp_path, raw, said):
    (tmp_path / "fix.json").write_bytes(raw)
    code, _, err = apply("--write")
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda fix: fix.update(files=[]), "changes nothing"),
        (lambda fix: fix["files"][0].update(hunks=[]), "changes nothing"),
        (lambda fix: fix.update(verdict="rejected"), "was rejected where it was made"),
    ],
)
def test_what_no_patch_holds(apply, tmp_path, edit, said):
    """It would be called applied already, or be written."""
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    held = json.loads((tmp_path / "fix.json").read_text())
    edit(held["fixes"][0])
    (tmp_path / "fix.json").write_text(json.dumps(held))
    (tmp_path / "train.py").write_text(OLD)
    code, _, err = apply("--write")
    assert code == 2
    assert said in err
    assert (tmp_path / "train.py").read_text() == OLD


def test_what_is_not_there(apply, tmp_path):
    assert apply()[::2] == (2, "gradfix: fix.json: can't be read (no such file or directory)\n")
    patch(tmp_path)
    (tmp_path / "sub").mkdir(exist_ok=True)
    (tmp_path / "sub/a.py").touch()
    said = "gradfix: --root sub/a.py: this is a file, and DIR is a folder: its folder is sub\n"
    assert apply("--root", "sub/a.py")[::2] == (2, said)
    assert apply("--root", "nowhere")[::2] == (2, "gradfix: nowhere: there is no such directory\n")
    assert apply()[:2] == (0, "There is no fix in it.\n")


# ---- for programs


def test_json(apply, tmp_path):
    patch(
        tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}), fix(tmp_path, {"lib.py": ("a = 1\n", "a = 2\n")})
    )
    (tmp_path / "train.py").write_text("import sys\n" + OLD)
    (tmp_path / "lib.py").unlink()
    code, out, _ = apply("--output-format", "json")
    value = json.loads(out)
    jsonschema.validate(value, SCHEMA)
    placed, refused = value["fixes"]
    assert code == 1
    assert (placed["status"], placed["lines"]) == ("placed", [{"path": "train.py", "from": 7, "to": 8}])
    assert placed["edits"][0]["text"] == "    hidden = hidden + 1\n"
    assert (refused["status"], refused["why"]) == ("refused", "lib.py is not there.")


FORGED = "\x1b[2J\x1b]0;pwn\x07\x9b2J\u202e\r\nproved here"


@pytest.mark.parametrize("words", [[], ["--output-format", "concise"], ["--reprove"], ["--write", "--diff"]])
@pytest.mark.parametrize("tty", ["0", "1"])
def test_a_patch_steers_no_terminal(apply, tmp_path, monkeypatch, words, tty):
    """No word of it, on a terminal or through a pipe (FORCE_COLOR: rich takes the stream for a terminal)."""
    monkeypatch.setenv("FORCE_COLOR" if tty == "1" else "NO_COLOR", "1")
    new = NEW.replace("+ 1", "+ 1  # \x1b[2J\x07\x9b")
    path = patch(tmp_path, fix(tmp_path, {"train.py": (OLD, new)}))
    value = json.loads(path.read_text())
    (forged,) = value["fixes"]
    forged["reason"] = forged["diff"] = FORGED
    forged["cures"][0] |= {"summary": FORGED, "codemod": FORGED, "message": FORGED, "kind": FORGED}
    (hunk,) = forged["files"][0]["hunks"]
    for changes in ({}, {"old": [FORGED.replace("\r\n", "")]}, {"names": {FORGED: "attribute"}}):
        forged["files"][0]["hunks"] = [hunk | changes]
        path.write_text(json.dumps(value))
        (tmp_path / "train.py").write_text(f"import sys\n{OLD}")  # no exact place: all of it is looked at
        _, out, err = apply(*words)
        said = re.sub(r"\x1b\[[0-9;]*m", "", out + err)  # what rich itself colours
        assert "train.py" in said
        assert not [c for c in said if unicodedata.category(c) == "Cc" and c != "\n"]
        assert "\u202e" not in said
        assert "\nproved here" not in said


@pytest.mark.parametrize("name", ["\x1b[2J.py", "a\x9b2J.py", "\x7f.py"])
def test_a_name_steers_no_terminal(apply, tmp_path, name):
    hostile(tmp_path, lambda f: f.update(path=name))
    code, out, err = apply()
    assert (code, out) == (2, "")
    assert not {*"\x1b\x9b\x7f"} & {*err}


def test_a_name_that_is_too_long(apply, tmp_path):
    hostile(tmp_path, lambda f: f.update(path=f"{'x' * 300}.py"))
    code, out, err = apply("--write")
    assert (code, err) == (1, "")
    assert f"refused: {'x' * 300}.py can't be read (file name too long).\n" in out
    hostile(tmp_path, lambda f: f.update(path="x/" * 3_000 + "x.py"))
    assert apply()[0] == 2


def test_from_standard_input(apply, capsys, monkeypatch, tmp_path):
    path = patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert gradfix(capsys, monkeypatch, tmp_path, "apply", "-", "--write")[0] == 0
    assert (tmp_path / "train.py").read_text() == NEW
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    code, _, err = gradfix(capsys, monkeypatch, tmp_path, "apply", "-")
    assert code == 2
    assert err.startswith("gradfix: -: this is no patch")


def test_an_interpreter_that_is_not_there_is_not_the_patch_s_fault(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    code, _, err = apply("--reprove", "--python", "/nowhere/python")
    assert code == 2
    assert "/nowhere/python" in err
    assert "fix.json" not in err


def test_another_hard_link_keeps_the_old_text(apply, tmp_path):
    """What shares the file may be a package cache."""
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    os.link(tmp_path / "train.py", tmp_path / "cache")
    assert apply("--write")[0] == 0
    assert [(tmp_path / x).read_text() for x in ("train.py", "cache")] == [NEW, OLD]


def test_json_of_a_problem(apply, tmp_path):
    (tmp_path / "fix.json").write_text("{}")
    code, out, _ = apply("--output-format", "json")
    jsonschema.validate(json.loads(out), SCHEMA)
    assert code == 2


def test_concise(apply, tmp_path):
    patch(tmp_path, fix(tmp_path, {"train.py": (OLD, NEW)}))
    assert apply("--output-format", "concise", "-q")[1] == "train.py: placed: proved where it was made\n"
