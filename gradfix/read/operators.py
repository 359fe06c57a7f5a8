"""Operators between two values: tensors, objects of the program's with methods for them, and Python's own."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from gradfix.read import arrays, calls, growing, iteration, objects, ops, outgrown, python, taken, tensors
from gradfix.read.frames import Machine
from gradfix.read.values import Array, Instance, Lib, Taken, Tensor, Unknown, Value

BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv),
    ast.FloorDiv: ("floor_divide", operator.floordiv),
    ast.Mod: ("remainder", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.MatMult: ("matmul", operator.matmul),
    ast.BitAnd: ("bitwise_and", operator.and_),
    ast.BitOr: ("bitwise_or", operator.or_),
    ast.BitXor: ("bitwise_xor", operator.xor),
    ast.LShift: ("bitwise_left_shift", operator.lshift),
    ast.RShift: ("bitwise_right_shift", operator.rshift),
}
COMPARE: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
}
DUNDERS = {"add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "matmul": "matmul", "pow": "pow"}


def binary(m: Machine, op: ast.operator, left: Value, right: Value) -> Value:
    """``left op right``."""
    name, concrete = BINARY[type(op)]
    if name == "sub" and isinstance(right, Tensor) and outgrown.subtracted(m, left, right):
        return tensors.fresh(m, right.shape, "bool")
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return arrays.joined(left, right, ops.operator_(m, name, left, right))
    if isinstance(left, Array) or isinstance(right, Array):
        return arrays.computed(m, left, right)
    if left is None or right is None:
        _refused(m, left, right)
    if isinstance(left, Taken) or isinstance(right, Taken):
        return taken.binary(m, name, left, right)
    if isinstance(left, Unknown):
        return iteration.lost(m, [right], left.origin) if isinstance(right, list | tuple) else left
    if isinstance(right, Unknown):
        return iteration.lost(m, [left], right.origin) if isinstance(left, list | tuple) else right
    if isinstance(left, Instance) and (method := objects.method(m, left, f"__{DUNDERS.get(name, name)}__")):
        return calls.call(m, method, [right], {})
    if isinstance(right, Instance) and (
        method := objects.method(m, right, f"__r{DUNDERS.get(name, name)}__")
    ):
        return calls.call(m, method, [left], {})
    return python.binary(m, name, concrete, left, right)


def _refused(m: Machine, left: Value, right: Value) -> None:
    """None in arithmetic: ``0.1 * p.grad`` before there is a gradient."""
    other = right if left is None else left
    if isinstance(other, int | float):
        kinds = [type(v).__name__ for v in (left, right)]
        m.fail("TypeError", f"unsupported operand type(s): {kinds[0]!r} and {kinds[1]!r}")


def in_place(m: Machine, op: ast.operator, left: Value, right: Value) -> Value:
    """``left op= right``: what the target is bound to then."""
    name = BINARY[type(op)][0]
    if isinstance(left, Array):
        return arrays.in_place(m, left, right)
    if isinstance(left, Tensor):
        return (
            ops.apply(m, name + "_", [left, right], {})
            if name != "matmul"
            else ops.operator_(m, name, left, right)
        )
    if isinstance(left, list) and isinstance(op, ast.Add):
        items = iteration.listed(m, right)
        if items is not None and len(left) < iteration.LONG:
            left += items
            growing.grew(m, left)
        return left
    return binary(m, op, left, right)


def compared(m: Machine, op: ast.cmpop, left: Value, right: Value) -> Value:
    """``left op right`` of a comparison."""
    if isinstance(op, ast.Is | ast.IsNot):
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return m.unknown("is")
        if isinstance(left, Lib) and isinstance(right, Lib):
            same = left == right
        else:
            same = left is right or (
                isinstance(left, int | bool) and left == right and type(left) is type(right)
            )
        return same if isinstance(op, ast.Is) else not same
    if isinstance(op, ast.In | ast.NotIn):
        found = python.contains(m, right, left)
        return found if found is None or isinstance(found, Unknown) else found is isinstance(op, ast.In)
    name, concrete = COMPARE[type(op)]
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        tensor = left if isinstance(left, Tensor) else right
        ops.discrete(m, (left, right))
        return tensors.fresh(m, tensor.shape, "bool")
    if isinstance(left, Unknown) or isinstance(right, Unknown):
        m.open.met(left, right)
        return m.unknown("compare")
    return python.compared(m, name, concrete, left, right)
