"""The codemods that cure wrong writes, on conflicts made by hand: what becomes of the line at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import answers, changed, code, site, stale

from codemods.clone_before_write import CloneBeforeWrite
from codemods.no_grad_write import NoGradWrite
from codemods.out_of_place import OutOfPlace
from codemods.plain_accumulator import PlainAccumulator
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.tape import Cut, Mutate, Ref


@pytest.mark.parametrize(
    ("write", "after"),
    [
        ("y += a", "y = y + a"),
        ("y += a + b", "y = y + (a + b)"),
        ("y -= a - b", "y = y - (a - b)"),
        ("y *= a + b", "y = y * (a + b)"),
        ("y *= a ** 2", "y = y * a ** 2"),
        ("y /= n if n else 1", "y = y / (n if n else 1)"),
        ("y **= -2", "y = y ** -2"),
        ("y @= a @ b", "y = y @ (a @ b)"),
        ("y *= y", "y = y * y"),
        ("y[:] *= 2", "y = y * 2"),
        ("y.relu_()", "y = y.relu()"),
        ("y.clamp_(0, 1)", "y = y.clamp(0, 1)"),
        ("y.mul_(a).add_(b)", "y = y.mul(a).add(b)"),
        ("y.zero_()", "y = torch.zeros_like(y)"),
        ("y.fill_(v)", "y = torch.full_like(y, v)"),
        ("y.copy_(a)", "y = a.clone()"),
        ("y.exponential_(2.0)", "y = y.clone().exponential_(2.0)"),
        ("y[:] = 0", "y = torch.zeros_like(y)"),
        ("y[...] = -1", "y = torch.full_like(y, -1)"),
        ("y[y < 0] = 0", "y = y.masked_fill(y < 0, 0)"),
        ("F.relu_(y)", "y = F.relu(y)"),
        ("torch.relu_(y)", "y = torch.relu(y)"),
        ("F.relu(y, inplace=True)", "y = F.relu(y)"),
        ("F.leaky_relu(y, inplace=True, negative_slope=0.2)", "y = F.leaky_relu(y, negative_slope=0.2)"),
        ("torch.mul(a, b, out=y)", "y = torch.mul(a, b)"),
        ("z = torch.mul(a, b, out=y)", "z = y = torch.mul(a, b)"),
        ("z = y.relu_()", "z = y = y.relu()"),
        ("z = [y.exp().clamp_(0, 1), 2]", "z = [y.exp().clamp(0, 1), 2]"),
        ("y = y.relu_()", "y = y.relu()"),
        ("(z := y.exp().mul_(2))", "(z := y.exp().mul(2))"),
    ],
)
def test_a_write_becomes_an_assignment(write: str, after: str) -> None:
    source = code(
        f"""
        import torch
        import torch.nn.functional as F

        y = x.exp()
        {write}  # comment
        y.sum().backward()
        """
    )
    span = write.removeprefix("z = ") if "[y.exp()" not in write and write != "y = y.relu_()" else write
    at = {
        "z = [y.exp().clamp_(0, 1), 2]": "y.exp().clamp_(0, 1)",
        "(z := y.exp().mul_(2))": "y.exp().mul_(2)",
    }
    at["y = y.relu_()"] = "y.relu_()"
    (_, text), *_ = answers(OutOfPlace, stale(source, at.get(write, span)))
    assert changed(source, text) == f"{after}  # comment"


def test_an_item_write_is_seen_by_its_target() -> None:
    source = "import torch\ny = x.exp()\ny[:] = 0\ny.sum()\n"
    (_, text), *_ = answers(OutOfPlace, stale(source, "y[:]"))
    assert changed(source, text) == "y = torch.zeros_like(y)"


@pytest.mark.parametrize(
    ("body", "write"),
    [
        ("z = y\ny += 1\nuse(z, y)", "y += 1"),
        ("z = y.view(-1)\ny.relu_()\nuse(z, y)", "y.relu_()"),
        ("z = y[0]\nz += 1\nuse(y, z)", "z += 1"),
        ("kept.append(y)\ny += 1\nuse(kept, y)", "y += 1"),
        ("for p in parameters():\n    p.mul_(2)", "p.mul_(2)"),
        ("y.view(-1).add_(1)\nuse(y)", "y.view(-1).add_(1)"),
        ("y[0] += 1\nuse(y)", "y[0] += 1"),
    ],
    ids=["alias", "view", "written_through_a_view", "kept_in_a_list", "loop_variable", "view_method", "part"],
)
def test_no_rebinding_where_another_name_sees_the_write(body: str, write: str) -> None:
    source = f"y = x.exp()\n{body}\n"
    case = stale(source, write)
    if "[0] +=" in write:  # a tensor's item is copied back
        case = stale(source, write, op="aten.copy_")
    assert answers(OutOfPlace, case) == []


def test_an_alias_that_nobody_reads_again_does_not_matter() -> None:
    source = "y = x.exp()\nz = y\nprint(z)\ny += 1\nuse(y)\n"
    assert changed(source, answers(OutOfPlace, stale(source, "y += 1"))[0][1]) == "y = y + 1"


def test_a_bound_anew_name_is_no_alias() -> None:
    source = "y = x\ny = y.exp()\ny += 1\nuse(x, y)\n"
    assert changed(source, answers(OutOfPlace, stale(source, "y += 1"))[0][1]) == "y = y + 1"


def test_a_parameter_may_be_rebound_where_the_function_goes_on_with_it() -> None:
    source = "def forward(self, x):\n\tx += self.conv(x)\n\treturn x\n"
    assert (
        changed(source, answers(OutOfPlace, stale(source, "x += self.conv(x)"))[0][1])
        == "x = x + self.conv(x)"
    )


def test_a_parameter_written_for_the_caller_stays() -> None:
    source = "def scale_(x):\n    x.mul_(2)\n\nscale_(h)\nprint(h)\n"
    assert answers(OutOfPlace, stale(source, "x.mul_(2)")) == []


def test_an_argument_that_the_caller_reads_on_stays() -> None:
    source = "def act(x):\n    x.relu_()\n    return x\n\nz = act(h)\nprint(h)\n"
    assert answers(OutOfPlace, stale(source, "x.relu_()", outer=(site(source, "act(h)"),))) == []


def test_attributes_and_items_of_lists() -> None:
    source = "self.h += x\nhs = [a, b]\nhs[0] *= 2 + k\n"
    assert changed(source, answers(OutOfPlace, stale(source, "self.h += x"))[0][1]) == "self.h = self.h + x"
    assert (
        changed(source, answers(OutOfPlace, stale(source, "hs[0] *= 2 + k"))[0][1])
        == "hs[0] = hs[0] * (2 + k)"
    )


def test_a_multi_line_chain_loses_one_underscore() -> None:
    source = code(
        """
        std = (
            (0.5 * logvar)
            .exp()  # σ
            .clamp_(1e-3, 1.2)
        )
        """
    )
    (_, text), *_ = answers(OutOfPlace, stale(source, "clamp_(1e-3, 1.2)"))
    assert text == source.replace("clamp_", "clamp")


def test_a_write_behind_data_joins_the_graph() -> None:
    source = "w = scores.softmax(1)\nw.data.masked_fill_(pad, 0)\nuse(w)\n"
    case = stale(source, "w.data.masked_fill_(pad, 0)", kind="silent-overwrite", how="data")
    (proposal, text), *_ = answers(OutOfPlace, case)
    assert changed(source, text) == "w = w.masked_fill(pad, 0)"
    assert proposal.effect.kind == "adds-gradient"


def test_a_hidden_rounding_is_a_straight_through_estimator() -> None:
    source = "h = torch.tanh(x)\nh.data.copy_((h.data * 4).round() / 4)\nuse(h)\n"
    case = stale(source, "h.data.copy_((h.data * 4).round() / 4)", kind="silent-overwrite", how="data")
    (first, text), *_ = answers(OutOfPlace, case)
    assert changed(source, text) == "h = h + ((h * 4).round() / 4 - h).detach()"
    assert first.effect.kind == "none"


def test_semicolons_tabs_and_line_endings_are_kept() -> None:
    source = "if a:\r\n\ty = x.exp(); y += 1; y.sum().backward()  # größer\r\n"
    (_, text), *_ = answers(OutOfPlace, stale(source, "y += 1"))
    assert text == source.replace("y += 1", "y = y + 1")


@pytest.mark.parametrize(
    "write",
    [
        "h[:, 0] = 0.5",
        "out[idx] += v",
        "h.masked_fill_(m, 0)",
        "h.index_add_(0, idx, v)",
        "h.scatter_(1, i, v)",
    ],
)
def test_a_copy_is_written_instead(write: str) -> None:
    name = write.partition("[")[0].partition(".")[0]
    source = (
        f"def f(x):\n    {name} = torch.tanh(x)\n\n    # bias\n    {write}  # unit\n    return {name} * 2\n"
    )
    texts = [t for _, t in answers(CloneBeforeWrite, stale(source, write, op="aten.copy_"))]
    assert source.replace("    # bias\n", f"    # bias\n    {name} = {name}.clone()\n") in texts


def test_what_was_read_from_a_buffer_is_cloned() -> None:
    source = "for t in range(3):\n    states[t + 1] = cell(seq[t], states[t])\nuse(states)\n"
    case = stale(source, "states[t + 1]", saved="cell(seq[t], states[t])")
    assert (
        changed(source, answers(CloneBeforeWrite, case)[0][1])
        == "states[t + 1] = cell(seq[t], states[t].clone())"
    )


def test_a_saved_result_is_cloned_where_an_alias_sees_the_write() -> None:
    source = "h = torch.tanh(x)\nz = h\nh[0] = 1\nuse(z, h)\n"
    texts = [
        t for _, t in answers(CloneBeforeWrite, stale(source, "h[0]", saved="torch.tanh(x)", output=True))
    ]
    assert source.replace("torch.tanh(x)", "torch.tanh(x).clone()") in texts
    assert not any("h = h.clone()\nh[0]" in t for t in texts)


def test_the_tensor_is_cloned_before_its_view_is_taken() -> None:
    source = "x = x.exp()\nfirst = x[:, 0]\nfirst += 1\nuse(x)\n"
    texts = [t for _, t in answers(CloneBeforeWrite, stale(source, "first += 1"))]
    assert texts == [source.replace("first = ", "x = x.clone()\nfirst = ")]


@pytest.mark.parametrize("alias", ["out.detach()", "out.data"])
def test_a_detached_alias_gets_memory_of_its_own(alias: str) -> None:
    source = f"out = a.sigmoid()\nc = {alias}\nc.zero_()\nout.sum().backward()\n"
    (_, text), *_ = answers(CloneBeforeWrite, stale(source, "c.zero_()"))
    assert text == source.replace(alias, "out.detach().clone()")


def test_an_array_gets_memory_of_its_own() -> None:
    source = "a = t.detach().numpy()\na[0] = 5\nt.sum().backward()\n"
    conflict, project = stale(source, "a[0] = 5", kind="silent-overwrite", how="numpy")
    cut = Cut(1, (site(source, "t.detach().numpy()"),), "numpy", Ref(1, 1))
    project = replace(project, tape=replace(project.tape, events=(cut, *project.tape.events)))
    (_, text), *_ = answers(CloneBeforeWrite, (conflict, project))
    assert changed(source, text) == "a = t.detach().numpy().copy()"


def test_the_element_of_a_list_is_cloned() -> None:
    source = "hs = [f(x) for x in xs]\nhs[0][1] = 0\nuse(hs)\n"
    (_, text), *_ = answers(CloneBeforeWrite, stale(source, "hs[0][1] = 0", op="aten.copy_"))
    assert changed(source, text) == "hs[0] = hs[0].clone()"


def leaf(source: str, write: str, *more: str) -> tuple[Conflict, Project]:
    """A refused write to a leaf at `write`, and further ones at `more`."""
    conflict, project = stale(source, write, kind="leaf-write", pattern="leaf", leaf=True)
    words = "a leaf Variable that requires grad is being used in an in-place operation."
    events = [
        Mutate(10 + i, (site(source, text),), "aten.add_", Ref(1, 2), refused=words)
        for i, text in enumerate((write, *more))
    ]
    return replace(conflict, write=events[0]), replace(
        project, tape=replace(project.tape, events=tuple(events))
    )


def test_neighbouring_updates_share_one_block() -> None:
    source = (
        "import torch\n\nfor e in range(3):\n    # update\n    w -= lr * w.grad\n"
        "    b -= lr * b.grad  # bias\n    e += 1\n"
    )
    after = source.replace(
        "    w -= lr * w.grad\n    b -= lr * b.grad  # bias\n",
        "    with torch.no_grad():\n        w -= lr * w.grad\n        b -= lr * b.grad  # bias\n",
    )
    case = leaf(source, "w -= lr * w.grad", "b -= lr * b.grad")
    assert answers(NoGradWrite, case)[0][1] == after


def test_a_line_with_semicolons_is_split() -> None:
    source = "import torch as th\nif a:\n\tloss.backward(); w -= w.grad; w.grad = None  # step\n"
    after = (
        "import torch as th\nif a:\n\tloss.backward()\n\twith th.no_grad():\n"
        "\t\tw -= w.grad\n\tw.grad = None  # step\n"
    )
    assert answers(NoGradWrite, leaf(source, "w -= w.grad"))[0][1] == after


@pytest.mark.parametrize(
    ("head", "after"),
    [
        (
            "from torch import nn, no_grad",
            "from torch import nn, no_grad\nw = f()\nwith no_grad():\n    w.clamp_(0, 1)\n",
        ),
        (
            "import torch.nn as nn",
            "import torch\nimport torch.nn as nn\nw = f()\nwith torch.no_grad():\n    w.clamp_(0, 1)\n",
        ),
        ("import torch.optim", "import torch.optim\nw = f()\nwith torch.no_grad():\n    w.clamp_(0, 1)\n"),
    ],
    ids=["from", "missing", "submodule"],
)
def test_torch_goes_by_the_name_the_file_has_for_it(head: str, after: str) -> None:
    source = f"{head}\nw = f()\nw.clamp_(0, 1)\n"
    assert answers(NoGradWrite, leaf(source, "w.clamp_(0, 1)"))[0][1] == after


def test_tracking_may_begin_after_the_write() -> None:
    source = "import torch\nw = torch.zeros(2)\nw.requires_grad = True\nw.normal_()\nuse(w)\n"
    texts = [t for _, t in answers(NoGradWrite, leaf(source, "w.normal_()"))]
    assert "import torch\nw = torch.zeros(2)\nw.normal_()\nw.requires_grad = True\nuse(w)\n" in texts
    source = "import torch\nw = torch.zeros(2, requires_grad=True)\nw[0] = 1\nuse(w)\n"
    texts = [t for _, t in answers(NoGradWrite, leaf(source, "w[0]"))]
    assert "import torch\nw = torch.zeros(2)\nw[0] = 1\nw.requires_grad_()\nuse(w)\n" in texts


def test_a_sum_of_losses_is_made_plain_and_not_hidden_from_autograd() -> None:
    source = (
        "import torch\ntotal = torch.zeros(1, device=d, requires_grad=True)\n"
        "for x in xs:\n    total += f(x)\n(total / 3).backward()\n"
    )
    case = leaf(source, "total += f(x)")
    assert answers(NoGradWrite, case) == []
    assert answers(PlainAccumulator, case)[0][1] == source.replace(", requires_grad=True", "")


@pytest.mark.parametrize(
    ("write", "after"),
    [
        ("p.data.clamp_(-c, c)", "p.clamp_(-c, c)"),
        ("p.data -= lr * p.grad.data", "p -= lr * p.grad"),
        ("p.data = p.data * 0.9 + q.data", "p.copy_(p * 0.9 + q)"),
        ("p.data[0] = 1", "p[0] = 1"),
        ("p.data.mul_(0.9).add_(q.data, alpha=0.1)", "p.mul_(0.9).add_(q, alpha=0.1)"),
    ],
)
def test_data_written_on_purpose_is_written_under_no_grad(write: str, after: str) -> None:
    source = f"import torch\nfor p, q in zip(a.parameters(), b.parameters()):\n    {write}  # keep\nuse(a)\n"
    case = stale(source, write, kind="data-attribute", how="data")
    expected = (
        "import torch\nwith torch.no_grad():\n    for p, q in zip(a.parameters(), b.parameters()):\n"
        f"        {after}  # keep\nuse(a)\n"
    )
    assert answers(NoGradWrite, case)[0][1] == expected


def test_data_of_a_gradient_or_for_init_needs_no_block() -> None:
    for write, after in [
        ("w.grad.data.zero_()", "w.grad.zero_()"),
        ("nn.init.normal_(m.weight.data, 0, 0.02)", "nn.init.normal_(m.weight, 0, 0.02)"),
    ]:
        source = f"import torch\n{write}\n"
        case = stale(source, write, kind="data-attribute", how="data")
        assert answers(NoGradWrite, case)[0][1] == f"import torch\n{after}\n"


def test_a_one_line_loop_becomes_a_block() -> None:
    source = "import torch\nfor p in made(): p.data.clamp_(0, 1)  # clip\n"
    case = stale(source, "p.data.clamp_(0, 1)", kind="data-attribute", how="data")
    assert answers(NoGradWrite, case)[0][1] == (
        "import torch\nfor p in made():\n    with torch.no_grad():\n        p.clamp_(0, 1)  # clip\n"
    )


def test_an_update_that_rebinds_the_leaf_changes_it_in_place() -> None:
    source = (
        "import torch\nfor e in range(3):\n    f(w, b).backward()\n"
        "    w = w - lr * w.grad\n    b = b - lr * b.grad\n"
    )
    case = stale(source, "w.grad", kind="missing-grad", pattern="read")
    assert answers(NoGradWrite, case)[0][1] == (
        "import torch\nfor e in range(3):\n    f(w, b).backward()\n"
        "    with torch.no_grad():\n        w -= lr * w.grad\n        b -= lr * b.grad\n"
        "        w.grad = None\n        b.grad = None\n"
    )


def test_a_list_that_is_written_element_by_element_is_built_anew() -> None:
    source = (
        "fast = [p.clone() for p in meta]\n# inner step\nfor p, g in zip(fast, grads):\n"
        "    p.sub_(lr * g)  # sgd\nuse(fast)\n"
    )
    (_, text), *_ = answers(OutOfPlace, stale(source, "p.sub_(lr * g)"))
    assert changed(source, text) == "fast = [p.sub(lr * g) for p, g in zip(fast, grads)]  # sgd"
    source = source.replace("p.sub_(lr * g)", "p -= lr * g")
    (_, text), *_ = answers(OutOfPlace, stale(source, "p -= lr * g"))
    assert changed(source, text) == "fast = [p - lr * g for p, g in zip(fast, grads)]  # sgd"
