"""Fixes in scripts that train otherwise than they did: refused where a gradient would be lost or a value is another."""

import re

import pytest
from placing import GAN, applied, cured, fix, refused

from gradfix.patches import make
from gradfix.patches.apply import Tree, apply

NEVER_CLEARED = """\
import torch

net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), 0.1)
for n, x in enumerate(torch.randn(12, 4, 3), 1):
    loss = net(x).pow(2).mean()
    loss.backward()
    opt.step()
"""
CLEARS = "with the fix, a gradient is cleared before a step has used it"
STILL = "unreset-grad shows in the text after the fix as it does before"
CLEARED = NEVER_CLEARED.replace("    loss.back", "    opt.zero_grad()\n    loss.back")
STEP = "    opt.step()\n"
GATHERED = {
    "every_fourth": ("    if n % 4 == 0:\n        opt.step()\n", ""),
    "others_go_on": ("    if n % 4:\n        continue\n    opt.step()\n", ""),
    "when_it_is_due": ("    if due(n):\n        opt.step()\n", "from schedule import due\n"),
    "not_before_it_is_due": ("    if not due(n):\n        continue\n    opt.step()\n", "from schedule import due\n"),
    "when_enough_are_gathered": (
        "    count = count + 1\n    if count == size:\n        opt.step()\n        count = 0\n",
        "from schedule import size\ncount = 0\n",
    ),
}  # fmt: skip
MICRO = NEVER_CLEARED.replace(
    "    loss = net(x).pow(2).mean()\n    loss.backward()\n",
    "    for x in x.chunk(2):\n        loss = net(x).pow(2).mean()\n        loss.backward()\n",
)
AUXILIARY = {
    "right_before": ("    loss = net", "    aux = net(x).abs().mean()\n    aux.backward()\n    loss = net"),
    "farther_up": (
        "    loss = net",
        "    aux = net(x).abs().mean()\n    aux.backward()\n"
        + "".join(f"    option_{n} = {n}\n" for n in range(3))
        + "    loss = net",
    ),
    "in_a_function": ("    loss = net", "    decay(net)\n    loss = net"),
}
DECAY = "def decay(net):\n    (net.weight ** 2).sum().backward()\n\n\nfor n, x in"

CARRIED = """\
import torch

cell = torch.nn.RNNCell(3, 4)
head = torch.nn.Linear(4, 1)
h = torch.zeros(2, 4)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for t, x in enumerate(torch.randn(12, 2, 3), 1):
    h = cell(x, h)
    loss = head(h).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
DETACHED = CARRIED.replace("    h = cell", "    h = h.detach()\n    h = cell")
END = "    opt.zero_grad()\n    loss.backward()\n    opt.step()\n"
LATER = "    " + END.replace("\n    ", "\n        ")
WINDOWS = {
    "summed": ("loss = loss + head", f"    if t % 4 == 0:\n{LATER}        loss = 0.0\n", "loss = 0.0\n"),
    "added_to": ("loss += head", f"    if t % 3 == 0:\n{LATER}        loss = 0.0\n", "loss = 0.0\n"),
    "listed": (
        "loss = head",
        f"    losses.append(loss)\n    if len(losses) == 3:\n        loss = sum(losses)\n        losses = []\n{LATER}",
        "losses = []\n",
    ),
    "stacked_behind_a_test": (
        "loss = head",
        f"    losses.append(loss)\n    if t % 4:\n        continue\n    loss = torch.stack(losses).sum()\n"
        f"    losses = []\n{END}",
        "losses = []\n",
    ),
    "when_it_is_due": (
        "loss = loss + head",
        f"    if due(t):\n{LATER}        loss = 0.0\n",
        "from schedule import due\nloss = 0.0\n",
    ),
}

STATES = """\
import torch

rnn = torch.nn.LSTM(3, 4)
opt = torch.optim.SGD(rnn.parameters(), lr=0.1)
state = (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))
for x in torch.randn(6, 5, 2, 3):
    out, state = rnn(x, state)
    loss = out.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
EACH_DETACHED = STATES.replace(
    "    out, state", "    state = tuple(s.detach() for s in state)\n    out, state"
)

CRITIC = GAN.replace("    score = D(fake)\n", "").replace("score", "D(fake)").replace("retain_graph=True", "")
APART = CRITIC.replace("(D(fake) -", "(D(fake.detach()) -")

TWO_LOSSES = """\
import torch

net = torch.nn.Linear(3, 2)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(12, 4, 3):
    out = net(x).tanh()
    opt.zero_grad()
    first = out[:, 0].pow(2).mean()
    first.backward()
    second = out[:, 1].exp().mean()
    print(x.shape)
    second.backward()
    opt.step()
"""
SUMMED = TWO_LOSSES.replace("    first.backward()\n", "").replace("second.back", "(first + second).back")

WRITTEN = """\
import torch

net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(6, 2, 3):
    x *= 2
    hidden = net(x).exp()
    hidden += 1
    loss = hidden.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""
OUT = WRITTEN.replace("hidden += 1", "hidden = hidden + 1")
CLIP = """\
import torch

class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()

"""


@pytest.mark.parametrize("way", GATHERED)
def test_gradients_that_are_gathered_now(tmp_path, way):
    step, first = GATHERED[way]
    now = NEVER_CLEARED.replace(STEP, step).replace("import torch\n", f"import torch\n\n{first}", 1)
    why = refused(tmp_path, now, NEVER_CLEARED, CLEARED, "unreset-grad")
    assert CLEARS in why or STILL in why


def test_micro_batches(tmp_path):
    why = refused(tmp_path, MICRO, NEVER_CLEARED, CLEARED, "unreset-grad")
    assert f"{CLEARS} (line 8)" in why or STILL in why


@pytest.mark.parametrize("where", AUXILIARY)
def test_another_loss_before_the_place(tmp_path, where):
    now = NEVER_CLEARED.replace(*AUXILIARY[where]).replace("for n, x in", DECAY)
    why = refused(tmp_path, now, NEVER_CLEARED, CLEARED, "unreset-grad")
    assert "a gradient is cleared before a step has used it" in why


@pytest.mark.parametrize("way", WINDOWS)
def test_a_window_of_several_steps(tmp_path, way):
    loss, end, first = WINDOWS[way]
    now = CARRIED.replace("loss = head", loss).replace(END, end).replace("h = torch", f"{first}h = torch")
    why = refused(tmp_path, now, CARRIED, DETACHED, "freed-graph")
    assert "with the fix, a backward pass gives a parameter less of its gradient" in why


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("h = torch.zeros(2, 4)", "h = torch.nn.Parameter(torch.zeros(2, 4))").replace(
            "()], lr", "(), h], lr"
        ),
        lambda text: text.replace(
            "h = torch.zeros(2, 4)", "first = torch.zeros(1, 4, requires_grad=True)\nh = first.expand(2, 4) + 0"
        ).replace("()], lr", "(), first], lr"),
    ],
    ids=["parameter", "made_of_one"],
)  # fmt: skip
def test_a_state_that_is_learned(tmp_path, change):
    why = refused(tmp_path, change(CARRIED), CARRIED, DETACHED, "freed-graph")
    assert re.search(
        "with the fix, (a backward pass gives a parameter no gradient any more|cut-graph shows)", why
    )


def test_one_tensor_where_there_were_several(tmp_path):
    now = STATES.replace("LSTM", "GRU").replace(
        "(torch.zeros(1, 2, 4), torch.zeros(1, 2, 4))", "torch.zeros(1, 2, 4)"
    )
    why = refused(tmp_path, now, STATES, EACH_DETACHED, "freed-graph")
    assert "`state`, which the fix uses, is a tensor here, and a sequence in the source of the fix" in why


def test_one_optimizer_for_both_networks(tmp_path):
    now = CRITIC.replace("Adam(D.parameters()", "Adam([*G.parameters(), *D.parameters()]")
    why = refused(tmp_path, now, CRITIC, APART, "wasted-backward")
    assert "with the fix, a backward pass gives a parameter no gradient any more (line 12)" in why


@pytest.mark.parametrize(
    ("line", "new", "said"),
    [
        ("    print(", "    torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)\n    print(", "a step uses"),
        ("for x", "net.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))\nfor x", "reach a hook"),
        ("    opt.zero", "    out.register_hook(lambda g: g.clamp(-0.1, 0.1))\n    opt.zero", "reach a hook"),
        ("    print(", "    opt.step()\n    print(", "a step uses"),
        ("for x", "net.weight.register_post_accumulate_grad_hook(print)\nfor x", "reach a hook"),
        ("    opt.zero", "    out = Clip.apply(out)\n    opt.zero", "a Function's own backward"),
    ],
    ids=["clipped_between", "hook_of_a_parameter", "hook_of_a_value", "stepped_between", "hook_behind", "function"],
)  # fmt: skip
def test_what_happens_between_two_backwards(tmp_path, line, new, said):
    now = TWO_LOSSES.replace(line, new)
    if "Clip" in new:
        now = now.replace("import torch\n", CLIP, 1)
    assert said in refused(tmp_path, now, TWO_LOSSES, SUMMED, "freed-graph")


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("    hidden = net", "    hidden = skip = net"),
        ("    hidden = net", "    hidden = kept['h'] = net"),
        ("    hidden = net", "    hidden = net.last = net"),
        ("    hidden = net", "    hidden = (skip := net(x).exp()) if True else net"),
        ("    hidden = net(x).exp()", "    hidden = keep(net(x).exp())"),
        ("    hidden = net(x).exp()", "    hidden = keep.last(net(x).exp())"),
        ("for x", "net.register_forward_hook(lambda *a: kept.update(h=a[2]))\nfor x"),
    ],
    ids=["chained", "dictionary", "attribute", "walrus", "function", "function_of_another", "hook"],
)
def test_what_is_written_is_held_by_something_else_as_well(tmp_path, line, new):
    assert (
        applied(tmp_path, WRITTEN.replace("x *= 2", "x += 2"), WRITTEN, OUT, "stale-saved-tensor").status
        == "placed"
    )
    now = WRITTEN.replace(
        "for x", "kept = {}\ndef keep(h, seen=[]):\n    seen.append(h)\n    return h\nfor x", 1
    )
    now = now.replace("    return h\n", "    return h\nkeep.last = lambda h: kept.setdefault('h', h)\n", 1)
    assert applied(tmp_path, now, WRITTEN, OUT, "stale-saved-tensor").status == "placed"
    why = refused(tmp_path, now.replace(line, new), WRITTEN, OUT, "stale-saved-tensor")
    assert "`hidden`, which the fix uses, is a tensor that something else holds as well here" in why


@pytest.mark.parametrize("kind", ["uint8", "float16"])
def test_another_dtype(tmp_path, kind):
    """In place a tensor keeps its dtype, and a new one has that of both."""
    new = WRITTEN.replace("x *= 2", "x = x * scale").replace("for x", "scale = torch.ones(3)\nfor x")
    old = new.replace("x = x * scale", "x *= scale")
    made = {"uint8": "torch.ones(6, 2, 3, dtype=torch.uint8)", "float16": "torch.randn(6, 2, 3).half()"}[kind]
    other = {"uint8": "torch.arange(3)", "float16": "torch.ones(3)"}[kind]
    now = (
        old.replace("torch.randn(6, 2, 3)", made)
        .replace("torch.ones(3)", other)
        .replace("net(x)", "net(x.float())")
    )
    why = refused(tmp_path, now, old, new, "missing-grad")
    assert re.search(r"a tensor gets another dtype \(`x`\)|the text does not tell any more", why)


FIXES = {
    "cleared": (NEVER_CLEARED, CLEARED, "unreset-grad"),
    "detached": (CARRIED, DETACHED, "freed-graph"),
    "each_detached": (STATES, EACH_DETACHED, "freed-graph"),
    "apart": (CRITIC, APART, "wasted-backward"),
    "summed": (TWO_LOSSES, SUMMED, "freed-graph"),
}
DEEPER = "torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))"
SELDOM = "    if t % 4 == 0:\n        opt.step()\n        opt.zero_grad()\n"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cleared", {"0.1": "0.3", "(3, 1)": "(3, 1, False)"}),
        ("cleared", {"12, 4": "12, 8", STEP: f"{STEP}    print(loss.item())\n"}),
        ("detached", {"RNNCell": "GRUCell"}),
        ("detached", {"torch.nn.Linear(4, 1)": DEEPER}),
        ("detached", {"    opt.zero_grad()\n": "", STEP: SELDOM}),
        ("each_detached", {"LSTM(3, 4)": "LSTM(3, 4, num_layers=2)", "(1, 2, 4)": "(2, 2, 4)"}),
        ("apart", {"Linear(2, 1)": "Linear(2, 1, bias=False)"}),
        ("summed", {"SGD": "Adam", "exp()": "cosh()"}),
    ],
)
def test_what_trains_alike_is_placed(tmp_path, name, changes):
    old, new, kind = FIXES[name]

    def changed(text: str) -> str:
        for was, now in changes.items():
            assert was in text
            text = text.replace(was, now)
        return text

    found = applied(tmp_path, changed(old), old, new, kind)
    assert found.status == "placed", found.why
    assert [text for _, text in found.files.values()] == [changed(new)]


MODULE = """\
import torch


def spread(hidden):
    hidden = hidden.exp()
    hidden += 1
    return hidden.mean()
"""
ENTRY = """\
import torch

from shapes import spread

net = torch.nn.Linear(3, 3)
opt = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(6, 2, 3):
    loss = spread(net(x))
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


def test_a_file_that_the_entry_does_not_come_to(tmp_path):
    (tmp_path / "train.py").write_text(ENTRY)
    new = MODULE.replace("hidden += 1", "hidden = hidden + 1")
    made = fix(tmp_path, {"shapes.py": (MODULE, new)}, cured("missing-grad", "shapes.py"))
    assert made.used == ("shapes.py",)
    (found,) = apply(make.patch([made]), Tree(tmp_path))
    assert found.status == "placed"
    (tmp_path / "train.py").write_text(ENTRY.replace("from shapes import", "from figures import"))
    (tmp_path / "figures.py").write_text(MODULE)
    (found,) = apply(make.patch([made]), Tree(tmp_path))
    assert "train.py: it does not come to shapes.py, which the fix changes, as it does" in found.why
