"""The codemods that cure wrong writes, on conflicts made by hand: what becomes of the line at fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_hand import answers, changed, code, site, stale

from codemods.clone_before_write import CloneBeforeWrite
from codemods.out_of_place import OutOfPlace
from gradfix.tape import Cut, Ref


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
