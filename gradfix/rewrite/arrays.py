"""What the text says of arrays, numbers and the tensors that are made of them again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

import libcst as cst

from gradfix.edit import Edit, View, parenthesized
from gradfix.rewrite.liveness import dotted, statement_before
from gradfix.rewrite.peeling import MAKERS, innermost
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import block_of, bound, take_away, unit_in, units

COPIES = ("array", "asarray", "ascontiguousarray", "float32", "float64")  # of NumPy


def array_of(view: View, name: cst.Name) -> cst.Call | None:
    """``t.numpy()``, where the name was bound to that right before."""
    made = statement_before(view, name, name.value)
    for statement in getattr(made, "body", ()):
        for one, given in bound(statement):
            if dotted(one) == name.value and isinstance(given, cst.Call) and is_numpy(given):
                return given
    return None


def to_themselves(view: View, value: cst.BaseExpression) -> cst.Assign | None:
    """``p, t = p.detach().numpy(), t.numpy()`` around one of the values: each name is bound to its own array."""
    element = view.parents.get(value)
    several = view.parents.get(element) if isinstance(element, cst.Element) else None
    made = view.parents.get(several) if isinstance(several, cst.Tuple) else None
    if not isinstance(made, cst.Assign) or not isinstance(several, cst.Tuple) or len(made.targets) != 1:
        return None
    pairs = bound(made)
    own = all(is_numpy(v) and dotted(t) == dotted(innermost(v)) for t, v in pairs)
    return made if own and len(pairs) == len(several.elements) else None


def counted(view: View, read: cst.BaseExpression) -> bool:
    """``len(losses)``"""
    call = view.parents.get(view.parents.get(read, read))
    return isinstance(call, cst.Call) and dotted(call.func) == "len"


def is_data(node: cst.CSTNode) -> bool:
    """``x.data``"""
    return isinstance(node, cst.Attribute) and node.attr.value == "data"


def leaf_made(around: cst.BaseExpression) -> bool:
    """``Variable(loss, requires_grad=True)``, and not ``loss.item()``"""
    return isinstance(around, cst.Call) and (torch_made(around) or function_of(around) == "requires_grad_")


def taking_off(view: View, layer: cst.BaseExpression) -> Callable[[cst.CSTNode], cst.CSTNode]:
    """What an edit makes of this layer: what it is around."""
    if isinstance(layer, cst.Attribute):
        return lambda new: cast(cst.Attribute, new).value
    return lambda new: within(new, view, cast(cst.Call, layer))


def only_element(call: cst.CSTNode) -> cst.BaseExpression:
    """``x`` of ``torch.tensor([x])``"""
    return cast(cst.List, cast(cst.Call, call).args[0].value).elements[0].value


def torch_made(whole: cst.BaseExpression) -> bool:
    """Whether a torch tensor is made of the value, so that torch computes what follows."""
    return isinstance(whole, cst.Call) and function_of(whole) in MAKERS and function_of(whole) != "float"


def numpy_function(call: cst.Call) -> str:
    """``linalg.norm`` of ``np.linalg.norm(a)``; "" of what is no call of NumPy's."""
    module, _, path = (dotted(call.func) or "").partition(".")
    return path if module in ("np", "numpy") else ""


def is_numpy(node: cst.BaseExpression) -> bool:
    """``x.numpy()``"""
    return (
        isinstance(node, cst.Call) and function_of(node) == "numpy" and isinstance(node.func, cst.Attribute)
    )


def detached_of(node: cst.BaseExpression) -> cst.BaseExpression:
    """``target.detach()`` of ``target.detach().cpu().numpy()``."""
    while (
        isinstance(node, cst.Call)
        and function_of(node) in ("numpy", "cpu")
        and isinstance(node.func, cst.Attribute)
    ):
        node = node.func.value
    return node


def within(new: cst.CSTNode, view: View, call: cst.Call) -> cst.BaseExpression:
    """What a call is made of, in its place."""
    assert isinstance(new, cst.Call)
    inner = new.args[0].value if new.args and not isinstance(call.func, cst.Attribute) else None
    if inner is None:
        takes = new.args and function_of(call) in (*MAKERS, *COPIES)
        inner = new.args[0].value if takes else new.func.value if isinstance(new.func, cst.Attribute) else new
    plain = isinstance(view.parents.get(call), cst.Arg | cst.Assign | cst.Return | cst.AugAssign)
    return inner if plain else parenthesized(inner)


def to_itself(made: cst.Assign, value: cst.BaseExpression) -> bool:
    """``h = h``, as it would be."""
    return len(made.targets) == 1 and dotted(made.targets[0].target) == dotted(value) is not None


def statement_gone(
    view: View, made: cst.BaseSmallStatement, besides: Collection[cst.CSTNode] = ()
) -> tuple[Edit, ...]:
    """Edits that take a statement away, and those of `besides`; its comments stay."""
    block = block_of(view, made)
    index = unit_in(view, block, made) if block is not None else None
    lines = {view.statement(other) for other in besides}
    return () if block is None or index is None else take_away(units(block)[index], view, True, lines)


def bound_again(view: View, statement: cst.CSTNode, read: cst.BaseExpression, name: str) -> bool:
    """Whether the name is bound to another value in between, whatever way the program takes."""
    last = statement_before(view, read, name)
    return (
        last is not None
        and last is not view.statement(statement)
        and stands_after(view, statement, last)
        and block_of(view, last) is block_of(view, statement)
    )


def stands_after(view: View, statement: cst.CSTNode, read: cst.CSTNode) -> bool:
    """Whether a read stands behind the statement, in the text."""
    end, start = view.span(statement).end, view.span(read).start
    return (start.line, start.column) >= (end.line, end.column)
