"""The symbolic run on what lies around a script: modules in folders that it names, options, settings in files."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

STALE = """\
import torch
class Pair:
    def begin(self, opt):
        self.one, self.two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.first = torch.optim.SGD(self.one.parameters(), lr=opt)
        self.second = torch.optim.SGD(self.two.parameters(), lr=opt)
    def forward(self, x):
        self.score = self.two(self.one(x))
    def improve(self):
        self.second.zero_grad()
        self.score.mean().backward(retain_graph=True)
        self.second.step()
        self.first.zero_grad()
        (-self.score).mean().backward()
        self.first.step()
"""
LOOP = """
pair = Pair()
pair.begin(0.1)
for x in data:
    pair.forward(x)
    pair.improve()
"""


def found(folder: Path, name: str, files: dict[str, str]) -> list[tuple[str, str, str]]:
    """(file, kind, evidence) above a note in the program `name` among `files`."""
    for each, text in files.items():
        path = folder / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    path = folder / name
    out = {
        (Path(c.at.file).name, c.kind, r.evidence(c))
        for r in read(path, path.read_text(), root=folder, idle=False)
        for c in detect(r.tape)
        if c.severity != "note"
    }
    return sorted(out)


# ---- where modules are


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("train.py", "import sys\nsys.path.append('parts/models')\n"),
        ("train.py", "import sys\nsys.path.insert(0, './parts/models')\n"),
        (
            "train.py",
            "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'parts', 'models'))\n",
        ),
        (
            "tools/train.py",
            "import os.path as osp, sys\nsys.path.insert(0, osp.join(osp.dirname(__file__), '..', 'parts/models'))\n",
        ),
        (
            "tools/train.py",
            "import sys, pathlib\nROOT = pathlib.Path(__file__).parents[1]\n"
            "LIB = str(ROOT / 'parts' / 'models')\nsys.path.append(LIB)\n",
        ),
        ("tools/train.py", "import os\nimport _model_paths\n"),
    ],
)
def test_modules_are_looked_for_in_the_folders_that_the_program_adds(tmp_path, name, said):
    where = "import os, sys\ndef add_path(path):\n    if path not in sys.path:\n        sys.path.insert(0, path)\n"
    where += "lib = os.path.join(os.path.dirname(__file__), '..', 'parts', 'models')\nadd_path(lib)\n"
    files = {
        "parts/models/pairs.py": STALE,
        "tools/_model_paths.py": where,
        name: said + "from somewhere import data\nfrom pairs import Pair\n" + LOOP,
    }
    assert found(tmp_path, name, files) == [("pairs.py", "stale-saved-tensor", "certain")]


def test_modules_are_not_looked_for_in_folders_that_nobody_adds(tmp_path):
    files = {
        "parts/models/pairs.py": STALE,
        "train.py": "from somewhere import data\nfrom pairs import Pair\n" + LOOP,
    }
    assert found(tmp_path, "train.py", files) == []


@pytest.mark.parametrize("added", ["'/'", "'../../..'", "'~/models'", "f'{HOME}/models'", "''", "where()"])
def test_a_folder_outside_the_project_is_none_of_its_own(tmp_path, added):
    (tmp_path / "pairs.py").write_text(STALE)
    files = {
        "train.py": f"import sys\nsys.path.append({added})\nfrom somewhere import data\nfrom pairs import Pair\n"
        + LOOP
    }
    assert found(tmp_path / "project", "train.py", files) == []


def test_modules_that_add_folders_may_import_each_other(tmp_path):
    files = {
        "a_path.py": "import b_path\nimport sys\nsys.path.append('models')\n",
        "b_path.py": "import a_path\nimport sys\nsys.path.append('nowhere')\n",
        "models/pairs.py": STALE,
        "train.py": "import a_path\nfrom somewhere import data\nfrom pairs import Pair\n" + LOOP,
    }
    assert found(tmp_path, "train.py", files) == [("pairs.py", "stale-saved-tensor", "certain")]


# ---- options


def test_options_that_may_stand_in_a_file_as_well_have_their_defaults(tmp_path):
    text = """
    import configargparse
    import torch
    from somewhere import data
    parser = configargparse.ArgumentParser()
    parser.add_argument("--config", is_config_file=True)
    parser.add_argument("--render", action="store_true")
    parser.add("--inner", type=int, default=2)
    args = parser.parse_args()
    def train():
        net = torch.nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        if args.render:
            with torch.no_grad():
                print(net(data[0]))
                return
        for x in data:
            out = net(x).exp()
            for _ in range(args.inner):
                out += 1
            opt.zero_grad()
            out.sum().backward()
            opt.step()
    train()
    """
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "stale-saved-tensor", "certain")]


# ---- what may have happened


@pytest.mark.parametrize(
    "leave",
    [
        "    with torch.no_grad():\n        print(net(data[0]))\n        raise SystemExit",
        "    if asked():\n        raise SystemExit\n    else:\n        exit()",
        "    with open('log') as file:\n        if asked():\n            exit()\n        else:\n            exit(1)",
    ],
)
def test_a_block_that_ends_the_program_inside_another_is_not_taken(tmp_path, leave):
    text = (
        "import torch\nfrom somewhere import asked, data\nnet = torch.nn.Linear(2, 2)\n"
        f"if asked():\n{leave}\nout = net(torch.ones(3, 2)).exp()\nout += 1\nout.sum().backward()\n"
    )
    assert [kind for _, kind, _ in found(tmp_path, "train.py", {"train.py": text})] == ["stale-saved-tensor"]


SAFE = """
import torch
from somewhere import Net, data
net = torch.nn.Linear(2, 2)
loss = net(data).mean()
{test}
loss.backward()
"""


@pytest.mark.parametrize(
    "test",
    [
        "if torch.isnan(loss):\n    loss = torch.zeros(1)",
        "if torch.isnan(loss):\n    print('!')\n    if data.any():\n        loss = torch.zeros(1)",
        "with open('log'):\n    if data.any():\n        loss = torch.zeros_like(loss)",
        "loss = Net()(loss)\nif torch.isnan(loss):\n    loss = torch.zeros(1)",
        "if torch.isnan(loss):\n    with open('log'):\n        loss = torch.zeros(1)",
    ],
)
def test_a_loss_that_may_have_been_replaced_may_have_its_graph(tmp_path, test):
    assert found(tmp_path, "train.py", {"train.py": SAFE.format(test=test)}) == []


def test_a_loss_that_is_replaced_for_certain_has_none(tmp_path):
    text = SAFE.format(test="if True:\n    loss = torch.zeros(1)")
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "cut-graph", "certain")]


def test_a_loss_that_only_a_test_binds_has_none(tmp_path):
    text = SAFE.format(test="if data.any():\n    other = torch.zeros(1)\n    other.backward()")
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "cut-graph", "likely")]
