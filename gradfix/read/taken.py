"""Arithmetic of numbers that were taken out of the graph (``0.1 * penalty.item()``): what they are still made of."""

from __future__ import annotations

from gradfix.read.frames import Machine
from gradfix.read.values import Taken, Tensor, Value

LINEAR = ("add", "sub", "mul", "div")


def take(m: Machine, tensor: Tensor) -> Value:
    """The number that `tensor` holds."""
    cut = frozenset((tensor.node.number,)) if tensor.requires and tensor.node is not None else tensor.cut
    if not cut:
        return m.unknown("item()")
    m.constants = True
    return Taken("item()", "", cut, tensor)


def binary(m: Machine, name: str, left: Value, right: Value) -> Value:
    """An operator on two numbers of which one at least was taken. What is left of it is a number still; the quotient of
    two, or the difference, is meant as a number by all."""
    if isinstance(left, Taken) and isinstance(right, Taken):
        both = Taken(left.origin, "", left.cut | right.cut, left.tensor)
        return both if name == "add" else m.unknown("operator")
    taken, other = (left, right) if isinstance(left, Taken) else (right, left)
    if not isinstance(other, int | float) or name not in LINEAR or (name == "div" and taken is right):
        return m.unknown("operator")
    return taken
