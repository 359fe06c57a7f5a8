"""How what a module holds in a plain list or dictionary comes to be registered: lists of lists, whole numbers as
keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.drawn import views
from gradfix.rewrite.holders import bound, listed
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import dotted


@dataclass(frozen=True, slots=True)
class Held:
    """How the module holds it, as the tape says: `parameters` themselves or layers, in containers of these `types`,
    from the outside in, the outermost by `whole` numbers as keys."""

    parameters: bool
    types: tuple[str, ...]
    whole: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """What of ``torch.nn`` each container is to be: ``ModuleList``, ``ParameterDict``, …"""
        last = len(self.types) - 1
        return tuple(
            ("Parameter" if self.parameters and i == last else "Module") + ("Dict" if t == "dict" else "List")
            for i, t in enumerate(self.types)
        )


def how(attributes: Collection[tuple[str, ...]]) -> Held | None:
    """How one attribute holds all that is in it, by Optimizer.attributes; None where that is more than can be cured."""
    found = {Held(inner.endswith("]"), tuple(types), _whole(inner, types)) for _, inner, *types in attributes}
    held = found.pop()
    inner_keys = held.types[1:] == ("dict",) and any("]['" not in each[1] for each in attributes)
    return None if found or inner_keys or len(held.types) > 2 else held


def _whole(inner: str, types: Sequence[str]) -> bool:
    return bool(types) and types[0] == "dict" and inner[1:].partition("]")[0].removeprefix("-").isdigit()


def within(value: cst.BaseExpression, held: Held, called: str) -> list[Edit] | None:
    """What becomes of the items of a container that is written out, where these are containers, too, and of its keys,
    where these are whole numbers."""
    if isinstance(value, (cst.List, cst.Tuple)):
        keys, items = list[cst.BaseExpression](), [e.value for e in value.elements]
        plain = all(isinstance(e, cst.Element) for e in value.elements)
    elif isinstance(value, cst.Dict):
        pairs = [e for e in value.elements if isinstance(e, cst.DictElement)]
        keys, items, plain = (
            [e.key for e in pairs],
            [e.value for e in pairs],
            len(pairs) == len(value.elements),
        )
    elif isinstance(value, cst.ListComp):
        keys, items, plain = [], [value.elt], True
    elif isinstance(value, cst.DictComp):
        keys, items, plain = [value.key], [value.value], True
    else:
        return None
    nested = len(held.types) > 1
    if not plain and (nested or held.whole):
        return None
    edits = [_in_call(item, called) for item in items] if nested else []
    return edits + [as_string(key) for key in keys] if held.whole else edits


def added(
    project: Project, attribute: str, kinds: Collection[cst.CSTNode], called: str
) -> dict[str, list[Edit]] | None:
    """What becomes of containers that are put into one later: ``self.blocks.append([…])``. None where they come in
    otherwise, or something is done with one of them that only a list or a dictionary can do."""
    edits: dict[str, list[Edit]] = {}
    for view in views(project):
        items = set[str]()
        for node in view.parents:
            if isinstance(node, (cst.For, cst.CompFor)) and _speaks_of(node.iter, attribute):
                items.update(n.value for n in _names(node.target))
        for node in view.parents:
            if isinstance(node, cst.Name) and node.value in items and listed(view, node):
                return None
            if not isinstance(node, cst.Attribute) or node.attr.value != attribute:
                continue
            if not _ours(view, node, kinds):
                continue
            above = view.parents.get(node)
            new: cst.BaseExpression | None = None
            if isinstance(above, cst.Subscript):
                if listed(view, above):
                    return None
                new = _assigned(view, above)
            elif isinstance(above, cst.AugAssign):
                return None
            elif isinstance(above, cst.Attribute) and isinstance(call := view.parents.get(above), cst.Call):
                if function_of(call) in ("extend", "update"):
                    return None
                if function_of(call) in ("append", "insert") and call.args:
                    new = call.args[-1].value
            if new is not None:
                edits.setdefault(view.path, []).append(_in_call(new, called))
    return edits


def by_strings(
    project: Project, attribute: str, kinds: Collection[cst.CSTNode]
) -> dict[str, list[Edit]] | None:
    """``self.heads[str(i)]`` for ``self.heads[i]``; None where the keys are asked for otherwise."""
    edits: dict[str, list[Edit]] = {}
    for view in views(project):
        for node in view.parents:
            if not isinstance(node, cst.Attribute) or node.attr.value != attribute or bound_here(view, node):
                continue
            if not _ours(view, node, kinds):
                return None
            above = view.parents.get(node)
            if isinstance(above, cst.Subscript) and above.value is node and len(above.slice) == 1:
                index = above.slice[0].slice
                if not isinstance(index, cst.Index) or isinstance(index.value, cst.SimpleString):
                    return None
                edits.setdefault(view.path, []).append(as_string(index.value))
            elif isinstance(above, cst.Attribute):
                if above.attr.value != "values" or not isinstance(view.parents.get(above), cst.Call):
                    return None
            elif not (isinstance(above, cst.Arg) and _is_len(view.parents.get(above))):
                return None
    return edits


def bound_here(view: View, node: cst.Attribute) -> bool:
    """Whether the attribute is bound there."""
    above = view.parents.get(node)
    statement = view.parents.get(above) if isinstance(above, cst.AssignTarget) else above
    return isinstance(statement, (cst.Assign, cst.AnnAssign)) and bound(statement)[0] == node.attr.value


def as_string(key: cst.BaseExpression) -> Edit:
    """A key that was a whole number."""
    if isinstance(key, cst.Integer):
        return Replace(key, lambda _: cst.SimpleString(f'"{key.value}"'))

    def build(node: cst.CSTNode) -> cst.CSTNode:
        return cst.Call(cst.Name("str"), [cst.Arg(cast(cst.BaseExpression, node))])

    return Replace(key, build)


def in_call(node: cst.CSTNode, called: str) -> cst.Call:
    """The container handed to what registers it."""
    given = cast(cst.BaseExpression, node)
    empty = isinstance(given, (cst.List, cst.Tuple, cst.Dict)) and not given.elements
    return cst.Call(cst.parse_expression(called), [] if empty else [cst.Arg(given)])


def _in_call(value: cst.BaseExpression, called: str) -> Edit:
    return Replace(value, lambda node: in_call(node, called))


def _ours(view: View, node: cst.Attribute, kinds: Collection[cst.CSTNode]) -> bool:
    """Whether the attribute may be that of these classes."""
    around = view.enclosing(node, cst.ClassDef)
    return dotted(node.value) != "self" or around in kinds or around is None


def _assigned(view: View, target: cst.Subscript) -> cst.BaseExpression | None:
    """What is assigned to an item."""
    above = view.parents.get(target)
    statement = view.parents.get(above) if isinstance(above, cst.AssignTarget) else None
    return statement.value if isinstance(statement, cst.Assign) else None


def _speaks_of(node: cst.CSTNode, attribute: str) -> bool:
    return any(n.value == attribute for n in _names(node))


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    for child in node.children:
        yield from _names(child)


def _is_len(call: cst.CSTNode | None) -> bool:
    return isinstance(call, cst.Call) and function_of(call) == "len"
