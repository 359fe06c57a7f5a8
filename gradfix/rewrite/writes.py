"""An in-place write as the source says it: which expression is written, in which form, and whether its name
may be bound anew instead."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.held import held_elsewhere
from gradfix.rewrite.liveness import (
    Sharing,
    declared,
    dotted,
    first_use,
    later,
    live_after,
    parameters,
    scope_of,
    shared_with,
    sharing,
    target_names,
)
from gradfix.rewrite.spelling import (
    chain_root,
    descendants,
    hides,
    imported,
    inplace_argument,
    last_name,
    layers,
    names_in_place,
    outermost,
    peeled,
)
from gradfix.tape import Site, Stack

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
        """The small statement of the write."""
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
    def of_receiver(self) -> bool:
        """Whether the root is the method's own object: ``self``, or ``cls`` where that is no local name."""
        scope = scope_of(self.view, self.node)
        given = parameters(scope)[:1] if isinstance(scope, cst.FunctionDef) else ()
        return self.name in ("self", "cls") and self.name in given

    @property
    def hidden(self) -> bool:
        """Whether the write goes through ``.data`` or ``.detach()`` in this very expression."""
        return self.form == "data" or any(hides(x) for x in layers(self.target))

    @property
    def whole(self) -> bool:
        """Whether all of the root is written, with its own shape (not an item, not a view of it)."""
        return all(hides(x) for x in layers(self.target))


def write_of(conflict: Conflict, project: Project) -> Write | None:
    """The write of a conflict, where it is one of the user's own and not a module's or an optimizer's."""
    event = conflict.write
    stack = event.stack if event is not None else conflict.labels[conflict.primary].stack
    return write_at(project, stack[-1]) if stack else None


def write_at(project: Project, site: Site) -> Write | None:
    """The write whose place on the tape is `site`."""
    found = project.node(site)
    if found is None:
        return None
    view, node = found
    written = _write(view, node)
    if written is None:
        small = view.small_statement(node) or node
        inner = [w for n in descendants(small) if isinstance(n, cst.Call) and (w := _call(view, n))]
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
    last = last_name(call.func)
    function = isinstance(call.func, cst.Name) or dotted(call.func).partition(".")[0] in imported(view)
    if function and call.args and (names_in_place(last) or inplace_argument(call) is not None):
        return Write(view, call, "function", call.args[0].value)
    if isinstance(call.func, cst.Attribute) and names_in_place(last):
        outer = outermost(view, call)
        return Write(view, outer, "method", chain_root(outer))
    return None


def to_leaf_view(write: Write, conflict: Conflict) -> bool:
    """Whether the write goes to a view of a leaf under a name of its own, and the function reads the leaf under none
    behind it: it is the view that is to hold the value, not the leaf."""
    if conflict.pattern != "view" or not write.name or "." in write.name:
        return False
    view, shared = write.view, sharing(write.view, write.node, write.name)
    made = (s for s in shared.views if isinstance(s, cst.Assign))
    if not any(write.name in target_names(t.target) for s in made for t in s.targets):
        return False
    around = list(view.ancestors(write.node))
    behind = [run for run in later(view, write.node) if not any(loop in run for loop in around)]
    return not any(first_use(run, other) == "read" for run in behind for other in shared.names)


def may_rebind(
    view: View,
    node: cst.CSTNode,
    name: str,
    stack: Stack,
    project: Project,
    read_on: bool = False,
    apart: Collection[str] = (),
) -> bool:
    """Whether binding `name` anew at `node` means the same as writing into its tensor: nobody else who has
    the tensor reads it afterwards.

    A function's parameter may be bound anew only if the function itself goes on with it and its caller does
    not; what a for loop hands out may not; a global only where the function says ``global``. (`read_on`: the statement
    itself reads it behind the write; `apart`: names that are to keep the tensor as it was.)
    """
    shared = sharing(view, node, name)
    if any(live_after(view, node, alias) for alias in shared.names.difference(apart)):
        return False
    scope = scope_of(view, node)
    outer = isinstance(scope, cst.FunctionDef) and name in declared(scope)
    if held_elsewhere(name, stack, project, outer):
        return False
    if shared.origin == "element":
        return False
    if "." in name or not isinstance(scope, cst.FunctionDef):
        return True
    if shared.origin == "free":
        return name in declared(scope)
    if shared.origin == "parameter":
        return (read_on or live_after(view, node, name)) and not _caller_reads_on(
            scope, stack, project, shared, name
        )
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
                    given in target_names(t.target) for t in small.targets
                )
                if "." not in given and not rebound and live_after(view, call, given):
                    return True
    return False


def everything(target: cst.BaseExpression) -> bool:
    """``x[:]`` or ``x[...]`` of a name (or of its ``.data``)."""
    if not isinstance(target, cst.Subscript) or len(target.slice) != 1:
        return False
    index = target.slice[0].slice
    if isinstance(index, cst.Slice):
        whole = index.lower is None and index.upper is None and index.step is None
    else:
        whole = isinstance(index, cst.Index) and isinstance(index.value, cst.Ellipsis)
    inner = target.value
    if isinstance(inner, cst.Attribute) and inner.attr.value == "data":
        inner = inner.value
    return whole and bool(dotted(inner))
