"""What the source and the tape tell of a tensor that is written: a leaf, a sum of losses, an element of a
list, an alias made by ``.detach()``."""

from __future__ import annotations

from typing import cast

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.liveness import dotted, scope_of, sharing, statement_before
from gradfix.rewrite.spelling import descendants, function_of, hides, layers, small_statements
from gradfix.rewrite.writes import Write
from gradfix.tape import Mutate


def is_renormalised(conflict: Conflict) -> bool:
    """Whether an embedding lookup with max_norm did the write."""
    return conflict.write is not None and (
        conflict.pattern == "renormalised" or "embedding" in conflict.write.op
    )


def is_leaf(project: Project, storage: int) -> bool:
    """Whether the storage is a leaf's that some node's gradient flows to, or an optimizer's parameter."""
    graph = project.graph
    return any(~storage in r.parents for r in graph.records.values()) or any(
        ref.storage == storage for o in graph.optimizers.values() for ref in o.refs
    )


def detached_alias(view: View, node: cst.CSTNode, name: str) -> cst.Assign | None:
    """The assignment before `node` that made `name` by ``.detach()`` or ``.data`` from another tensor."""
    for statement in sharing(view, node, name).views:
        if isinstance(statement, cst.Assign) and any(dotted(t.target) == name for t in statement.targets):
            value = statement.value
            if any(hides(layer) for layer in layers(value)):
                return statement
    return None


def of_container(write: Write, project: Project) -> bool:
    """Whether ``hs[i] *= 2`` writes to an element of a list or dict, which is then bound anew, and not to a
    part of a tensor. Told by how ``hs`` was made; else by the tape: a tensor's item is copied back."""
    target = write.target
    if not isinstance(target, cst.Subscript) or not isinstance(write.node, cst.AugAssign):
        return False
    name = dotted(target.value)
    made = _made(write.view, write.node, name) if name else None
    if made is not None:
        return isinstance(made, cst.List | cst.ListComp | cst.Dict | cst.DictComp) or _list_product(made)
    here = write.view.span(write.node)
    writes = [
        e
        for e in project.tape.events
        if isinstance(e, Mutate) and e.at is not None and e.at.file == write.view.path
        if here.start.line <= e.at.line <= here.end.line
    ]
    return bool(writes) and not any("copy_" in e.op for e in writes)


def _made(view: View, node: cst.CSTNode, name: str) -> cst.BaseExpression | None:
    line = statement_before(view, node, name)
    if isinstance(line, cst.SimpleStatementLine):
        for small in line.body:
            if isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets):
                return small.value
    return None


def is_list(view: View, node: cst.CSTNode, name: str) -> bool:
    """Whether `name` was bound to a list before `node`."""
    made = _made(view, node, name)
    listed = isinstance(made, cst.Call) and dotted(made.func) == "list"
    return made is not None and (isinstance(made, cst.List | cst.ListComp) or listed or _list_product(made))


def _list_product(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.left, cst.List)


def is_mask(view: View, index: cst.BaseExpression) -> bool:
    """Whether an index is a boolean mask by its looks: a comparison, ``~m``, ``a & b``, or a name made so."""
    if isinstance(index, cst.Comparison):
        return True
    if isinstance(index, cst.UnaryOperation):
        return isinstance(index.operator, cst.BitInvert)
    if isinstance(index, cst.BinaryOperation):
        return isinstance(index.operator, cst.BitAnd | cst.BitOr)
    if isinstance(index, cst.Call):
        return function_of(index) in ("bool", "isnan", "isinf", "logical_not", "logical_and", "logical_or")
    if isinstance(index, cst.Name):
        made = _made(view, index, index.value)
        return made is not None and not isinstance(made, cst.Name) and is_mask(view, made)
    return False


def element_of(write: Write) -> cst.BaseExpression:
    """What holds the written storage and can be bound anew: the root, or its element where the root is a
    list."""
    made = _made(write.view, write.node, write.name) if write.name else None
    if made is None or not (
        isinstance(made, cst.List | cst.ListComp | cst.Dict | cst.DictComp) or _list_product(made)
    ):
        return write.root
    items = [x for x in layers(write.target) if isinstance(x, cst.Subscript)]
    return items[-1] if items else write.root


def accumulates(project: Project, write: Write) -> bool:
    """Whether the written name is a sum of losses: added to here, and backward() called on it (or on arithmetic with
    it) in the same function or class. Where the program ran, something that was added had a graph: else this is a leaf
    that is filled before it is used."""
    view = write.view
    added = isinstance(write.node, cst.AugAssign) and isinstance(write.node.operator, cst.AddAssign)
    added = added or (write.form == "method" and function_of(cast(cst.Call, write.node)) == "add_")
    if not added or not write.name:
        return False
    scope: cst.CSTNode = scope_of(view, write.node)
    if write.name.startswith("self."):
        scope = view.enclosing(write.node, cst.ClassDef) or scope
    if not any(_constant_leaf(v) for v in _values_of(view, write.name)):
        return False
    for node in descendants(scope):
        called = node.func if isinstance(node, cst.Call) else None
        backward = isinstance(called, cst.Attribute) and called.attr.value == "backward"
        summed = node.value if isinstance(node, cst.Return) else called.value if backward else None  # type: ignore[union-attr]
        if summed is not None and _sum_of(summed, write.name):
            return not project.tape.torch or _joined(project, write)  # (a reading has no version of torch)
    return False


def _joined(project: Project, write: Write) -> bool:
    """Whether the op of some addition to the same name in this file joined the graph."""
    view = write.view
    added = [s for s in small_statements(view.module) if _added_to(s) == write.name]
    places = {*added, *(s.value for s in added if isinstance(s, cst.Expr))}
    sites = {r.at for r in project.graph.records.values() if "add" in r.op}
    return any(at is not None and at.file == view.path and view.at(at) in places for at in sites)


def _added_to(small: cst.BaseSmallStatement) -> str:
    """``total`` of ``total += loss`` and of ``total.add_(loss)``."""
    if isinstance(small, cst.AugAssign):
        return dotted(small.target)
    call = small.value if isinstance(small, cst.Expr) else None
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) and function_of(call) == "add_":
        return dotted(call.func.value)
    return ""


_CONSTANTS = """
    zeros ones tensor full empty zeros_like ones_like scalar_tensor new_zeros new_tensor as_tensor Tensor
    FloatTensor DoubleTensor
"""


def _constant_leaf(value: cst.BaseExpression) -> bool:
    """Whether a tensor is made of constants here (``torch.zeros(1, requires_grad=True)``), in whatever
    wrapping, and is not a parameter."""
    if not isinstance(value, cst.Call) or function_of(value) == "Parameter":
        return False
    if function_of(value) in _CONSTANTS.split():
        return True
    inner = [a.value for a in value.args[:1]] + (
        [value.func.value] if isinstance(value.func, cst.Attribute) else []
    )
    return any(_constant_leaf(x) for x in inner)


def _sum_of(value: cst.BaseExpression, name: str) -> bool:
    """``total``, or arithmetic with it (``total / n``, ``total.mean()``, ``base + total``): a loss."""
    if isinstance(value, cst.BinaryOperation):
        if isinstance(value.operator, cst.MatrixMultiply | cst.Power):
            return False
        sides = [_sum_of(side, name) for side in (value.left, value.right)]
        return any(sides) and not (all(sides) and isinstance(value.operator, cst.Multiply))
    if isinstance(value, cst.Tuple):
        return any(_sum_of(e.value, name) for e in value.elements)
    if isinstance(value, cst.Call):
        of = [value.func.value] if isinstance(value.func, cst.Attribute) else []
        given = value.args if function_of(value) in ("sum", "mean", "scale") else ()
        return any(_sum_of(x, name) for x in (*of, *(a.value for a in given)))
    if isinstance(value, cst.Subscript):
        return _sum_of(value.value, name)
    return dotted(value) == name


def _values_of(view: View, name: str) -> list[cst.BaseExpression]:
    assigns = [s for s in small_statements(view.module) if isinstance(s, cst.Assign)]
    return [s.value for s in assigns if any(dotted(t.target) == name for t in s.targets)]
