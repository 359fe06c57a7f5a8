"""Statements that put another parameter, or a module that holds it, in the place of one that an optimizer has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.statements import Unit, dotted, names, touches


def replacing(view: View, name: str) -> Iterator[tuple[cst.Assign, int]]:
    """The assignments that may have bound the parameter `name` anew or what holds it, the innermost first; and how many
    attributes behind what they bind it lies."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        for node in view.parents:
            if not isinstance(node, cst.Assign) or len(node.targets) != 1:
                continue
            if last_of(node.targets[0].target) == parts[depth] and not _constructs(view, node):
                yield node, len(parts) - 1 - depth


def last_of(target: cst.BaseExpression) -> str:
    """``fc`` of ``model.fc``, ``0`` of ``model[0]``."""
    if isinstance(target, cst.Name):
        return target.value
    if isinstance(target, cst.Attribute):
        return target.attr.value
    if (
        isinstance(target, cst.Subscript)
        and len(target.slice) == 1
        and isinstance(target.slice[0].slice, cst.Index)
    ):
        said = cst.Module([]).code_for_node(target.slice[0].slice.value)
        return re.sub(r"^([\"'])(.*)\1$", r"\2", said)
    return ""


def _constructs(view: View, node: cst.Assign) -> bool:
    """Whether it is a constructor's ``self.fc = …``, which makes the first one."""
    function = view.function(node)
    made = isinstance(function, cst.FunctionDef) and function.name.value == "__init__"
    return made and (dotted(node.targets[0].target) or "").count(".") == 1


def given_whole(project: Project, conflict: Conflict, name: str) -> bool:
    """Whether the conflict's optimizer was made of what `name` holds, whole: nothing of it is left where that is bound
    anew."""
    made = conflict.label("made")
    place = project.node(made.at) if made is not None else None
    return place is not None and reads_whole(place[1], name)


def reads_whole(node: cst.CSTNode, name: str) -> bool:
    """Whether `node` reads `name`, or something of it, under that very name."""
    return bool(name) and any(r == name or r.startswith(f"{name}.") for r in names(node).reads)


def prepared(body: Sequence[Unit], index: int) -> tuple[list[int], int]:
    """The statement at `index` with those behind it that only prepare what it made (a scheduler), and where
    it is used for good."""
    chain, bound = [index], set(body[index].writes)
    for n in range(index + 1, len(body)):
        if touches(body[n].reads, bound):
            if isinstance(body[n].node, cst.Assign):
                chain.append(n)
                bound |= body[n].writes
            else:
                return chain, n
    return chain, len(body)
