"""The symbolic run where the program leaves something to whoever runs it, and names that are put together."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read


def found(tmp_path: Path, text: str) -> set[tuple[str, str]]:
    """(evidence, kind) of everything above a note, each as sure as it is anywhere."""
    path = tmp_path / "train.py"
    head = "import argparse\nimport torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    all_ = {
        (reading.evidence(conflict), conflict.kind)
        for reading in read(path, head + textwrap.dedent(text))
        for conflict in detect(reading.tape)
        if conflict.severity != "note"
    }
    return {each for each in all_ if each[0] == "certain" or ("certain", each[1]) not in all_}


FACTOR = """\
net, critic = nn.Linear(2, 2), nn.Linear(2, 1)
ours, theirs = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)

def plain(x):
    ours.zero_grad()
    net(x).sum().backward()
    ours.step()

def both(x):
    z = net(x)
    ours.zero_grad()
    z.sum().backward(retain_graph=True)
    ours.step()
    theirs.zero_grad()
    critic(torch.relu(nn.Linear(2, 2)(z))).sum().backward()
    theirs.step()

"""


@pytest.mark.parametrize(
    "option",
    [
        "'--loss', default='plain'",
        "'--loss', required=True, choices=['plain', 'both']",
        "'--loss', default=input(), choices=['plain', 'both']",
        "'loss', choices=('plain', 'both')",
    ],
)
def test_an_option_of_the_command_line_is_read_with_what_it_is_compared_with(tmp_path, option):
    text = f"""\
    parser = argparse.ArgumentParser()
    parser.add_argument({option})
    args = parser.parse_args()
    for x in torch.ones(4, 3, 2):
        if args.loss == "both":
            both(x)
        else:
            plain(x)
    """
    expected = {("certain", "stale-saved-tensor")}
    text = FACTOR.replace("net(x)\n    ours", "net(net(x))\n    ours") + textwrap.dedent(text)
    assert found(tmp_path, text) == expected


def test_an_option_that_looks_something_up(tmp_path):
    text = """\
    parser = argparse.ArgumentParser()
    parser.add_argument("--loss", default="plain")
    train = {"plain": plain, "both": both}[parser.parse_args().loss]
    for x in torch.ones(4, 3, 2):
        train(x)
    """
    text = FACTOR.replace("net(x)\n    ours", "net(net(x))\n    ours") + textwrap.dedent(text)
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


BLOCK = """\
class Block(nn.Module):
    def __init__(self, width, residual=False):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.residual = residual

    def forward(self, x):
        y = self.layer(x)
        if self.residual:
            y += {}
        return y
"""


@pytest.mark.parametrize(("term", "expected"), [("x", {("likely", "stale-saved-tensor")}), ("0 * x", set())])
def test_a_switch_of_a_constructor_is_read_both_ways(tmp_path, term, expected):
    text = BLOCK.format(term)
    if not expected:
        text = text.replace("y +=", "y = y +")
    assert found(tmp_path, text) == expected


def test_what_flows_through_a_network_requires_grad(tmp_path):
    text = """\
    class Scale(nn.Module):
        def forward(self, x):
            y = x.exp()
            y *= 2
            return y
    """
    assert found(tmp_path, text) == {("likely", "stale-saved-tensor")}


def test_masks_and_labels_do_not(tmp_path):
    text = """\
    class Masked(nn.Module):
        def forward(self, mask, target):
            y = (mask * target).exp()
            y *= 2
            return y
    """
    assert found(tmp_path, text) == set()


@pytest.mark.parametrize(
    "annotation", ["list[torch.Tensor]", "List[Tensor]", "'Sequence[Tensor]'", "np.ndarray", "Batch", "int"]
)
def test_an_argument_of_another_type_is_no_tensor(tmp_path, annotation):
    text = f"""\
    class Fuse(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, features: {annotation}):
            first = self.conv(features[0])
            features[0] = first
            features += 1
            return first
    """
    assert found(tmp_path, text) == set()


@pytest.mark.parametrize(
    "annotation", ["Tensor", "Optional[torch.Tensor]", "'torch.Tensor | None'", 'Float[Tensor, "b c"]']
)
def test_an_argument_that_is_said_to_be_a_tensor_is_one(tmp_path, annotation):
    text = f"""\
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, x: {annotation}):
            y = self.conv(x)
            x[0] = 1
            return y
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


def test_an_argument_without_a_type_may_be_a_list(tmp_path):
    text = """\
    class Fuse(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, features):
            made = [self.conv(f) for f in features]
            one, two = features
            one.add_(two)
            features[1] = self.conv(features[0])
            return made
    """
    assert found(tmp_path, text) == set()


@pytest.mark.parametrize(
    "made",
    [
        'getattr(nn, "Conv{}d".format(dims))',
        'getattr(nn, f"Conv{dims}d")',
        'getattr(nn, "Conv{}d".format(2))',
        'eval("nn." + "Conv2d")',
        'eval("nn.Conv{}d".format(2))',
    ],
)
def test_a_class_by_a_name_that_is_put_together(tmp_path, made):
    text = f"""\
    def build(dims):
        conv = {made}(2, 2, 1)
        y = conv(torch.ones(1, 2, 3, 3)).exp()
        y += 1
        y.sum().backward()
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


@pytest.mark.parametrize("made", ['getattr(nn, "{}Norm2d".format(kind))', "getattr(nn, kind)", "eval(kind)"])
def test_a_class_that_may_be_several_is_not_known(tmp_path, made):
    text = f"""\
    def build(kind):
        y = {made}(2)(nn.Conv2d(2, 2, 1)(torch.ones(1, 2, 3, 3)))
        y.add_(1)
        y.sum().backward()
    """
    assert found(tmp_path, text) == set()


@pytest.mark.parametrize(
    "how", ['reduction="sum"', 'reduction="none"', "size_average=False", "reduce=False", ""]
)
@pytest.mark.parametrize("loss", ["mse_loss", "binary_cross_entropy", "smooth_l1_loss"])
def test_a_loss_is_known_however_it_is_reduced(tmp_path, loss, how):
    text = f"""\
    out = nn.Linear(2, 2)(torch.ones(3, 2)).exp()
    loss = F.{loss}(out, torch.ones(3, 2), {how})
    out += 1
    loss.sum().backward()
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


def test_the_name_of_a_layers_class(tmp_path):
    text = """\
    def init(layer):
        if layer.__class__.__name__.find("Linear") != -1:
            layer.weight += 1

    nn.Sequential(nn.Linear(2, 2), nn.ReLU()).apply(init)
    """
    assert found(tmp_path, text) == {("certain", "leaf-write")}


def test_a_class_of_a_library_that_is_extended_has_its_forward(tmp_path):
    text = """\
    class Block(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(2, 2), nn.Sigmoid())

        def forward(self, x):
            y = super().forward(x)
            y += 1
            return y

    class Scaled(nn.Linear):
        def forward(self, x):
            y = super().forward(x).exp()
            y *= 2
            return y
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


@pytest.mark.parametrize(
    "lookup",
    [
        'getattr(importlib.import_module("models." + name), "Net")',
        'getattr(importlib.import_module(".net", "models"), "Net")',
        "[c for n, c in importlib.import_module(f'models.{name}').__dict__.items() if n.lower() == 'net' and"
        " issubclass(c, nn.Module)][0]",
        "[c for n, c in importlib.import_module(f'models.{name}').__dict__.items() if n == 'Net' and"
        " issubclass(c, Base)][0]",
    ],
)
def test_a_class_of_a_module_that_is_imported_by_its_name(tmp_path, lookup):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("class Base:\n    pass\n")
    (tmp_path / "models" / "net.py").write_text(
        "from torch import nn\nfrom models import Base\n\nclass Net(nn.Module, Base):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return self.inner(x).exp()\n"
    )
    text = f"""\
    import importlib
    from models import Base
    name = "net"
    y = {lookup}()(torch.ones(1, 2))
    y += 1
    y.sum().backward()
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


def test_a_module_of_lightnings_is_one(tmp_path):
    text = """\
    import pytorch_lightning as pl

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            y = self.inner(x).exp()
            y += self.hparams.shift
            self.log("mean", y.mean())
            return y
    """
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


def test_an_option_that_nothing_is_taken_for_may_be_any_of_its_choices(tmp_path):
    text = """\
    parser = argparse.ArgumentParser()
    parser.add_argument('--loss', type=int, choices=[1, 2])
    args = parser.parse_args()
    chosen = 1
    if args.loss:
        chosen = args.loss
    for batch in range(4):
        if chosen == 1:
            plain(torch.randn(3, 2))
        else:
            both(torch.randn(3, 2))
    """
    faulty = FACTOR.replace("net(x)\n    ours", "net(net(x))\n    ours")
    assert found(tmp_path, faulty + textwrap.dedent(text)) == {("certain", "stale-saved-tensor")}


FLAGGED = """\
parser = argparse.ArgumentParser()
parser.add_argument({flag})
args = parser.parse_args()
net, critic = nn.Linear(2, 2), nn.Linear(2, 1)
optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()], 0.1)
for x in torch.ones(4, 3, 2):
    h = net(x).sigmoid()
    {test}
    optimizer.zero_grad()
    critic(h).sum().backward()
    optimizer.step()
"""
ON = "if args.clip: h.clamp_(0.1, 0.9)"
OFF = "if args.clip: h = h.clamp(0.1, 0.9)\n    else: h.clamp_(0.1, 0.9)"


@pytest.mark.parametrize(
    ("flag", "test"),
    [
        ("'--clip', action='store_true'", ON),
        ("'-c', '--clip', action='store_true', help='clip'", "h = h.clamp_(0, 1) if args.clip else h"),
        ("'--no-clip', dest='clip', action='store_false'", OFF),
        ("'--clip', action=argparse.BooleanOptionalAction, default=True", OFF),
        (
            "'--clip', action='store_true'",
            "for _ in range(2):\n        if x is not None and args.clip: h *= 2",
        ),
    ],
)
def test_a_flag_of_the_command_line_is_read_both_ways(tmp_path, flag, test):
    text = FLAGGED.format(flag=flag, test=test)
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}
    sound = test.replace("clamp_", "clamp").replace("h *= 2", "h = h * 2")
    assert found(tmp_path, FLAGGED.format(flag=flag, test=sound)) == set()


def test_a_flag_that_chooses_how_to_train_is_read_both_ways(tmp_path):
    text = """\
    parser = argparse.ArgumentParser()
    parser.add_argument("--both", action="store_true")
    train = both if parser.parse_args().both else plain
    for x in torch.ones(4, 3, 2):
        train(x)
    """
    text = FACTOR.replace("net(x)\n    ours", "net(net(x))\n    ours") + textwrap.dedent(text)
    assert found(tmp_path, text) == {("certain", "stale-saved-tensor")}


UNANSWERED = """\
import somewhere
net, critic = nn.Linear(2, 2), nn.Linear(2, 1)
ours, theirs = torch.optim.SGD(net.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)
for x in torch.ones(4, 3, 2):
    h = net(x)
    {head}
        ours.zero_grad(); theirs.zero_grad()
        (h.sigmoid() + critic(h)).sum().backward()
        ours.step(); theirs.step()
    else:
        theirs.zero_grad()
        critic(h{cut}).sum().backward()
        theirs.step()
        ours.zero_grad()
        h.sigmoid().sum().backward()
        ours.step()
"""


@pytest.mark.parametrize("head", ["if somewhere.joint:", "if not somewhere.apart:", "if somewhere.n > 1:"])
def test_a_test_with_a_backward_on_each_side_is_answered_both_ways(tmp_path, head):
    assert found(tmp_path, UNANSWERED.format(head=head, cut="")) == {("likely", "freed-graph")}
    assert found(tmp_path, UNANSWERED.format(head=head, cut=".detach()")) == set()


OLD = """\
def logged(x):
    print(net(x).sum().data[0])
    net(x).sum().backward()

for epoch in range(3):
    z = net(net(torch.randn(3, 2)))
    ours.zero_grad()
    z.sum().backward({retain}=True)
    ours.step()
    print(z.sum(){item})
    critic(z).sum().backward()
    logged(z.detach())
"""


@pytest.mark.parametrize(
    ("retain", "item", "evidence"),
    [
        ("retain_graph", ".item()", "certain"),
        ("retain_graph", ".data[0]", "likely"),
        ("retain_variables", ".item()", "likely"),
    ],
)
def test_a_fault_behind_what_pytorch_took_away(tmp_path, retain, item, evidence):
    text = FACTOR.partition("def plain")[0] + OLD.format(retain=retain, item=item)
    assert found(tmp_path, text) == {("certain", "legacy-api"), (evidence, "stale-saved-tensor")}


def test_what_else_pytorch_took_away_is_certain_still(tmp_path):
    path = tmp_path / "train.py"
    text = FACTOR.partition("def plain")[0] + OLD.format(retain="retain_graph", item=".data[0]")
    path.write_text("import torch\nfrom torch import nn\n" + text)
    told = {
        (conflict.at.line, reading.evidence(conflict))
        for reading in read(path, path.read_text())
        for conflict in detect(reading.tape)
        if conflict.kind == "legacy-api" and conflict.severity == "error"
    }
    assert told == {(7, "certain"), (15, "certain")}


@pytest.mark.parametrize(("create", "expected"), [("True", set()), ("False", {("certain", "cut-graph")})])
def test_a_gradient_of_what_is_not_known_may_have_a_graph(tmp_path, create, expected):
    text = f"""\
    def curvature(loss, weight):
        slope = torch.autograd.grad(loss, [weight], create_graph={create})[0]
        return [torch.autograd.grad(each, [weight], retain_graph=True)[0] for each in slope.reshape(-1)]

    class Guide(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def finalize(self, loss):
            return curvature(loss, self.weight)
    """
    assert found(tmp_path, text) == expected


MANAGER = """\
import contextlib
net, memory = nn.Linear(3, 3), [torch.zeros(1, 3)]

@contextlib.contextmanager
def frozen():
    net.requires_grad_(False)
    {yielding}
    net.requires_grad_(True)

def train():
    with frozen() as nothing:
        y = net(torch.ones(1, 3))
        {leaving}
    net(torch.ones(1, 3)).sum().backward()
    return y

train()
"""


@pytest.mark.parametrize("yielding", ["yield", "try:\n        yield\n    finally:\n        pass"])
@pytest.mark.parametrize("leaving", ["pass", "print(y)"])
def test_what_a_context_manager_does_behind_its_yield_is_done(tmp_path, yielding, leaving):
    text = MANAGER.format(yielding=yielding, leaving=leaving)
    assert found(tmp_path, text) == set()
    torn = text.replace("requires_grad_(True)", "requires_grad_(False)")
    assert found(tmp_path, torn) == {("certain", "cut-graph")}
    inside = text.replace(leaving, "y.sum().backward()")
    assert ("certain", "cut-graph") in found(tmp_path, inside)


def test_a_block_that_is_left_leaves_its_function(tmp_path):
    text = MANAGER.format(yielding="yield", leaving="return y")
    assert found(tmp_path, text) == set()


def test_a_generator_under_no_grad_gives_the_grad_mode_back_at_each_yield(tmp_path):
    text = """\
    net = nn.Linear(3, 3)

    @torch.no_grad()
    def batches():
        for _ in range(3):
            yield net(torch.ones(1, 3))

    for y in batches():
        {loss}.mean().backward()
    """
    assert found(tmp_path, text.format(loss="net(y)")) == set()
    assert found(tmp_path, text.format(loss="y")) == {("certain", "cut-graph")}


WINDOWS = """\
net, cell = nn.Linear(4, 1), nn.GRUCell(2, 4)
optimizer = torch.optim.SGD([*net.parameters(), *cell.parameters()], 0.1)

def learn(sequence, window):
    state, loss = torch.zeros(3, 4), 0
    for n, x in enumerate(sequence):
        state = cell(x, state)
        loss = loss + net(state).pow(2).mean()
        if (n + 1) % window == 0:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss = 0
            {cut}

for epoch in range(4):
    learn(torch.randn(40, 3, 2), 7)
"""


@pytest.mark.parametrize(
    ("cut", "expected"), [("pass", {("certain", "freed-graph")}), ("state = state.detach()", set())]
)
def test_windows_of_a_sequence_within_epochs(
    tmp_path: Path, cut: str, expected: set[tuple[str, str]]
) -> None:
    """Two windows are gone through, since the second meets what the first has freed."""
    assert found(tmp_path, WINDOWS.format(cut=cut)) == expected


def test_a_program_ends_where_it_asks_something_of_a_gradient_that_was_not_kept(tmp_path):
    attack = """\
    net = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    move = torch.zeros_like(x).requires_grad_()
    for _ in range(3):
        F.cross_entropy(net(x + move), torch.zeros(4).long()).backward()
        move = (move + 0.1 * move.grad.sign()).clamp(-1, 1)
    """
    assert found(tmp_path, attack) == {("certain", "missing-grad")}
    guarded = attack.replace("move.grad.sign()", "(x if move.grad is None else move.grad)")
    assert ("certain", "freed-graph") in found(tmp_path, guarded)


CLEARED = """\
import elsewhere
net = nn.Linear(3, 1)
first, second = torch.optim.Adam(net.parameters()), torch.optim.Adam(net.parameters())
for i in range(10):
    {between}
    net(torch.randn(4, 3)).mean().backward()
    {used}
    second.zero_grad()
    {later}
    second.step()
"""
LATER = "elsewhere.loss(net).backward()"


@pytest.mark.parametrize(
    ("used", "later", "expected"),
    [
        ("pass", "pass", {("certain", "unreset-grad")}),
        ("pass", LATER, set()),  # the step has the gradient of a loss that the text does not show
        ("pass", "elsewhere.train(net)", set()),
        ("first.step()", LATER, set()),
        ("first.step()", "pass", set()),  # they were for the other one's step
    ],
)
def test_gradients_that_are_cleared_before_a_step(
    tmp_path: Path, used: str, later: str, expected: set[tuple[str, str]]
) -> None:
    between = "first.zero_grad()" if used != "pass" else "pass"
    assert found(tmp_path, CLEARED.format(between=between, used=used, later=later)) == expected


@pytest.mark.parametrize(
    "made", ["torch.as_tensor(of(x), dtype=x.dtype)", "torch.as_tensor(of(x)).reshape(-1)[0]"]
)
def test_what_a_function_that_is_not_known_gives_may_have_a_graph(tmp_path, made):
    text = f"""\
    import torch

    def slope(of, x):
        x = x.detach().clone().requires_grad_(True)
        return torch.autograd.grad({made}, x)
    """
    assert found(tmp_path, text) == set()


def test_an_array_that_is_not_known_has_none(tmp_path):
    text = """\
    import torch

    def slope(of, x):
        x = x.detach().clone().requires_grad_(True)
        return torch.autograd.grad(torch.from_numpy(of(x)).sum(), x)
    """
    assert {kind for _, kind in found(tmp_path, text)} == {"cut-graph"}


def test_a_range_that_is_too_long_for_len(tmp_path):
    text = """\
    import sys
    import torch

    w = torch.ones(2, requires_grad=True)
    for step in range(sys.maxsize * 4):
        loss = w.exp()
        loss += 1
        loss.sum().backward()
    """
    assert {kind for _, kind in found(tmp_path, text)} == {"stale-saved-tensor"}
