"""What a write computes, out of place: ``y + a`` of ``y += a``, ``y.relu()`` of ``y.relu_()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.edit import Edit
from gradfix.rewrite.blocks import (
    as_receiver,
    assignment,
    copy,
    in_parentheses,
    method,
    of_torch,
    right_operand,
)
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import (
    chain,
    drop_keyword,
    function_of,
    inplace_argument,
    is_inplace_call,
    peeled,
    undone_data,
    without_arguments,
)
from gradfix.rewrite.tensors import is_mask
from gradfix.rewrite.writes import Write, everything

# In-place methods that have no namesake out of place, or one that means something else.
_IN_PLACE = """
    zero_ fill_ copy_ normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ set_
    resize_ fill_diagonal_ map_ retain_grad_ share_memory_ resize_as_
"""
ONLY_IN_PLACE = frozenset(_IN_PLACE.split())
_AS_CALL = {"zero_": "zeros_like", "normal_": "randn_like", "uniform_": "rand_like"}
BINARY: dict[type[cst.CSTNode], type[cst.BaseBinaryOp]] = {
    cst.AddAssign: cst.Add,
    cst.SubtractAssign: cst.Subtract,
    cst.MultiplyAssign: cst.Multiply,
    cst.DivideAssign: cst.Divide,
    cst.FloorDivideAssign: cst.FloorDivide,
    cst.ModuloAssign: cst.Modulo,
    cst.PowerAssign: cst.Power,
    cst.MatrixMultiplyAssign: cst.MatrixMultiply,
    cst.BitAndAssign: cst.BitAnd,
    cst.BitOrAssign: cst.BitOr,
    cst.BitXorAssign: cst.BitXor,
    cst.LeftShiftAssign: cst.LeftShift,
    cst.RightShiftAssign: cst.RightShift,
}


def bound_anew(write: Write) -> Iterator[tuple[cst.BaseSmallStatement, tuple[Edit, ...]]]:
    """Statements that bind the written name to a new tensor, in place of a write that is one, whoever else holds
    the tensor."""
    root = cast(cst.BaseAssignTargetExpression, write.root)
    if isinstance(write.node, cst.AugAssign):
        if write.whole or everything(write.target):
            yield assignment(root, binary(root, BINARY[type(write.node.operator)](), write.node.value)), ()
    elif isinstance(write.node, cst.Assign):
        if write.form == "data" and len(write.node.targets) == 1:
            yield assignment(root, undone_data(write.node.value, dotted(root))), ()
        elif write.form == "item" and len(write.node.targets) == 1:
            yield from _filled(write, root)
    elif write.form == "out":
        yield from _without_out(write, root)
    elif write.alone and write.whole:
        yield from _rebound_call(write, root)


def binary(
    left: cst.BaseExpression, operator: cst.BaseBinaryOp, right: cst.BaseExpression
) -> cst.BaseExpression:
    """The operation, with what parentheses its operands need."""
    first = (
        in_parentheses(copy(left))
        if not isinstance(left, cst.Name | cst.Attribute | cst.Subscript)
        else copy(left)
    )
    return cst.BinaryOperation(first, operator, right_operand(right, operator))


def _filled(
    write: Write, root: cst.BaseAssignTargetExpression
) -> Iterator[tuple[cst.BaseSmallStatement, tuple[Edit, ...]]]:
    """``x[:] = 0`` as zeros_like, ``x[x < 0] = 0`` as masked_fill."""
    assign = cast(cst.Assign, write.node)
    if everything(write.target) and _number(assign.value):
        yield _full_like(write, root, assign.value)
    target = cast(cst.Subscript, write.target)
    index = target.slice[0].slice
    if len(target.slice) == 1 and isinstance(index, cst.Index) and _number(assign.value):
        inner = target.value
        named = dotted(inner) or (write.hidden and dotted(peeled(inner)))
        if named and is_mask(write.view, index.value):
            yield (
                assignment(root, method(copy(root), "masked_fill", copy(index.value), copy(assign.value))),
                (),
            )


def _number(node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.UnaryOperation):
        return _number(node.expression)
    return isinstance(node, cst.BaseNumber)


def _full_like(
    write: Write, root: cst.BaseAssignTargetExpression, value: cst.BaseExpression
) -> tuple[cst.BaseSmallStatement, tuple[Edit, ...]]:
    zero = isinstance(value, cst.Integer | cst.Float) and float(value.evaluated_value) == 0
    factory = of_torch(write.view, "zeros_like" if zero else "full_like")
    args = [cst.Arg(copy(root))] if zero else [cst.Arg(copy(root)), cst.Arg(copy(value))]
    return assignment(root, cst.Call(factory.expression, args)), factory.edits


def _without_out(
    write: Write, root: cst.BaseAssignTargetExpression
) -> Iterator[tuple[cst.BaseSmallStatement, tuple[Edit, ...]]]:
    call, small = cast(cst.Call, write.node), write.small
    plain = drop_keyword(call, "out")
    if not write.whole or plain is None:
        return
    if write.alone:
        yield assignment(root, plain), ()
    elif isinstance(small, cst.Assign) and small.value is call:
        more = cst.AssignTarget(cast(cst.BaseAssignTargetExpression, copy(root)))
        yield small.with_changes(targets=[*small.targets, more], value=plain), ()


def _rebound_call(
    write: Write, root: cst.BaseAssignTargetExpression
) -> Iterator[tuple[cst.BaseSmallStatement, tuple[Edit, ...]]]:
    """``x.relu_()`` or ``F.relu_(x)``, a statement, as ``x = x.relu()``."""
    call = cast(cst.Call, write.node)
    if write.form == "function":
        if (plain := out_of_place_function(write, call)) is not None:
            yield assignment(root, plain), ()
        return
    names = [cast(cst.Attribute, c.func).attr.value for c in chain(call)]
    argument = call.args[0].value if len(call.args) == 1 and call.args[0].keyword is None else None
    if names == ["fill_"] and argument is not None:
        yield _full_like(write, root, argument)
    elif len(names) == 1 and names[0] in _AS_CALL and not call.args:
        factory = of_torch(write.view, _AS_CALL[names[0]])
        yield assignment(root, cst.Call(factory.expression, [cst.Arg(copy(root))])), factory.edits
    elif names == ["copy_"] and argument is not None:
        yield assignment(root, method(copy(argument), "clone")), ()
    elif set(names) & ONLY_IN_PLACE:
        yield assignment(root, chained(call, method(copy(root), "clone"), keep=True)), ()
    else:
        yield assignment(root, chained(call, copy(root))), ()


def chained(call: cst.BaseExpression, root: cst.BaseExpression, keep: bool = False) -> cst.BaseExpression:
    """The chain of in-place calls on another root, out of place unless `keep`."""
    if not is_inplace_call(call):
        return as_receiver(root)
    call = cast(cst.Call, call)
    func = cast(cst.Attribute, call.func)
    name = func.attr if keep else cst.Name(func.attr.value[:-1])
    return call.with_changes(func=func.with_changes(value=chained(func.value, root, keep), attr=name))


def out_of_place_function(write: Write, call: cst.Call) -> cst.Call | None:
    """``F.relu(x)`` for ``F.relu_(x)`` or ``F.relu(x, inplace=True)``; None where there is no such
    function."""
    if (flag := inplace_argument(call)) is not None:
        return without_arguments(call, lambda a: a is flag)
    name = function_of(call)
    if name in ONLY_IN_PLACE or ".init." in f".{dotted(call.func)}":
        return None
    if isinstance(call.func, cst.Attribute):
        return call.with_changes(func=call.func.with_changes(attr=cst.Name(name[:-1])))
    return None


def value_of(write: Write) -> cst.BaseExpression | None:
    """What the write computes, out of place."""
    if isinstance(write.node, cst.AugAssign):
        return binary(write.root, BINARY[type(write.node.operator)](), write.node.value)
    if write.form != "method" or not write.alone:
        return None
    statements = list(_rebound_call(write, cast(cst.BaseAssignTargetExpression, write.root)))
    return cast(cst.Assign, statements[0][0]).value if statements and not statements[0][1] else None
