"""The symbolic run: what it enters, what it leaves unknown, and that no text upsets it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import Budget, Reading, might_matter, origins, read
from gradfix.tape import Optimizer
from gradfix.testing import fixtures

HEAD = "import torch\nfrom torch import nn\n"


def readings(tmp_path: Path, text: str, **siblings: str) -> tuple[Reading, ...]:
    for name, sibling in siblings.items():
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(sibling), encoding="utf-8")
    path = tmp_path / "train.py"
    return read(path, HEAD + textwrap.dedent(text))


def found(tmp_path: Path, text: str, **siblings: str) -> list[tuple[str, str, int]]:
    """(entry, kind, line of the text) of everything above a note, however often an entry is read."""
    found = [
        (reading.entry, c.kind, c.at.line - 2)
        for reading in readings(tmp_path, text, **siblings)
        for c in detect(reading.tape)
        if c.severity != "note"
    ]
    return list(dict.fromkeys(found))


def test_a_function_that_nothing_calls_is_entered(tmp_path):
    text = """\
    def train(data, epochs):
        net = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        hidden = torch.zeros(1)
        for x in data:
            hidden = net(x) + hidden
            optimizer.zero_grad()
            hidden.sum().backward()
            optimizer.step()
    """
    assert found(tmp_path, text) == [("train", "freed-graph", 8)]


def test_a_graph_that_an_unknown_test_may_have_taken_away_is_likely_lost(tmp_path):
    text = """\
    net = nn.Linear(2, 1)
    params = dict(net.named_parameters())
    for name in list(params):
        if unknown(name):
            params.pop(name)
    loss = sum([p.sum() for p in params.values()], torch.zeros(1))
    loss.backward()
    """
    (reading,) = readings(tmp_path, "from somewhere import unknown\n" + textwrap.dedent(text))
    (lost,) = [c for c in detect(reading.tape) if c.kind == "cut-graph"]
    assert reading.evidence(lost) == "likely"


@pytest.mark.parametrize(
    "joined", ["[v]", "[v, torch.empty(0)]", "(torch.ones(2), v)", "[p for _, p in v.items()]", "[]"]
)
def test_what_is_joined_with_something_unknown_may_have_a_graph(tmp_path, joined):
    assert found(tmp_path, f"def train(v):\n    torch.cat({joined}).sum().backward()\n") == []


@pytest.mark.parametrize("view", ["expand(n, 3)", "expand(5, 3)", "transpose(0, 1)", "t()", "permute(1, 0)"])
def test_a_view_made_contiguous_is_a_copy(tmp_path, view):
    text = "w = torch.zeros(1, 3, requires_grad=True)\nn = int(input())\n"
    assert found(tmp_path, text + f"x = w.{view}.contiguous()\nx[..., 1:] = 0\n") == []
    assert found(tmp_path, text + f"x = w.{view}\nx[..., 1:] = 0\n") != []


def test_what_is_contiguous_stays_itself(tmp_path):
    text = "w = torch.zeros(1, 3, requires_grad=True)\nx = w.contiguous()\nx[..., 1:] = 0\n"
    assert found(tmp_path, text) == [("__main__", "leaf-write", 3)]


def test_what_is_joined_without_anything_unknown_has_none(tmp_path):
    text = "def train(v):\n    torch.cat([torch.ones(2), torch.zeros(1)]).sum().backward()\n"
    assert found(tmp_path, text) == [("train", "cut-graph", 2)]


@pytest.mark.parametrize(("optimizer", "often"), [("LBFGS", True), ("LBFGS, 1, 1", False), ("SGD", False)])
def test_a_closure_is_run_as_often_as_its_optimizer_does(tmp_path, optimizer, often):
    name, *rest = optimizer.split(", ")
    text = f"""\
    net = nn.Linear(2, 1)
    opt = torch.optim.{name}(net.parameters(), {", ".join(rest) or 0.1})
    loss = net(torch.ones(3, 2)).exp().sum()

    def closure():
        opt.zero_grad()
        loss.backward()
        return loss

    opt.step(closure)
    """
    assert found(tmp_path, text) == [("__main__", "freed-graph", 7)] * often


def test_callers_are_entered_before_what_they_call(tmp_path):
    text = """\
    def step(loss):
        loss.backward()

    def train(data):
        w = torch.ones(2, requires_grad=True)
        y = w.exp()
        y += 1
        step(y.sum())
    """
    assert found(tmp_path, text) == [("train", "stale-saved-tensor", 7)]


def test_a_forward_alone_shows_what_it_overwrites(tmp_path):
    text = """\
    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.inner = nn.Linear(width, width)

        def forward(self, x):
            x = torch.sigmoid(self.inner(x))
            x += 1
            return x
    """
    assert found(tmp_path, text) == [("Net.forward", "stale-saved-tensor", 8)]


def test_an_addition_needs_nothing_that_is_overwritten(tmp_path):
    text = """\
    w = torch.ones(2, requires_grad=True)
    y = w + 1
    y += 1
    y.sum().backward()
    """
    assert found(tmp_path, text) == []


def test_a_sibling_is_read_as_it_is_imported(tmp_path):
    text = """\
    import nets
    from nets import make
    net, optimizer = make()
    for _ in range(3):
        out = net(torch.ones(1, 2))
        out.exp_()
        nets.finish(out.log(), optimizer)
    """
    sibling = """\
    def make():
        net = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        return net, torch.optim.Adam(net.parameters())

    def finish(out, optimizer):
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()
    """
    assert found(tmp_path, text, nets=sibling) == [("__main__", "stale-saved-tensor", 6)]


def test_nothing_is_said_of_gradients_that_may_come_from_elsewhere(tmp_path):
    text = """\
    import engine
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            before = net(torch.ones(2))
        loss = engine.loss(net, before)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    """
    assert found(tmp_path, text) == []


POOLED = """\
import itertools
import torch
class Agent:
    def __init__(self, actor):
        self.width = torch.nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.Adam({given}, lr=1e-3)
    def train(self, batches):
        for x in batches:
            {clear}
            (x * self.width.exp()).sum().backward()
            seen = self.width.grad.norm().item()
            {step}
            with torch.no_grad():
                self.width.clamp_(-1, 1)
"""


@pytest.mark.parametrize(
    "given",
    [
        "list(actor.parameters()) + [self.width]",
        "[*actor.parameters(), self.width]",
        "itertools.chain([self.width], actor.parameters())",
    ],
)
def test_an_optimizer_of_a_network_that_is_not_known_clears_what_it_is_given_with_it(tmp_path, given):
    text = POOLED.format(given=given, clear="self.optimizer.zero_grad()", step="self.optimizer.step()")
    assert found(tmp_path, text) == []
    alone = POOLED.format(given="actor.parameters()", clear="pass", step="self.width.data -= self.width.grad")
    assert [kind for _, kind, _ in found(tmp_path, alone)] == ["unreset-grad"]


def test_what_an_unknown_test_guards_is_likely(tmp_path):
    text = """\
    import flags
    w = torch.ones(2, requires_grad=True)
    y = w.exp()
    if flags.shift:
        y += 1
    y.sum().backward()
    """
    (reading,) = readings(tmp_path, text)
    (conflict,) = detect(reading.tape)
    assert reading.evidence(conflict) == "likely"
    (certain,) = readings(tmp_path, text.replace("flags.shift", "True"))
    (conflict,) = detect(certain.tape)
    assert certain.evidence(conflict) == "certain"


def test_columns_are_code_points(tmp_path):
    text = 'w = torch.ones(2, requires_grad=True)\nä = w.exp(); ä += 1  # ü\nä.sum().backward(); "ö"\n'
    (reading,) = readings(tmp_path, text)
    (conflict,) = detect(reading.tape)
    assert (conflict.at.column, conflict.at.end_column) == (13, 19)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\0",
        "def f(:\n",
        "(" * 3000 + ")" * 3000,
        "x = " + "-" * 3000 + "1\n",
        "x = " + "+".join(["1"] * 8000) + "\n",
        "".join(" " * i + "if x:\n" for i in range(99)) + " " * 99 + "pass\n",
        "def f(): return f()\nf()\n",
        "def f(x): return [f(x), f(x)]\nf(1)\n",
        "while True: pass\n",
        "x = [0]\nwhile True: x += x\n",
        "x = 2\nwhile True: x = x ** x\n",
        "x = 'a' * 10 ** 9\n",
        "for i in range(10 ** 9): pass\n",
        "class A(A): pass\nclass B(A, B): pass\nB().x.y[0](*1, **2)\n",
        "match [1]:\n    case [*_]: pass\n",
        "\ufefftype X = int\n",
        "lambda: (yield)\n",
        "x = {}; x[x] = x; x |= x\n",
        "a, *b, c = 1\n",
    ],
    ids=lambda t: repr(t[:20]),
)
def test_no_text_upsets_it(tmp_path, text):
    for reading in read(tmp_path / "odd.py", text, budget=Budget(steps=20_000)):
        assert detect(reading.tape) == ()


def test_what_cannot_be_parsed_is_said_in_a_sentence(tmp_path):
    (reading,) = read(tmp_path / "odd.py", "x = 1\ndef f(:\n")
    (problem,) = reading.problems
    assert problem.line == 2
    assert problem.text.endswith(".")


def test_unknowns_are_ranked_by_where_they_came_from(tmp_path):
    ranked = origins(readings(tmp_path, "import a, b\na.x(); a.x(); b.y()\n"))
    assert ranked[:2] == [("call a.x", 2), ("call b.y", 1)]


@pytest.mark.parametrize("fixture", fixtures(Path(__file__).parent.parent / "fixtures"), ids=str)
def test_no_program_with_a_fault_is_skipped(fixture):
    assert might_matter(fixture.before.read_bytes()) or not fixture.marks


def test_what_cannot_matter_is_skipped():
    assert not might_matter(b"import os\nx = [1]\nx[0] += 1\n")
    assert not might_matter(b"import torch\n\ndef size(x):\n    return x.size(0)\n")
    assert might_matter(b"import torch\n\ndef forward(x):\n    return x.exp_()\n")


def test_a_distribution_of_the_users_own_class_is_not_followed(tmp_path):
    text = """\
    class Fixed(torch.distributions.Normal):
        def mode(self):
            return self.mean

    net = nn.Linear(2, 2)
    drawn = Fixed(net(torch.ones(1, 2)), torch.ones(1, 2)).sample()
    (net(torch.ones(1, 2)) * drawn).sum().backward()
    """
    assert found(tmp_path, text) == []


def test_an_optimizer_is_called_what_the_person_calls_it(tmp_path):
    """It has no name yet when it is made."""
    text = """\
    net = nn.Linear(2, 1)
    schedule = {"slow": torch.optim.SGD(net.parameters(), lr=0.1)}
    opt = schedule["slow"]
    net(torch.ones(2)).sum().backward()
    opt.step()
    """
    (reading,) = readings(tmp_path, text)
    assert [e.name for e in reading.tape.events if isinstance(e, Optimizer)] == ["opt"]


HOLDING = """
import torch
from sibling import shown
class Base(torch.nn.Module):
    def forward(self, x):
        return shown(x)
class Net(Base):
    def again(self): return Net
def outer(x):
    def inner(y): return inner(y - 1) if y else outer(x)
    return inner
kept = outer(3)
never = [outer]
torch.ones(1, requires_grad=True).sum().backward()
"""


def test_a_program_that_was_read_is_let_go_without_looking_for_cycles(tmp_path, monkeypatch):
    """They would be its trees: a check of many files spent more than a third of its time on finding them."""
    import ast
    import gc

    from gradfix.read import project

    (tmp_path / "sibling.py").write_text(
        "def shown(x):\n    def f(): return f\n    return x\ndef unasked(): pass\n"
    )
    monkeypatch.setattr(project, "_TREES", project._Trees(0))

    def definitions() -> list[str]:
        return [x.name for x in gc.get_objects() if isinstance(x, ast.FunctionDef | ast.ClassDef)]

    gc.collect()
    before = definitions()
    gc.disable()
    try:
        read(tmp_path / "main.py", HOLDING)
        left = definitions()
    finally:
        gc.enable()
    assert sorted(left) == sorted(before)


def test_a_state_that_goes_through_a_cell_is_carried_not_summed(tmp_path):
    text = """\
    cell, h = nn.RNNCell(2, 2), torch.zeros(1, 2)
    for _ in range(3):
        h = cell(torch.randn(1, 2), h)
        h.sum().backward()
    """
    (reading,) = readings(tmp_path, text)
    assert [c.pattern for c in detect(reading.tape)] == ["carried"]


BESIDE = """\
class Noted(nn.Module):
    def __init__(self):
        super(Noted, self).__init__()
        self.inputs = []

class Dense(nn.Linear, Noted):
    def __init__(self, n_in, n_out, bias=True):
        super(Dense, self).__init__(n_in, n_out, bias=bias)

    def forward(self, x):
        self.inputs.append(x)
        return super(Dense, self).forward(self.inputs[-1])

net = Dense(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    loss = net(net(torch.randn(2, 3))).sum()
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
"""


def test_a_layer_of_torch_beside_a_class_of_the_programs_is_made_as_torch_makes_it(tmp_path):
    assert found(tmp_path, BESIDE) == [("__main__", "stale-saved-tensor", 18)]
    assert found(tmp_path, BESIDE.replace("    optimizer.step()\n", "") + "    optimizer.step()\n") == []


def test_a_layer_that_was_never_made_is_not_known(tmp_path):
    text = """\
    class Bare(nn.Linear):
        def __init__(self, n):
            self.n = n

        def forward(self, x):
            return super().forward(x).sum()
    """
    assert found(tmp_path, text) == []
    assert found(tmp_path, text.replace("Linear", "Embedding")) == []
