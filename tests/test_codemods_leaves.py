"""The codemods for in-place modules, `.data`, renormalised weights, gradients of non-leaves and leaves made
too early, on conflicts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import answers, changed, site, stale

from codemods.clone_weight import CloneWeight
from codemods.data_to_detach import DataToDetach
from codemods.inplace_module_off import InplaceModuleOff
from codemods.leaf_after_conversion import LeafAfterConversion
from codemods.retain_grad import RetainGrad
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.tape import AnyEvent, Cut, GradRead, Record, Ref


def module(
    source: str, name: str, op: str = "aten.relu_", called: str = "net(x)"
) -> tuple[Conflict, Project]:
    conflict, project = stale(source, called, pattern="module", how="module", op=op)
    assert conflict.write is not None
    return replace(conflict, write=replace(conflict.write, module=name)), project


def test_the_module_that_wrote_is_found_by_its_name() -> None:
    source = (
        "net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Tanh(),\n"
        "                    nn.ReLU(inplace=True),  # ✂\n                    nn.Linear(2, 1))\ny = net(x)\n"
    )
    (_, text), *_ = answers(InplaceModuleOff, module(source, "net.3"))
    assert text == source.replace("nn.ReLU(inplace=True),  # ✂", "nn.ReLU(),  # ✂")


def test_the_one_before_it_is_the_alternative() -> None:
    source = "net = nn.Sequential(nn.LeakyReLU(0.2, True), nn.Dropout(0.5, inplace=True))\ny = net(x)\n"
    texts = [t for _, t in answers(InplaceModuleOff, module(source, "net.1", "aten.mul_"))]
    assert texts == [
        source.replace("0.5, inplace=True", "0.5"),
        source.replace("0.2, True", "0.2"),
        source.replace("0.2, True", "0.2").replace(
            "0.5, inplace=True", "0.5"
        ),  # both, where both are at fault
    ]


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("class N(Module):\n  def __init__(self):\n    self.a = nn.ReLU(True)\nnet = N().to(d)\n", "net.a"),
        ("def block():\n    return nn.Sequential(nn.Sigmoid(), nn.ReLU(True))\nnet = block()\n", "net.1"),
        ("net = nn.Sequential(OrderedDict([('s', nn.Sigmoid()), ('r', nn.ReLU(True))]))\n", "net.r"),
        (
            "ls = []\nfor _ in r:\n    ls.append(nn.ReLU(True))\nnet = nn.Sequential(*ls)\n",
            "net.1",
        ),
        ("act = nn.ReLU(True)\nnet = nn.Sequential(nn.Sigmoid(), act)\n", "net.1"),
    ],
    ids=["attribute", "helper", "ordered_dict", "loop", "name"],
)
def test_the_constructor_may_be_anywhere(made: str, name: str) -> None:
    source = f"{made}other = nn.GELU()\ny = net(x)\n"
    (_, text), *_ = answers(InplaceModuleOff, module(source, name))
    assert text == source.replace("nn.ReLU(True)", "nn.ReLU()")


def data(source: str, *read: str) -> tuple[Conflict, Project]:
    conflict, project = stale(source, read[0], kind="data-attribute")
    events = tuple(Cut(i, (site(source, text),), "data", Ref(1, 1)) for i, text in enumerate(read))
    return replace(conflict, write=None, event=events[0]), replace(
        project, tape=replace(project.tape, events=events)
    )


def test_reading_data_becomes_detach() -> None:
    source = "print(loss.data, h.data.cpu(), batch.x)\n"
    assert answers(DataToDetach, data(source, "loss.data", "h.data"))[0][1] == (
        "print(loss.detach(), h.detach().cpu(), batch.x)\n"
    )


def test_writing_data_is_not_reading_it() -> None:
    for statement in ("p.data.clamp_(0, 1)", "p.data -= g", "p.data = g", "p.data[0] = 1"):
        assert answers(DataToDetach, data(f"{statement}\n", "p.data")) == []


EMBEDDED = "W = init()\na = table.weight @ W.t()\n# scaled\nb = table(idx) @ W.t()\nout = a + b\n"


def renormalised(source: str, use: str, lookup: str) -> tuple[Conflict, Project]:
    return stale(source, lookup, saved=use, pattern="renormalised", how="module", leaf=True)


def test_the_weight_is_cloned_where_it_is_used() -> None:
    case = renormalised(EMBEDDED, "table.weight @ W.t()", "table(idx)")
    assert changed(EMBEDDED, answers(CloneWeight, case)[0][1]) == "a = table.weight.clone() @ W.t()"


def test_the_lookup_moves_before_the_use() -> None:
    case = renormalised(EMBEDDED, "table.weight @ W.t()", "table(idx)")
    _, (proposal, text) = answers(CloneWeight, case)
    assert text == "W = init()\n# scaled\nb = table(idx) @ W.t()\na = table.weight @ W.t()\nout = a + b\n"
    assert proposal.effect.kind == "moved-write"


def test_a_lookup_that_needs_what_stands_between_stays() -> None:
    source = EMBEDDED.replace("# scaled", "idx = pick(a)")
    assert len(answers(CloneWeight, renormalised(source, "table.weight @ W.t()", "table(idx)"))) == 1


def grad_read(source: str, *read: str, made: str = "", through: str = "") -> tuple[Conflict, Project]:
    stack = tuple(site(source, text) for text in (through, made) if text)
    record = Record(1, stack, 0, "aten.mul") if made else None
    reads = [GradRead(10 + i, (site(source, text),), Ref(1, 1), 0) for i, text in enumerate(read)]
    conflict, project = stale(source, read[0], kind="missing-grad", pattern="read")
    events: tuple[AnyEvent, ...] = (*([record] if record else []), *reads)
    conflict = replace(conflict, write=None, record=record, event=reads[0])
    return conflict, replace(project, tape=replace(project.tape, events=events))


def test_every_gradient_that_is_read_is_retained() -> None:
    source = "a = w * 2\nb = a + 1  # sum\nb.sum().backward()\nprint(w.grad, a.grad, b.grad)\n"
    (_, text), *_ = answers(RetainGrad, grad_read(source, "a.grad", "b.grad"))
    assert text == source.replace("a = w * 2\n", "a = w * 2\na.retain_grad()\n").replace(
        "# sum\n", "# sum\nb.retain_grad()\n"
    )


MADE = "class Net(nn.Module):\n    def forward(self, x):\n        self.h = self.a(x)\n        return 0\n"


def test_an_attribute_is_retained_before_the_backward() -> None:
    source = MADE + "loss = net(x)\nloss.backward()\nprint(net.h.grad)\n"
    (_, text), *_ = answers(RetainGrad, grad_read(source, "net.h.grad", made="self.a(x)"))
    assert text == source.replace("loss.backward()", "net.h.retain_grad()\nloss.backward()")


def test_a_tensor_made_in_the_statement_of_the_backward_is_retained_in_its_method() -> None:
    source = MADE + "def probe(self):\n    self(x).backward()\n    return self.h.grad\n"
    read = grad_read(source, "self.h.grad", made="self.a(x)", through="self(x)")
    (_, text), *_ = answers(RetainGrad, read)
    assert text == source.replace("self.a(x)\n", "self.a(x)\n        self.h.retain_grad()\n")


def test_a_leaf_that_was_rebound_is_not_retained() -> None:
    source = "for e in r:\n    f(w).backward()\n    w = w - lr * w.grad\n"
    assert answers(RetainGrad, grad_read(source, "w.grad")) == []


@pytest.mark.parametrize(
    ("made", "leaf"),
    [
        (
            "torch.ones(3, requires_grad=True).double()",
            "torch.ones(3, dtype=torch.double, requires_grad=True)",
        ),
        ("torch.zeros(3, requires_grad=True).to(dev)", "torch.zeros(3, device=dev, requires_grad=True)"),
        (
            "torch.eye(3, requires_grad=True).to(torch.half)",
            "torch.eye(3, dtype=torch.half, requires_grad=True)",
        ),
        ("torch.randn(3, requires_grad=True).to(dev)", "torch.randn(3).to(dev).requires_grad_()"),
        ("torch.randn(3, requires_grad=True) * 0.1", "(torch.randn(3) * 0.1).requires_grad_()"),
        ("0.1 * torch.randn(3, requires_grad=True)", "(0.1 * torch.randn(3)).requires_grad_()"),
        ("nn.Parameter(torch.ones(4)).to(dtype)", "nn.Parameter(torch.ones(4).to(dtype))"),
        ("nn.Parameter(a + b).double()", "nn.Parameter((a + b).double())"),
        ("torch.ones(2).requires_grad_().cuda()", "torch.ones(2).cuda().requires_grad_()"),
    ],
)
def test_the_converted_tensor_is_the_leaf(made: str, leaf: str) -> None:
    source = f"w = {made}  # weight\nopt = SGD([w])\n"
    conflict, project = grad_read(source, "[w]", made=made)
    (_, text), *_ = answers(
        LeafAfterConversion, (replace(conflict, pattern="parameter", event=None), project)
    )
    assert text == f"w = {leaf}  # weight\nopt = SGD([w])\n"


def test_a_conversion_on_a_line_of_its_own() -> None:
    source = "w = torch.randn(3, requires_grad=True)\nw = w.to(dev)\nopt = SGD([w])\n"
    conflict, project = grad_read(source, "[w]", made="w.to(dev)")
    (_, text), *_ = answers(
        LeafAfterConversion, (replace(conflict, pattern="parameter", event=None), project)
    )
    assert text == "w = torch.randn(3)\nw = w.to(dev).requires_grad_()\nopt = SGD([w])\n"


def test_what_is_no_conversion_of_a_leaf_stays() -> None:
    source = "y = x.exp().double()\nprint(y.grad)\n"
    assert answers(LeafAfterConversion, grad_read(source, "y.grad", made="x.exp().double()")) == []
