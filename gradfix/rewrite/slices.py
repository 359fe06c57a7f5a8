"""A function cut down to what some of the values that it returns need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from gradfix.edit import Edit, Project, View
from gradfix.rewrite.boundary import crossings, detached, feeds
from gradfix.rewrite.drawn import views
from gradfix.rewrite.rerun import Plan
from gradfix.rewrite.statements import Unit, names, stored, touches, units

Build = Callable[[cst.CSTNode], Any]


@dataclass(frozen=True, slots=True)
class Split:
    """The functions that one is split into, and the edits for that, in every file."""

    names: tuple[str, ...]
    edits: tuple[tuple[View, tuple[Edit, ...]], ...]


def new_names(project: Project, function: cst.FunctionDef, words: Sequence[str]) -> list[str]:
    """``losses_d`` and ``losses_g`` for a function ``losses`` and the first losses of each part, ``d_loss`` and
    ``g_loss``."""
    taken = {n.value for v in views(project) for n in v.parents if isinstance(n, cst.Name)}
    found: list[str] = []
    for said in words:
        word = said.rpartition(".")[2]
        short = re.sub(r"_*loss(es)?_*|^L_", "", word, flags=re.IGNORECASE).strip("_").lower() or word
        name = f"{function.name.value}_{short}"
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return found


def called_as(call: cst.Call, name: str) -> cst.Call:
    """The call, of another function or method beside the one it is of."""
    func = call.func
    named = func.with_changes(attr=cst.Name(name)) if isinstance(func, cst.Attribute) else cst.Name(name)
    return call.with_changes(func=named)


def imported_as(several: Sequence[str]) -> Build:
    """What makes of an import's ``name`` those of `several`."""

    def build(alias: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(alias, cst.ImportAlias)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        some = [alias.with_changes(name=cst.Name(n), comma=comma) for n in several]
        some[-1] = some[-1].with_changes(comma=alias.comma)
        return cst.FlattenSentinel(some)  # type: ignore[return-value]

    return build


def boundary_cuts(project: Project, found: Plan, function: cst.FunctionDef) -> dict[int, Build]:
    """Where the function's body hands one model's value to the other: node id -> how to detach it."""
    cuts: dict[int, Build] = {}

    def cut(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.BaseExpression)
        return detached(node)

    for earlier in found.earlier():
        for crossing in crossings(project.graph, earlier):
            for feed in feeds(project, crossing):
                inside = list(feed.view.ancestors(feed.value))
                if function in inside or found.kept[0].node in inside:
                    cuts[id(feed.value)] = cut
    return cuts


def unneeded(
    block: cst.CSTNode, last: cst.Return, wanted: set[str], gone: set[int], thinned: dict[int, Build]
) -> None:
    """Collect into `gone` the statements of a body that bind nothing `wanted`; `wanted` grows by what the
    others read. What is gone already reads nothing; what binds nothing at all (a docstring, a print) stays."""
    for unit in reversed(units(block)):
        if unit.node is last or id(unit.line) in gone:
            continue
        if not touches(unit.writes, wanted) and unit.writes:
            gone.add(id(unit.line if _alone(unit) else unit.node))
            continue
        if isinstance(unit.node, cst.With):
            wanted |= set().union(*(names(i).reads for i in unit.node.items))
            unneeded(unit.node.body, last, wanted, gone, thinned)
        elif pairs := _parallel(unit.node, wanted):
            wanted |= set().union(*(names(value).reads for _, value in pairs))
            thinned[id(unit.node)] = _thin(pairs)
        else:
            wanted |= unit.reads


Pairs = list[tuple[cst.BaseExpression, cst.BaseExpression]]


def _parallel(node: cst.CSTNode, wanted: set[str]) -> Pairs:
    """The wanted pairs of ``a, b = x, y``, if some but not all of them are."""
    if not (isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.value, cst.Tuple)):
        return []
    target = node.targets[0].target
    if not isinstance(target, cst.Tuple) or len(target.elements) != len(node.value.elements):
        return []
    if any(isinstance(e, cst.StarredElement) for e in (*target.elements, *node.value.elements)):
        return []
    every = [(t.value, v.value) for t, v in zip(target.elements, node.value.elements, strict=True)]
    kept = [pair for pair in every if touches(stored(pair[0]), wanted)]
    return kept if len(kept) < len(every) else []


def _thin(pairs: Pairs) -> Build:
    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Assign)
        # cuts inside the values are made on the node that is visited, so they are looked up there
        target, value = node.targets[0].target, node.value
        assert isinstance(target, cst.Tuple)
        assert isinstance(value, cst.Tuple)
        wanted = {cst.Module([]).code_for_node(t) for t, _ in pairs}
        kept = [n for n, e in enumerate(target.elements) if cst.Module([]).code_for_node(e.value) in wanted]
        if len(kept) == 1:
            only, held = target.elements[kept[0]].value, value.elements[kept[0]].value
        else:
            only = target.with_changes(elements=[target.elements[n] for n in kept])
            held = value.with_changes(elements=[value.elements[n] for n in kept])
        return node.with_changes(targets=[node.targets[0].with_changes(target=only)], value=held)

    return build


def _alone(unit: Unit) -> bool:
    return not isinstance(unit.line, cst.SimpleStatementLine) or len(unit.line.body) == 1


class Cutter(cst.CSTTransformer):
    """Takes statements away and rebuilds nodes, both by identity in the original."""

    def __init__(self, gone: set[int], builds: Mapping[int, Build]) -> None:
        super().__init__()
        self.gone, self.builds = gone, builds

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        """Take the node away, or rebuild it."""
        if id(original_node) in self.gone:
            return cst.RemoveFromParent()
        result: Any = super().on_leave(original_node, updated_node)
        build = self.builds.get(id(original_node))
        return build(result) if build else result
