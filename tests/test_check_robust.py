"""check on what nobody meant it for: at worst one clear sentence for a file, and the others are checked."""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import hypothesmith
import pytest
from hypothesis import HealthCheck, given, settings

from gradfix import cli
from gradfix.detect import detect
from gradfix.examine import examine
from gradfix.read import Budget, outline, read
from gradfix.read.project import LONGEST, Project
from gradfix.result import Settings
from gradfix.source import Source, SourceError

FAULT = """\
import torch
model = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    h = model(torch.randn(4, 3)).exp()
    h += 1
    h.sum().backward()
    optimizer.step()
"""
DEEP = 2000
BAD = {
    "nulls": b"backward\0\0\n",
    "nulls_in_a_string": b"x = 'a\0b'  # backward\n",
    "not_utf8": b"# backward\nx = '\xff\xfe'\n",
    "no_such_encoding": b"# -*- coding: klingon -*-\nbackward\n",
    "no_python": b"this is prose about backward(\n",
    "python_2": b"print 'backward'\n",
    "half_a_string": b"x = '''backward\n",
    "nested_parentheses": b"x = " + b"(" * DEEP + b"backward" + b")" * DEEP + b"\n",
    "nested_lists": b"x = " + b"[" * DEEP + b"]" * DEEP + b"  # backward\n",
}
ODD = {  # that is Python, and must be no problem
    "newer": b"def f[T](x: T) -> T:\n    return x.backward()\ntype A[B] = list[B]\n",
    "nested_calls": b"x = " + b"f(" * 90 + b"backward" + b")" * 90 + b"\n",
    "nested_attributes": b"backward" + b".a" * DEEP + b"\n",
    "nested_operators": b"x = backward" + b" + 1" * DEEP + b"\n",
    "nested_minus": b"x = " + b"-" * DEEP + b"backward\n",
    "nested_else": b"".join(
        b"%sif x:\n%s pass\n%selse:\n" % (b" " * n, b" " * n, b" " * n) for n in range(90)
    )
    + b" " * 90
    + b"backward()\n",
    "nested_elif": b"if x == 0:\n    backward()\n"
    + b"".join(b"elif x == %d:\n    pass\n" % n for n in range(DEEP)),
    "empty": b"",
    "only_a_comment": b"# backward",
    "bom": b"\xef\xbb\xbfbackward = 1\n",
    "form_feed": b"backward = 1\n\x0c\ny = 2\n",
    "carriage_returns": b"backward = 1\ry = 2\r",
    "surrogates": b"x = '\\ud800'  # backward\n",
    "itself": b"import itself\nfrom itself import *\nitself.backward()\n",
    "recursion": b"def backward(x):\n    return backward(backward(x))\nbackward(1)\n",
    "endless": b"while True:\n    backward()\n",
    "million": b"x = [backward(i) for i in range(10 ** 9)]\nfor i in range(10 ** 12):\n    x.backward()\n",
    "big_numbers": b"x = 9 ** 9 ** 9 ** 9\ny = 'a' * 10 ** 12\nz = [0] * 10 ** 12\nbackward = 1 << 10 ** 12\n",
    "bases": b"class A(A): pass\nclass B(C): pass\nclass C(B): pass\nB().backward()\n",
    "metaclass": b"class M(type):\n    def __call__(c): return c()\nclass A(metaclass=M): pass\nA().backward()\n",
    "properties": b"class A:\n    def __getattr__(s, n): return getattr(s, n)\nA().backward()\n",
    "strange_names": "𝔟ackward = 1\nñ.backward()\n".encode(),
}


@pytest.fixture
def check(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(["check", "--output-format", "concise", "-j", "1", *words])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_bad_files_are_one_sentence_each_and_the_others_are_checked(check, tmp_path):
    for name, raw in {**BAD, **ODD, "a_training": FAULT.encode(), "z_training": FAULT.encode()}.items():
        raw += b"\nz.backward()\n" if raw else b""  # so that nobody takes it for harmless
        (tmp_path / f"{name}.py").write_bytes(raw)
    code, out, err = check("-q")
    assert code == 2
    assert {"a_training.py", "z_training.py"} == {line.split(":")[0] for line in out.splitlines()}
    said = [
        line.split()[1].split(":")[0].removesuffix(".py")
        for line in err.splitlines()
        if line[:8] == "gradfix:"
    ]
    assert sorted(said) == sorted({*said}), "one sentence a file"
    assert set(said) - {"newer"} == set(BAD)  # Python of a later version may be read by a later one
    assert "Traceback" not in err


@pytest.mark.parametrize("deep", [" + 1" * DEEP, ".a" * DEEP], ids=["operators", "attributes"])
def test_a_fault_in_a_file_that_is_nested_too_deeply_for_libcst(check, tmp_path, deep):
    (tmp_path / "train.py").write_text(f"{FAULT}x = h{deep}\n")
    code, out, err = check("-q", "--output-format", "full")
    assert (code, err) == (1, "")
    assert out.startswith("error[stale-saved-tensor]")


def test_fifty_thousand_lines(check, tmp_path):
    lines = [f"x{n} = {n}" for n in range(50_000)]
    (tmp_path / "long.py").write_text("\n".join(lines) + "\n" + FAULT)
    code, out, _ = check("-q", "--output-format", "full")  # which would look for cures
    assert code == 1
    assert "long.py:50007:5" in out


def test_what_was_not_followed_to_its_end_is_said(check, tmp_path):
    lines = [f"x{n} = w * {n}" for n in range(25_000)]
    text = "\n".join(["import torch", "w = torch.zeros(3, requires_grad=True)", *lines, "w[0] = 1."])
    (tmp_path / "long.py").write_text(text)
    said = "gradfix: long.py: too much to read: it was not followed to its end\n"
    assert check()[::2] == check("-v", "--output-format", "full")[::2] == (0, said)
    assert check("-q") == (0, "", "")


def test_a_literal_of_many_lines_is_left_out_without_a_tree_of_it(check, tmp_path, monkeypatch):
    literal = "".join(f"    ({n}, 'word {n}'),\n" for n in range(300_000))
    (tmp_path / "data.py").write_text(f"DATA = [\n{literal}]\n{FAULT}")
    (tmp_path / "train.py").write_text(FAULT)
    parse = ast.parse

    def small(text, *more):
        assert len(text) < LONGEST
        return parse(text, *more)

    monkeypatch.setattr(ast, "parse", small)
    code, out, err = check("-q")
    assert (code, err) == (2, "gradfix: data.py: the file is too large to be read\n")
    assert out.startswith("train.py:7:5: stale-saved-tensor")


def test_an_unreadable_file_and_a_loop_of_links(check, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(FAULT)
    (tmp_path / "secret.py").write_text(FAULT)
    (tmp_path / "loop.py").symlink_to("loop.py")
    read = Path.read_bytes

    def refused(path: Path) -> bytes:
        if path.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    code, out, err = check("-q", ".", "loop.py")
    assert (code, len(out.splitlines())) == (2, 1)
    assert err.splitlines() == [
        "gradfix: secret.py: can't be read (permission denied)",
        "gradfix: loop.py: is a link that leads nowhere (too many levels of symbolic links)",
    ]


def test_a_notebook(check, tmp_path):
    cells = [{"cell_type": "code", "source": text} for text in FAULT.split("for")]
    cells[1]["source"] = "for" + cells[1]["source"]
    (tmp_path / "train.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    code, out, _ = check("-q")
    assert (code, out.split(" stale")[0]) == (1, "train.ipynb:cell 1:4:5:")


def test_a_sibling_is_parsed_once_for_all_that_import_it(check, tmp_path, monkeypatch):
    (tmp_path / "shared.py").write_text("import torch\nmodel = torch.nn.Linear(3, 3)\n")
    rest = FAULT.split("\n", 2)[2]
    for n in range(3):
        (tmp_path / f"train{n}.py").write_text(
            f"import torch\nfrom shared import model\n# {tmp_path} {n}\n{rest}"
        )
    parsed = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, *more: parsed.append(text) or parse(text, *more))
    code, out, _ = check("-q")
    assert (code, len(out.splitlines())) == (1, 3)
    assert sum("Linear(3, 3)" in str(text) for text in parsed) <= 1


def standard_library() -> list[Path]:
    return sorted(Path(sysconfig.get_path("stdlib"), "test").rglob("*.py"))


def _survives(files: list[Path]) -> None:
    for file in files:
        try:
            source = Source.read(file)
        except SourceError:
            continue
        # whatever the gate thinks of it
        examined = examine(file, Settings(evidence="likely"), Source(file, b".backward", source.text))
        assert examined.problem is None or "\n" not in examined.problem.message, file


@pytest.mark.skipif(not standard_library(), reason="this Python comes without its tests")
def test_a_sample_of_the_standard_librarys_tests():
    _survives(random.Random(sys.hexversion).sample(standard_library(), 12))


@pytest.mark.soak
def test_all_of_the_standard_librarys_tests():
    _survives(standard_library())


LONG = {
    "factorial": "import math; n = math.factorial(10**8)",
    "combinations": "import math; n = math.comb(10**7, 10**6)",
    "shared_lists": "z = [1]\nfor i in range(100): z = [z, z]\nw = z == [z, z]",
    "shared_tuples": "z = ()\nfor i in range(60): z = (z, z)\nw = {z: repr(z)}",
    "shared_dictionaries": "z = {}\nfor i in range(60): z = {'a': z, 'b': z}\nw = z == dict(z)",
    "shared_modules": "z = torch.nn.Sequential()\nfor i in range(40): z = torch.nn.Sequential(z, z)",
}


@pytest.mark.parametrize("name", LONG)
def test_what_would_take_for_ever_is_not_computed(tmp_path, name):
    """(The modules are called, and the fault comes after them: the reading has an end, and finds nothing.)"""
    text = (
        f"import torch\n{LONG[name]}\n" + ("z(torch.ones(3))\n" if name == "shared_modules" else "") + FAULT
    )
    examined = examine(tmp_path / "train.py", Settings(), Source.decode(tmp_path / "train.py", text.encode()))
    kinds = [d.conflict.kind for d in examined.diagnoses]
    assert kinds == ([] if name == "shared_modules" else ["stale-saved-tensor"])


def _read_made_up(text: str, folder: Path) -> None:
    """Whatever a grammar makes is read to its end, or there is one sentence; its forms must not be the reader's."""
    readings = read(folder / "made.py", text, budget=Budget(steps=2_000))
    assert all("\n" not in problem.text for reading in readings for problem in reading.problems), text
    assert all(c.severity == "note" for reading in readings for c in detect(reading.tape)), text
    outline.wanted(str(folder / "made.py"), text, Project(folder, folder))


QUIETLY = [*HealthCheck]  # its programs are large and seldom fit


@settings(max_examples=40, deadline=None, suppress_health_check=QUIETLY)
@given(text=hypothesmith.from_grammar())
def test_a_sample_of_programs_made_from_the_grammar(text, tmp_path_factory):
    _read_made_up(text, tmp_path_factory.getbasetemp())


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
@settings(max_examples=1_000, deadline=None, suppress_health_check=QUIETLY)
@given(text=hypothesmith.from_grammar())
def test_ten_thousand_programs_made_from_the_grammar(text, part, tmp_path_factory):
    """(In parts: what hypothesis remembers of one test grows to gigabytes over ten thousand such programs.)"""
    _read_made_up(text, tmp_path_factory.getbasetemp())


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
@settings(max_examples=1_000, deadline=None, suppress_health_check=QUIETLY)
@given(text=hypothesmith.from_node())
def test_ten_thousand_programs_made_from_trees(text, part, tmp_path_factory):
    _read_made_up(text, tmp_path_factory.getbasetemp())


def test_links_to_what_is_not_there(check, tmp_path):
    (tmp_path / "gone.py").symlink_to("moved.py")
    (tmp_path / "folder").symlink_to("elsewhere")
    for name, target in (("gone.py", "moved.py"), ("folder", "elsewhere")):
        code, _, err = check(name)
        assert (code, err) == (2, f"gradfix: {name}: is a link to {target}, which is not there\n")


def test_a_name_that_could_steer_a_terminal_is_escaped_where_it_can_be_called(check, tmp_path):
    name = "we\x1b[31mird\n'na\udcffme'\\.py"
    (tmp_path / name).write_text(FAULT)
    code, out, _ = check(name)
    line = next(x for x in out.splitlines() if "gradfix fix" in x)
    assert code == 1
    assert line.endswith(r"gradfix fix $'we\x1b[31mird\n\'na\xffme\'\\.py'")
    shell = ["bash", "-c", "printf %s " + line[line.index("$'") :]]
    if shutil.which("bash"):
        assert os.fsdecode(subprocess.run(shell, check=True, capture_output=True).stdout) == name


@pytest.mark.parametrize(
    ("closed", "paths", "expected"), [(">&-", "x.py", 1), ("<&-", "-", 0), ("2>&-", "x.py", 1)]
)
def test_a_stream_that_is_closed(tmp_path: Path, closed: str, paths: str, expected: int) -> None:
    (tmp_path / "x.py").write_text("import torch\ntorch.ones(1).backward()\n")
    command = f'"{sys.executable}" -m gradfix check --no-cache {paths} {closed}'
    done = subprocess.run(command, shell=True, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (expected, False)
