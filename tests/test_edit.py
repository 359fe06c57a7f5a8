"""Views and edits: nodes found by span, edits that compose, liveness and sharing."""

from __future__ import annotations

import libcst as cst
import pytest
from by_hand import PATH, site

from gradfix.edit import Edit, Insert, Replace, View
from gradfix.rewrite.blocks import of_torch, right_operand, under
from gradfix.rewrite.liveness import live_after, sharing


def statement(view: View, text: str) -> cst.CSTNode:
    found = view.small_statement(view.at(site(view.text, text)) or view.module)
    assert found is not None
    return found


def test_a_span_in_code_points_finds_the_expression() -> None:
    view = View(PATH, "größe = 'ä'; y = f(größe).exp_()\n")
    node = view.at(site(view.text, "f(größe)"))
    assert isinstance(node, cst.Call)
    assert view.code(node) == "f(größe)"


def test_a_method_of_a_chain_is_found_by_its_name() -> None:
    view = View(PATH, "y = (x\n    .exp()\n    .clamp_(0,\n        1))\n")
    node = view.at(site(view.text, "clamp_(0,\n        1)"))
    assert isinstance(node, cst.Call)
    assert view.code(node.func).endswith("clamp_")


def test_edits_of_a_node_and_its_child_compose() -> None:
    view = View(PATH, "# why\ny = x  # what\n")
    line = view.module.body[0]
    value = statement(view, "y = x").value  # type: ignore[attr-defined]
    edits: list[Edit] = [
        Replace(value, lambda _: cst.Name("z")),
        Insert(line, before=(cst.parse_statement("a = 1"),), after=(cst.parse_statement("b = 2"),)),
    ]
    assert view.apply(edits) == "# why\na = 1\ny = z  # what\nb = 2\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["    ", "\t", "  "])
def test_a_block_keeps_indent_newlines_and_comments(newline: str, indent: str) -> None:
    lines = ["def f(w):", "{}# above", "{}w += 1  # é", "", "{}w += 2", "{}return w", ""]
    source = newline.join(lines).format(*[indent] * 4)
    view = View(PATH, source)
    function = view.module.body[0]
    assert isinstance(function, cst.FunctionDef)
    first, second = list(function.body.body)[:2]
    text = view.apply(under(view, cst.Name("no_grad"), [first, second]))
    after = [
        "def f(w):",
        "{}# above",
        "{}with no_grad():",
        "{}{}w += 1  # é",
        "",
        "{}{}w += 2",
        "{}return w",
        "",
    ]
    assert text == newline.join(after).format(*[indent] * 7)


@pytest.mark.parametrize(
    ("operator", "right", "written"),
    [
        (cst.Add(), "a * b", "a * b"),
        (cst.Subtract(), "a - b", "(a - b)"),
        (cst.Multiply(), "a + b", "(a + b)"),
        (cst.Power(), "-a", "-a"),
        (cst.Divide(), "a if b else c", "(a if b else c)"),
        (cst.Add(), "not a", "(not a)"),
        (cst.Add(), "(a - b)", "(a - b)"),
        (cst.Multiply(), "a < b", "(a < b)"),
    ],
)
def test_right_operands_are_held_together(operator: cst.BaseBinaryOp, right: str, written: str) -> None:
    assert cst.Module([]).code_for_node(right_operand(cst.parse_expression(right), operator)) == written


@pytest.mark.parametrize(
    ("rest", "live"),
    [
        ("print(z)", True),
        ("z = 1\nprint(z)", False),
        ("if a:\n    z = 1\nprint(z)", True),
        ("if a:\n    z = 1\nelse:\n    z = 2\nprint(z)", False),
        ("z += 1", True),
        ("def g():\n    return z", True),
        ("f(z=1)", False),
        ("[z for z in a]", False),
        ("for z in a:\n    pass", False),
        ("with f() as z:\n    print(z)", False),
    ],
)
def test_what_may_be_read_again(rest: str, live: bool) -> None:
    view = View(PATH, f"z = y\ny += 1\n{rest}\n")
    assert live_after(view, statement(view, "y += 1"), "z") is live


def test_the_next_pass_of_a_loop_reads() -> None:
    view = View(PATH, "for i in a:\n    use(z)\n    y += 1\n")
    assert live_after(view, statement(view, "y += 1"), "z")
    view = View(PATH, "for i in a:\n    z = f(i)\n    use(z)\n    y += 1\n")
    assert not live_after(view, statement(view, "y += 1"), "z")


@pytest.mark.parametrize(
    ("before", "names", "origin"),
    [
        ("y = f()\nz = y", {"z"}, "made"),
        ("y = f()\nz = y[0].view(-1)", {"z"}, "made"),
        ("z = f()\ny = z.detach()", {"z"}, "made"),
        ("y = f()\nz = y\nz = g()", set(), "made"),
        ("y = f()\nkept.append(y)", {"kept"}, "made"),
        ("y = f()\nz = [y, 1]", {"z"}, "made"),
        ("z = y\ny = f()", set(), "made"),
        ("z = f(y)", set(), "free"),
    ],
)
def test_who_else_holds_the_storage(before: str, names: set[str], origin: str) -> None:
    view = View(PATH, f"{before}\ny += 1\n")
    found = sharing(view, statement(view, "y += 1"), "y")
    assert (set(found.names), found.origin) == (names, origin)


def test_torch_under_its_name() -> None:
    for source, name in [
        ("import torch as T\n", "T.no_grad"),
        ("from torch import no_grad as ng\n", "ng"),
        ("import torch.nn\n", "torch.no_grad"),
        ("from torch import nn\nimport torch\n", "torch.no_grad"),
    ]:
        named = of_torch(View(PATH, source), "no_grad")
        assert (cst.Module([]).code_for_node(named.expression), named.edits) == (name, ())


def test_lines_split_a_line_of_several_statements() -> None:
    """Each keeps its comment, and that of the line stays with what is left of the line."""
    view = View("a.py", "if x:\n    # above\n    a(); b(); c()  # behind\n")
    _, second, third = view.module.body[0].body.body[0].body
    new = cst.parse_statement("d()  # of d\n")
    edits = [Insert(second, before=(new,)), Insert(second, after=(cst.parse_statement("if y: e()\n"),))]
    assert view.apply(edits) == (
        "if x:\n    # above\n    a()\n    d()  # of d\n    b()\n    if y: e()\n    c()  # behind\n"
    )
    gone = Replace(third, lambda _: cst.RemoveFromParent())
    kept = "if x:\n    # above\n    a(); b()  # behind\n    d()  # of d\n"
    assert view.apply([gone, Insert(second, after=(new.deep_clone(),))]) == kept
    there = [Replace(second, lambda _: cst.RemoveFromParent()), Insert(second, after=(new.deep_clone(),))]
    assert view.apply(there) == "if x:\n    # above\n    a(); d(); c()  # behind\n"


def test_several_of_one_line_are_each_put_under_a_context() -> None:
    view = View(PATH, "import torch\na = f(); b = g(); c = h()\n")
    no_grad = of_torch(view, "no_grad").expression
    edits = [e for text in ("a = f()", "c = h()") for e in under(view, no_grad, [statement(view, text)])]
    assert view.apply(edits) == (
        "import torch\nwith torch.no_grad():\n    a = f()\nb = g()\nwith torch.no_grad():\n    c = h()\n"
    )
