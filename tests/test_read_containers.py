"""The symbolic run: the program's own lists, dictionaries and records, and modules called with other tensors."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.read import read

HEAD = """\
import copy
import dataclasses
from collections import OrderedDict, namedtuple
from typing import NamedTuple
import torch
from torch import nn
net = nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""


def found(tmp_path: Path, text: str) -> set[str]:
    """The kinds of what is above a note in the program."""
    main = read(tmp_path / "train.py", HEAD + textwrap.dedent(text))[0]
    assert not main.problems
    return {c.kind for c in detect(main.tape) if c.severity != "note"}


LIST = """\
class Kept(list):
    def last(self):
        return self[-1]

    def column(self):
        return torch.stack([each for each in self])

kept = Kept({0})
for step in range(3):
    kept.append(net(torch.ones(2)){1})
    loss = kept.column().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_a_list_of_the_programs_own_keeps_is_known(tmp_path):
    assert found(tmp_path, LIST.format("", "")) == {"freed-graph"}
    assert found(tmp_path, LIST.format("", ".detach()").replace("kept.column()", "net(kept.last())")) == set()
    assert found(tmp_path, LIST.format("[torch.zeros(2)]", "")) == {"freed-graph"}


def test_a_list_that_the_program_goes_through_its_own_way_is_not_known(tmp_path):
    own = LIST.format("", "").replace(
        "    def last", "    def __iter__(self):\n        return other()\n\n    def last"
    )
    assert found(tmp_path, own) == set()


DICTIONARY = """\
class Totals(dict):
    def __init__(self, *names):
        super().__init__({{n: 0.0 for n in names}})

    def put(self, **values):
        for name, value in values.items():
            self[name] = self[name] + value

totals = {0}
for step in range(3):
    loss = net(torch.ones(2)).square().sum()
    totals.put(loss=loss{1})
    optimizer.zero_grad()
    {2}.backward()
    optimizer.step()
"""


def test_what_a_dictionary_of_the_programs_own_keeps_is_known(tmp_path):
    assert found(tmp_path, DICTIONARY.format("Totals('loss')", "", 'totals["loss"]')) == {"freed-graph"}
    assert found(tmp_path, DICTIONARY.format("Totals('loss')", ".item()", "loss")) == set()
    assert found(tmp_path, DICTIONARY.format("Totals('loss')", "", 'dict(totals)["loss"]')) == {"freed-graph"}


def test_a_method_of_dict_by_its_class_is_what_it_is_by_the_object(tmp_path):
    text = DICTIONARY.format("Totals('loss')", "", 'totals["loss"]')
    by_class = "dict.update(self, {name: self[name] + value})"
    assert found(tmp_path, text.replace("self[name] = self[name] + value", by_class)) == {"freed-graph"}
    # what it does to the object is not known: nothing is said of it
    assert (
        found(tmp_path, text.replace("totals[", "dict.__setitem__(totals, 'loss', loss)\n    totals["))
        == set()
    )


def test_a_shallow_copy_has_items_of_its_own(tmp_path):
    text = """\
    class Kept(list):
        pass

    kept = Kept()
    for step in range(3):
        now = copy.copy(kept)
        now.append(net(torch.ones(2)))
        optimizer.zero_grad()
        torch.stack([each for each in now]).sum().backward()
        optimizer.step()
    """
    assert found(tmp_path, text) == set()


RECORD = """\
{0}

state = State(torch.zeros(2), 0)
for step in range(3):
    hidden = torch.tanh(net(state.hidden{1}))
    state = {2}
    loss = state.hidden.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DATACLASS = "@dataclasses.dataclass\nclass State:\n    hidden: torch.Tensor\n    count: int = 0"
TUPLE = "class State(NamedTuple):\n    hidden: torch.Tensor\n    count: int = 0"
MADE = "State = namedtuple('State', 'hidden count')"


@pytest.mark.parametrize(
    ("cls", "step"),
    [
        (DATACLASS, "dataclasses.replace(state, hidden=hidden)"),
        (TUPLE, "state._replace(hidden=hidden)"),
        (MADE, "state._replace(hidden=hidden, count=1)"),
    ],
)
def test_a_record_is_replaced_by_one_with_other_fields(tmp_path, cls, step):
    assert found(tmp_path, RECORD.format(cls, "", step)) == {"freed-graph"}
    assert found(tmp_path, RECORD.format(cls, ".detach()", step)) == set()
    assert found(tmp_path, RECORD.format(cls, "", step.replace("hidden=hidden", "**unknown()"))) == set()


INNER = """\
from torch.func import functional_call

class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))

body = Body()
for task in range(2):
    fast = {{name: p.clone() for name, p in body.named_parameters()}}
    for turn in range(2):
        inner = functional_call(body, fast, torch.ones(2)).square().sum()
        grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        {0}
    optimizer.zero_grad()
    {1}.square().sum().backward()
    optimizer.step()
"""


def test_a_module_is_called_with_other_tensors_in_the_places_of_its_own(tmp_path):
    called = "functional_call(body, fast, (torch.ones(2),))"
    written = "[p.sub_(0.1 * g) for p, g in zip(fast.values(), grads)]"
    made = "fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads)}"
    assert found(tmp_path, INNER.format(written, called)) == {"stale-saved-tensor"}
    assert found(tmp_path, INNER.format(made, called)) == set()
    assert found(tmp_path, INNER.format(written, "body(torch.ones(2))")) == set()  # its own are back
    assert found(tmp_path, INNER.format(written, "functional_call(body, unknown(), torch.ones(2))")) == set()


WHOLE = """
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = 0.0
    def reset(self):
        self.state = 0.0
    def forward(self, x):
        self.state = self.state * 0.5 + x
        return torch.tanh(self.state)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), Cell()) for _ in range(9)])
    def forward(self, x):
        return self.layers(x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(40):
    optimizer.zero_grad()
    net(torch.randn(2, 3)).sum().backward()
    optimizer.step()
{reset}
"""


@pytest.mark.parametrize(
    ("reset", "kinds"),
    [
        ("    for m in net.modules():\n        if hasattr(m, 'reset'):\n            m.reset()", set()),
        (
            "    for m in net.modules():\n        w = getattr(m, 'reset', None)\n        if w:\n            w()",
            set(),
        ),
        (
            "    for m in list(net.modules())[:-3]:\n        if hasattr(m, 'reset'):\n            m.reset()",
            {"freed-graph"},
        ),
    ],
    ids=["all", "by a name", "all but one"],
)  # fmt: skip
def test_what_is_done_with_all_modules_is_done_with_all(reset, kinds, tmp_path):
    assert found(tmp_path, WHOLE.format(reset=reset)) == kinds


REFERRED = """
from weakref import WeakKeyDictionary, ref
known = WeakKeyDictionary()
known[net] = tuple(ref(p) for p in net.parameters())
w = torch.ones(2, requires_grad=True)
(w * 2).sum().backward()
for each in known[net]:
    p = each()
    p += 1
"""


def test_what_is_referred_to_weakly(tmp_path):
    assert found(tmp_path, REFERRED) == {"leaf-write"}


@pytest.mark.parametrize(
    "key",
    [
        "'act%d' % i", "'act%(n)s' % {'n': i}", "'%s%02d' % ('act', i)", "'act{}'.format(i)",
        "'act{n:02d}'.format(n=i)",
        "'{0}{1}'.format('act', i)", "f'act{i:02d}'", "f'{\"act\"}{i}'", "f'act{i!r}'",
    ],
)  # fmt: skip
def test_a_key_that_is_made_of_a_number(key, tmp_path):
    """Of both layers under one key the second is there."""
    text = f"""
i = 3
layers = {{"act3": nn.ReLU(inplace=True), "act03": nn.ReLU(inplace=True)}}
layers[{key}] = nn.ReLU()
for name in [n for n in layers if n != {key}]:
    del layers[name]
y = net(torch.randn(2, 2)).exp()
nn.Sequential(*layers.values())(y).sum().backward()
"""
    assert found(tmp_path, text) == set()
    assert found(tmp_path, text.replace("] = nn.ReLU()", "] = nn.ReLU(inplace=True)")) == {
        "stale-saved-tensor"
    }


@pytest.mark.parametrize(
    "key", ["'%d%d' % 3", "'%' % 3", "'{' .format(3)", "'%99999999d' % 3", "f'{3:9999999}'", "'%q' % 3"]
)
def test_a_string_that_can_not_be_made(key, tmp_path):
    assert found(tmp_path, f"name = {key}\nnet(torch.randn(2, 2)).sum().backward()") == set()
