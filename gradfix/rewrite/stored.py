"""What statements keep in a list, a deque or a memory of the program's own: ``memory.append((state, reward))``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.drawn import views
from gradfix.rewrite.spelling import last_name
from gradfix.rewrite.statements import body_of, bound, dotted, names, touches, walk
from gradfix.tape import Record

STORING = ("append", "appendleft", "add", "push", "extend")


def stored_elements(
    project: Project, producers: Iterable[Record]
) -> tuple[tuple[View, cst.Call, cst.BaseExpression], ...]:
    """``history.append(value)`` that keeps what a producer made: the calls and the elements. Elements that
    hold the producing expression itself go before those that only read what its statement binds."""
    direct: dict[int, tuple[View, cst.Call, cst.BaseExpression]] = {}
    named: dict[int, tuple[View, cst.Call, cst.BaseExpression]] = {}
    for producer in producers:
        for view, node in project.frames(producer.stack):
            small = view.small_statement(node)
            made = names(small).writes if small else frozenset()
            for call, element in appended(body_of(view, node)):
                if node is element or element in list(view.ancestors(node)):
                    direct[id(element)] = (view, call, element)
                elif touches(names(element).reads, made):
                    named[id(element)] = (view, call, element)
    return tuple((direct or named).values())


def appended(body: cst.CSTNode) -> Iterator[tuple[cst.Call, cst.BaseExpression]]:
    """The statements below `body` that put something into a container: the calls, with each element."""
    for unit in walk(body):
        call = unit.node.value if isinstance(unit.node, cst.Expr) else None
        if isinstance(call, cst.Call) and _stores(call):
            yield from ((call, element) for element in _elements_of(call))


def _stores(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in STORING


def _elements_of(call: cst.Call) -> list[cst.BaseExpression]:
    return [element for arg in call.args for element in _elements(arg.value)]


def grows(project: Project, append: cst.Call) -> bool:
    """Whether what something is appended to drops nothing by itself, as a deque of some length does."""
    held = last_name(append.func.value) if isinstance(append.func, cst.Attribute) else ""
    made = (pair for view in views(project) for node in view.parents for pair in bound(node))
    kinds = {last_name(v.func) for t, v in made if last_name(t) == held and isinstance(v, cst.Call)}
    return "deque" not in kinds


def stored_alike(
    project: Project, elements: Iterable[tuple[View, cst.Call, cst.BaseExpression]]
) -> dict[str, list[tuple[View, cst.BaseExpression]]]:
    """By container: what every statement that stores there has where one of the `elements` stands in its own."""
    places: dict[str, set[tuple[int, int]]] = {}
    for _, call, element in elements:
        within = _elements_of(call)
        at = next((n for n, e in enumerate(within) if e is element), None)
        held = _held_in(call)
        if held and at is not None:
            places.setdefault(held, set()).add((len(within), at))
    found: dict[str, list[tuple[View, cst.BaseExpression]]] = {}
    for view in filter(None, map(project.view, project.files)):
        for call in (n for n in view.parents if isinstance(n, cst.Call) and _stores(n)):
            within = _elements_of(call)
            for count, at in sorted(places.get(_held_in(call), ())):
                if len(within) == count and isinstance(within[at], cst.Name | cst.Attribute | cst.Call):
                    found.setdefault(_held_in(call), []).append((view, within[at]))
    return found


def _held_in(call: cst.Call) -> str:
    """The last name of the container: ``memory`` of ``self.memory.append(x)``."""
    assert isinstance(call.func, cst.Attribute)
    return (dotted(call.func.value) or "").rpartition(".")[2]


def _elements(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, (cst.Tuple, cst.List)):
        for e in node.elements:
            yield from _elements(e.value)
    elif isinstance(node, cst.Dict):
        for d in node.elements:
            yield from _elements(d.value)
    else:
        yield node
