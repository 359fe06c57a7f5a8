"""An inner update of meta-learning: a copy of a model, and the loop that updates its parameters off the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import cast

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.anew import bound_anew
from gradfix.rewrite.blocks import as_receiver, right_operand
from gradfix.rewrite.elsewhere import mentioned
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import Unit, body_of, parameters, walk
from gradfix.rewrite.writes import write_at
from gradfix.tape import Site

HANDED = 3  # how often a copy is handed on
LISTED = {"parameters": "values", "named_parameters": "items"}  # and what a dictionary of weights has for it


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """``for p, g in zip(copy.parameters(), grads): p.data = p.data - rate * g``: the `loop`, the `listing` of a copy's
    parameters that it goes through, the `holder` of each (a target), its statement, and what that computes for `p`."""

    view: View
    loop: cst.For
    listing: cst.Call
    holder: cst.BaseExpression
    small: cst.BaseSmallStatement
    written: str
    value: cst.BaseExpression

    @property
    def of(self) -> str:
        """The name of the copy."""
        return dotted(cast(cst.Attribute, self.listing.func).value)


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A copy of a module that is updated by hand: its `name`, the `module` it is a copy of (a dotted name), the
    statements that make it (the first binds it), and its updates."""

    view: View
    name: str
    module: str
    made: tuple[Unit, ...]
    updates: tuple[Update, ...]

    @property
    def body(self) -> cst.CSTNode:
        """Of the function that has it, or the module."""
        return body_of(self.view, self.made[0].node)


def adapted(project: Project, sites: Sequence[Site]) -> list[Adapted] | None:
    """The copies that are updated at `sites`; None where one of these is no loop over a copy's parameters."""
    found: dict[tuple[int, str], list[Update]] = {}
    for site in sites:
        update = _update(project, site)
        if update is None:
            return None
        found.setdefault((id(body_of(update.view, update.loop)), update.of), []).append(update)
    copies = [copy for some in found.values() if (copy := _copy(some)) is not None]
    return copies if len(copies) == len(found) else None


def _update(project: Project, site: Site) -> Update | None:
    write = write_at(project, site)
    small = write.small if write is not None else None
    if write is None or small is None or not isinstance(write.root, cst.Name):
        return None
    loop, anew = write.view.loop(write.node), list(bound_anew(write))
    value = (
        anew[0][0].value if len(anew) == 1 and isinstance(anew[0][0], cst.Assign) and not anew[0][1] else None
    )
    if not isinstance(loop, cst.For) or value is None or not write.alone:
        return None
    found = _gone_through(loop)
    if found is None or not dotted(cast(cst.Attribute, found[0].func).value):
        return None
    return Update(write.view, loop, *found, small, write.root.value, _with_operators(value))


def _with_operators(value: cst.BaseExpression) -> cst.BaseExpression:
    """``p - rate * g`` of ``p.sub(g, alpha=rate)`` or ``p.add(g, alpha=-rate)``."""
    operators: dict[str, type[cst.BaseBinaryOp]] = {"sub": cst.Subtract, "add": cst.Add}
    if not isinstance(value, cst.Call) or not isinstance(value.func, cst.Attribute):
        return value
    operator, (first, *others) = operators.get(value.func.attr.value), (*value.args, None)
    if operator is None or first is None or first.keyword is not None or first.star:
        return value
    step = first.value
    if others[:-1]:
        rate = others[0]
        if len(others) > 2 or rate is None or rate.keyword is None or rate.keyword.value != "alpha":
            return value
        scale = rate.value
        if isinstance(scale, cst.UnaryOperation) and isinstance(scale.operator, cst.Minus):
            scale, operator = scale.expression, cst.Add if operator is cst.Subtract else cst.Subtract
        step = cst.BinaryOperation(
            scale if isinstance(scale, cst.BaseNumber) else as_receiver(scale),
            cst.Multiply(),
            right_operand(step, cst.Multiply()),
        )
    return cst.BinaryOperation(value.func.value, operator(), right_operand(step, operator()))


def listing(node: cst.CSTNode) -> bool:
    """``model.parameters()``, ``model.named_parameters()``."""
    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in LISTED
        and not node.args
    )


def _gone_through(loop: cst.For) -> tuple[cst.Call, cst.BaseExpression] | None:
    """The listing that a loop goes through, alone or beside others, and the target that holds each of it."""
    if listing(loop.iter):
        return cast(cst.Call, loop.iter), loop.target
    if (
        not isinstance(loop.iter, cst.Call)
        or function_of(loop.iter) != "zip"
        or not isinstance(loop.target, cst.Tuple)
    ):
        return None
    pairs = [
        (cast(cst.Call, a.value), t.value)
        for a, t in zip(loop.iter.args, loop.target.elements, strict=False)
        if listing(a.value)
    ]
    return pairs[0] if len(pairs) == 1 else None


def _copy(updates: Sequence[Update]) -> Adapted | None:
    """What is updated, where one statement binds it, and says of which module it is a copy."""
    view, name = updates[0].view, updates[0].of
    small = list(walk(body_of(view, updates[0].loop)))
    makes = [u for u in small if name in u.names.binds]
    node = makes[0].node if len(makes) == 1 else None
    if not isinstance(node, cst.Assign) or len(node.targets) != 1 or dotted(node.targets[0].target) != name:
        return None
    loads = [u for u in small if _given_state(u.node)[0] == name]
    module = _deep_copied(node.value) or _made_by(view, node.value)
    if not module and len(loads) == 1:
        module = _given_state(loads[0].node)[1]
    if not module or "." in name:
        return None
    return Adapted(view, name, module, (makes[0], *loads), tuple(updates))


def _deep_copied(value: cst.BaseExpression | None) -> str:
    """``model`` of ``copy.deepcopy(model)``, put on a device perhaps."""
    while isinstance(value, cst.Call) and function_of(value) in ("to", "cuda", "cpu"):
        value = value.func.value if isinstance(value.func, cst.Attribute) else None
    if isinstance(value, cst.Call) and function_of(value) == "deepcopy" and len(value.args) == 1:
        return dotted(value.args[0].value)
    return ""


def _given_state(node: cst.CSTNode) -> tuple[str, str]:
    """``copy`` and ``model`` of ``copy.load_state_dict(model.state_dict())``."""
    call = node.value if isinstance(node, cst.Expr) else None
    if not isinstance(call, cst.Call) or function_of(call) != "load_state_dict" or len(call.args) != 1:
        return "", ""
    state = call.args[0].value
    if not isinstance(state, cst.Call) or function_of(state) != "state_dict" or state.args:
        return "", ""
    if not isinstance(state.func, cst.Attribute) or not isinstance(call.func, cst.Attribute):
        return "", ""
    return dotted(call.func.value), dotted(state.func.value)


def _made_by(view: View, value: cst.BaseExpression) -> str:
    """``self.model`` of ``self.clone()``, a method that copies that."""
    called = dotted(value.func) if isinstance(value, cst.Call) and not value.args else ""
    owner, _, name = called.rpartition(".")
    methods = [n for n in view.parents if isinstance(n, cst.FunctionDef) and n.name.value == name]
    if owner != "self" or len(methods) != 1:
        return ""
    nodes = [u.node for u in walk(methods[0].body)]
    found = {_given_state(n)[1] for n in nodes}
    found |= {_deep_copied(n.value) for n in nodes if isinstance(n, cst.Return | cst.Assign)}
    known = [module for module in found if module]
    return known[0] if len(known) == 1 and known[0].startswith("self.") else ""


def asked_elsewhere(project: Project, copy: Adapted) -> list[tuple[View, cst.Attribute]]:
    """What is asked of the copy beside a call, by those who are given it: as an argument, or by the function that makes
    it."""
    found = list(_asked_of_argument(project, copy.view, copy.body, {copy.name}))
    function = copy.view.function(copy.made[0].node)
    if isinstance(function, cst.FunctionDef) and _returns(function, copy.name):
        for view in _views(project):
            for call in [n for n in view.parents if isinstance(n, cst.Call)]:
                if function_of(call) == function.name.value:
                    found += _asked(project, view, call)
    return found


def called_unseen(project: Project, copy: Adapted) -> bool:
    """Whether a file that the run has not come to may call the function that makes the copy and gives it away: what is
    asked of the copy there is not known."""
    function = copy.view.function(copy.made[0].node)
    if not isinstance(function, cst.FunctionDef) or not _returns(function, copy.name):
        return False
    return mentioned(project, function.name.value, PurePath(copy.view.path).stem)


def _views(project: Project) -> list[View]:
    return [view for view in map(project.view, project.files) if view is not None]


def _returns(function: cst.FunctionDef, name: str) -> bool:
    given = [n.value for n in descendants(function.body) if isinstance(n, cst.Return) and n.value is not None]
    return any(dotted(n) == name for value in given for n in (value, *descendants(value)))


def _asked(project: Project, view: View, call: cst.Call) -> Iterator[tuple[View, cst.Attribute]]:
    """The attributes asked of what the call gives, there or by the names that it is bound to."""
    above = view.parents[call]
    if isinstance(above, cst.Attribute):
        yield view, above
    if isinstance(above, cst.Arg) and isinstance(outer := view.parents[above], cst.Call):
        place = [] if above.keyword is not None else [outer.args.index(above)]
        yield from _asked_by_called(project, outer, place, {above.keyword.value} if above.keyword else set())
    if isinstance(above, cst.Element):  # of a tuple
        above = view.parents[above]
    small = view.small_statement(call)
    given = isinstance(small, cst.Assign) and small.value in (call, above) and not isinstance(above, cst.Call)
    names = (
        {n for t in small.targets for n in _names(t.target)}
        if given and isinstance(small, cst.Assign)
        else set()
    )
    yield from _asked_of(project, view, body_of(view, call), names)


def _asked_of(
    project: Project, view: View, around: cst.CSTNode, names: set[str], depth: int = 0
) -> Iterator[tuple[View, cst.Attribute]]:
    for node in descendants(around):
        if isinstance(node, cst.Attribute) and dotted(node.value) in names:
            yield view, node
    yield from _asked_of_argument(project, view, around, names, depth)


def _asked_of_argument(
    project: Project, view: View, around: cst.CSTNode, names: set[str], depth: int = 0
) -> Iterator[tuple[View, cst.Attribute]]:
    """What the project's own functions ask of it that are called with it."""
    for call in [n for n in descendants(around) if isinstance(n, cst.Call)] if depth < HANDED else ():
        given = [n for n, a in enumerate(call.args) if a.keyword is None and dotted(a.value) in names]
        words = {a.keyword.value for a in call.args if a.keyword is not None and dotted(a.value) in names}
        yield from _asked_by_called(project, call, given, words, depth)


def _asked_by_called(
    project: Project, call: cst.Call, given: Sequence[int], words: set[str], depth: int = 0
) -> Iterator[tuple[View, cst.Attribute]]:
    """What a function of the project's asks of its arguments at the places `given`, or of these names."""
    for view in _views(project) if given or words else ():
        for function in [n for n in view.parents if isinstance(n, cst.FunctionDef)]:
            if function.name.value == function_of(call):
                own = [n for n in parameters(function) if n not in ("self", "cls")]
                inner = {own[n] for n in given if n < len(own)} | (words & set(own))
                yield from _asked_of(project, view, function.body, inner, depth + 1)


def _names(target: cst.CSTNode) -> set[str]:
    return {dotted(n) for n in (target, *descendants(target)) if isinstance(n, cst.Name | cst.Attribute)} - {
        ""
    }
