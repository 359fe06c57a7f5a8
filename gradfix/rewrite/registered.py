"""Where a function is registered as a hook, and whether it is nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants, function_of


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """`call` registers a hook, which has `bound` arguments already (`self`, those of functools.partial)."""

    view: View
    call: cst.Call
    bound: int


def registrations(
    project: Project, view: View, function: cst.FunctionDef | cst.Lambda, names: Collection[str]
) -> tuple[Registration, ...]:
    """The calls of one of `names` that register `function`, which stands in `view`; none where it is used otherwise,
    too."""
    home = view.parents.get(view.parents.get(function, function))
    within = home if isinstance(home, cst.ClassDef) else None
    called = _called(function, within)
    found: list[Registration] = []
    meant: set[cst.CSTNode] = set()
    for path in sorted(project.files):
        other = project.view(path)
        for node in other.parents if other is not None else ():
            hook = _hook(node, names)
            if other is None or hook is None or not isinstance(node, cst.Call):
                continue
            bound = 0
            if isinstance(hook, cst.Call) and function_of(hook) == "partial" and hook.args:
                bound, hook = sum(a.keyword is None for a in hook.args[1:]), hook.args[0].value
            if hook is function or (called and _refers(hook, called, within, function)):
                found.append(Registration(other, node, bound + _receives(function, within)))
                meant.update((hook, *descendants(hook)))
    every = (project.view(path) for path in sorted(project.files))
    used = [n for other in every if other is not None for n in _mentions(other, called, meant)]
    return tuple(found) if not used else ()


def _called(function: cst.FunctionDef | cst.Lambda, within: cst.ClassDef | None) -> str:
    """The name by which others know it: that of its class where it is what an object does when called."""
    if isinstance(function, cst.Lambda):
        return ""
    if within is not None and function.name.value == "__call__":
        return within.name.value
    return function.name.value


def _receives(function: cst.FunctionDef | cst.Lambda, within: cst.ClassDef | None) -> int:
    """How many arguments it gets from what it is looked up on."""
    static = isinstance(function, cst.FunctionDef) and any(
        dotted(d.decorator) == "staticmethod" for d in function.decorators
    )
    return int(within is not None and not static)


def _hook(node: cst.CSTNode, names: Collection[str]) -> cst.BaseExpression | None:
    """What is registered by the call `node`."""
    if not isinstance(node, cst.Call) or function_of(node) not in names or not node.args:
        return None
    named = (a.value for a in node.args if a.keyword is not None and a.keyword.value == "hook")
    first = node.args[0]
    return first.value if first.keyword is None and not first.star else next(named, None)


def _refers(
    hook: cst.BaseExpression,
    called: str,
    within: cst.ClassDef | None,
    function: cst.FunctionDef | cst.Lambda,
) -> bool:
    if within is None:
        return dotted(hook).rpartition(".")[2] == called
    if within.name.value == called:
        return isinstance(hook, cst.Call) and function_of(hook) == called
    return isinstance(hook, cst.Attribute) and hook.attr.value == called


def _mentions(view: View, called: str, meant: Collection[cst.CSTNode]) -> Iterator[cst.Name]:
    """Where else the name stands, but in its definition and in imports."""
    for node in view.parents:
        if isinstance(node, cst.Name) and node.value == called and node not in meant:
            parent = view.parents[node]
            if not isinstance(parent, cst.FunctionDef | cst.ClassDef | cst.ImportAlias | cst.Param):
                yield node
