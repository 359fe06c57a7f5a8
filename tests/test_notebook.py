"""Notebooks: joined into one script, cut back by cell, everything else kept to the byte."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradfix import notebook
from gradfix.examine import examine
from gradfix.result import Settings
from gradfix.source import Source, SourceError

CELLS = [
    ("markdown", "# A *very* small model\nRun all cells."),
    ("code", "%matplotlib inline\nimport torch\n!pip list"),
    ("code", "%%bash\necho hello\n"),
    ("code", ""),
    ("code", "x = torch.randn(4, 3)\nmodel = torch.nn.Linear(3, 3)\nh = model(x).exp()  # 中文"),
    ("code", "h += 1\nh.sum().backward()\nmodel.weight.grad.norm()"),
]


def document(**style: object) -> str:
    cells = [
        {
            "cell_type": kind,
            "id": f"c{n}",
            "metadata": {},
            "source": text.splitlines(keepends=True) if n % 2 else text,
            **({"outputs": [], "execution_count": None} if kind == "code" else {}),
        }
        for n, (kind, text) in enumerate(CELLS)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, **style)


STYLES = [
    {"indent": 1, "ensure_ascii": False},
    {"indent": 2},
    {"indent": "\t"},
    {},
    {"separators": (",", ":")},
]


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("end", ["", "\n"])
def test_only_changed_cells_differ(style, end):
    text = document(**style) + end
    script = notebook.join(text)
    compile(script, "n", "exec")
    assert notebook.edit(text, script) == text
    new = notebook.edit(text, script.replace("h += 1", "h = h + 1\nassert True"))
    assert new.endswith(end)
    before, after = json.loads(text), json.loads(new)
    assert "".join(after["cells"][5]["source"]).startswith("h = h + 1\nassert True\nh.sum()")
    after["cells"][5]["source"] = before["cells"][5]["source"]
    assert after == before
    assert len(new) - len(text) < 60


@pytest.mark.parametrize(
    ("cell", "code", "edited"),
    [
        ("\n  for n in x:\n\n      f(n)", "\nfor n in x:\n\n    f(n)", "\n  for n in y:\n\n      f(n)"),
        ("  a = 1\nfor n in x:\n    f(n)", "a = 1\nfor n in x:\n  f(n)", "a = 1\nfor n in y:\n  f(n)"),
    ],
)
def test_the_indent_of_the_first_line_is_taken_off_the_cell(cell, code, edited):
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell}]})
    assert notebook.join(text) == f"# %% cell 0\n{code}\n"
    new = json.loads(notebook.edit(text, notebook.join(text).replace(" in x", " in y")))
    assert new["cells"][0]["source"] == edited


def test_places():
    script = notebook.join(document())
    line = script.split("\n").index("h += 1") + 1
    assert notebook.locate(script, line) == (5, 1)
    assert notebook.locate(script, line - 1) == (5, 0)
    assert notebook.locate("x = 1\n", 1) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"nbformat": 4, "cells": [5]}', '{"worksheets": []}', "[" * 100_000,
        '{"cells": [{"cell_type": "code", "source": ["x", 5]}]}',
    ],
)  # fmt: skip
def test_what_is_no_notebook(tmp_path, text):
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(SourceError, match="this is not a notebook"):
        Source.read(tmp_path / "n.ipynb")


@pytest.mark.parametrize("layout", [None, 1])
def test_a_fault_without_a_backward_is_found(tmp_path, layout):
    lines = ["import torch\n", "w = torch.zeros(3, requires_grad=True)\n", "w[0] = 1."]
    (tmp_path / "n.ipynb").write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": lines}]}, indent=layout)
    )
    (found,) = examine(tmp_path / "n.ipynb", Settings()).diagnoses
    assert (found.conflict.kind, found.conflict.at.line) == ("leaf-write", 4)


def test_a_cell_that_is_no_python_is_named(tmp_path):
    path = tmp_path / "bad.ipynb"
    cells = [{"cell_type": "code", "source": text} for text in ("import torch\nx = 1", "y = 2\ndef f(:")]
    path.write_text(json.dumps({"nbformat": 4, "cells": cells}))
    with pytest.raises(SourceError, match=r"cell 1:2:7"):
        Source.read(path).check()


def test_an_own_layout_is_not_rewritten(tmp_path):
    text = document().replace('"cells": [', '"cells":    [')
    with pytest.raises(notebook.NotebookError, match="a way of its own"):
        notebook.edit(text, notebook.join(text).replace("h += 1", "h = h + 1"))


def test_a_notebook_is_cured(tmp_path: Path):
    path = tmp_path / "n.ipynb"
    path.write_text(document(indent=1, ensure_ascii=False), encoding="utf-8")
    command = [sys.executable, "-m", "gradfix", "fix", "n.ipynb"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("--output-format", "json")
    (found,) = json.loads(done.stdout)["diagnostics"]
    assert (found["cell"], found["range"]["start"]) == (5, {"line": 1, "column": 1})
    assert found["cures"][0]["edits"][0]["cell"] == 5
    assert found["cures"][0]["edits"][0]["range"]["start"]["line"] == 1
    done = run()
    assert "--- a/n.ipynb:cell 5\n+++ b/n.ipynb:cell 5\n@@ -1,3 +1,3 @@\n-h += 1\n+h = h + 1\n" in done.stdout
    done = run("--write")
    assert done.returncode == 0, done.stderr
    assert "n.ipynb:cell 5:1:1" in done.stdout
    assert "5:1 │ h += 1" in done.stdout
    expected = document(indent=1, ensure_ascii=False).replace("h += 1", "h = h + 1")
    assert path.read_text(encoding="utf-8") == expected


def test_a_line_that_goes_on_a_statement_is_no_magic():
    cell = "\n".join(
        [
            "!pip install torch",
            "print('%d of %d'",
            "      % (3,",
            "4))",
            "text = '''",
            "%time",
            "!ls'''",
            "names = !ls",
            "first, second = %timeit 3",
            "rest = 7 \\",
            "    % 4",
            "%matplotlib inline",
        ]
    )
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell}], "metadata": {}})
    script = notebook.join(text)
    found: dict[str, object] = {}
    exec(compile(script, "n", "exec"), found)
    assert found["rest"] == 3
    assert found["text"] == "\n%time\n!ls"
    assert "names" not in found
    assert notebook.edit(text, script) == text
    changed = json.loads(notebook.edit(text, script.replace("rest = 7", "rest = 9")))
    assert changed["cells"][0]["source"] == cell.replace("rest = 7", "rest = 9")


TIMED = [
    ("%time y.sum().backward()", "y.sum().backward()"),
    ("    %time   y = f(x)  # once", "y = f(x)  # once"),
    ("%timeit f(x)", "f(x)"),
    ("%timeit -n 10 -r3 f(x); g(x)", "f(x); g(x)"),
    ("out = %time f(x)", "f(x)"),
    ("    a, self.b =%time  f(x), 2  # once", "f(x), 2  # once"),
]


@pytest.mark.parametrize(("line", "code"), TIMED)
def test_the_code_behind_a_magic_is_read_where_it_stands(line, code):
    text = json.dumps({"cells": [{"cell_type": "code", "source": f"for x in z:\n{line}\n    x += 1"}]})
    text = text if line[0] == " " else text.replace("for x in z:\\n", "").replace("    x += 1", "x += 1")
    script = notebook.join(text)
    compile(script, "n", "exec")
    (read,) = [x for x in script.split("\n") if code in x]
    assert (read.index(code), len(read)) == (line.index(code), len(line))
    assert notebook.written(read) == line
    changed = json.loads(notebook.edit(text, script.replace("x += 1", "x = x + 1")))["cells"][0]["source"]
    assert changed == json.loads(text)["cells"][0]["source"].replace("x += 1", "x = x + 1")
    inside = json.loads(notebook.edit(text, script.replace(code, "h(x)")))["cells"][0]["source"]
    assert line.replace(code, "h(x)") in inside.split("\n")
    with pytest.raises(notebook.NotebookError, match="one line of a %time in cell 0"):
        notebook.edit(text, script.replace(read, read.replace(code, "").rstrip() + f"\n        {code}"))


@pytest.mark.parametrize(
    "line",
    [
        "%time for x in y: pass", "%time", "%timeit", "%timeit -n 10", "%timeit y = f(x)", "%timeit y += 1",
        "%time f(", "%timeit (y := 2)", "%timeit -p f(x)", "%time --no f(x)", "%timer f(x)", "%time.f(x)",
        "out = %time f(x); g()", "out = %time y = f(x)", "out = %timeit f(x)", "out = %time -f(x)", "out = %time f(",
    ],
)  # fmt: skip
def test_magics_whose_code_is_left_alone(line):
    text = json.dumps({"cells": [{"cell_type": "code", "source": f"{line}\nx = 1"}]})
    assert notebook.join(text) == f"# %% cell 0\n#~magic~ {line}\nx = 1\n"


@pytest.mark.parametrize("magic", ["!pip install torch \\", "%pip install a \\\n  b \\", "files = !ls \\"])
def test_a_magic_that_goes_on_in_the_next_line(magic):
    cell = f"{magic}\n  -q 'c'\nx = 1"
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell}], "metadata": {}})
    script = notebook.join(text)
    compile(script, "n", "exec")
    assert json.loads(notebook.edit(text, script.replace("x = 1", "x = 2")))["cells"][0][
        "source"
    ] == cell.replace("x = 1", "x = 2")


def test_a_fault_in_the_line_of_a_magic_is_told_as_it_is_written(tmp_path):
    cells = [
        "import torch\nx = torch.ones(2, requires_grad=True)\ny = x.exp()",
        "z = %time y.sum()\ny += 1\n%time z.backward()",
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": c} for c in cells]}))
    command = [sys.executable, "-m", "gradfix"]
    check = subprocess.run(
        [*command, "check", "--no-cache", path], check=False, capture_output=True, text=True
    )
    assert "1:3 │ %time z.backward()" in check.stdout, check.stdout
    fixed = subprocess.run(
        [*command, "fix", "--no-run", "--diff", path], check=False, capture_output=True, text=True
    )
    assert " %time z.backward()" in fixed.stdout, fixed.stdout
    assert "~" not in fixed.stdout


@pytest.mark.parametrize(
    ("cell", "magic"),
    [
        ("pip install opendatasets", True),
        ("cd /content/data\n", True),
        ("matplotlib inline", True),
        ("pip", False),  # a name, as far as the text tells
        ("pip = 3", False),
        ("run(3)", False),
        ("pip install x\nimport torch", False),  # more than one line: no Python for IPython either
    ],
)
def test_a_cell_of_one_line_that_is_a_magic_without_its_sign(cell, magic):
    text = json.dumps({"cells": [{"cell_type": "code", "source": cell}], "metadata": {}})
    script = notebook.join(text)
    assert script.split("\n")[1].startswith("#") == magic
    assert notebook.edit(text, script) == text


def test_a_sentence_names_the_line_in_its_cell(tmp_path):
    cells = [
        "import torch\ng = torch.nn.Linear(2, 2)\n"
        "class Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.d = torch.nn.Linear(2, 1)\n        self.opt = torch.optim.SGD(self.d.parameters(), 0.1)\n"
        "    def update(self, x):\n        y = g(x)\n        loss_g = -self.d(y).tanh().mean()\n"
        "        self.opt.zero_grad()\n        self.d(y.detach()).mean().backward()\n        self.opt.step()\n"
        "        loss_g.backward()",
        "model = Model()\nfor i in range(4):\n    model.update(torch.rand(3, 2))",
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": "code", "source": c} for c in cells]}))
    command = [sys.executable, "-m", "gradfix", "check", "--no-cache", path]
    told = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    assert "the step in cell 0, line 13 " in told.replace("\n  ", " "), told
