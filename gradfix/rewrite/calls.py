"""The calls that drive training: arguments of ``backward()``, and how the source names an optimizer's
parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import body_of, dotted, names, parameters, walk
from gradfix.tape import Backward, Step

NOTHING: Mapping[str, cst.BaseExpression] = MappingProxyType({})
_FREEZE = re.compile(
    r"\brequires_grad_\(\s*(?!True\b|\))|\.requires_grad\s*=\s*(?!True\b)|[\"']requires_grad[\"']\s*,"
)
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
    if isinstance(call.func, cst.Attribute) and view.enclosing(function, cst.ClassDef) is not None:
        given = given[1:]
    for n, argument in enumerate(call.args):
        if argument.star:
            return ""
        if argument.value is value:
            return argument.keyword.value if argument.keyword else given[n] if n < len(given) else ""
    return ""


def argument(call: cst.Call, name: str) -> cst.Arg | None:
    """The argument of a Tensor.backward or autograd.grad call by its name, given by keyword or by position."""
    return next((arg for index, arg in enumerate(call.args) if _name(call, index, arg) == name), None)


def says(call: cst.Call, name: str) -> str:
    """The source of an argument, "" where it is not given."""
    arg = argument(call, name)
    return cst.Module([]).code_for_node(arg.value) if arg else ""


def with_arguments(
    call: cst.Call, put: Mapping[str, cst.BaseExpression] = NOTHING, drop: tuple[str, ...] = ()
) -> Edit:
    """Edit: a backward call with arguments taken away and keyword arguments put (replaced where they are
    given)."""

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        args = [a for n, a in enumerate(node.args) if _name(node, n, a) not in drop]
        if len(args) < len(node.args) and args:
            args[-1] = args[-1].with_changes(comma=node.args[-1].comma)
        for name, value in put.items():
            old = next((n for n, a in enumerate(args) if _name(node, n, a) == name), None)
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


def _name(call: cst.Call, index: int, arg: cst.Arg) -> str:
    if arg.keyword is not None:
        return arg.keyword.value
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
    assert isinstance(node, cst.SimpleStatementLine)
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
    ``scaler.step(opt)``."""
    if not step.stack:
        return None
    view = project.view(step.stack[-1].file)
    call = view.call_at(step.stack[-1]) if view else None
    if call is None or not isinstance(call.func, cst.Attribute) or call.func.attr.value != "step":
        return None
    return call.args[0].value if call.args and not call.args[0].keyword else call.func.value


def parameters_of(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    """A list of an optimizer's parameters as an expression that is valid at `at`: ``list(model.parameters())`` from
    the optimizer's construction or of a module that is called there, else what its param_groups hold; without those
    that are frozen, where some ever are. None where the optimizer has no name there."""
    found = _as_made(project, optimizer, view, at)
    if found is None:
        found = _as_owned(project, optimizer, view, at)
    if found is None:
        found = _as_called(project, optimizer, view, at)
    if found is None:
        found = _as_held(project, optimizer, view, at)
    return _unfrozen(found) if found is not None and _freezes(project, optimizer) else found


def _as_made(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    made = project.graph.optimizers[optimizer]
    own = project.view(made.stack[-1].file) if made.stack else None
    call = own.call_at(made.stack[-1]) if own and made.stack else None
    if own is None or call is None or not _visible(own, call, view, at):
        return None
    given = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "params"), None)
    found = _as_list(given) if given is not None else None
    return found if found is not None and all(_bound_once(own, call, n) for n in names(found).reads) else None


def _as_owned(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    """``list(agent.net.parameters())`` where the step is that of ``agent.net.optimizer``, and the class of
    ``agent.net`` made it of its own: ``self.optimizer = Adam(self.parameters())``."""
    made = project.graph.optimizers[optimizer]
    own = project.view(made.stack[-1].file) if made.stack else None
    call = own.call_at(made.stack[-1]) if own and made.stack else None
    statement = own.small_statement(call) if own and call else None
    held = _named_here(project, optimizer, view, at)
    if call is None or not isinstance(statement, cst.Assign) or not isinstance(held, cst.Attribute):
        return None
    target = statement.targets[0].target
    if dotted(target) != f"self.{held.attr.value}" or statement.value is not call:
        return None
    given = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "params"), None)
    found = _as_list(given) if given is not None else None
    if found is None or not all(n.startswith("self.") for n in names(found).reads - {"self", "list"}):
        return None
    owned = found.visit(_Owner(held.value))
    return owned if isinstance(owned, cst.BaseExpression) else None


class _Owner(cst.CSTTransformer):
    """`self` becomes another expression."""

    def __init__(self, owner: cst.BaseExpression) -> None:
        super().__init__()
        self.owner = owner

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.Attribute:
        if isinstance(original_node.value, cst.Name) and original_node.value.value == "self":
            return updated_node.with_changes(value=self.owner.deep_clone())
        return updated_node


def _as_called(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    """``list(net.parameters())`` of a module that the same function calls by a name it has there, or another method of
    the class as ``self.nets["G"]``, and whose forward reads just what the optimizer steps."""
    body, line = body_of(view, at), view.span(at).start.line
    wanted, methods = {r.storage for r in project.graph.optimizers[optimizer].refs}, _methods(view, at)
    for call in _calls(body):
        func = call.func
        if dotted(func) in methods:
            continue  # (a trainer's own forward() is no module)
        root = names(func).reads
        own = view.span(call).start.line <= line and body_of(view, call) is body
        if not own or len(root) != 1 or not isinstance(func, (cst.Name, cst.Attribute, cst.Subscript)):
            continue
        first = next(iter(root)).split(".")[0]
        bound = sum(first in u.names.binds for u in walk(body))
        if bound < 2 and first not in _imported(view) and wanted == _read_in(project, view, call):
            return cst.parse_expression(f"list({view.code(func)}.parameters())")
    for call in _calls_of_class(view, at):
        if dotted(call.func) not in methods and wanted == _read_in(project, view, call):
            return cst.parse_expression(f"list({view.code(call.func)}.parameters())")
    return None


def _methods(view: View, at: cst.CSTNode) -> set[str]:
    """What the methods of the class around `at` are called in it."""
    around = view.enclosing(at, cst.ClassDef)
    methods = around.body.body if isinstance(around, cst.ClassDef) else ()
    return {f"{_self(m)}.{m.name.value}" for m in methods if isinstance(m, cst.FunctionDef)}


def _calls_of_class(view: View, at: cst.CSTNode) -> Iterator[cst.Call]:
    """Calls in the methods around `at` of what means the same in each of them: attributes of self, and what these hold
    under a constant."""
    around, method = view.enclosing(at, cst.ClassDef), view.function(at)
    if not isinstance(around, cst.ClassDef) or not isinstance(method, cst.FunctionDef):
        return
    for call in _calls(around):
        inner, func = call.func, view.function(call)
        while isinstance(inner, (cst.Attribute, cst.Subscript)):
            if isinstance(inner, cst.Subscript) and not _constant_key(inner):
                break
            inner = inner.value
        if not isinstance(func, cst.FunctionDef) or view.enclosing(func, cst.ClassDef) is not around:
            continue
        if (
            isinstance(inner, cst.Name)
            and inner is not call.func
            and inner.value == _self(method) == _self(func)
        ):
            yield call


def _constant_key(node: cst.Subscript) -> bool:
    key = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(key, cst.Index) and isinstance(key.value, (cst.SimpleString, cst.Integer))


def _self(method: cst.FunctionDef) -> str:
    return method.params.params[0].name.value if method.params.params else ""


def _read_in(project: Project, view: View, call: cst.Call) -> set[int] | None:
    """The leaves that a module's call reads; None where it is no module's."""
    span, found = view.span(call), set[int]()
    here = (span.start.line, span.start.column, span.end.line, span.end.column)
    for record in project.graph.records.values():
        for n, site in enumerate(record.stack):
            if site.file == view.path and (site.line, site.column, site.end_line, site.end_column) == here:
                if n + 1 < len(record.stack) and not record.stack[n + 1].function.endswith(".forward"):
                    return None
                found |= {~p for p in record.parents if p < 0}
    return found


def _imported(view: View) -> frozenset[str]:
    found = (names(n).binds for n in view.parents if isinstance(n, (cst.Import, cst.ImportFrom)))
    return frozenset[str]().union(*found)


def _as_held(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    named = _named_here(project, optimizer, view, at)
    return _held(named) if named is not None else None


def parameters_held(project: Project, optimizer: int, named: cst.BaseExpression) -> cst.BaseExpression:
    """What the param_groups of an optimizer hold, by the name it is given, whichever it is in other passes; without
    what is frozen, where some ever is."""
    return _unfrozen(_held(named)) if _freezes(project, optimizer) else _held(named)


def _held(named: cst.BaseExpression) -> cst.BaseExpression:
    code = cst.Module([]).code_for_node(named)
    return cst.parse_expression(f'[p for group in {code}.param_groups for p in group["params"]]')


def _named_here(project: Project, optimizer: int, view: View, at: cst.CSTNode) -> cst.BaseExpression | None:
    """The optimizer as its step names it, in the same function or on the same object."""
    steps = [e for e in project.graph.tape.events if isinstance(e, Step) and e.optimizer == optimizer]
    for step in steps[:1]:
        named = step_expression(project, step)
        place = project.node(step.stack[-1])
        if named is None or place is None or place[0] is not view:
            continue
        held = (dotted(named) or "").startswith("self.") and view.enclosing(at, cst.ClassDef) is not None
        if view.function(place[1]) is view.function(at) or (
            held and view.enclosing(place[1], cst.ClassDef) is view.enclosing(at, cst.ClassDef)
        ):
            return named
    return None


def _freezes(project: Project, optimizer: int) -> bool:
    """Whether parameters may be frozen when a backward runs: the program says so somewhere, or the run has seen some
    that got no gradient. `backward(inputs=…)` refuses a tensor that requires none."""
    idle = any(e.without for e in project.graph.steps if e.optimizer == optimizer)
    return idle or any(_FREEZE.search(text) for text in project.files.values())


def _unfrozen(found: cst.BaseExpression) -> cst.BaseExpression:
    """The list without what does not require grad; None, every leaf, once all of it is frozen: `backward` refuses an
    empty list."""
    if isinstance(found, cst.ListComp):
        inner = found.for_in
        while inner.inner_for_in is not None:
            inner = inner.inner_for_in
        test = cst.CompIf(cst.parse_expression("p.requires_grad"))
        some = cst.Module([]).code_for_node(found.with_deep_changes(inner, ifs=[test]))
    else:
        bare = found.args[0].value if isinstance(found, cst.Call) else found
        some = f"[p for p in {cst.Module([]).code_for_node(bare)} if p.requires_grad]"
    return cst.parse_expression(f"{some} or None")


def _visible(own: View, call: cst.Call, view: View, at: cst.CSTNode) -> bool:
    """Whether names of the optimizer's construction mean the same at `at`."""
    if own is not view:
        return False
    there, here = own.function(call), view.function(at)
    if own.enclosing(call, cst.GeneratorExp, cst.ListComp, cst.DictComp, cst.SetComp):
        return False
    if there is here or there is None:
        return True
    found = names(call.args[0].value).reads if call.args else frozenset()
    same_class = own.enclosing(call, cst.ClassDef) is view.enclosing(at, cst.ClassDef)
    inner = there in list(view.ancestors(at))
    return inner or (same_class and all(n.startswith("self.") for n in found))


def _bound_once(own: View, call: cst.Call, name: str) -> bool:
    """Whether no statement after the construction binds the name anew."""
    line = own.span(call).end.line
    root = name.split(".")[0]
    return not any(root in u.writes and own.span(u.node).start.line > line for u in walk(body_of(own, call)))


def _as_list(given: cst.BaseExpression) -> cst.BaseExpression | None:
    """The argument of an optimizer as an expression that gives a list each time it is run."""
    if isinstance(given, (cst.List, cst.Tuple)):
        if any(isinstance(e.value, cst.Dict) for e in given.elements):
            return None  # groups with their own settings
        return given.deep_clone()
    if isinstance(given, cst.Call):
        func = given.func
        called = func.attr.value if isinstance(func, cst.Attribute) else dotted(func) or ""
        if called == "chain" and not any(a.star or a.keyword for a in given.args):
            return cst.List([cst.StarredElement(a.value.deep_clone()) for a in given.args])
        if called == "list" and len(given.args) == 1:
            return _as_list(given.args[0].value)
        if called == "parameters":
            return cst.Call(cst.Name("list"), [cst.Arg(given.deep_clone())])
    if isinstance(given, cst.BinaryOperation) and isinstance(given.operator, cst.Add):
        left, right = _as_list(given.left), _as_list(given.right)
        return given.with_changes(left=left, right=right) if left is not None and right is not None else None
    return None
