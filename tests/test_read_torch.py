"""What is read of hooks, of gradients that are None, of numbers and of draws."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from gradfix.detect import detect
from gradfix.prove import Prover, Runner
from gradfix.read import read
from gradfix.run import Run
from gradfix.run.zygote import Zygote

HEAD = "import random\nimport torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LINES = HEAD.count("\n")


def found(tmp_path: Path, text: str, zygote: Zygote | None = None) -> list[tuple[str, str, int, str]]:
    """(kind, pattern, line of the text, evidence) of everything above a note in the main part, which is what the run
    shows."""
    program = tmp_path / "train.py"
    text = HEAD + textwrap.dedent(text)
    program.write_text(text, encoding="utf-8")
    main, *_ = read(program, text)
    conflicts = [c for c in detect(main.tape) if c.severity != "note"]
    if zygote is not None:
        ran = detect(zygote.run(Run(program, tmp_path, tmp_path)).tape)
        told = {(c.kind, c.pattern, c.at) for c in ran if c.severity != "note"}
        assert {(c.kind, c.pattern, c.at) for c in conflicts} == told
    return [(c.kind, c.pattern, c.at.line - LINES, main.evidence(c)) for c in conflicts]


HOOKED = """\
inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
outer = nn.Linear(4, 1)
handle = inner{hooked}.register_{kind}(lambda *args: None)
{between}
h = inner(torch.randn(5, 3))
{written}
outer(h).sum().backward()
"""
VIEW = ("forbidden-view-write", "custom-view")


@pytest.mark.parametrize(
    ("hooked", "kind", "between", "written", "line"),
    [
        ("[0]", "full_backward_hook", "", "", 5),
        ("[0]", "full_backward_pre_hook", "", "", 5),
        ("[1]", "full_backward_hook", "", "", 5),  # its input is a view as well
        ("", "full_backward_hook", "", "h += 1", 6),
        ("", "full_backward_hook", "", "h = h + 1", 0),
        ("", "full_backward_hook", "handle.remove()", "h += 1", 0),
        ("", "forward_hook", "", "h += 1", 0),
        (
            "",
            "full_backward_hook",
            "torch.set_grad_enabled(False)",
            "h += 1; torch.set_grad_enabled(True)",
            0,
        ),
    ],
)
def test_what_passes_a_module_with_a_full_backward_hook_is_a_view(
    tmp_path: Path, zygote: Zygote, hooked: str, kind: str, between: str, written: str, line: int
) -> None:
    text = HOOKED.format(hooked=hooked, kind=kind, between=between, written=written)
    if hooked == "[1]":  # (the recorder knows the outputs alone)
        assert found(tmp_path, text) == [(*VIEW, line, "certain")]
    else:
        assert found(tmp_path, text, zygote) == ([(*VIEW, line, "certain")] if line else [])


def test_a_hook_that_may_not_be_there_is_none(tmp_path: Path) -> None:
    hooked = "if input(): inner.register_full_backward_hook(print)"
    text = HOOKED.format(hooked="", kind="forward_hook", between=hooked, written="h += 1")
    assert found(tmp_path, text) == []


CLEARED = """\
net = nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    net(torch.randn(2, 3)).sum().backward()
    optimizer.step()
    {cleared}
    {between}
    size = sum({read} for p in net.parameters())
"""
GONE = ("legacy-api", "cleared", 8, "certain")


@pytest.mark.parametrize("cleared", ["optimizer.zero_grad()", "net.zero_grad()", "net.weight.grad = None"])
def test_a_gradient_that_was_taken_away_is_none(tmp_path: Path, zygote: Zygote, cleared: str) -> None:
    text = CLEARED.format(cleared=cleared, between="", read="p.grad.norm()")
    assert found(tmp_path, text, zygote) == [GONE]


@pytest.mark.parametrize(
    ("cleared", "between", "read"),
    [
        ("optimizer.zero_grad(set_to_none=False)", "", "p.grad.norm()"),
        ("net.zero_grad(set_to_none=False)", "", "p.grad.norm()"),
        ("optimizer.zero_grad(bool(input()))", "", "p.grad.norm()"),
        ("optimizer.zero_grad()", "net(torch.ones(3)).sum().backward()", "p.grad.norm()"),
        ("optimizer.zero_grad()", "unknown(net)", "p.grad.norm()"),
        ("optimizer.zero_grad()", "", "0 if p.grad is None else p.grad.norm()"),
        ("pass", "", "p.grad.norm()"),
    ],
)
def test_a_gradient_that_may_be_there_is_not_missed(
    tmp_path: Path, cleared: str, between: str, read: str
) -> None:
    imported = "from somewhere import unknown\n"
    told = found(tmp_path, imported + CLEARED.format(cleared=cleared, between=between, read=read))
    assert "legacy-api" not in {kind for kind, *_ in told}


def test_the_list_of_one_number_is_a_number(tmp_path: Path, zygote: Zygote) -> None:
    text = """\
    loss = nn.Linear(3, 1)(torch.randn(2, 3)).{reduced}
    loss.mean().backward()
    print(loss.detach().tolist()[0])
    """
    assert found(tmp_path, text.format(reduced="mean()"), zygote) == [("legacy-api", "removed", 3, "certain")]
    assert found(tmp_path, text.format(reduced="mean(1)"), zygote) == []


LIMITED = """\
w = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([w], lr=0.1)
k = 0.0
for x in torch.rand(8, 3):
    loss = (w * x).pow(2).mean() - k * w.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    k = {limited}
"""


@pytest.mark.parametrize("limited", ["min(1, 0.01 * loss + k)", "max(0.01 * loss + k, -1)"])
def test_of_a_number_and_a_tensor_it_is_likely_the_tensor(
    tmp_path: Path, zygote: Zygote, limited: str
) -> None:
    text = LIMITED.format(limited=limited)
    assert [(kind, evidence) for kind, _, _, evidence in found(tmp_path, text, zygote)] == [
        ("freed-graph", "likely")
    ]
    detached = text.replace("loss + k", "loss.detach() + k")
    assert found(tmp_path, detached, zygote) == []


DRAWN = """\
encode, value = nn.Linear(4, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*encode.parameters(), *value.parameters()], lr=0.1)
memory = []
for step in range(6):
    memory.append({kept})
    if step < 2:
        continue
    loss = sum(value({encoded}).pow(2).sum() for x in {drawn})
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "drawn", ["random.sample(memory, 3)", "random.choices(memory, k=3)", "[random.choice(memory)]"]
)
def test_what_is_drawn_of_what_has_a_graph_likely_has_been_drawn_before(tmp_path: Path, drawn: str) -> None:
    text = DRAWN.format(kept="encode(torch.randn(4))", encoded="x", drawn=drawn)
    assert {evidence for *_, evidence in found(tmp_path, text)} <= {"likely"}
    assert bool(found(tmp_path, text)) == ("choice(" not in drawn)  # one item may be the new one every time
    without = DRAWN.format(kept="torch.randn(4)", encoded="encode(x)", drawn=drawn)
    assert found(tmp_path, without) == []


RESET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

    def reset(self):
        for layer in self.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))

def init(layer):
    if isinstance(layer, nn.Linear):
        nn.init.kaiming_normal_(layer.weight)

net = Net()
{before}
loss = net(torch.randn(5, 3)).sum()
{between}
loss.backward()
"""


@pytest.mark.parametrize(
    ("between", "line"),
    [
        ("net.last.reset_parameters()", 21),
        ("net.norm.reset_parameters()", 21),
        ("net.reset()", 9),
        ("net.apply(init)", 16),
        ("nn.init.orthogonal_(net.last.weight)", 21),
        ("torch.nn.init.constant_(tensor=net.last.weight, val=0.5)", 21),
        ("nn.init.zeros_(net.last.weight[0])", 21),
        ("nn.init.zeros_(net.last.bias)", 0),  # an addition keeps nothing
        ("gain = nn.init.calculate_gain('relu')", 0),
        ("hasattr(torch.relu, 'reset_parameters')", 0),
    ],
)
def test_numbers_drawn_anew_overwrite_the_old_ones(
    tmp_path: Path, zygote: Zygote, between: str, line: int
) -> None:
    text = RESET.format(before="", between=between)
    expected = [("stale-saved-tensor", line, "certain")] if line else []
    assert [(k, at, e) for k, _, at, e in found(tmp_path, text, zygote)] == expected
    assert found(tmp_path, RESET.format(before=between, between="pass"), zygote) == []


def test_writes_that_are_chained_are_one_fault(tmp_path: Path, zygote: Zygote) -> None:
    text = "x = torch.ones(3, requires_grad=True)\nx.mul_(2).add_(1)\nx.div_(2); x.exp_()\n"
    assert [at for _, _, at, _ in found(tmp_path, text, zygote)] == [2, 3, 3]


PASSING = """\
nets = dict(g=nn.Linear(3, 3), d=nn.Linear(3, 1))
out = torch.ones(2, 3)
for key, each in nets.items():
    out = each(out)
{scaled}
out.sum().backward()
"""


@pytest.mark.parametrize(
    "scaled",
    [
        "for _, m in nets.items():\n    m.weight.data.mul_(2)",
        "[m.weight.data.mul_(2) for m in nets.values()]",
    ],
)
def test_a_loops_variable_is_no_name_that_stays(tmp_path: Path, zygote: Zygote, scaled: str) -> None:
    program = tmp_path / "train.py"
    text = HEAD + PASSING.format(scaled=scaled)
    program.write_text(text)
    for tape in (read(program, text)[0].tape, zygote.run(Run(program, tmp_path, tmp_path)).tape):
        assert [c.message for c in detect(tape) if "nets['d'].weight" in c.message and c.severity == "error"]


CODES = """\
import torch.nn.functional as F
encoder, decoder, codes = nn.Linear(4, 3), nn.Linear(3, 4), nn.Embedding(8, 3)
parameters = [*encoder.parameters(), *decoder.parameters(), *codes.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(3):
    x = torch.randn(5, 4)
    z = encoder(x)
    index = torch.cdist(z, codes.weight).argmin(1)
    {used}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ("loss = F.mse_loss(decoder(codes(index)), x)", [("cut-graph", "partly", 8, "certain")]),
        ("loss = F.mse_loss(decoder(codes(index)), x) + F.mse_loss(codes(index), z.detach())",
         [("cut-graph", "partly", 8, "certain")]),
        ("loss = index.float().mean()", [("cut-graph", "no-graph", 8, "certain")]),
        ("loss = (z > 0).float().mean()", [("cut-graph", "no-graph", 9, "certain")]),
        ("loss = F.mse_loss(decoder(z + (codes(index) - z).detach()), x) + F.mse_loss(codes(index), z.detach())", []),
        ("loss = F.mse_loss(decoder(codes(index)), x) + F.mse_loss(codes(index), z)", []),
        ("loss = (decoder(z) * (z.sum() > 0)).sum() + codes(index).sum()", []),
    ],
)  # fmt: skip
def test_indices_and_truth_values_end_the_graph(
    tmp_path: Path, zygote: Zygote, used: str, expected: list[tuple[str, str, int, str]]
) -> None:
    assert found(tmp_path, CODES.format(used=used), zygote) == expected


def test_of_an_array_that_is_not_known_the_tensor_may_have_any_shape(tmp_path: Path) -> None:
    text = """\
    import numpy as np
    mask = torch.FloatTensor(np.ones((2, 3)))
    length = (mask > 0).sum(1).long()
    print(length[0])
    """
    assert found(tmp_path, text) == []


def test_what_a_dictionary_of_arguments_holds_is_no_leaf(tmp_path: Path) -> None:
    text = """\
    class Expert(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(3, 4)

        def forward(self, features, labels, names, records):
            loss = nn.functional.cross_entropy(self.model(features), labels)
            records["names"] += names
            return loss
    """
    program = tmp_path / "expert.py"
    program.write_text(HEAD + textwrap.dedent(text))
    assert [c.kind for each in read(program, program.read_text()) for c in detect(each.tape)] == []


def test_both_inputs_of_a_bilinear_layer_count(tmp_path: Path, zygote: Zygote) -> None:
    text = """\
    first, score, kept = nn.Linear(3, 3), nn.Bilinear(3, 3, 1), []
    for step in range(3):
        kept.append(first(torch.randn(2, 3)))
        score(torch.randn(2, 3), kept[0]).sum().backward()
    """
    assert [kind for kind, *_ in found(tmp_path, text, zygote)] == ["freed-graph"]


MASKED = """\
net = nn.Linear(4, 4)
for step in range(3):
    shares = net(torch.randn(2, 4)).softmax(-1)
    shares.data *= torch.tensor([1.0, 1.0, 0.0, 1.0])
    {after}
    (shares ** 2).sum().backward()
"""


@pytest.mark.parametrize(
    ("after", "sound"),
    [("shares.data /= shares.data.sum(-1, keepdim=True)", True), ("shares.data *= 2", False)],
)
def test_a_mask_is_right_where_what_is_left_is_renormalised(
    tmp_path: Path, zygote: Zygote, after: str, sound: bool
) -> None:
    told = [kind for kind, *_ in found(tmp_path, MASKED.format(after=after))]
    program = tmp_path / "train.py"
    prover = Prover(Runner(zygote, Run(program, tmp_path, tmp_path)))
    ran = prover.baseline({str(program): program.read_text()}).conflicts
    assert [c.kind for c in ran if c.severity != "note"] == told == ([] if sound else ["silent-overwrite"])


WATCHING = """\
class Watching:
    def __enter__(self):
        self.mode = torch.{mode}
        {enter}
    def __exit__(self, *details):
        self.mode.__exit__(*details)
first, score, kept = nn.Linear(3, 3), nn.Bilinear(3, 3, 1), []
for step in range(3):
    with Watching():
        kept.append(first(torch.randn(2, 3)))
    score(first(torch.randn(2, 3)), kept[0]).sum().backward()
"""


@pytest.mark.parametrize(
    ("mode", "enter", "kinds"),
    [
        ("no_grad()", "self.mode.__enter__()", []),
        ("inference_mode()", "self.mode.__enter__()", []),
        ("enable_grad()", "self.mode.__enter__()", ["freed-graph"]),
        ("no_grad()", "pass", ["freed-graph"]),
    ],
)
def test_modes_that_a_context_manager_of_the_programs_enters(tmp_path, mode, enter, kinds):
    assert [kind for kind, *_ in found(tmp_path, WATCHING.format(mode=mode, enter=enter))] == kinds


HEARD = """\
kept = []
def hook(module, args, output):
    {body}
net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
handle = net[1].register_forward_hook(hook)
{after}
net(torch.randn(2, 3)).sum().backward()
"""


@pytest.mark.parametrize(
    ("body", "after", "kinds"),
    [
        ("output += 1", "", ["stale-saved-tensor"]),
        ("return output + 1", "", []),
        ("return output.detach()", "net[2].requires_grad_(False)", ["cut-graph"]),
        ("output += 1", "handle.remove()", []),
        ("kept.append(output)", "", []),
    ],
)
def test_a_forward_hook_is_called_with_what_the_module_gives(tmp_path, body, after, kinds):
    assert [kind for kind, *_ in found(tmp_path, HEARD.format(body=body, after=after))] == kinds


BETAS = """\
class Own(torch.optim.Adam):
    def __init__(self, params, **kwargs):
        super().__init__(params, **kwargs)

net = nn.Linear(3, 1)
first = {first}
optimizer = {made}
for x in torch.randn(3, 6, 3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("first", "made", "line"),
    [
        ("0", "torch.optim.Adam(net.parameters(), 1e-3, (first, 0.9))", 7),
        ("0", "torch.optim.AdamW(net.parameters(), betas=[first, 0.9])", 7),
        ("0", "Own(net.parameters(), betas=(first, 0))", 3),
        ("0.0", "torch.optim.Adam(net.parameters(), betas=(first, 0.9))", 0),
        ("0", "torch.optim.NAdam(net.parameters(), betas=(first, 0.9))", 0),
        ("0", "torch.optim.RAdam(net.parameters(), betas=(first, 0.9))", 0),
        ("0", "torch.optim.Adam(net.parameters(), betas=(float(first), 0.9))", 0),
        ("0", "torch.optim.Adam(net.parameters(), betas=(first / 2, 0.9))", 0),
    ],
)
def test_adam_takes_no_whole_number_among_its_betas(
    tmp_path: Path, zygote: Zygote, first: str, made: str, line: int
) -> None:
    expected = [("legacy-api", "removed", line, "certain")] if line else []
    assert found(tmp_path, BETAS.format(first=first, made=made), zygote) == expected


@pytest.mark.parametrize(
    ("first", "betas"),
    [
        ("float(input())", "(first, 0.9)"),
        ("torch.tensor(0.0)", "(first, torch.tensor(0.9))"),
        ("[0.0, 0.9]", "tuple(first)"),
        ("0", "(first, 1)"),  # never was taken
    ],
)
def test_betas_that_adam_may_take_or_never_took(tmp_path: Path, first: str, betas: str) -> None:
    made = f"torch.optim.Adam(net.parameters(), betas={betas})"
    assert found(tmp_path, BETAS.format(first=first, made=made)) == []


@pytest.mark.parametrize(
    ("made", "read", "line"),
    [
        ("torch.rand(6).gt(0.5).nonzero()", "row[0]", 0),  # a row of coordinates
        ("torch.rand(6).outer(torch.rand(2))", "row[0]", 0),
        ("torch.rand(6)", "row[0]", 2),
        ("torch.cat([torch.tensor([]), torch.rand(6, 2)])", "row[0]", 0),
        ("torch.rand(6, 2).sum(1, True)", "row[0]", 0),
        ("torch.rand(6, 2).sum(1)", "row[0]", 2),
    ],
)
def test_the_number_of_a_row_is_read_where_a_row_has_dimensions(
    tmp_path: Path, zygote: Zygote, made: str, read: str, line: int
) -> None:
    text = f"row = {made}[0]\nprint(int({read}))\n"
    assert found(tmp_path, text, zygote if line == 0 else None) == (
        [("legacy-api", "removed", line, "certain")] if line else []
    )


@pytest.mark.parametrize(
    "made", ["nn.functional.softmax(w)", "nn.functional.log_softmax(w)", "nn.Softmax()(w)"]
)
def test_a_softmax_that_is_told_no_dimension(tmp_path: Path, zygote: Zygote, made: str) -> None:
    text = f"w = torch.randn(3, requires_grad=True)\ny = {made}\ny += 1\ny.sum().backward()\n"
    assert found(tmp_path, text, zygote) == [("stale-saved-tensor", "write", 3, "certain")]


@pytest.mark.parametrize("kind", ["torch.LongTensor", "'torch.LongTensor'", "torch.IntTensor", "torch.long"])
def test_a_class_of_whole_numbers_ends_the_graph(tmp_path: Path, zygote: Zygote, kind: str) -> None:
    text = f"w = torch.randn(3, requires_grad=True)\ny = (w * 2).type({kind})\ny.float().sum().backward()\n"
    assert found(tmp_path, text, zygote) == [("cut-graph", "no-graph", 2, "certain")]


@pytest.mark.parametrize("kind", ["torch.DoubleTensor", "'torch.DoubleTensor'", "torch.Tensor"])
def test_a_class_of_floats_leaves_the_graph_whole(tmp_path: Path, zygote: Zygote, kind: str) -> None:
    text = f"w = torch.randn(3, requires_grad=True)\ny = (w * 2).type({kind})\ny.sum().backward()\n"
    assert found(tmp_path, text, zygote) == []
