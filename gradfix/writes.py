"""An in-place write as the source says it: which expression is written, in which form, and whether its name
may be bound anew instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.liveness import (
    SHARED_ATTRIBUTES,
    VIEWS,
    Sharing,
    declared,
    dotted,
    live_after,
    parameters,
    reads,
    scope_of,
    shared_with,
    sharing,
    statement_before,
)
from gradfix.tape import Mutate, Site, Stack

Form = Literal["operator", "method", "function", "out", "item", "data"]


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """`node` (an AugAssign, an Assign or a Call) writes into the tensor that `target` is a view or an alias
    of.

    `form`: ``operator`` (``y += a``), ``method`` (``y.add_(a)``), ``function`` (``F.relu_(y)``,
    ``inplace=True``), ``out`` (``torch.add(a, b, out=y)``), ``item`` (``y[i] = a``), ``data`` (``y.data =
    a``).
    """

    view: View
    node: cst.AugAssign | cst.Assign | cst.Call
    form: Form
    target: cst.BaseExpression

    @property
    def small(self) -> cst.BaseSmallStatement | None:
        return self.view.small_statement(self.node)

    @property
    def alone(self) -> bool:
        """Whether the write is a whole statement, its result unused."""
        small = self.small
        return small is self.node or (isinstance(small, cst.Expr) and small.value is self.node)

    @property
    def root(self) -> cst.BaseExpression:
        """The tensor that owns the storage as far as this expression tells: ``h`` of ``h.data[:, 0]``."""
        return peeled(self.target)

    @property
    def name(self) -> str:
        """The root as a dotted name, "" where it is none."""
        return dotted(self.root)

    @property
    def hidden(self) -> bool:
        """Whether the write goes through ``.data`` or ``.detach()`` in this very expression."""
        return self.form == "data" or any(_hides(x) for x in _layers(self.target))

    @property
    def whole(self) -> bool:
        """Whether all of the root is written, with its own shape (not an item, not a view of it)."""
        return all(_hides(x) for x in _layers(self.target))


def write_of(conflict: Conflict, project: Project) -> Write | None:
    """The write of a conflict, where it is one of the user's own and not a module's or an optimizer's."""
    event = conflict.write
    stack = event.stack if event is not None else conflict.labels[conflict.primary].stack
    return write_at(project, stack[-1]) if stack else None


def write_at(project: Project, site: Site) -> Write | None:
    found = project.node(site)
    if found is None:
        return None
    view, node = found
    written = _write(view, node)
    if written is None:
        small = view.small_statement(node) or node
        inner = [w for n in _descendants(small) if isinstance(n, cst.Call) and (w := _call(view, n))]
        written = inner[0] if len(inner) == 1 else None
    return written


def _write(view: View, node: cst.CSTNode) -> Write | None:
    if isinstance(node, cst.Expr):
        node = node.value
    if isinstance(node, cst.Call):
        return _call(view, node)
    small = view.small_statement(node)
    if isinstance(small, cst.AugAssign) and node in (small, small.target):
        return Write(view, small, "operator", small.target)
    if isinstance(small, cst.Assign):
        for target in small.targets:
            if isinstance(target.target, cst.Subscript):
                return Write(view, small, "item", target.target)
            if isinstance(target.target, cst.Attribute) and target.target.attr.value == "data":
                return Write(view, small, "data", target.target)
        if isinstance(small.value, cst.Call):
            return _call(view, small.value)
    return None


def _call(view: View, call: cst.Call) -> Write | None:
    out = next((a for a in call.args if a.keyword is not None and a.keyword.value == "out"), None)
    if out is not None:
        return Write(view, call, "out", out.value)
    last = _last_name(call.func)
    function = isinstance(call.func, cst.Name) or dotted(call.func).partition(".")[0] in imported(view)
    if function and call.args and (_inplace(last) or inplace_argument(call) is not None):
        return Write(view, call, "function", call.args[0].value)
    if isinstance(call.func, cst.Attribute) and _inplace(last):
        outer = _outermost(view, call)
        return Write(view, outer, "method", chain_root(outer))
    return None


def _inplace(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__") and name not in ("_", "requires_grad_", "apply_")


def _last_name(func: cst.BaseExpression) -> str:
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
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and _inplace(node.func.attr.value)
    )


def _outermost(view: View, call: cst.Call) -> cst.Call:
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


def _layers(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
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
            and _last_name(node.func) in VIEWS
        ):
            yield node
            node = node.func.value
        else:
            return


def peeled(node: cst.BaseExpression) -> cst.BaseExpression:
    """`node` without indices, view methods, ``.data`` and ``.detach()``."""
    for layer in _layers(node):
        inner = layer.func.value if isinstance(layer, cst.Call) else layer.value  # type: ignore[attr-defined]
        node = inner
    return node


def _hides(layer: cst.BaseExpression) -> bool:
    if isinstance(layer, cst.Attribute):
        return layer.attr.value == "data"
    return isinstance(layer, cst.Call) and cast(cst.Attribute, layer.func).attr.value == "detach"


def _descendants(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for child in node.children:
        yield child
        yield from _descendants(child)


def may_rebind(view: View, node: cst.CSTNode, name: str, stack: Stack, project: Project) -> bool:
    """Whether binding `name` anew at `node` means the same as writing into its tensor: nobody else who has
    the tensor reads it afterwards.

    A function's parameter may be bound anew only if the function itself goes on with it and its caller does
    not; what a for loop hands out may not; a global only where the function says ``global``.
    """
    shared = sharing(view, node, name)
    if any(live_after(view, node, alias) for alias in shared.names):
        return False
    scope = scope_of(view, node)
    if shared.origin == "element":
        return False
    if "." in name or not isinstance(scope, cst.FunctionDef):
        return True
    if shared.origin == "free":
        return name in declared(scope)
    if shared.origin == "parameter":
        return live_after(view, node, name) and not _caller_reads_on(scope, stack, project, shared, name)
    return True


def _caller_reads_on(
    function: cst.FunctionDef, stack: Stack, project: Project, shared: Sharing, name: str
) -> bool:
    """Whether the calling frame passes a name for this parameter and reads it after the call."""
    if len(stack) < 2:
        return False
    view = project.view(stack[-2].file)
    call = view.call_at(stack[-2]) if view else None
    if view is None or call is None:
        return False
    names = [p for p in parameters(function) if p in ("self", "cls")] and parameters(function)[1:]
    names = names or parameters(function)
    for i, arg in enumerate(call.args):
        passed = arg.keyword.value if arg.keyword else names[i] if i < len(names) and not arg.star else ""
        if passed == name or passed in shared.names:
            for given in shared_with(arg.value):
                small = view.small_statement(call)
                rebound = isinstance(small, cst.Assign) and any(
                    dotted(t.target) == given for t in small.targets
                )
                if "." not in given and not rebound and live_after(view, call, given):
                    return True
    return False


def function_of(call: cst.Call) -> str:
    """The last name of what is called: ``relu_`` of ``F.relu_(x)``."""
    return _last_name(call.func)


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
            if any(_hides(layer) for layer in _layers(value)):
                return statement
    return None


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
    layers = [x for x in _layers(write.target) if isinstance(x, cst.Subscript)]
    return layers[-1] if layers else write.root


def small_statements(node: cst.CSTNode) -> list[cst.BaseSmallStatement]:
    """Every small statement in `node`, in the order of the text."""
    return [n for n in _descendants(node) if isinstance(n, cst.BaseSmallStatement)]


def accumulates(view: View, write: Write) -> bool:
    """Whether the written name is a sum of losses: added to here, and backward() called on it (or on
    something made of it) in the same function or class."""
    added = isinstance(write.node, cst.AugAssign) and isinstance(write.node.operator, cst.AddAssign)
    added = added or (write.form == "method" and function_of(cast(cst.Call, write.node)) == "add_")
    if not added or not write.name:
        return False
    scope: cst.CSTNode = scope_of(view, write.node)
    if write.name.startswith("self."):
        scope = view.enclosing(write.node, cst.ClassDef) or scope
    for node in _descendants(scope):
        called = node.func if isinstance(node, cst.Call) else None
        backward = isinstance(called, cst.Attribute) and called.attr.value == "backward"
        user = called.value if backward else node.value if isinstance(node, cst.Return) else None  # type: ignore[union-attr]
        if user is not None and write.name in reads(user):
            return True
    return False


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
