"""What is left out before it is read: never a program that shows a fault."""

from __future__ import annotations

import keyword
import random
import re
import tokenize
from io import StringIO
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.discover import project_root
from gradfix.examine import examine
from gradfix.read import gate, outline, read
from gradfix.result import Settings
from gradfix.source import Source
from gradfix.testing import fixtures

FOLDER = Path(__file__).parent.parent / "fixtures"
PROGRAMS = sorted(FOLDER.rglob("*.py"))
PARTS = [8, pytest.param(1, marks=pytest.mark.soak)]  # every eighth program; each in the soak tier


def told(path: Path, text: str, idle: bool) -> set[tuple[object, ...]]:
    if not idle and not gate.might_matter(text.encode()):
        return set()
    found = read(path, text, root=project_root(path), idle=idle)
    return {(c.kind, c.pattern, c.at, r.evidence(c)) for r in found for c in detect(r.tape)}


@pytest.mark.parametrize("every", PARTS)
def test_nothing_that_a_fixture_shows_is_left_out(every):
    seen = 0
    for path in PROGRAMS[::every]:
        text = Source.read(path).text
        everything = told(path, text, True)
        seen += bool(everything)
        assert told(path, text, False) == everything, path
    assert seen > len(list(fixtures(FOLDER))) / 2 / every


def renamed(text: str, seed: int) -> str:
    """`text` with other names for what it defines itself: what matters has to be told by what the library calls it."""
    own = set(re.findall(r"^(?:def|class)\s+(\w+)", text, re.M)) | set(re.findall(r"^(\w+)\s*=", text, re.M))
    own -= {"forward", "main", *keyword.kwlist, *re.findall(r"[.]\s*(\w+)|(\w+)\s*=[^=\n]*[,)]", text)}
    draw = random.Random(seed)
    new = {name: "".join(draw.choices("ijklmnop", k=6)) + str(n) for n, name in enumerate(sorted(own))}
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(StringIO(text).readline))):
        if token.type == tokenize.NAME and token.string in new:
            line, (_, start), (_, end) = token.start[0] - 1, token.start, token.end
            lines[line] = lines[line][:start] + new[token.string] + lines[line][end:]
    return "".join(lines)


def alone(path: Path) -> bool:
    return len(list(path.parent.glob("*.py"))) <= 2 and not (path.parent / "after").is_dir()


@pytest.mark.parametrize("every", PARTS)
def test_other_names_change_nothing(every):
    seen = 0
    for path in [p for p in PROGRAMS if alone(p)][::every]:
        text = renamed(Source.read(path).text, every)
        everything = told(path, text, True)
        seen += bool(everything)
        assert told(path, text, False) == everything, path
    assert seen > 200 / every


LOOP = "for step in range(3):\n    loss = model(x).sum()\n    loss.backward()\n"
SIBLINGS = {
    "by_name": ("from engine import go\ngo()\n", {"engine": "def go():\n    loss.backward()\n"}),
    "by_module": ("import engine\nengine.go()\n", {"engine": "def go():\n    loss.backward()\n"}),
    "renamed": (
        "import engine as e\nif 1:\n    pass\ne.go()\n",
        {"engine": "def go():\n    loss.backward()\n"},
    ),
    "star": ("from engine import *\ngo()\n", {"engine": "def go():\n    loss.backward()\n"}),
    "through": (
        "from pack.engine import Trainer\nt = Trainer()\nt.fit()\n",
        {
            "pack/__init__": "",
            "pack/engine": "from . import steps\nclass Trainer:\n    def fit(self): steps.go()\n",
            "pack/steps": "def go():\n    loss.backward()\n",
        },
    ),
    "at_import": ("from engine import loss\nprint(loss)\nloss.size()\n", {"engine": LOOP}),
    "by_main": (
        "import registry\nif __name__ == '__main__':\n    registry.make('x')()\n",
        {"registry": "import engine\nMADE = {}\n", "engine": "def go():\n    loss.backward()\n"},
    ),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_a_main_part_that_leads_to_a_backward_elsewhere_is_followed(tmp_path, name):
    main, others = SIBLINGS[name]
    for path, text in others.items():
        (tmp_path / f"{path}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{path}.py").write_text(text)
    assert gate.might_matter(main.encode())
    assert outline.wanted(str(tmp_path / "main.py"), main, here(tmp_path)).main
    for path in others:
        (tmp_path / f"{path}.py").write_text("def go(): pass\n")
    assert not outline.wanted(str(tmp_path / "main.py"), main, here(tmp_path)).any


def test_a_call_inside_an_f_string_is_followed(tmp_path):
    step = "def fit(x):\n    loss = model(x)\n    loss.backward()\n    return loss\n\n"
    text = step + 'for each in data:\n    print(f"{fit(each):.3f}")\n'
    assert outline.wanted(str(tmp_path / "main.py"), text, here(tmp_path)).main
    said = step + 'for each in data:\n    print("fit")  # and fit(each)\n'
    assert not outline.wanted(str(tmp_path / "main.py"), said, here(tmp_path)).main


@pytest.mark.parametrize(
    "doc",
    ["'loss.backward() is for the caller'", '"""See loss.backward() and\n    grad(y, x)."""', "pass  # x"],
)
def test_what_only_speaks_of_a_backward_is_no_way_into_a_program(tmp_path, doc):
    text = f"def step(loss):\n    {doc}\n    loss.mean()\n\ndef go(loss):\n    step(loss)\n"
    assert not outline.wanted(str(tmp_path / "main.py"), text, here(tmp_path)).any
    called = text.replace("loss.mean()", "loss.backward()")
    assert outline.wanted(str(tmp_path / "main.py"), called, here(tmp_path)).any


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("layout = 1\nf(dropout=0.1, timeout=3)\n", False),
        ("torch.add(a, b, out=c)\n", True),
        ("torch.add(a, b, out = c)\n", True),
        ("getattr(torch, '_foreach_add_')(a, b)\n", True),
        ("_foreach_inputs = 1\n", False),
    ],
)
def test_what_may_write(text, whether):
    assert gate.writes(text.encode()) is whether


@pytest.mark.parametrize(
    ("text", "whether"),
    [
        ("def f(requires_grad=False): pass\n", False),
        ("torch.ones(3, requires_grad=True)\n", True),
        ("torch.ones(3, requires_grad=wanted)\n", True),
        ("w.requires_grad = True\n", True),
        ("The parameters (of which there are many)\n", False),
        ("list(net.parameters())\n", True),
    ],
)
def test_what_may_be_a_leaf(text, whether):
    assert gate.leaves(text.encode()) is whether


def here(folder: Path):
    from gradfix.read.project import Project

    return Project(folder, folder)


@pytest.mark.parametrize(
    "text",
    [
        "loss.\\\n    backward()\n",
        "getattr(loss, 'backward')()\n",
        "for name in ['zero_grad', 'backward']:\n    getattr(loss, name)()\n",
        "methodcaller(\n    'backward', retain_graph=True\n)(loss)\n",
        "return grad(y, x)\n",
        "log('#'); loss.backward()\n",
        "x = 'a \\\n# b'; loss.backward()\n",
        "say('`it`'); loss.backward()\n",
        'def f():\n    """\n    # sums\n    """; loss.backward()\n',
        "g = torch.autograd.grad(y, x)\n",
        "from torch.autograd import grad as g\n",
        "def forward(self, x):\n    x += 1\n",
        "def forward(self, x):\n    return F.relu(x, inplace=True)\n",
        "nn.Sequential(nn.ReLU(True))\ndef forward(self, x): pass\n",
        "def forward(self, x):\n    x[0] = 1\n",
        "def forward(self, x):\n    x[a:b, 0] = 1\n",
        "def forward(self, x):\n    return x.clamp_(0)\n",
        "w = torch.ones(3, requires_grad=True)\nw += 1\n",
        "w = torch.ones(3).requires_grad_()\nw.mul_(2)\n",
        "class A: pass\rdef f():\r  loss.backward()\r",
        "import torch\rw = torch.zeros(3, requires_grad=True)\rw[0] = 1.\r",
        "# loss\rloss.backward()\r",
        "import torch\nθ = torch.zeros(3, requires_grad=True)\nθ[0] = 1.\n",
        "import torch\nété.θ = torch.zeros(3, requires_grad=True)\nété.θ += été.step(3)\n",
        "from modèle import f\nécrire(f)\n",
        "\ufefffrom helpers import f\nf()\n",
    ],
)
def test_what_may_show_a_fault(text):
    assert gate.might_matter(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "θ = torch.zeros(3, requires_grad=True)\nθ[0] = 1.\n",
        "def écrire():\n    θ = torch.zeros(3, requires_grad=True)\n    θ[0] = 1.\n\nécrire()\n",
        "from modèle import écrire\n\nécrire(torch.zeros(3))\n",
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_a_fault_whose_names_are_of_any_alphabet_and_whose_lines_end_in_any_way(tmp_path, text, end):
    for name, each in (
        ("train.py", text),
        ("modèle.py", "def écrire(x):\n    x.requires_grad = True\n    x.sum().backward()\n    x[0] = 1.\n"),
    ):
        (tmp_path / name).write_bytes(f"import torch\n{each}".replace("\n", end).encode())
    found = examine(tmp_path / "train.py", Settings()).diagnoses
    assert [d.conflict.kind for d in found] == ["leaf-write"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os\nprint(os.name)\n",
        "def backward(ctx): pass\n",
        "def f():  # after loss.backward()\n    pass\n",
        "def f():\n    '''\n    >>> loss.backward()\n    ``loss.backward()`` needs grad (a call).\n    '''\n",
        "def grad(x): pass\n",
        "kind = 'backward' if late else 'forward'\nif kind == 'backward' or 'backward' in names: pass\n",
        "from torch import no_grad\nwith no_grad():\n    pass\n",
        "class Net(nn.Module):\n    def forward(self, x: list[int] = None):\n        return x\n",
        "log = logging.getLogger(__name__)\nT = TypeVar('T')\n\ndef f(x):\n    x += 1\n",
    ],
)
def test_what_cannot(text):
    assert not gate.might_matter(text.encode())


def test_a_class_whose_forward_writes_nothing_is_left_out(tmp_path):
    text = "class A(nn.Module):\n    def forward(self, x):\n        return helper(x)\nclass B(nn.Module):\n"
    text += "    def forward(self, x):\n        return x\ndef helper(x):\n    return x.exp_()\n"
    assert outline.wanted(str(tmp_path / "m.py"), text, here(tmp_path)).harmless == {"B"}


@pytest.mark.parametrize(
    ("head", "read_"),
    [
        ("class A(nn.Module):", True),
        ("from lib import Base\nclass A(Base):", True),
        ("class B(nn.Module): pass\nclass A(B):", True),
        ("class B(make()): pass\nclass A(B):", True),
        ("class A(Generic[T]):", True),
        ("from lib import Module as object\nclass A(object):", True),
        ("from lib import torch\nclass A(torch.autograd.Function):", True),
        ("@registered\nclass A:", True),
        ("class A(metaclass=M):", True),
        ("class A[T](Base):", True),
        ("class A:", False),
        ("class A(object):", False),
        ("class A(torch.autograd.Function):", False),
        ("from torch import autograd\nclass A(autograd.Function):", False),
        ("import torch.autograd as ag\nclass A(ag.Function):", False),
        ("from torch.autograd import Function\nclass B(Function): pass\nclass A(\n    B,\n):", False),
        ("class B(C): pass\nclass C(B): pass\nclass A(B):", False),
        ("def make():\n  class A(nn.Module):", False),
    ],
)
def test_a_forward_counts_in_what_may_be_a_module(tmp_path, head, read_):
    text = f"import torch\nfrom torch import nn\n{head}\n"
    text += "     def forward(self, x):\n        return x.exp_()\n"
    assert outline.wanted(str(tmp_path / "m.py"), text, here(tmp_path)).any == read_
