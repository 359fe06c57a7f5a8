"""Where in a file a backward is called."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Sequence

from gradfix.read.project import Unit
from gradfix.tape import Site

BACKWARDS = ("backward", "manual_backward")


def spans(node: ast.AST, lines: Sequence[int]) -> bool:
    """Whether one of `lines` (in order) belongs to `node`."""
    at = bisect_left(lines, getattr(node, "lineno", 0))
    return at < len(lines) and lines[at] <= (getattr(node, "end_lineno", None) or 1 << 60)


def backward_sites(unit: Unit) -> frozenset[Site]:
    """The places at which the file calls a backward."""
    found = set()
    near = unit.lines_with("backward")

    def visit(body: list[ast.stmt], qualname: str, within: ast.AST | None = None) -> None:
        todo: list[ast.AST] = list(body)
        while todo:
            node = todo.pop()
            if isinstance(node, ast.stmt | ast.expr) and not spans(node, near):
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
                if qualname != "<module>":
                    name = f"{qualname}{'.' if isinstance(within, ast.ClassDef) else '.<locals>.'}{name}"
                visit(node.body, name, node)
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in BACKWARDS
            ):
                found.add(unit.site(node, qualname))
            todo += ast.iter_child_nodes(node)

    visit(unit.tree.body, "<module>")
    return frozenset(found)
