"""`x.detach()` as a statement of its own: what it returns is thrown away. A cure keeps the result, or takes the
statement away where it detaches elsewhere. And `optimizer.step` as one: nothing is called."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.boundary import rebinding
from gradfix.rewrite.calls import backward_call, loss_of
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import Unit, block_of, body_of, dotted, take_away, units, walk
from gradfix.tape import Backward


def dropped(view: View, node: cst.CSTNode, name: str | None) -> tuple[Unit, ...]:
    """The statements ``name.detach()`` of the function (or module) around `node`."""
    return tuple(u for u in walk(body_of(view, node)) if name is not None and detached_name(u.node) == name)


def detached_name(node: cst.CSTNode) -> str | None:
    """``x.y`` of the statement ``x.y.detach()``, else None."""
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return None
    return dotted(call.func.value) if call.func.attr.value == "detach" and not call.args else None


def asked(view: View, node: cst.CSTNode, name: str | None) -> list[Edit]:
    """Edits that take ``name.requires_grad = True`` and ``name.requires_grad_()`` around `node` away: what
    has a graph needs none, and PyTorch refuses the first."""
    found: list[Edit] = []
    for unit in walk(body_of(view, node)) if name is not None else ():
        block = block_of(view, unit.node) if _asks(unit.node, f"{name}.requires_grad") else None
        if block is not None and len(units(block)) > 1:
            found += take_away(unit, view)
    return found


def asked_of_loss(backward: Backward | None, project: Project) -> list[tuple[View, list[Edit]]]:
    """The statements that let a loss without a graph require a gradient."""
    place = backward_call(project, backward) if backward is not None else None
    edits = asked(*place, dotted(loss_of(place[1]))) if place is not None else []
    return [(place[0], edits)] if place is not None and edits else []


def _asks(node: cst.CSTNode, attribute: str) -> bool:
    """Whether a statement sets this attribute to True, or calls the method of that name with an underscore."""
    if isinstance(node, cst.Assign) and len(node.targets) == 1:
        return dotted(node.targets[0].target) == attribute and dotted(node.value) == "True"
    call = node.value if isinstance(node, cst.Expr) else None
    return isinstance(call, cst.Call) and dotted(call.func) == f"{attribute}_" and not call.args


def kept(unit: Unit, name: str, shape: str = "tensor") -> Edit:
    """The statement ``name.detach()`` becomes ``name = name.detach()``."""
    small = rebinding(name, shape)
    return Replace(
        unit.node, lambda n: small.with_changes(semicolon=getattr(n, "semicolon", small.semicolon))
    )


def without(view: View, node: cst.CSTNode, name: str | None) -> list[Edit]:
    """Edits that take the statements ``name.detach()`` around `node` away, those that a body can do without."""
    found: list[Edit] = []
    for unit in dropped(view, node, name):
        block = block_of(view, unit.node)
        if block is not None and len(units(block)) > 1:
            found += take_away(unit, view)
    return found


def uncalled(view: View, method: str, owner: str = "") -> Iterator[cst.Attribute]:
    """The statements of the file that name a method and do not call it: ``optimizer.step``; of the object that is
    written `owner` alone, where one is given."""
    for node in descendants(view.module):
        named = node.value if isinstance(node, cst.Expr) else None
        if not isinstance(named, cst.Attribute) or named.attr.value != method or not dotted(named):
            continue
        if not owner or view.code(named.value) == owner:
            yield named
