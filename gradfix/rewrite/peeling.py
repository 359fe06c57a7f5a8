"""What takes a value out of its graph, as the source says it: layers around an expression, which can be taken off."""

from __future__ import annotations

import libcst as cst

from gradfix.edit import Edit, Replace, View, parenthesized
from gradfix.rewrite.spelling import descendants, function_of

METHODS = frozenset(("detach", "detach_", "item", "numpy", "tolist", "requires_grad_"))
MAKERS = frozenset(
    (
        "tensor",
        "as_tensor",
        "Tensor",
        "FloatTensor",
        "DoubleTensor",
        "from_numpy",
        "Variable",
        "Parameter",
        "float",
    )
)
COMPREHENSIONS = cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp


def layer_in(view: View, node: cst.CSTNode) -> cst.BaseExpression | None:
    """The expression that leaves the graph, at or in `node`."""
    node = node.value if isinstance(node, cst.Expr) else node
    if isinstance(node, cst.BaseExpression) and peel(node) is not None:
        return node
    inside = [n for n in descendants(node) if isinstance(n, cst.BaseExpression) and peel(n) is not None]
    tops = {id(outermost(view, n)): n for n in inside}
    return next(iter(tops.values())) if len(tops) == 1 else None


def peel(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """What one layer takes out of its graph: ``x`` of ``x.detach()``, ``x.data``, ``torch.tensor(x)``."""
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        return node.value
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in METHODS:
        return node.func.value
    if isinstance(node.func, cst.Attribute) and node.func.attr.value == "cpu":
        return node.func.value if peel(node.func.value) is not None else None
    if function_of(node) in MAKERS and node.args and not node.args[0].keyword and not node.args[0].star:
        first = node.args[0].value
        return None if isinstance(first, cst.BaseNumber | cst.List | cst.ListComp) else first
    return None


def outermost(view: View, node: cst.BaseExpression) -> cst.BaseExpression:
    """The last layer around `node`."""
    while True:
        above: cst.CSTNode | None = view.parents.get(node)
        if isinstance(above, cst.Attribute | cst.Arg):
            outer = view.parents.get(above)
            if isinstance(above, cst.Attribute) and above.attr.value == "data":
                outer = above
        else:
            return node
        if not isinstance(outer, cst.BaseExpression) or peel(outer) is None:
            return node
        inner = peel(outer)
        if inner is not node:
            return node
        node = outer


def innermost(node: cst.BaseExpression) -> cst.BaseExpression:
    """What all layers are around; a clone right below them was made for their sake."""
    whole = node
    while (inner := peel(node)) is not None:
        node = inner
    if node is not whole and isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.value if node.func.attr.value == "clone" and not node.args else node
    return node


def put(view: View, old: cst.BaseExpression, new: cst.BaseExpression) -> Edit:
    """`old` becomes `new`, in parentheses where it stands in an operation."""
    above = view.parents.get(old)
    plain = isinstance(
        above, cst.Assign | cst.Arg | cst.Return | cst.Element | cst.AugAssign | cst.Expr | COMPREHENSIONS
    )
    return Replace(old, lambda _: new if plain else parenthesized(new))
