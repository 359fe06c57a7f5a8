"""Averages of parameters made without a graph: updated under no_grad, or detached whole; and what they begin as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import libcst as cst

from gradfix.detect.averages import Averages
from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.rewrite.blocks import neighbours, of_torch, under
from gradfix.rewrite.boundary import detach
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import block_of, dotted, shown, unit_in, units
from gradfix.tape import Backward, Record, Site

Part = tuple[View, tuple[Edit, ...]]
Placed = Sequence[tuple[View, cst.CSTNode]]


def made_without(project: Project, found: Averages, backward: Backward) -> Iterator[tuple[str, list[Part]]]:
    """Ways to update averages without a graph, the most usual first; none where one may not be edited."""
    placed = _statements(project, found.updates)
    if not placed:
        return
    trains = {id(n) for view, node in project.frames(backward.stack) for n in _above(view, node)}
    ways = (_decorated(project, found, placed, trains), _wrapped(placed, trains), _detached(placed))
    yield from (way for way in ways if way is not None)


def _above(view: View, node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    return (node, *view.ancestors(node))


def _statements(project: Project, records: Sequence[Record]) -> Placed | None:
    """The small statements that make averages; None where one may not be edited."""
    found: dict[int, tuple[View, cst.CSTNode]] = {}
    for record in records:
        place = project.node(record.stack[-1]) if record.stack else None
        small = place[0].small_statement(place[1]) if place is not None else None
        if place is None or small is None:
            return None
        found[id(small)] = place[0], small
    return list(found.values())


def _decorated(
    project: Project, found: Averages, placed: Placed, trains: set[int]
) -> tuple[str, list[Part]] | None:
    """The functions that make them, where they make nothing else that has a graph."""
    functions: dict[int, tuple[View, cst.FunctionDef]] = {}
    for view, small in placed:
        function = view.function(small)
        if not isinstance(function, cst.FunctionDef) or id(function) in trains:
            return None
        functions[id(function)] = view, function
    own = {r.node for r in found.updates}
    made = {_within(s) for r in found.updates for s in r.stack[-1:]}
    others = (r for r in project.graph.records.values() if r.node not in own)
    if any(_within(s) in made for r in others for s in r.stack):
        return None
    parts: list[Part] = []
    for view, function in functions.values():
        parts.append((view, (_decorate(function, of_torch(view, "no_grad").expression),)))
    parts += _imported(view for view, _ in placed)
    named = ", ".join(f"`{f.name.value}`" for _, f in functions.values())
    return f"run {named} under `no_grad`", parts


def _within(site: Site) -> tuple[str, str]:
    """The function that a place is in, whose comprehensions have frames of their own."""
    return site.file, site.function.partition(".<locals>.<")[0]


def _imported(views: Iterable[View]) -> list[Part]:
    """What each file has to import for ``torch.no_grad``."""
    return [(view, of_torch(view, "no_grad").edits) for view in {id(v): v for v in views}.values()]


def _decorate(function: cst.FunctionDef, context: cst.BaseExpression) -> Edit:
    decorator = cst.Decorator(cst.Call(context))

    def build(node: cst.CSTNode) -> cst.CSTNode:
        now = cast(cst.FunctionDef, node)
        return now.with_changes(decorators=[*now.decorators, decorator])

    return Replace(function, build)


def _wrapped(placed: Placed, trains: set[int]) -> tuple[str, list[Part]] | None:
    """The statements, with the loops around them that train nothing, in blocks of their own."""
    groups: dict[int, tuple[View, cst.CSTNode, set[int]]] = {}
    for view, small in placed:
        whole: cst.CSTNode = small
        for above in view.ancestors(small):
            if id(above) in trains or isinstance(above, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
                break
            if isinstance(above, (cst.For, cst.While)):
                whole = above
        block = block_of(view, whole)
        index = unit_in(view, block, whole) if block is not None else None
        if block is None or index is None:
            return None
        groups.setdefault(id(block), (view, block, set()))[2].add(index)
    parts: list[Part] = []
    for view, around, indices in groups.values():
        body, no_grad = units(around), of_torch(view, "no_grad")
        for run in neighbours(indices):
            lines = list(dict.fromkeys(body[n].line for n in run))
            shared = isinstance(lines[0], cst.SimpleStatementLine) and len(lines[0].body) > 1
            alone = len(run) == 1 and shared
            edits = under(view, no_grad.expression, [body[run[0]].node] if alone else lines)
            parts.append((view, edits))
    parts += _imported(view for view, _ in placed)
    view, first = placed[0]
    return f"update under `no_grad`: `{shown(view, first)}`", parts


def _detached(placed: Placed) -> tuple[str, list[Part]] | None:
    """The values that the statements make, whole."""
    parts: list[Part] = []
    for view, small in placed:
        value = small.value if isinstance(small, (cst.Assign, cst.AnnAssign, cst.Return)) else None
        if value is None:
            return None
        parts.append((view, (detach(_element(value)),)))
    view, first = placed[0]
    return f"detach all that is stored: `{shown(view, first)}`", parts


def _element(value: cst.BaseExpression) -> cst.BaseExpression:
    """What a comprehension makes of each item; of anything else, itself."""
    if isinstance(value, cst.DictComp):
        return value.value
    return value.elt if isinstance(value, (cst.ListComp, cst.GeneratorExp)) else value


def begun_without(project: Project, found: Averages) -> list[Part]:
    """What the averages begin as, detached: copies of parameters, or these themselves under other names."""
    placed = _statements(project, found.updates) or ()
    parts: list[Part] = []
    seen: set[int] = set()
    updates = {id(small) for _, small in placed}
    inner = {p for r in found.outset for p in r.parents}
    for record in found.outset:
        place = project.node(record.stack[-1]) if record.stack and record.node not in inner else None
        if place is None or id(place[0].small_statement(place[1])) in updates:
            continue
        view, node = place
        if id(node) in seen or not isinstance(node, cst.BaseExpression):
            continue
        seen.add(id(node))
        copied = isinstance(node, cst.Call) and function_of(node) == "clone" and not node.args
        if copied and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            node = node.func.value  # (nothing is recorded that is cut off at once)
        parts.append((view, (detach(node),)))
    return parts or _named_outset(placed, updates)


def _named_outset(placed: Placed, updates: set[int]) -> list[Part]:
    parts: list[Part] = []
    held = {(id(view), name): view for view, small in placed for name in _held(small)}
    for view, name in [
        (view, name) for (_, name), view in held.items()
    ]:  # (gathered under a name of its own first)
        given = (n for n in view.parents if isinstance(n, cst.Assign) and dotted(n.value) == name)
        held.update(((id(view), other), view) for n in given for other in _held(n))
    for (_, name), view in held.items():
        for node in view.parents:
            if isinstance(node, cst.Assign) and id(node) not in updates and name in _held(node):
                element = _element(node.value)
                if element is not node.value and isinstance(element, cst.Name):
                    parts.append((view, (detach(element),)))
                elif isinstance(element, cst.Call) and (each := _each(element)):
                    new = cst.parse_expression(each.format(view.code(element.args[0].value)))
                    parts.append((view, (exchange(element, new),)))
    return parts


def _each(call: cst.Call) -> str:
    """The parameters of a model that a call puts into a container, each of them detached; else ""."""
    given = [a.value for a in call.args if a.keyword is None and not a.star]
    if len(given) != 1 or len(call.args) != 1 or not isinstance(given[0], cst.Call):
        return ""
    return {
        ("dict", "named_parameters"): "{{n: p.detach() for n, p in {}}}",
        ("list", "parameters"): "[p.detach() for p in {}]",
    }.get((dotted(call.func) or "", function_of(given[0])), "")


def _held(small: cst.CSTNode) -> Iterator[str]:
    """The names that a statement binds, or puts something into."""
    for target in small.targets if isinstance(small, cst.Assign) else ():
        node = target.target.value if isinstance(target.target, cst.Subscript) else target.target
        if name := dotted(node):
            yield name
