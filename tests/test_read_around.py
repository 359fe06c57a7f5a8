"""The symbolic run on what lies around a script: modules in folders that it names, options, settings in files."""

from __future__ import annotations

import contextlib
import textwrap
import warnings
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read, settings

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
    best: dict[tuple[str, str, int], str] = {}
    for reading in read(path, path.read_text(), root=folder, idle=False):
        for conflict in detect(reading.tape):
            if conflict.severity != "note":
                key = (Path(conflict.at.file).name, conflict.kind, conflict.at.line)
                best[key] = min(best.get(key, "likely"), reading.evidence(conflict))
    return sorted({(file, kind, evidence) for (file, kind, _), evidence in best.items()})


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

COMMAND = """
import click
import torch
{options}
def main(data, inner, keep):
    net = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    if data is None:
        raise SystemExit("no data")
    for x in torch.load(data):
        for _ in range(inner):
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward(retain_graph=keep)
        opt.step()
    for _ in range(3):
        s = net(torch.ones(1, 2)).exp()
        s += 1
        s.sum().backward()
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("inner", "kinds"), [(1, {"stale-saved-tensor"}), (4, {"stale-saved-tensor", "unreset-grad"})]
)
def test_a_commands_options_have_their_defaults(tmp_path, inner, kinds):
    options = f"""
@click.command()
@click.argument("data")
@click.option("--inner", "-i", default={inner}, help="backwards a step")
@click.option("--keep/--no-keep", default=False)"""
    told = found(tmp_path, "train.py", {"train.py": COMMAND.format(options=options)})
    assert {kind for _, kind, _ in told} == kinds


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


# ---- settings in files

NET = """
import torch
from somewhere import data
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in data:
    out = net(x).exp()
    if {test}:
        out += 1
    opt.zero_grad()
    out.sum().backward()
    opt.step()
"""
YAML = "# what to do\nmodel:\n  shift: true  # really\n  sizes: [2, 2]\nsteps:\n- name: one\n  rate: 0.1\n"
PARSED = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', {how})\nargs = p.parse_args()\n"
OPENED = "import yaml\nwith open(args.config) as f:\n    cfg = yaml.safe_load(f)\n"


@pytest.mark.parametrize(
    ("how", "load", "test"),
    [
        ("default='configs/plain.yaml'", OPENED, "cfg['model']['shift']"),
        ("default='./configs/plain.yaml'", OPENED, "cfg.get('model')['shift']"),
        ("required=True", OPENED, "cfg['model']['shift']"),
        (
            "type=str, default='configs/plain.yaml'",
            "import yaml\ncfg = yaml.load(open(args.config, 'r').read(), Loader=yaml.FullLoader)\n",
            "cfg['steps'][0]['rate'] < 0.5",
        ),
        (
            "default='configs/plain.yaml'",
            OPENED + "from easydict import EasyDict as edict\ncfg = edict(cfg)\n",
            "cfg.model.shift and len(cfg.model.sizes) == 2",
        ),
        (
            "default='configs/plain.yaml'",
            OPENED + "cfg = argparse.Namespace(**cfg)\n",
            "cfg.model['shift']",
        ),
        (
            "default='configs/plain.yaml'",
            "from omegaconf import OmegaConf\ncfg = OmegaConf.load(args.config)\n",
            "cfg.model.shift and cfg.steps[0].name == 'one'",
        ),
        (
            "default='plain.json'",
            "import json, os\ncfg = json.load(open(os.path.join('configs', args.config)))\n",
            "cfg['model']['shift']",
        ),
    ],
)
def test_settings_are_read_from_their_file(tmp_path, how, load, test):
    text = PARSED.format(how=how) + load
    files = {
        "configs/plain.yaml": YAML,
        "configs/plain.json": '{"model": {"shift": true}}',
        "train.py": text + NET.format(test=test),
        "other.py": text + NET.format(test=f"not ({test})"),
    }
    assert found(tmp_path, "train.py", files) == [("train.py", "stale-saved-tensor", "certain")]
    assert found(tmp_path, "other.py", files) == []


@pytest.mark.parametrize(
    "settings",
    [
        "model: !!python/tuple [1, 2]\n",
        "other: &a {shift: true}\nmodel: {<<: *a}\n",
        "model: |\n  shift: true\n",
        "- [1, 2\n",
    ],
)
def test_settings_that_are_not_understood_are_not_known(tmp_path, settings):
    text = PARSED.format(how="default='configs/plain.yaml'") + OPENED
    files = {
        "configs/plain.yaml": settings,
        "train.py": text + NET.format(test="cfg['model']['shift']"),
    }
    assert [e for *_, e in found(tmp_path, "train.py", files)] == ["likely"]


def test_a_file_outside_the_project_is_not_read(tmp_path):
    (tmp_path / "plain.yaml").write_text(YAML)
    text = PARSED.format(how="default='../plain.yaml'") + OPENED
    files = {"train.py": text + NET.format(test="cfg['model']['shift']")}
    assert [e for *_, e in found(tmp_path / "project", "train.py", files)] == ["likely"]


def test_the_parsers_file_of_settings(tmp_path):
    text = """
    import configargparse
    p = configargparse.ArgumentParser()
    p.add_argument("--config", is_config_file=True)
    p.add_argument("--shift", default=False)
    args = p.parse_args()
    """
    program = textwrap.dedent(text) + NET.format(test="args.shift")
    assert found(tmp_path, "train.py", {"train.py": program}) == []
    files = {"train.py": program, "configs/lego.txt": "name = lego\nshift = True\n"}
    assert found(tmp_path, "train.py", files) == [("train.py", "stale-saved-tensor", "certain")]


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]\n",
        "a: &a [1, 1]\n"
        + "".join(
            f"{n}: &{n} [*{p}, *{p}, *{p}]\n" for p, n in zip("abcdefghijk", "bcdefghijkl", strict=True)
        ),
        "a: &a {x: 1}\nb: {<<: *a}\n",
        "a: 2020-01-01\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "a: [1\n",
        "[" * 5000,
    ],
    ids=["itself", "laughs", "merged", "date", "tag", "open", "deep"],
)
def test_settings_that_are_not_read(text):
    with pytest.raises(settings.Strange):
        settings.read(text, ".yaml")


# ---- models built from settings


@pytest.mark.parametrize("made", ["eval(kind)(*args)", "getattr(nn, kind.split('.')[1])(*args)"])
def test_layers_that_are_named_in_a_file(tmp_path, made):
    layers = [f"  - [nn.Linear, [{n}, {n + 1}]]" for n in range(2, 20)]
    text = f"""
    import torch, yaml
    from torch import nn
    def build(spec):
        layers = []
        for kind, args in spec['layers']:
            for i, a in enumerate(args):
                try:
                    args[i] = eval(a) if isinstance(a, str) else a
                except NameError:
                    pass
            layers.append({made})
        return nn.Sequential(*layers)
    class Net(nn.Module):
        def __init__(self, path="net.yaml"):
            super().__init__()
            with open(path) as f:
                self.spec = yaml.safe_load(f)
            self.body = build(self.spec)
            last = self.body[-1]
            if isinstance(last, nn.Linear) and last.out_features == 20 and len(self.body) == 18:
                last.bias[0] += 1
    Net()
    """
    files = {"net.yaml": "layers:\n" + "\n".join(layers) + "\n", "net.py": text}
    got = found(tmp_path, "net.py", files)
    assert [kind for _, kind, _ in got] == ["leaf-write"]


@pytest.mark.parametrize(
    ("text", "value"), [("'nearest'", "text"), ("[2, 3]", "list"), ("width", "int"), ("-4", "int")]
)
def test_what_is_written_out_is_evaluated(tmp_path, text, value):
    program = f"""
    width = 4
    try:
        got = eval({text!r})
    except NameError:
        got = None
    """
    ask = {"text": "got == 'nearest'", "list": "got[1] == 3", "int": "abs(got) == 4"}[value]
    files = {"train.py": textwrap.dedent(program) + NET.format(test=ask)}
    assert found(tmp_path, "train.py", files) == [("train.py", "stale-saved-tensor", "certain")]


def test_a_name_that_nobody_has_is_an_error_to_eval(tmp_path):
    program = "try:\n    got = eval('nearest')\nexcept NameError:\n    got = 'nearest'\n"
    files = {"train.py": program + NET.format(test="got == 'nearest'")}
    assert [kind for _, kind, _ in found(tmp_path, "train.py", files)] == ["stale-saved-tensor"]


# ---- what comes late


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("for step in range(5000):\n    late = step > 1000", ["likely"]),
        ("for step in range(5000):\n    late = step + 1 >= 4000", ["likely"]),
        ("for step in range(5000):\n    late = 1000 < step < 2000", []),
        ("for step in range(100):\n    late = step > 1000", []),
        ("for step in range(5000):\n    late = not step % 2 and not (step + 1) % 2 and step > 9", []),
        ("start = load()\nfor step in range(start, 5000):\n    late = step >= 1000", ["likely"]),
    ],
)
def test_what_waits_for_a_late_pass_comes_about(tmp_path, loop, expected):
    text = f"""
import torch
from somewhere import data, load
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
{loop}
    out = net(torch.ones(1, 2)).exp()
    if late:
        out += 1
    opt.zero_grad()
    out.sum().backward()
    opt.step()
"""
    assert [e for *_, e in found(tmp_path, "train.py", {"train.py": text})] == expected


def test_what_happens_every_so_often_keeps_its_turn(tmp_path):
    text = """
    import torch
    net = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    kept = None
    for step in range(90_000):
        if step % 4 == 0:
            kept = net(torch.ones(1, 2)).exp()
        if step % 4 == 1:
            opt.zero_grad()
            kept.sum().backward()
            opt.step()
        if step > 80_000:
            print("late")
    """
    assert found(tmp_path, "train.py", {"train.py": text}) == []


# ---- what is entered by itself


@pytest.mark.parametrize(
    "body",
    [
        "batch['out'] = torch.relu(self.a(batch['x']))\n        batch['out'] = batch['out'] + 1\n        return batch",
        "y = torch.sigmoid(batch)\n        batch['y'] = y\n        return y",
        "batch['a'], batch['b'] = self.a(batch['x']).max(-1)\n        return batch",
    ],
)
def test_what_is_asked_by_name_is_no_tensor(tmp_path, body):
    text = f"""
import torch
class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
    def forward(self, batch):
        {body}
"""
    assert found(tmp_path, "part.py", {"part.py": text}) == []


@pytest.mark.parametrize(("before", "kinds"), [("", []), ("xs = xs.exp()", ["forbidden-view-write"])])
def test_what_is_joined_is_a_list(tmp_path, before, kinds):
    """(Unless it was bound anew: torch.cat takes no tensor.)"""
    text = f"""
    import torch
    class Adapter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.alphas = torch.nn.Parameter(torch.randn(3))
        def forward(self, xs):
            {before}
            for i, x in enumerate(xs):
                xs[i] = self.alphas[i] * x
            return torch.cat(xs, dim=1)
    """
    assert [kind for _, kind, _ in found(tmp_path, "part.py", {"part.py": text})] == kinds


def test_what_an_argument_has_under_a_name_may_be_a_tensor(tmp_path):
    text = """
    import torch
    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(2, 2)
        def forward(self, batch):
            batch["hidden"] = self.a(batch["x"]).exp()
            batch["hidden"] *= batch["mask"]
            return batch
    """
    assert found(tmp_path, "part.py", {"part.py": text}) == [("part.py", "stale-saved-tensor", "certain")]


def test_a_function_that_is_given_nothing_it_takes(tmp_path):
    text = "import torch\ntorch.nn.functional.max_pool1d(inputs=torch.ones(1, 2, 3)).sum().backward()\n"
    assert found(tmp_path, "train.py", {"train.py": text}) == []


def test_a_function_that_is_given_its_input_by_name(tmp_path):
    text = """
    import torch
    x = torch.ones(1, 2, 4, requires_grad=True) * 2
    y = torch.nn.functional.max_pool1d(input=x, kernel_size=2)
    x += 1
    y.sum().backward()
    """
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "stale-saved-tensor", "certain")]


PARTS = """
import torch
class Trainer:
    def __init__(self, opt):
        self.first = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
        self.second = torch.nn.Linear(2, 2)
        self.opts = [torch.optim.SGD(n.parameters(), lr=0.1) for n in (self.first, self.second)]
        self.opt = opt
    def improve(self, loss, i):
        self.opts[i].zero_grad()
        loss.backward(retain_graph=True)
        self.opts[i].step()
    def {name}(self, loader):
        {before}
        for x in loader:
            hidden = self.first(x)
            out = self.second(hidden)
            for i, loss in enumerate((hidden.mean(), out.mean())):
                self.improve(loss, i)
"""


@pytest.mark.parametrize(
    ("name", "before"),
    [
        ("train", "self.first.train()"),
        ("train", "for n in (self.first, self.second): n.train()"),
        ("fit", "self.first.train()"),
    ],
)
def test_a_method_is_entered_that_calls_what_is_called_like_it(tmp_path, name, before):
    got = found(tmp_path, "trainer.py", {"trainer.py": PARTS.format(name=name, before=before)})
    assert [kind for _, kind, _ in got] == ["stale-saved-tensor"]


def test_what_an_object_begins_with_another_method_may_have_replaced(tmp_path):
    text = """
    import torch
    class Template:
        def __init__(self, model):
            self.model, self.loss = model, torch.zeros(1)
        def step(self, x):
            raise NotImplementedError
        def backward(self):
            self.loss.backward()
    class Own(Template):
        def backward(self):
            self.loss = torch.zeros(1)
            self.loss.backward()
    """
    got = found(tmp_path, "template.py", {"template.py": text})
    assert got == [("template.py", "cut-graph", "certain")]  # the second one


def test_a_module_that_is_only_called(tmp_path):
    text = """
    import torch
    class Edge(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
        def __call__(self, x):
            y = torch.relu(self.norm(x))
            y[:, 0] = 0
            return x * y
    class Other(torch.nn.Module):
        def forward(self, x):
            return x
    """
    assert found(tmp_path, "edge.py", {"edge.py": text}) == [("edge.py", "stale-saved-tensor", "certain")]


@pytest.mark.parametrize(
    ("argument", "place", "expected"),
    [
        ("dropout=0.0", "True", ["likely"]),
        ("drop_rate=0", "True", ["likely"]),
        ("dropout=0.0", "False", []),
        ("rate=0.0", "True", []),
        ("dropout=0.3", "True", ["certain"]),
    ],
)
def test_a_dropout_that_somebody_may_ask_for(tmp_path, argument, place, expected):
    text = f"""
    import torch
    from torch import nn
    class Head(nn.Module):
        def __init__(self, width, {argument}):
            super().__init__()
            rate = {argument.partition("=")[0]}
            drop = nn.Dropout(rate, inplace={place})
            self.main = nn.Sequential(nn.Linear(width, 4), nn.ReLU(), drop, nn.Linear(4, 1))
        def forward(self, x):
            return self.main(x)
    """
    assert [e for *_, e in found(tmp_path, "head.py", {"head.py": text})] == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("from framework.models import BaseModel", ["stale-saved-tensor"]),
        ("from framework import MessagePassing as BaseModel", ["stale-saved-tensor"]),
        ("from framework import Dataset as BaseModel", []),
        ("from paddle.nn import Layer as BaseModel", []),
    ],
)
def test_a_module_of_a_librarys_own_kind(tmp_path, base, expected):
    text = f"""
    import torch
    {base}
    class Head(BaseModel):
        def __init__(self):
            super().__init__()
            self.main = torch.nn.Linear(2, 2)
        def forward(self, x):
            y = self.main(x).exp()
            y += 1
            return y
    """
    assert [kind for _, kind, _ in found(tmp_path, "head.py", {"head.py": text})] == expected


# ---- networks that other packages make

BACKBONES = """
import torch
from torch import nn
from torchvision import models
import timm
from torch_geometric.nn import GATConv, GINConv, SAGEConv
from somewhere import asked, loader
"""


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        ("models.resnet50(pretrained=True)", ["stale-saved-tensor"]),
        ("timm.create_model('resnet18')", ["stale-saved-tensor"]),
        ("models.vgg16().features[:10]", []),
        ("models.resnet18().layer4", []),
        ("nn.DataParallel(models.resnet18())", ["stale-saved-tensor"]),
        ("timm.create_model('resnet18', features_only=True)", []),
        ("SAGEConv(2, 2)", ["stale-saved-tensor"]),
        ("GINConv(nn.Linear(2, 2))", []),
        ("models.detection.fasterrcnn_resnet50_fpn()", []),
        ("nn.Sequential(*list(models.resnet18().children())[:-1])", []),
        ("nn.Sequential(*[m for _, m in models.resnet18().named_children()])", []),
    ],
)
def test_a_network_of_a_librarys_has_weights(tmp_path, net, expected):
    text = (
        BACKBONES
        + f"""
judge = {net}
source = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
first = torch.optim.Adam(source.parameters())
second = torch.optim.Adam(judge.parameters())
for x in loader:
    score = judge(source(x)).mean()
    second.zero_grad()
    score.backward(retain_graph=True)
    second.step()
    first.zero_grad()
    (-score).backward()
    first.step()
"""
    )
    kinds = {kind for _, kind, _ in found(tmp_path, "train.py", {"train.py": text})}
    assert kinds == set(expected)


@pytest.mark.parametrize(
    "freeze",
    [
        "for name, p in net.named_parameters():\n    if 'fc' not in name:\n        p.requires_grad = False",
        "for child in list(net.children())[:6]:\n    for p in child.parameters():\n        p.requires_grad = False",
        "for p in net.layer1.parameters():\n    p.requires_grad = False",
        "net.layer1.requires_grad_(False)",
        "for p in net.parameters():\n    p.requires_grad = False\nnet.fc = nn.Linear(net.fc.in_features, 2)",
        "if asked():\n    for p in net.parameters():\n        p.requires_grad = False",
        "net.eval()",
    ],
)
def test_a_network_some_of_which_is_frozen_learns(tmp_path, freeze):
    text = (
        BACKBONES
        + f"""
net = models.resnet50()
{freeze}
opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
for x, y in loader:
    opt.zero_grad()
    nn.CrossEntropyLoss()(net(x), y).backward()
    opt.step()
"""
    )
    assert found(tmp_path, "train.py", {"train.py": text}) == []


@pytest.mark.parametrize(
    ("more", "expected"), [("", ["stale-saved-tensor"]), (", return_attention_weights=True", [])]
)
def test_a_graph_convolution_makes_one_tensor_unless_it_is_asked_for_more(tmp_path, more, expected):
    text = (
        BACKBONES
        + f"""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GATConv(4, 4)
    def forward(self, x, edges, users):
        x = nn.functional.relu(self.conv(x, edges{more}))
        x[users] = x[users] + 1
        return x
"""
    )
    assert [kind for _, kind, _ in found(tmp_path, "train.py", {"train.py": text})] == expected


def test_a_network_is_gone_through_part_by_part(tmp_path):
    text = (
        BACKBONES
        + """
def groups(module, found):
    for name, p in module.named_parameters(recurse=False):
        if p.requires_grad:
            found.append(p)
    for name, child in module.named_children():
        groups(child, found)
    return found
net = models.resnet50()
body = nn.Sequential(*list(net.children())[:-2])
opt = torch.optim.SGD(groups(net, []), lr=0.1)
kept = 0
for x, y in loader:
    kept = kept + body(x).sum()
    opt.zero_grad()
    kept.backward()
    opt.step()
"""
    )
    assert [kind for _, kind, _ in found(tmp_path, "train.py", {"train.py": text})] == ["freed-graph"]


def test_a_network_all_of_which_is_frozen_does_not_learn(tmp_path):
    text = (
        BACKBONES
        + """
net = models.resnet50()
for p in net.parameters():
    p.requires_grad = False
net(torch.ones(1, 3, 8, 8)).mean().backward()
"""
    )
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "cut-graph", "certain")]


def test_parts_of_a_network_that_are_called_one_by_one(tmp_path):
    text = (
        BACKBONES
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = models.resnet18()
        self.head = nn.Linear(512, 2)
    def forward(self, a, b):
        if a is None:
            return None
        x = self.body.maxpool(self.body.relu(self.body.bn1(self.body.conv1(a))))
        return self.head(self.body.layer1(x).mean((2, 3)))
net = Net()
opt = torch.optim.Adam(net.parameters())
losses = 0
for a, b in loader:
    losses = losses + net(a, b).sum()
    opt.zero_grad()
    losses.backward()
    opt.step()
"""
    )
    assert [kind for _, kind, _ in found(tmp_path, "train.py", {"train.py": text})] == ["freed-graph"]


CHOSEN = """
import torch
from torch import nn
from settings import method

def spiked(x):
    if method == "hard":
        return {first}
    elif method == "soft":
        return torch.sigmoid(x)
    raise ValueError(method)

net = nn.Linear(3, 1)
spiked(net(torch.randn(2, 3))).sum().backward()
"""


@pytest.mark.parametrize("first", ["(x > 0).float()", "x.detach()"])
def test_a_branch_that_may_not_be_the_one_says_nothing_of_the_graph(first, tmp_path):
    text = CHOSEN.format(first=first)
    assert found(tmp_path, "train.py", {"train.py": text}) == []
    text = text.replace("from settings import method", "method = 'hard'")
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "cut-graph", "certain")]


SHARED = """
import torch, torch.nn as nn
shared = nn.Linear(3, 1); local = nn.Linear(3, 1); local.load_state_dict(shared.state_dict())
opt = torch.optim.SGD(shared.parameters(), .1)
for _ in range(3):
    loss = local(torch.randn(4, 3)).pow(2).mean()
    opt.zero_grad(); local.zero_grad(); loss.backward()
    for lp, gp in zip(local.parameters(), shared.parameters()):
        {handed}
    opt.step(); local.load_state_dict(shared.state_dict())
"""


@pytest.mark.parametrize("name", ["grad", "_grad"])
@pytest.mark.parametrize("value", ["lp.grad", "lp.grad.clone()", "lp._grad"])
def test_gradients_handed_to_a_shared_model_are_its_own_by_either_name(name, value, tmp_path):
    text = SHARED.format(handed=f"gp.{name} = {value}")
    assert found(tmp_path, "train.py", {"train.py": text}) == []
    text = SHARED.format(handed="pass")
    assert found(tmp_path, "train.py", {"train.py": text}) == [("train.py", "stray-optimizer", "certain")]


EXPANDED = """
import torch
b = torch.ones({size}, requires_grad=True)
x = (b * 2).expand({to})
{write}
x.sum().backward()
"""


@pytest.mark.parametrize(
    ("size", "to", "write", "refused"),
    [
        ("4", "3, 4", "x[0, 0] = 1.", False),
        ("4", "3, 4", "x[0] = 1.", False),
        ("4", "3, 4", "x[0] *= 3", False),
        ("4", "3, 4", "x[-1:] = 1.", False),
        ("4", "3, 4", "x[None, ..., 1, :] = 1.", False),
        ("4", "3, 4", "x.t()[:, 0] = 1.", False),
        ("4", "3, 4", "x[torch.tensor([0, 1])] = 1.", False),  # (a warning: deprecated)
        ("4", "3, 4", "x.fill_(1.)", False),
        ("4", "3, 4", "x.masked_fill_(torch.ones(3, 4) > 0, 0.)", False),
        ("3, 1", "3, 4", "x[:, 0] = 1.", False),
        ("3, 4", "3, 4", "x[:, 0] = 1.", False),
        ("4", "1, 4", "x += 1.", False),
        ("4", "3, 4", "import sys; n = int(sys.argv[1]); x[:n] = 1.", False),  # (one, maybe)
        ("4", "3, 4", "x += 1.", True),
        ("4", "3, 4", "x[:] = 1.", True),
        ("4", "3, 4", "x[:, 0] = 1.", True),
        ("4", "3, 4", "x[..., 0] *= 3", True),
        ("4", "3, 4", "x[1:] *= 3", True),
        ("4", "3, 4", "x.t()[0] = 1.", True),
        ("3, 1", "3, 4", "x[0] = 1.", True),
        ("3, 1", "-1, 4", "x[0] = 1.", True),
    ],
)
def test_of_an_expanded_tensor_what_has_no_element_twice_may_be_written(size, to, write, refused, tmp_path):
    text = EXPANDED.format(size=size, to=to, write=write)
    said = [("train.py", "forbidden-view-write", "certain")] if refused else []
    assert found(tmp_path, "train.py", {"train.py": text}) == said
    raises = (
        pytest.raises(RuntimeError, match="single memory location") if refused else contextlib.nullcontext()
    )
    with raises, warnings.catch_warnings(action="ignore"):
        run = text.replace("int(sys.argv[1])", "1").replace("x.sum().backward()", "")
        exec(compile(run, "train.py", "exec"), {})


@pytest.mark.parametrize(
    ("made", "viewed", "written", "said"),
    [
        ("w * 2", "h[:1]", "v.mul_(2)", "no-grad-view"),
        ("w * 2", "h[:1]", "v[0] = 1.", "no-grad-view"),
        ("w * 2", "h.view(2, 2)", "v += 1", "no-grad-view"),
        ("w * 2", "h.chunk(2)[0]", "v += 1", "no-grad-view"),
        ("w", "h[:2]", "v += 1", "no-grad-view"),
        ("w", "h", "v += 1", "leaf"),
        ("w", "h.flatten()", "v += 1", "view"),
        ("w * 2", "h.flatten()", "v += 1", ""),  # (the same tensor)
        ("w * 2", "h.detach()[:1]", "v += 1", ""),
        ("w * 2", "h.data[:1]", "v += 1", ""),
        ("w * 2", "h[[0]]", "v += 1", ""),
        ("torch.ones(4)", "h[:1]", "v += 1", ""),
        ("torch.ones(4)", "h[:1]", "v += w.sum()", "no-grad-view"),
        ("torch.ones(4)", "h.view(2, 2)", "v[0, 0] = w.sum()", "no-grad-view"),
        ("torch.ones(4)", "h.detach()", "v += w.sum()", ""),
        ("w * 2", "h.detach()[:1]", "v += w.sum()", "no-grad-view"),
    ],
)
def test_a_view_that_no_grad_made_is_not_written_with_gradients_on(made, viewed, written, said, tmp_path):
    text = f"""
import torch
w = torch.ones(4, requires_grad=True)
h = {made}
with torch.no_grad():
    v = {viewed}
    v.mul_(2)
{written}
(w * 3).sum().backward()
"""
    (tmp_path / "train.py").write_text(text)
    (reading,) = read(tmp_path / "train.py", text, root=tmp_path, idle=False)
    assert [c.pattern for c in detect(reading.tape) if c.kind in ("leaf-write", "forbidden-view-write")] == (
        [said] if said else []
    )
    raises = (
        pytest.raises(RuntimeError, match=r"no_grad mode|leaf Variable") if said else contextlib.nullcontext()
    )
    with raises:
        exec(compile(text, "train.py", "exec"), {})


@pytest.mark.parametrize("cast", [".double()", ""])
def test_what_an_attribute_holds_is_no_leaf_either(cast, tmp_path):
    """No backward says so: PyTorch refuses where the optimizer is made."""
    text = f"""
import torch
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(3, 2)){cast}
scale = Scale()
opt = torch.optim.SGD([scale.w], 0.1)
"""
    said = [("train.py", "missing-grad", "certain")] if cast else []
    assert found(tmp_path, "train.py", {"train.py": text}) == said
