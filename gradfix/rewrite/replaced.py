"""Statements that put another parameter, or a module that holds it, in the place of one that an optimizer has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.edit import View
from gradfix.rewrite.statements import dotted


def replacing(view: View, name: str) -> Iterator[tuple[cst.Assign, int]]:
    """The assignments that may have bound the parameter `name` anew or what holds it, the innermost first; and how many
    attributes behind what they bind it lies."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        for node in view.parents:
            if not isinstance(node, cst.Assign) or len(node.targets) != 1:
                continue
            if _last(node.targets[0].target) == parts[depth] and not _constructs(view, node):
                yield node, len(parts) - 1 - depth


def _last(target: cst.BaseAssignTargetExpression) -> str:
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
