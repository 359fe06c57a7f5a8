"""The calls that drive training: arguments of ``backward()``, and how the source names an optimizer's
parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import descendants, function_of, last_name
from gradfix.rewrite.statements import dotted, parameters
from gradfix.tape import Backward, Step

NOTHING: Mapping[str, cst.BaseExpression] = MappingProxyType({})
_KEEPS = re.compile(r"retain|\b(keep|keeps|keeping|kept)\b.*\bgraph\b", re.IGNORECASE)
POSITIONS = ("gradient", "retain_graph", "create_graph", "inputs")  # Tensor.backward
GRAD_POSITIONS = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")  # torch.autograd.grad


def backward_call(project: Project, backward: Backward) -> tuple[View, cst.Call] | None:
    """The ``.backward(…)`` call of a backward, None where it is not the user's text or another function's."""
    if not backward.stack:
        return None
    view = project.view(backward.stack[-1].file)
    call = view.call_at(backward.stack[-1]) if view else None
    if view is None or call is None:
        return None
    if not (isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"):
        inner = [
            n for n in _calls(call) if isinstance(n.func, cst.Attribute) and n.func.attr.value == "backward"
        ]
        if len(inner) != 1:
            return None
        call = inner[0]
    return view, call


def _calls(node: cst.CSTNode) -> list[cst.Call]:
    found = [node] if isinstance(node, cst.Call) else []
    for child in node.children:
        found += _calls(child)
    return found


def loss_of(call: cst.Call) -> cst.BaseExpression:
    """What is differentiated: ``loss`` of ``loss.backward()`` and of ``scaler.scale(loss).backward()``."""
    assert isinstance(call.func, cst.Attribute)
    receiver = call.func.value
    if (
        isinstance(receiver, cst.Call)
        and isinstance(receiver.func, cst.Attribute)
        and receiver.func.attr.value == "scale"
        and len(receiver.args) == 1
    ):
        return receiver.args[0].value
    return receiver


def taken_as(call: cst.CSTNode, value: cst.CSTNode, function: cst.FunctionDef, view: View) -> str:
    """The parameter of `function` (of `view`) that an argument of a call to it becomes, "" where it does not show."""
    if not isinstance(call, cst.Call) or function_of(call) != function.name.value:
        return ""
    given = parameters(function)
    if isinstance(call.func, cst.Attribute) and _takes_self(function, view):
        given = given[1:]
    for n, argument in enumerate(call.args):
        if argument.star:
            return ""
        if argument.value is value:
            return argument.keyword.value if argument.keyword else given[n] if n < len(given) else ""
    return ""


def caller_says(project: Project, backward: Backward, name: str) -> tuple[View, Edit] | None:
    """Where the function around a backward call has a parameter for its argument `name` alone: the call
    of that function, and the edit that gives it True."""
    found = backward_call(project, backward)
    site = backward.stack[-2] if len(backward.stack) > 1 else None
    view = project.view(site.file) if site else None
    call = view.call_at(site) if view and site else None
    function = found[0].function(found[1]) if found else None
    if not found or not view or not call or not isinstance(function, cst.FunctionDef):
        return None
    said, given = says(found[1], name), parameters(function)
    uses = [n for n in descendants(function.body) if isinstance(n, cst.Name) and n.value == said]
    plain = len(uses) == 1 and not any(a.star for a in call.args)
    if said not in given or not plain or function_of(call) != function.name.value:
        return None
    bound = _takes_self(function, found[0])
    return view, with_arguments(call, {said: cst.Name("True")}, positions=given[1:] if bound else given)


def _takes_self(function: cst.FunctionDef, view: View) -> bool:
    """Whether a method's first parameter is the object it is called on."""
    static = any(dotted(d.decorator) == "staticmethod" for d in function.decorators)
    return view.enclosing(function, cst.ClassDef) is not None and not static


def argument(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of a Tensor.backward or autograd.grad call by its name, given by keyword or by position."""
    return next((arg for index, arg in enumerate(call.args) if _name(call, index, arg) == name), None)


def says(call: cst.Call, name: str) -> str:
    """The source of an argument, "" where it is not given."""
    arg = argument(call, name)
    return cst.Module([]).code_for_node(arg.value) if arg else ""


def with_arguments(
    call: cst.Call,
    put: Mapping[str, cst.BaseExpression] = NOTHING,
    drop: tuple[str, ...] = (),
    positions: Sequence[str] | None = None,
) -> Edit:
    """Edit: a backward call with arguments taken away and keyword arguments put (replaced where they are
    given); the call of any function, with the names of its `positions`."""

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        args = [a for n, a in enumerate(node.args) if _name(node, n, a, positions) not in drop]
        if len(args) < len(node.args) and args:
            args[-1] = args[-1].with_changes(comma=node.args[-1].comma)
        for name, value in put.items():
            old = next((n for n, a in enumerate(args) if _name(node, n, a, positions) == name), None)
            if old is not None:
                args[old] = args[old].with_changes(value=value)
                continue
            comma: cst.Comma | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
            if args and isinstance(args[-1].comma, cst.Comma):  # a trailing one, on lines of their own maybe
                comma = args[-1].comma
                args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=_gap(node)))
            elif args:
                args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
            bare = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
            args.append(cst.Arg(value, keyword=cst.Name(name), equal=bare, comma=comma))
        before = node.whitespace_before_args if args else cst.SimpleWhitespace("")
        return node.with_changes(args=args, whitespace_before_args=before)

    return Replace(call, build)


def _gap(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """What stands between arguments: a new line where the first one has a line of its own."""
    first = call.whitespace_before_args
    if not isinstance(first, cst.ParenthesizedWhitespace):
        return cst.SimpleWhitespace(" ")
    return first.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=())


def _name(call: cst.Call, index: int, arg: cst.Arg, positions: Sequence[str] | None = None) -> str:
    if arg.keyword is not None:
        return arg.keyword.value
    if positions is None:
        positions = GRAD_POSITIONS if function_of(call) == "grad" else POSITIONS
    return positions[index] if not arg.star and index < len(positions) else ""


def drop_retain(view: View, call: cst.Call) -> tuple[Edit, ...]:
    """Edits: the call without its ``retain_graph=True``, and without a comment that only explains it; none where it
    says no such thing (a variable is for other calls too), or where a later positional argument stands behind it."""
    arg = argument(call, "retain_graph")
    if (
        arg is None
        or dotted(arg.value) != "True"
        or (arg.keyword is None and any(a.keyword is None for a in call.args[2:]))
    ):
        return ()
    first = argument(call, "gradient")
    lone = arg.keyword is None and first is not None and dotted(first.value) == "None"
    line = view.statement(call)
    plain = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    return (
        with_arguments(call, drop=("retain_graph", "gradient") if lone else ("retain_graph",)),
        *((Replace(line, _unexplained),) if line is not None and plain else ()),
    )


def explains_retain(comment: str) -> bool:
    """Whether a comment says why a graph is kept, and nothing else."""
    return _KEEPS.search(comment) is not None and not re.search(r"[.;] \S|\d\)", comment)


def _unexplained(node: cst.CSTNode) -> cst.CSTNode:
    if not isinstance(node, cst.SimpleStatementLine):
        return node  # (another edit has put something else in its place)
    behind, above = node.trailing_whitespace, node.leading_lines
    if behind.comment is not None and explains_retain(behind.comment.value):
        bare = behind.with_changes(comment=None, whitespace=cst.SimpleWhitespace(""))
        node = node.with_changes(trailing_whitespace=bare)
    said = [x for x in above if x.comment is not None]
    if len(said) == 1 and said[0].comment is not None and explains_retain(said[0].comment.value):
        node = node.with_changes(leading_lines=[x for x in above if x is not said[0]])
    return node


def drop_carried_retain(project: Project, backward: Backward) -> list[tuple[View, tuple[Edit, ...]]]:
    """The edits, as gather() takes them, that drop each ``retain_graph=True`` which only what an earlier pass made had
    asked for; none where a second loss of the pass needs it."""
    graph = project.graph
    found = [] if graph.shared_later(backward) else [backward]
    previous = graph.previous(backward)
    begun = previous.time if previous is not None else -1
    end = next((b.time for b in graph.passes(backward) if b.time > backward.time), None)
    behind = [b for b in graph.backwards if b.time > backward.time and (end is None or b.time < end)]
    old = _walked(project, backward, -1, begun)
    for n, other in enumerate(behind):
        carried, own = _walked(project, other, -1, begun), _walked(project, other, begun, other.time)
        again = any(own & graph.walk(b) for b in behind[n + 1 :])
        if other.retain and not other.create and carried and carried <= old and not again:
            found.append(other)
    calls = {id(c[1]): c for b in found if (c := backward_call(project, b)) is not None}
    return [(view, drop_retain(view, call)) for view, call in calls.values()]


def _walked(project: Project, backward: Backward, after: int, before: int) -> set[int]:
    """The nodes that a backward walks and that were made in between, those that saved something."""
    records = project.graph.records
    made = {n: records[n] for n in project.graph.walk(backward) if n in records}
    return {n for n, r in made.items() if after < r.time < before and r.saves}


def retain(call: cst.Call) -> Edit | None:
    """Edit: the call with ``retain_graph=True``; None where it says so already."""
    return (
        None
        if says(call, "retain_graph") == "True"
        else with_arguments(call, {"retain_graph": cst.Name("True")})
    )


def step_expression(project: Project, step: Step) -> cst.BaseExpression | None:
    """The optimizer as the innermost user frame of its step names it: ``opt`` of ``opt.step()``, of
    ``opt.step(closure)``, of ``scaler.step(opt)``."""
    if not step.stack:
        return None
    view = project.view(step.stack[-1].file)
    call = view.call_at(step.stack[-1]) if view else None
    if call is None or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
        return None
    given = call.args[0].value if call.args and not call.args[0].keyword else call.func.value
    functions = {n.name.value for n in view.parents if isinstance(n, cst.FunctionDef)} if view else set()
    closure = isinstance(given, cst.Lambda) or last_name(given) in functions
    return call.func.value if closure else given
