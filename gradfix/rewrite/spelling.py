"""Spelling of tensor code: in-place calls and their chains, views and aliases, keywords, ``.data``,
no_grad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import libcst as cst

from gradfix.edit import View
from gradfix.rewrite.liveness import SHARED_ATTRIBUTES, VIEWS, dotted


def names_in_place(name: str) -> bool:
    """Whether a method of this name writes into its tensor."""
    return name.endswith("_") and not name.endswith("__") and name not in ("_", "requires_grad_", "apply_")


def last_name(func: cst.BaseExpression) -> str:
    """``relu`` of ``torch.relu``, and of ``relu``."""
    if isinstance(func, cst.Attribute):
        return func.attr.value
    return func.value if isinstance(func, cst.Name) else ""


def inplace_argument(call: cst.Call) -> cst.Arg | None:
    """``inplace=True`` among the arguments."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == "inplace" and _true(arg.value):
            return arg
    return None


def _true(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def is_inplace_call(node: cst.CSTNode) -> bool:
    """``anything.method_(...)``."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and names_in_place(node.func.attr.value)
    )


def outermost(view: View, call: cst.Call) -> cst.Call:
    """The last call of a chain ``y.mul_(a).add_(b)``."""
    while True:
        above = view.parents.get(call)
        further = view.parents.get(above) if isinstance(above, cst.Attribute) else None
        if further is None or not is_inplace_call(further) or cast(cst.Call, further).func is not above:
            return call
        call = cast(cst.Call, further)


def chain_root(call: cst.BaseExpression) -> cst.BaseExpression:
    """``y`` of ``y.mul_(a).add_(b)``."""
    while is_inplace_call(call):
        call = cast(cst.Attribute, cast(cst.Call, call).func).value
    return call


def chain(call: cst.BaseExpression) -> Iterator[cst.Call]:
    """The in-place calls of ``y.mul_(a).add_(b)``, last first."""
    while is_inplace_call(call):
        yield cast(cst.Call, call)
        call = cast(cst.Attribute, cast(cst.Call, call).func).value


def imported(view: View) -> frozenset[str]:
    """The names that imports anywhere in the file bind."""
    found: set[str] = set()

    class Find(cst.CSTVisitor):
        def visit_ImportAlias(self, node: cst.ImportAlias) -> None:
            found.add(node.evaluated_alias or node.evaluated_name.partition(".")[0])

    view.module.visit(Find())
    return frozenset(found)


def torch_names(view: View) -> frozenset[str]:
    """The names that imports of torch, or from it, bind anywhere in the file: ``torch``, ``nn``, ``F``."""
    found: set[str] = set()
    for node in view.parents:
        if not isinstance(node, cst.ImportAlias):
            continue
        above = view.parents[node]
        source = above.module if isinstance(above, cst.ImportFrom) else node.name
        said = "" if source is None else cst.Module([]).code_for_node(source)
        if said.partition(".")[0] == "torch":
            found.add(node.evaluated_alias or node.evaluated_name.partition(".")[0])
    return frozenset(found)


def layers(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """`node` and what it is a view or an alias of, down to the root, which is left out."""
    while True:
        if isinstance(node, cst.Subscript) or (
            isinstance(node, cst.Attribute) and node.attr.value in SHARED_ATTRIBUTES
        ):
            yield node
            node = node.value
        elif (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and last_name(node.func) in VIEWS
        ):
            yield node
            node = node.func.value
        else:
            return


def peeled(node: cst.BaseExpression) -> cst.BaseExpression:
    """`node` without indices, view methods, ``.data`` and ``.detach()``."""
    for layer in layers(node):
        inner = layer.func.value if isinstance(layer, cst.Call) else layer.value  # type: ignore[attr-defined]
        node = inner
    return node


def hides(layer: cst.BaseExpression) -> bool:
    """Whether the layer keeps autograd from seeing what is written through it: ``.data``, ``.detach()``."""
    if isinstance(layer, cst.Attribute):
        return layer.attr.value == "data"
    return isinstance(layer, cst.Call) and cast(cst.Attribute, layer.func).attr.value == "detach"


def descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Every node inside `node`, outermost first."""
    for child in node.children:
        yield child
        yield from descendants(child)


def unused(view: View, name: str, within: cst.CSTNode | None = None) -> str:
    """`name`, with underscores behind it as long as the file knows it already, or a part of the file."""
    known = view.parents if within is None else descendants(within)
    taken = {n.value for n in known if isinstance(n, cst.Name)}
    while name in taken:
        name += "_"
    return name


def function_of(call: cst.Call) -> str:
    """The last name of what is called: ``relu_`` of ``F.relu_(x)``."""
    return last_name(call.func)


def undone_data(node: cst.BaseExpression, name: str) -> cst.BaseExpression:
    """`node` with ``name.data`` and ``name.detach()`` as plain ``name``."""

    class Undo(cst.CSTTransformer):
        def leave_Attribute(
            self, original_node: cst.Attribute, updated_node: cst.Attribute
        ) -> cst.BaseExpression:
            hit = original_node.attr.value == "data" and dotted(original_node.value) == name
            return updated_node.value if hit else updated_node

        def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
            func = original_node.func
            if isinstance(func, cst.Attribute) and func.attr.value == "detach" and dotted(func.value) == name:
                return cast(cst.Attribute, updated_node.func).value
            return updated_node

    return cast(cst.BaseExpression, node.visit(Undo()))


def small_statements(node: cst.CSTNode) -> list[cst.BaseSmallStatement]:
    """Every small statement in `node`, in the order of the text."""
    return [n for n in descendants(node) if isinstance(n, cst.BaseSmallStatement)]


def drop_keyword(value: cst.BaseExpression, keyword: str) -> cst.Call | None:
    """``torch.zeros(1)`` of ``torch.zeros(1, requires_grad=True)``; None where the call has no such
    keyword."""
    if not isinstance(value, cst.Call):
        return None
    return without_arguments(value, lambda a: a.keyword is not None and a.keyword.value == keyword)


def without_arguments(call: cst.Call, unwanted: Callable[[cst.Arg], bool]) -> cst.Call | None:
    """The call without some arguments, its commas and line breaks in order; None where it has none of
    them."""
    kept = [a for a in call.args if not unwanted(a)]
    if len(kept) == len(call.args):
        return None
    if kept and unwanted(call.args[-1]):
        # the comma (and line break) behind the last argument is that of the one that goes
        kept[-1] = kept[-1].with_changes(
            comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
        )
    return call.with_changes(args=kept)


def without_grad(view: View, node: cst.CSTNode) -> bool:
    """Whether `node` stands under no_grad or inference_mode, a with-block's or a decorator's."""
    for above in view.ancestors(node):
        if isinstance(above, cst.With):
            heads: list[cst.BaseExpression] = [item.item for item in above.items]
        elif isinstance(above, cst.FunctionDef):
            heads = [d.decorator for d in above.decorators]
        else:
            continue
        for head in heads:
            name = dotted(head.func if isinstance(head, cst.Call) else head).rpartition(".")[2]
            if name in ("no_grad", "inference_mode"):
                return True
        if isinstance(above, cst.FunctionDef):
            return False
    return False


def undone_data_everywhere(node: cst.CSTNode) -> cst.CSTNode:
    """`node` without any ``.data`` of a tensor's (``self.data`` and calls of ``.data()`` stay)."""

    class Undo(cst.CSTTransformer):
        def leave_Attribute(
            self, original_node: cst.Attribute, updated_node: cst.Attribute
        ) -> cst.BaseExpression:
            hit = original_node.attr.value == "data" and dotted(original_node) != "self.data"
            return updated_node.value if hit else updated_node

    return cast(cst.CSTNode, node.visit(Undo()))


def writes_data(small: cst.CSTNode) -> bool:
    """``p.data.clamp_(…)``, ``p.data -= …``, ``p.data[i] = …``, ``p.data = …``, ``init.normal_(p.data)``."""
    if isinstance(small, cst.AugAssign):
        return _through_data(small.target)
    if isinstance(small, cst.Assign):
        return any(_through_data(t.target) for t in small.targets)
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        call: cst.BaseExpression = small.value
        if is_inplace_call(call):
            while is_inplace_call(call):
                call = cast(cst.Attribute, cast(cst.Call, call).func).value
            if _through_data(call):
                return True
        return fills(small.value) and any(_through_data(a.value) for a in small.value.args)
    return False


def _through_data(node: cst.CSTNode) -> bool:
    while isinstance(node, cst.Subscript):
        node = node.value
    return isinstance(node, cst.Attribute) and node.attr.value == "data" and dotted(node) != "self.data"


def fills(call: cst.Call) -> bool:
    """Whether this is a function of torch.nn.init."""
    return "init." in dotted(call.func)
