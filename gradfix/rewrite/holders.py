"""Which class it is whose attribute holds layers in a list: others may have one of that name."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.drawn import views
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import dotted

# what lists and dictionaries can do and what nn.ModuleList and nn.ModuleDict cannot
_LISTS = {"remove", "sort", "reverse", "index", "count", "copy", "get", "setdefault", "popitem", "clear"}
_TESTS = {"isinstance", "issubclass", "type", "sorted", "dumps"}


def bound(node: cst.CSTNode) -> tuple[str, cst.BaseExpression | None]:
    """``layers`` of ``self.layers = …``, and what is bound to it."""
    if isinstance(node, cst.AnnAssign):
        target: cst.BaseExpression = node.target
    elif isinstance(node, cst.Assign) and len(node.targets) == 1:
        target = node.targets[0].target
    else:
        return "", None
    own = isinstance(target, cst.Attribute) and dotted(target.value) == "self"
    return (cst.ensure_type(target, cst.Attribute).attr.value, node.value) if own else ("", None)


def holders(project: Project, attribute: str, leaves: Collection[int]) -> tuple[cst.ClassDef, ...]:
    """The classes that bind the attribute in which the `leaves` are: the only one, or that in whose methods (or its
    bases, or what inherits from it) they are used."""
    binding = [
        kind
        for view in views(project)
        for node in view.parents
        if bound(node)[0] == attribute
        and isinstance(kind := view.enclosing(node, cst.ClassDef), cst.ClassDef)
    ]
    binding = list(dict.fromkeys(binding))
    if len(binding) < 2:
        return tuple(binding)
    found: dict[cst.ClassDef, None] = {}
    for record in project.graph.records.values():
        if leaves_of(record.parents).isdisjoint(leaves):
            continue
        for site in reversed(record.stack):
            place = project.node(site)
            within = place[0].enclosing(place[1], cst.ClassDef) if place is not None else None
            if isinstance(within, cst.ClassDef) and (own := _of(project, within, binding)):
                found.update(dict.fromkeys(own))
                break
    return tuple(found)


def leaves_of(parents: Collection[int]) -> set[int]:
    """The storages of the leaves among the parents of a node."""
    return {~p for p in parents if p < 0}


def _of(project: Project, kind: cst.ClassDef, binding: list[cst.ClassDef]) -> list[cst.ClassDef]:
    """Those of `binding` that an object of this class gets the attribute from; the one that inherits from it."""
    own = [b for b in binding if b in _line(project, kind)]
    heirs = [b for b in binding if kind in _line(project, b)]
    return own or (heirs if len(heirs) == 1 else [])


def _line(project: Project, kind: cst.ClassDef) -> list[cst.ClassDef]:
    """The class and what it inherits from, as far as the project has it."""
    found, pending = list[cst.ClassDef](), [kind]
    while pending:
        each = pending.pop()
        if each not in found:
            found.append(each)
            bases = {(dotted(b.value) or "").rpartition(".")[2] for b in each.bases}
            pending += [
                n
                for view in views(project)
                for n in view.parents
                if isinstance(n, cst.ClassDef) and n.name.value in bases
            ]
    return found


def as_list(project: Project, attribute: str) -> bool:
    """Whether something is done with what the attribute holds that only a list or a dictionary can do."""
    return any(
        isinstance(node, cst.Attribute) and node.attr.value == attribute and listed(view, node)
        for view in views(project)
        for node in view.parents
    )


def listed(view: View, node: cst.BaseExpression) -> bool:
    """Whether something is done with this that only a list or a dictionary can do."""
    above = view.parents.get(node)
    if isinstance(above, cst.Attribute):
        return above.attr.value in _LISTS and isinstance(view.parents.get(above), cst.Call)
    if isinstance(above, cst.BinaryOperation):
        return above.right is node or not isinstance(above.operator, cst.Add)
    if isinstance(above, cst.Comparison):
        return above.left is node and isinstance(above.comparisons[0].operator, cst.Equal | cst.NotEqual)
    call = view.parents.get(above) if isinstance(above, cst.Arg) else None
    return isinstance(call, cst.Call) and function_of(call) in _TESTS and call.args[0] is above
