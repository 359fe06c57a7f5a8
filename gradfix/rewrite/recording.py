"""What keeps a forward from being recorded, and the graph without it: ``no_grad`` around it, ``dist.sample()``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.liveness import dotted
from gradfix.tape import Cut

CONTEXTS = frozenset(("no_grad", "inference_mode"))

Part = tuple[View, list[Edit]]


def drawn_anew(cut: Cut, project: Project) -> tuple[str, list[Part]] | None:
    """``dist.sample()``, which draws under no_grad."""
    found = project.node(cut.stack[-1])
    call = found[1] if found is not None else None
    if found is None or not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if call.func.attr.value != "sample":
        return None
    edit = Replace(call.func.attr, lambda _: cst.Name("rsample"))
    return "draw with `rsample()`, which keeps the graph", [(found[0], [edit])]


def recorded(cut: Cut, project: Project) -> tuple[str, list[Part]] | None:
    """The with-block or the decorator around it that stops recording, taken away."""
    for site in reversed(cut.stack):
        found = project.node(site)
        if found is None:
            continue
        view, node = found
        for above in (node, *view.ancestors(node)):
            if isinstance(above, cst.With) and any(_stops(i.item) for i in above.items):
                return "record the graph: no `no_grad` around it", [(view, [_without_context(above)])]
            if isinstance(above, cst.FunctionDef):
                for decorator in above.decorators:
                    if _stops(decorator.decorator):
                        gone: Edit = Replace(decorator, lambda _: cst.RemoveFromParent())
                        return f"let `{above.name.value}` record its graph", [(view, [gone])]
                break
    return None


def _stops(node: cst.BaseExpression) -> bool:
    called = dotted(node.func) if isinstance(node, cst.Call) else dotted(node)
    return called.rpartition(".")[2] in CONTEXTS


def _without_context(block: cst.With) -> Edit:
    def build(node: cst.CSTNode) -> cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(node, cst.With)
        items = [i for i in node.items if not _stops(i.item)]
        if items:
            items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return node.with_changes(items=items)
        if isinstance(node.body, cst.SimpleStatementSuite):
            body: list[cst.BaseStatement] = [
                cst.SimpleStatementLine(node.body.body, trailing_whitespace=node.body.trailing_whitespace)
            ]
        else:
            body = list(cast(Iterable[cst.BaseStatement], node.body.body))
            said = cast(cst.IndentedBlock, node.body).header.comment
            above = [cst.EmptyLine(comment=said)] if said else []
            body[0] = body[0].with_changes(
                leading_lines=[*above, *cast(cst.SimpleStatementLine, body[0]).leading_lines]
            )
        first = cast(cst.SimpleStatementLine, body[0])
        body[0] = first.with_changes(leading_lines=[*node.leading_lines, *first.leading_lines])
        return cst.FlattenSentinel(body)

    return Replace(block, build)
