"""One-line bodies: blocks to whoever edits them, lines to whoever reads the file."""

from __future__ import annotations

import libcst as cst
import pytest
from by_hand import PATH
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from libcst.metadata import MetadataWrapper, PositionProvider

from gradfix.edit import Replace, View
from gradfix.rewrite.statements import block_of, put_after, put_before, take_away, units, walk
from gradfix.suite import parse

BODIES = [
    "if a: b()\n",
    "if a:   b() ; c()  # why\nelse: d()\n",
    "for p in ps: p.add_(1)\n",
    "while a: b = {1: 2}\n",
    "def f(x: int = 1) -> int: return x\n",
    "class A: pass\n",
    "with a as b: c()\n",
    "try: a()\nexcept (B, C): pass\nfinally: d()\n",
    "async def f():\n\tasync for a in b: c()\n",
    "if a: b() ;\nx = a[1:2]\n",
    "match a:\n    case 1: b()\n    case _: c()\n",
    "if a:\n    b()\n",
]
PLACED = (cst.BaseExpression, cst.BaseSmallStatement, cst.BaseCompoundStatement)


@given(st.lists(st.sampled_from(BODIES), max_size=4), st.sampled_from(["\n", "\r\n"]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_is_parsed_is_printed_and_stands_where_libcst_has_it(bodies: list[str], newline: str) -> None:
    text = "".join(bodies).replace("\n", newline)
    module = parse(text)
    assert module.code == text
    assert _places(module) == _places(cst.parse_module(text))


@pytest.mark.parametrize("source", BODIES)
def test_every_node_of_a_view_stands_somewhere(source: str) -> None:
    view = View(PATH, source)
    assert all(node in view.positions for node in view.parents)


def _places(module: cst.Module) -> list[tuple[str, str]]:
    found = MetadataWrapper(module).resolve(PositionProvider)
    return sorted((type(n).__name__, str(r)) for n, r in found.items() if isinstance(n, PLACED))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a: b()  # why\n", "if a:\n    b()  # why\n    x = 0\n"),
        ("for i in a:\n\tif i: b(); c()\n", "for i in a:\n\tif i:\n\t\tb(); c()\n\t\tx = 0\n"),
        ("def f(): return b()\n", "def f():\n    return b()\n    x = 0\n"),
    ],
)
def test_a_line_behind_the_last_statement_makes_a_block(source: str, expected: str) -> None:
    view = View(PATH, source)
    last = units(_body(view, -1))[-1]
    assert view.apply([put_after(last, cst.parse_statement("x = 0"))]) == expected


def test_a_line_before_one_of_several_makes_lines_of_them() -> None:
    view = View(PATH, "if a: b(); c()\n")
    (_, second) = units(_body(view))
    assert (
        view.apply([put_before(second, cst.parse_statement("x = 0"))])
        == "if a:\n    b()\n    x = 0\n    c()\n"
    )


def test_what_is_edited_in_place_stays_on_its_line() -> None:
    view = View(PATH, "if a:  b() # why\nelse: c()\n")
    (first,) = units(_body(view))
    edit = Replace(first.node, lambda _: cst.Expr(cst.Name("d")))
    assert view.apply([edit]) == "if a:  d # why\nelse: c()\n"


def test_one_of_several_is_taken_away() -> None:
    view = View(PATH, "if a: b(); c()\n")
    assert view.apply(take_away(units(_body(view))[0], view)) == "if a: c()\n"


def test_their_statements_are_met_like_others() -> None:
    view = View(PATH, "for i in a:\n    if i: b()\n    c()\n")
    found = [view.code(u.node) for u in walk(view.module)]
    assert found == ["b()", "c()"]
    (b,) = [n for n in view.parents if isinstance(n, cst.Expr) and view.code(n) == "b()"]
    assert isinstance(block_of(view, b), cst.IndentedBlock)


def _body(view: View, which: int = 0) -> cst.CSTNode:
    """The body of the first small statement of the file, or of another."""
    smalls = [n for n in view.parents if isinstance(n, cst.BaseSmallStatement)]
    smalls.sort(key=lambda n: (view.span(n).start.line, view.span(n).start.column))
    body = block_of(view, smalls[which])
    assert body is not None
    return body
