"""What keeps a forward from being recorded, and the graph without it: ``no_grad`` around it, ``dist.sample()``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import libcst as cst

from gradfix.edit import Edit, Project, Replace
from gradfix.rewrite.callers import Part, decorated
from gradfix.rewrite.liveness import dotted, scope_of
from gradfix.rewrite.spelling import descendants
from gradfix.tape import Backward, Cut, Fed

CONTEXTS = frozenset(("no_grad", "inference_mode"))


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way to take a cut away: what it does, and its edits. The cut stands in the function of the frame `depth` of
    its stack, None where only what is to train comes through it. `several`: it is known to serve several functions."""

    said: str
    parts: list[Part]
    depth: int | None = None
    several: bool = False


def drawn_anew(cut: Cut, project: Project) -> Way | None:
    """``dist.sample()``, which draws under no_grad."""
    found = project.node(cut.stack[-1])
    call = found[1] if found is not None else None
    if found is None or not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    if call.func.attr.value != "sample":
        return None
    edit = Replace(call.func.attr, lambda _: cst.Name("rsample"))
    return Way("draw with `rsample()`, which keeps the graph", [(found[0], [edit])])


def cut_for_others(cut: Cut, loss: Backward | None, project: Project) -> list[Part]:
    """``.detach()`` on what the cut's statement has made, where another loss than `loss` takes it."""
    graph, parts, seen = project.graph, list[Part](), set[int]()
    made = _named(cut, project)
    walk = graph.walk(loss) if loss is not None else frozenset()
    fed = (e for e in graph.tape.events if isinstance(e, Fed) and cut.time in e.cuts and e.node not in walk)
    for event in fed if made is not None else ():
        name, scope = made  # type: ignore[misc]
        for view, node in filter(None, map(project.node, event.stack)):
            reads = (n for n in (node, *descendants(node)) if isinstance(n, cst.Name | cst.Attribute))
            reads = (n for n in reads if dotted(n) == name and (scope is None or scope_of(view, n) is scope))
            new = [n for n in reads if id(n) not in seen]
            seen.update(map(id, new))
            parts += [(view, [Replace(n, _detached)]) for n in new]
    return parts


def _named(cut: Cut, project: Project) -> tuple[str, object] | None:
    """The name that the statement of the cut gives its value, and the scope it is in, None of an attribute."""
    for view, node in filter(None, map(project.node, cut.stack)):
        made = view.small_statement(node)
        target = made.targets[0].target if isinstance(made, cst.Assign) and len(made.targets) == 1 else None
        if isinstance(target, cst.Name | cst.Attribute) and (name := dotted(target)):
            return name, scope_of(view, target) if isinstance(target, cst.Name) else None
    return None


def _detached(node: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(node, cst.BaseExpression)
    return cst.Call(cst.Attribute(node, cst.Name("detach")))


def recorded(cut: Cut, project: Project) -> Way | None:
    """The with-block or the decorator around it that stops recording, taken away."""
    for depth in reversed(range(len(cut.stack))):
        found = project.node(cut.stack[depth])
        if found is None:
            continue
        view, node = found
        for above in (node, *view.ancestors(node)):
            if isinstance(above, cst.With) and any(stops(i.item) for i in above.items):
                said = "record the graph: no `no_grad` around it"
                return Way(said, [(view, [without_context(above)])], depth)
            if isinstance(above, cst.FunctionDef):
                for decorator in above.decorators:
                    if stops(decorator.decorator):
                        gone: Edit = Replace(decorator, lambda _: cst.RemoveFromParent())
                        return Way(f"let `{above.name.value}` record its graph", [(view, [gone])], depth)
                break
    return None


def of_one(cut: Cut, way: Way | None, project: Project) -> Way | None:
    """The `way`, or, where it would change what a decorator makes of every function, the decorator taken off the one
    that is to train."""
    wrapper = decorated(cut, way.depth, project) if way is not None and way.depth is not None else None
    if way is None or wrapper is None:
        return way
    if wrapper.own is None or not wrapper.plain:
        return Way(way.said, way.parts, several=wrapper.uses > 1)
    view, function, decorator = wrapper.own
    said = f"let `{function.name.value}` record its graph: no `@{view.code(decorator.decorator)}` on it"
    return Way(said, [(view, [Replace(decorator, lambda _: cst.RemoveFromParent())])])


def stops(node: cst.BaseExpression) -> bool:
    """Whether a with-item or a decorator turns gradients off."""
    called = dotted(node.func) if isinstance(node, cst.Call) else dotted(node)
    return called.rpartition(".")[2] in CONTEXTS


def without_context(block: cst.With) -> Edit:
    """The block without what turns gradients off: its body where nothing else is entered."""

    def build(node: cst.CSTNode) -> cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]:
        assert isinstance(node, cst.With)
        items = [i for i in node.items if not stops(i.item)]
        if items:
            items[-1] = items[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return node.with_changes(items=items)
        body = list(cast(Iterable[cst.BaseStatement], node.body.body))
        said = cast(cst.IndentedBlock, node.body).header.comment
        above = [cst.EmptyLine(comment=said)] if said else []
        first = cast(cst.SimpleStatementLine, body[0])
        body[0] = first.with_changes(leading_lines=[*node.leading_lines, *above, *first.leading_lines])
        return cst.FlattenSentinel(body)

    return Replace(block, build)
