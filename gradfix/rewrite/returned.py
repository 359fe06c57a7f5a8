"""What a function of losses returns: several at once, or under keys."""

from __future__ import annotations

import libcst as cst

from gradfix.edit import Project
from gradfix.rewrite.boundary import functions, returns
from gradfix.rewrite.drawn import views
from gradfix.rewrite.statements import dotted, names, touches, units


def shared_losses(project: Project, node: cst.CSTNode) -> cst.FunctionDef | None:
    """The project's function that ``a, b = function(…)`` takes several losses from, or ``losses = function(…)`` a
    dictionary of them."""
    if not (isinstance(node, cst.Assign) and isinstance(node.value, cst.Call) and len(node.targets) == 1):
        return None
    name = (dotted(node.value.func) or "").rpartition(".")[2]
    function = next((f for v in views(project) for f in functions(v, name)), None)
    if isinstance(node.targets[0].target, (cst.Tuple, cst.List)):
        return function
    return function if function is not None and returned_by_key(function) is not None else None


def returned_by_key(function: cst.FunctionDef) -> dict[str, cst.CSTNode] | None:
    """What a function returns under each key: the element of ``return {"d": d_loss}``, or the statement
    ``losses["d"] = d_loss`` where it returns a dictionary that begins empty; None where it does otherwise."""
    body, every = units(function.body), returns(function)
    value = every[0].value if len(every) == 1 and body and body[-1].node is every[0] else None
    if isinstance(value, cst.Dict):
        keys = [_text(e.key) if isinstance(e, cst.DictElement) else "" for e in value.elements]
        return dict(zip(keys, value.elements, strict=True)) if all(keys) else None
    name, found = dotted(value) if value is not None else None, dict[str, cst.CSTNode]()
    for unit in body[:-1] if name else ():
        node = unit.node
        if not touches(unit.reads | unit.writes, {name or ""}):
            continue
        target = node.targets[0].target if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
        key = item_key(target, name or "")
        begins = dotted(target) == name if target is not None else False
        empty = (
            begins
            and isinstance(node, cst.Assign)
            and cst.Module([]).code_for_node(node.value) in ("{}", "dict()")
        )
        if not empty and (not key or key in found or not isinstance(node, cst.Assign)):
            return None
        if key and isinstance(node, cst.Assign):
            if touches(names(node.value).reads, {name or ""}):
                return None
            found[key] = node
    return found or None


def item_key(node: cst.CSTNode | None, name: str) -> str:
    """The key of ``name["key"]``, as it is written; "" of anything else."""
    if not isinstance(node, cst.Subscript) or dotted(node.value) != name or len(node.slice) != 1:
        return ""
    index = node.slice[0].slice
    return _text(index.value) if isinstance(index, cst.Index) else ""


def _text(node: cst.CSTNode) -> str:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return value if isinstance(value, str) else ""
