"""The symbolic run on what public packages and training repositories have in them: where it was wrong once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import Conflict, detect
from gradfix.read import read


def conflicts(tmp_path: Path, text: str) -> list[tuple[str, Conflict]]:
    """(evidence, conflict) above a note of a program that begins with the usual imports."""
    path = tmp_path / "train.py"
    head = "import torch\nfrom torch import nn\nfrom somewhere import Net, batches\n"
    return [
        (reading.evidence(conflict), conflict)
        for reading in read(path, head + textwrap.dedent(text))
        for conflict in detect(reading.tape)
        if conflict.severity != "note"
    ]


def kinds(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    return [(evidence, conflict.kind) for evidence, conflict in conflicts(tmp_path, text)]


@pytest.mark.parametrize(
    "loss",
    [
        "nn.NLLLoss()(out, torch.tensor([1]))",
        "torch.index_select(out, 0, torch.tensor([0, 1])).sum()",
        "out.gather(1, torch.tensor([[1]])).sum()",
        "torch.gather(out, 1, torch.tensor([[1]])).sum()",
    ],
)
def test_the_loss_of_an_unknown_models_output_and_integers_may_have_a_graph(tmp_path, loss):
    assert kinds(tmp_path, f"out = Net()(torch.ones(1, 2))\n({loss}).backward()\n") == []


def test_integers_alone_have_no_graph(tmp_path):
    text = "torch.index_select(torch.ones(3, dtype=torch.long), 0, torch.tensor([0, 1])).sum().backward()\n"
    assert kinds(tmp_path, text) == [("certain", "cut-graph")]


@pytest.mark.parametrize(
    ("drop", "expected"),
    [
        ("nn.Dropout(0.0, inplace=True)", []),
        ("nn.Dropout(p=0, inplace=True)", []),
        ("nn.Dropout(float(input()), inplace=True)", ["likely"]),
        ("nn.Dropout(0.1, inplace=True)", ["certain"]),
        ("nn.Dropout(inplace=True)", ["certain"]),
        ("(lambda x: nn.functional.dropout(x, 0.2, inplace=True))", ["certain"]),
        ("(lambda x: nn.functional.dropout(x, training=False, inplace=True))", []),
    ],
)
def test_a_dropout_of_nothing_writes_nothing(tmp_path, drop, expected):
    text = f"""\
    net, drop = nn.Linear(2, 2), {drop}
    drop(net(torch.ones(1, 2)).softmax(1)).sum().backward()
    """
    assert kinds(tmp_path, text) == [(evidence, "stale-saved-tensor") for evidence in expected]


def test_what_takes_a_list_of_tensors_is_a_list(tmp_path):
    text = """\
    class Fuse(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(2, 2, 1) for _ in range(3)])

        def forward(self, features):
            features[1:] = [conv(f) for conv, f in zip(self.convs, features[1:])]
            return sum(f.sum() for f in features)
    """
    assert kinds(tmp_path, text) == []


def test_a_parser_of_the_users_own_class(tmp_path):
    text = """\
    import argparse

    class Parser(argparse.ArgumentParser):
        def __init__(self):
            super(Parser, self).__init__()
            self.add_argument("--rate", type=float, default=0.1)

    net = nn.Linear(2, 1)
    for p in net.parameters():
        p -= Parser().parse_args().rate
    """
    assert kinds(tmp_path, text) == [("certain", "leaf-write")]


def test_a_loss_that_may_have_a_graph_may_fill_any_gradient(tmp_path):
    text = """\
    net = nn.Linear(2, 1)
    with torch.no_grad():
        net(torch.ones(1, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in range(3):
        loss = nn.functional.mse_loss(Net(net)(x), torch.ones(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    assert kinds(tmp_path, text) == []


@pytest.mark.parametrize(
    "refusal",
    [
        "if not torch.cuda.is_available():\n        raise SystemExit('no GPU')",
        "if cuda and not torch.cuda.is_available():\n        raise Exception('no GPU')",
        "if not torch.cuda.is_bf16_supported():\n        raise ValueError",
        "if torch.cuda.device_count() < 1:\n        raise RuntimeError",
    ],
)
def test_a_program_that_wants_a_gpu_is_read_as_where_there_is_one(tmp_path, refusal):
    text = f"""\
    cuda = True
    {refusal}
    w = torch.ones(2, requires_grad=True)
    w += 1
    """
    assert kinds(tmp_path, text) == [("certain", "leaf-write")]


def test_a_program_that_gives_up_for_another_reason_ends_there(tmp_path):
    text = "if 1 + 1 == 2:\n    raise SystemExit\nw = torch.ones(2, requires_grad=True)\nw += 1\n"
    assert kinds(tmp_path, text) == []


def test_what_is_told_to_require_grad_is_a_tensor(tmp_path):
    text = """\
    image = batches()
    image.requires_grad = True
    for channel in image.clone()[0]:
        channel.mul_(2)
    """
    assert kinds(tmp_path, text) == [("certain", "forbidden-view-write")]
    assert kinds(tmp_path, text.replace("True", "bool(input())")) == []


def test_a_transform_of_transforms(tmp_path):
    text = """\
    from torchvision import transforms

    class Normalize:
        def __call__(self, tensor):
            for t in tensor:
                t.sub_(0.5)
            return tensor

    normalize = transforms.Compose([transforms.Resize(8), Normalize()])
    plain = transforms.Compose([Normalize()])
    w = torch.ones(3, requires_grad=True)
    normalize(w * 2).sum().backward()
    """
    assert kinds(tmp_path, text) == []
    again = textwrap.dedent(text) + "plain(w * 2).sum().backward()\n"
    assert kinds(tmp_path, again) == [("certain", "forbidden-view-write")]


def test_a_model_of_many_listed_layers_is_built_whole(tmp_path):
    text = """\
    class Model(nn.Module):
        def __init__(self, sizes):
            super().__init__()
            self.last = None
            for i, size in enumerate(sizes):
                layer = nn.Linear(size, size)
                if i == 20:
                    self.last = layer
            self.last.bias[0] += 1

    Model([2] * 30)
    """
    assert kinds(tmp_path, text) == [("certain", "leaf-write")]


def test_a_layer_of_a_loaded_model_whichever_it_is(tmp_path):
    text = """\
    class Encoder(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.layer = nn.ModuleList([nn.Linear(2, 2) for _ in range(config.layers)])

        @classmethod
        def load(cls, config):
            model = cls(config)

            def fill(module):
                for child in module._modules.values():
                    fill(child)

            fill(model)
            return model

    model = Encoder.load(Net.config())
    model.layer[int(input())].weight[:, 0] -= 1
    """
    assert kinds(tmp_path, text) == [("certain", "leaf-write")]


EVALUATED = """\
net = torch.nn.Linear(2, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)

def train():
    opt.zero_grad()
    net(torch.randn(3, 2)).sum().backward()
    opt.step()

def evaluate(on=False):
    {off}
    return net(torch.randn(3, 2)).argmax()

for epoch in range(3):
    train()
    evaluate()
"""


def test_gradients_that_a_function_turns_off_stay_off(tmp_path):
    assert set(kinds(tmp_path, EVALUATED.format(off="torch.set_grad_enabled(False)"))) == {
        ("certain", "cut-graph")
    }


@pytest.mark.parametrize(
    "off",
    [
        "torch.set_grad_enabled(False); torch.set_grad_enabled(bool(input()))",
        "with torch.set_grad_enabled(False): pass",
        "if input(): torch.set_grad_enabled(False)",
    ],
)
def test_gradients_that_may_be_on_again_are(tmp_path, off):
    assert kinds(tmp_path, EVALUATED.format(off=off)) == []


@pytest.mark.parametrize("nothing", ["None", "[]"])
def test_what_returns_nothing_after_a_test_that_is_not_known_may_have_returned_something(tmp_path, nothing):
    text = f"""\
    def files(folder):
        if input():
            return folder.glob("*")
        return {nothing}

    net = torch.nn.Linear(2, 2)
    found = files("data")
    for epoch in range(3):
        if not found:
            break
        value = net(torch.randn(3, 2)).exp()
        value += 1
        value.sum().backward()
    """
    assert set(kinds(tmp_path, text)) == {("certain", "stale-saved-tensor")}


@pytest.mark.parametrize("moved", ["cuda()", "to('cuda')", "cpu()"])
def test_data_on_another_device_is_not_asked_for_the_gradients_of_what_is_there(tmp_path, moved):
    text = f"""\
    net = torch.nn.Linear(2, 2)
    image = torch.randn(3, 2)

    def saliency(x):
        x = x.{moved}
        x.requires_grad_()
        net(x).sum().backward()
        return x.grad

    saliency(image)
    noisy = image + torch.randn(3, 2)
    noisy.requires_grad_()
    net(noisy).sum().backward()
    print(noisy.grad.abs())
    """
    assert kinds(tmp_path, text) == []


def test_a_package_that_imports_a_module_of_its_own_by_name(tmp_path):
    package = tmp_path / "layers"
    package.mkdir()
    (package / "__init__.py").write_text("from .field import *\nfrom . import kinds\n")
    (package / "field.py").write_text(
        "from torch import nn\nfrom . import kinds\n\nclass Field(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.inner = kinds.make()\n\n"
        "    def forward(self, x):\n        value = self.inner(x).exp()\n        value += 1\n        return value\n"
    )
    (package / "kinds.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(2, 2)\n")
    text = "import layers\nlayers.Field()(torch.randn(3, 2)).sum().backward()\n"
    assert set(kinds(tmp_path, text)) == {("certain", "stale-saved-tensor")}


KEPT = """
import torch
from torch import nn
import neurons

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = 0.0
    def forward(self, x):
        self.state = self.state * 0.5 + x
        return torch.tanh(self.state)

net = nn.Sequential(nn.Linear(3, 3), Cell())
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad()
    net(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    neurons.reset({what})
"""


@pytest.mark.parametrize(("what", "expected"), [("net", []), ("[net]", []), ("0", ["freed-graph"])])
def test_a_library_that_gets_the_network_may_clear_its_state(what, expected, tmp_path):
    assert [kind for _, kind in kinds(tmp_path, KEPT.format(what=what))] == expected


TOGGLED = """
net, judge = nn.Linear(4, 2), nn.Linear(2, 1)
mine = torch.optim.SGD(net.parameters(), 0.1)
theirs = torch.optim.SGD(judge.parameters(), 0.1)
for step in range(6):
    mine.zero_grad()
    theirs.zero_grad()
    loss = judge(net(torch.randn(8, 4)).detach()).mean()
    loss.backward()
    theirs.step()
    made = net(torch.randn(8, 4))
    loss = judge({made}).mean()
    {frozen}
    loss.backward()
    mine.step()
"""


def test_a_cut_that_another_loss_was_made_for_is_not_to_blame(tmp_path):
    frozen = "for p in net.parameters(): p.requires_grad = False"
    assert kinds(tmp_path, TOGGLED.format(made="made", frozen=frozen)) == []
    (found,) = conflicts(tmp_path, TOGGLED.format(made="made.detach()", frozen="pass"))
    assert (found[1].kind, found[1].at.line) == ("cut-graph", 15)


REPLACED = """
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for epoch in range(4):
    if epoch == 2:
        net[2] = nn.Linear(4, 2)
    optimizer.zero_grad()
    net(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""


def test_a_layer_of_no_name_that_was_replaced(tmp_path):
    assert [kind for _, kind in kinds(tmp_path, REPLACED)] == ["stray-optimizer"]


def test_what_goes_down_into_something_unknown_does_not_use_up_what_may_be_read(tmp_path):
    text = """
    def layers(module, kinds=[nn.Linear], name=""):
        if type(module) in kinds:
            return {name: module}
        found = {}
        for inner, child in module.named_children():
            found.update(layers(child, kinds=kinds, name=name + "." + inner if name != "" else inner))
        return found

    def prune(net, x):
        for layer in net.layers:
            for _ in range(4):
                known = layers(layer)
        scale = torch.ones(3, requires_grad=True)
        for _ in range(2):
            (scale * x).sum().backward()
            scale -= 0.1 * scale.grad
    """
    assert ("certain", "leaf-write") in kinds(tmp_path, text)


@pytest.mark.parametrize(
    "read",
    [
        "Settings(yaml.safe_load(open('a.yaml')))",
        "Settings(**yaml.safe_load(open('a.yaml')))",
        "show(yaml.safe_load(open('a.yaml')))",
        "flat(json.load(open('a.json')))",
    ],
)
def test_settings_within_settings_do_not_use_up_what_may_be_read(tmp_path, read):
    text = f"""
    import json, yaml

    class Settings(dict):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for key, value in self.items():
                if isinstance(value, dict):
                    self[key] = Settings(value)
                for each in value:
                    Settings(**each)

    def show(settings, logger="base", tab=""):
        for key, value in settings.items():
            for each in value:
                if isinstance(each, dict):
                    show(each, logger, tab + "  ")
            if isinstance(value, dict):
                show(value, logger, tab + "  ")

    def flat(settings, *, path=()):
        for key, value in settings.items():
            for each in value:
                flat(value, path=(key, 1))
            flat(value, path=(key, 1))

    {read}
    scale = torch.ones(3, requires_grad=True)
    for x in batches:
        (scale * x).sum().backward()
        scale -= 0.1 * scale.grad
    """
    assert ("certain", "leaf-write") in kinds(tmp_path, text)


@pytest.mark.parametrize(("depth", "expected"), [("3", "certain"), ("len(batches)", "likely")])
def test_what_calls_itself_with_something_else_each_time_is_followed(tmp_path, depth, expected):
    text = f"""
    out = nn.Linear(2, 2)(torch.ones(1, 2)).exp().sum()

    def again(what, left):
        if left > 0:
            again(what, left - 1)
        else:
            out.backward()

    again(batches, {depth})
    again(batches, {depth})
    """
    assert list(kinds(tmp_path, text)) == [(expected, "freed-graph")]


@pytest.mark.parametrize(
    ("test", "expected"), [('given == ""', ["stale-saved-tensor"]), ('given == "raw"', [])]
)
def test_what_is_not_known_is_not_empty(tmp_path, test, expected):
    text = f"""
    def loss(out, scale):
        if scale is not None:
            out /= scale
        return out.sum()

    net, given, scale = nn.Linear(3, 3), input(), torch.ones(3)
    for x in batches:
        loss(net(x).tanh(), None if {test} else scale).backward()
    """
    assert [kind for _, kind in kinds(tmp_path, text) if kind == "stale-saved-tensor"] == expected


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ("adapters.parameters()", []),
        ("[p for a in adapters for p in a.parameters()]", []),
        ("own.parameters()", ["cut-graph"]),
    ],
)
def test_what_an_optimizer_trains_that_is_not_known_may_be_in_a_frozen_network(tmp_path, trained, expected):
    text = f"""
    net, own = nn.Linear(3, 3), nn.Linear(3, 3)
    net.requires_grad_(False)
    adapters = Net.around(net)
    optimizer = torch.optim.Adam({trained})
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    """
    assert [kind for _, kind in kinds(tmp_path, text)] == expected


def test_a_tensor_of_a_type_that_is_not_known_may_be_of_real_numbers(tmp_path):
    """Tests take the type as an argument, and write whole numbers."""
    text = """
    def test(kind):
        {}
        (x.requires_grad_() * 2).sum().backward()
    """
    made = [
        "x = torch.tensor([1, 2], dtype=kind)",
        "x = torch.arange(3, dtype=kind)",
        "x = torch.tensor([1, 2]).to(dtype=kind)",
        "x = torch.zeros_like(torch.tensor([1, 2]), dtype=kind)",
        "x = torch.tensor([1, 2]).new_zeros(2, dtype=kind)",
        "x = torch.tensor([1, 2]).sum(0, dtype=kind)",
    ]
    for each in made:
        assert kinds(tmp_path, textwrap.dedent(text).format(each)) == [], each
    assert [kind for _, kind in kinds(tmp_path, textwrap.dedent(text).format("x = torch.tensor([1, 2])"))]


def test_a_block_that_is_there_to_be_refused(tmp_path):
    text = """
    import pytest, unittest
    def test():
        x = torch.ones(3, requires_grad=True)
        y = x.exp()
        with pytest.raises(RuntimeError, match="inplace"):
            y.add_(1)
            y.sum().backward()
    class Test(unittest.TestCase):
        def test(self):
            x = torch.ones(3)
            with self.assertRaises(RuntimeError):
                z = (x * 2).sum()
                z.backward()
            z.backward()
            {}
    """
    assert kinds(tmp_path, text.format("")) == []
    again = "y = x.requires_grad_().exp(); y.add_(1); y.sum().backward()"
    assert kinds(tmp_path, text.format(again)) == [("certain", "stale-saved-tensor")]


PATCHED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(3), requires_grad=False)
    def forward(self, x):
        with torch.no_grad():
            return x * self.w
def patch(module):
    old = module.forward
    def forward(x):
        return x * 2 + old(x)
    module.forward = forward
def test():
    net = Net()
    for module in nn.ModuleList([net]).modules():
        if TEST:
            patch(module)
    net(torch.ones(3, requires_grad=True)).sum().backward()
"""


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("unknown(module)", []),
        ("{c.__name__ for c in type(module).__mro__} & {'Net', 'Other'}", []),
        ("{unknown(c) for c in (1, 2)} & {'Net'}", []),
        ("{c.__name__ for c in type(module).__mro__} & {'Other'}", ["cut-graph"]),
    ],
)
def test_a_method_that_may_have_been_replaced(tmp_path, test, expected):
    assert [kind for _, kind in kinds(tmp_path, PATCHED.replace("TEST", test))] == expected


def test_what_is_taken_into_a_dictionary_is_not_nothing(tmp_path):
    """Where it is not known: the parameters of a function that may be a module."""
    text = """
    def parts(f, given=None):
        if isinstance(f, nn.Module):
            return {**dict(f.named_parameters())}
        return {"given": given}
    class Solved(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, *given):
            return x * 2
        @staticmethod
        def backward(ctx, grad):
            return None, grad
    def test():
        w = torch.ones(3).clone().detach().requires_grad_()
        Solved.apply(torch.ones(3), *parts(FIRST, w).values()).sum().backward()
    """
    assert kinds(tmp_path, text.replace("FIRST", "lambda x: x")) == []
    assert kinds(tmp_path, text.replace("FIRST", "Net()")) == []
    assert kinds(tmp_path, text.replace("FIRST", "nn.ReLU()")) == [("certain", "cut-graph")]


def test_one_size_that_is_not_known_may_be_all_of_them(tmp_path):
    text = """
    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(torch.empty(4))
        def forward(self, x, mask=None):
            mask = x.new_ones(SIZES)
            ends = mask.long().sum(dim=0) - 1
            score = self.first + x[0]
            return score, [[score[i][:ends[i]], ends[i].item()] for i in range(3)]
    """
    assert kinds(tmp_path, text.replace("SIZES", "x.shape[:2]")) == []
    assert kinds(tmp_path, text.replace("SIZES", "4")) == [("certain", "legacy-api")]


def test_a_closure_is_called_with_gradients_on(tmp_path):
    text = """
    net = nn.Linear(2, 1)
    opt = torch.optim.LBFGS(net.parameters())
    def closure():
        opt.zero_grad()
        loss = net(torch.ones(4, 2)).mean()
        loss.backward()
        return loss
    with torch.no_grad():
        opt.step(closure)
        {}
    """
    assert kinds(tmp_path, text.format("")) == []
    assert [kind for _, kind in kinds(tmp_path, text.format("closure()"))] == ["cut-graph"]


@pytest.mark.parametrize("more", ["torch.tensor([0])", "torch.tensor([0]), per_sample_weights=Net()(1)"])
def test_the_weight_of_embedding_bag_comes_second(tmp_path, more):
    text = "rows = torch.tensor([0, 2])\ntorch.nn.functional.embedding_bag(rows, WEIGHT, MORE)[0].sum().backward()\n"
    assert (
        kinds(
            tmp_path,
            text.replace("MORE", more).replace("WEIGHT", "Net()(1).detach().clone().requires_grad_()"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("handler", "evidence"), [("print(error)", "likely"), ("raise ValueError(error)", "certain")]
)
def test_a_backward_that_is_tried_out_may_be_meant_to_fail(tmp_path, handler, evidence):
    text = f"""
    loss = nn.Linear(2, 1)(torch.ones(1, 2)).exp().sum()
    loss.backward()
    try:
        loss.backward()
    except RuntimeError as error:
        {handler}
    """
    assert kinds(tmp_path, text) == [(evidence, "freed-graph")]


@pytest.mark.parametrize(
    "given", ["torch.nn.factory_kwargs(given)", "library.settings()", "dict(given)", "library.SETTINGS"]
)
def test_what_a_tensor_is_made_with_may_say_anything(tmp_path, given):
    text = f"""
    import library

    class Observer(nn.Module):
        def __init__(self, given=None):
            super().__init__()
            made = {given}
            self.register_buffer("least", torch.tensor(0.0, **made))
            self.register_buffer("most", torch.zeros(2, **made))

        def forward(self, x):
            self.least.copy_(x.detach().min())
            self.most.fill_(1.0)
            return x
    """
    assert kinds(tmp_path, text) == []
