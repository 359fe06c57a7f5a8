"""How the source names what an optimizer steps: ``list(net.parameters())``, or what its param_groups hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.calls import step_expression
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import body_of, dotted, names, parameters, walk
from gradfix.tape import Step

_FREEZE = re.compile(
    r"\brequires_grad_\(\s*(?!True\b|\))|\.requires_grad\s*=\s*(?!True\b)|[\"']requires_grad[\"']\s*,"
)


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
    for call in (n for n in descendants(body) if isinstance(n, cst.Call)):
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
    for call in (n for n in descendants(around) if isinstance(n, cst.Call)):
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
    return (_as_paired(project, optimizer, view, named) or _held(named)) if named is not None else None


def parameters_held(
    project: Project, optimizer: int, view: View, named: cst.BaseExpression
) -> cst.BaseExpression:
    """The parameters of an optimizer by the name it is given in `view`, whichever it is in other passes: of the model
    that was made into it, or what its param_groups hold; without what is frozen, where some ever is."""
    found = _as_paired(project, optimizer, view, named) or _held(named)
    return _unfrozen(found) if _freezes(project, optimizer) else found


def _as_paired(
    project: Project, optimizer: int, view: View, named: cst.BaseExpression
) -> cst.BaseExpression | None:
    """``list(self.nets[k].parameters())`` of the ``self.opts[k]`` that ``[Adam(n.parameters()) for n in self.nets]``
    has made, or ``{k: Adam(n.parameters()) for k, n in self.nets.items()}``; also of a name for it."""
    if isinstance(named, cst.Name):
        around = view.function(named)
        bound = [u.node for u in walk(body_of(view, named)) if named.value in u.names.binds]
        plain = bound[0] if len(bound) == 1 and isinstance(around, cst.FunctionDef) else None
        named = plain.value if isinstance(plain, cst.Assign) else named
    made = project.graph.optimizers[optimizer]
    own = project.view(made.stack[-1].file) if made.stack else None
    call = own.call_at(made.stack[-1]) if own is view and made.stack else None
    if call is None or not isinstance(named, cst.Subscript) or dotted(named.value) is None:
        return None
    comp, statement = view.parents.get(call), view.small_statement(call)
    if not isinstance(comp, (cst.ListComp, cst.DictComp)) or not isinstance(statement, cst.Assign):
        return None
    given = next((a.value for a in call.args if a.keyword is None or a.keyword.value == "params"), None)
    if not isinstance(given, cst.Call) or not isinstance(given.func, cst.Attribute):
        return None
    owner = given.func.value
    if given.func.attr.value != "parameters" or given.args:
        return None
    source, model = _gone_through(comp, owner)
    base, target = dotted(named.value) or "", dotted(statement.targets[0].target)
    kept = (
        len(statement.targets) == 1
        and statement.value is comp
        and target == base
        and base.split(".")[0] == source.split(".")[0] == "self"
        and view.enclosing(call, cst.ClassDef) is view.enclosing(named, cst.ClassDef)
    ) or (target == base and "." not in base + source and _one_scope(view, call, named, base, source))
    if not source or not kept or not _bound_once(view, call, source):
        return None
    if view.code(owner) != model:
        return None
    key = view.code(named)[len(view.code(named.value)) :]
    return cst.parse_expression(f"list({source}{key}.parameters())")


def _gone_through(comp: cst.ListComp | cst.DictComp, owner: cst.BaseExpression) -> tuple[str, str]:
    """(``self.nets``, ``n``) of ``for n in self.nets`` and of ``k: … for k, n in self.nets.items()``; (``self.nets``,
    ``self.nets[k]``) of ``k: … self.nets[k] … for k in …``; "" without."""
    loop = comp.for_in
    target = dotted(loop.target) or ""
    if loop.ifs or loop.inner_for_in is not None or loop.asynchronous is not None:
        return "", ""
    if isinstance(comp, cst.ListComp):
        return dotted(loop.iter) or "", target
    key = dotted(comp.key) or ""
    if target and isinstance(owner, cst.Subscript):
        source, said = dotted(owner.value) or "", cst.Module([]).code_for_node(owner)
        return (source, said) if key == target and said == f"{source}[{key}]" else ("", "")
    items = loop.iter.func if isinstance(loop.iter, cst.Call) and function_of(loop.iter) == "items" else None
    pair = [dotted(e.value) or "" for e in loop.target.elements] if isinstance(loop.target, cst.Tuple) else []
    if len(pair) != 2 or key != pair[0] or not isinstance(items, cst.Attribute):
        return "", ""
    return dotted(items.value) or "", pair[1]


def _one_scope(view: View, made: cst.CSTNode, used: cst.CSTNode, *plain: str) -> bool:
    """Whether plain names of where the optimizer is made mean the same where it is used."""
    there, here = view.function(made), view.function(used)
    if there is here:
        return True
    if there is not None or not isinstance(here, cst.FunctionDef):
        return False
    own = {*parameters(here), *(n for u in walk(here.body) for n in u.names.binds)}
    return own.isdisjoint(plain)


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
        if _of_a_loop(view, named, at):
            return _named_as_made(project, optimizer, view, at)
        held = (dotted(named) or "").startswith("self.") and view.enclosing(at, cst.ClassDef) is not None
        if view.function(place[1]) is view.function(at) or (
            held and view.enclosing(place[1], cst.ClassDef) is view.enclosing(at, cst.ClassDef)
        ):
            return named
    return None


def _of_a_loop(view: View, named: cst.BaseExpression, at: cst.CSTNode) -> bool:
    """Whether a name is that of a loop's variable, which `at` is outside of: ``for opt in opts: opt.step()``."""
    root = (dotted(named) or "").split(".")[0]
    loops = (n for n in view.ancestors(named) if isinstance(n, cst.For) and n not in view.ancestors(at))
    return any(root in names(loop.target).reads for loop in loops)


def _named_as_made(
    project: Project, optimizer: int, view: View, at: cst.CSTNode
) -> cst.BaseExpression | None:
    """The optimizer by the one name that it is given where it is made, in the same class or for the same scope."""
    made = project.graph.optimizers[optimizer]
    own = project.view(made.stack[-1].file) if made.stack else None
    call = own.call_at(made.stack[-1]) if own is view else None
    statement = view.small_statement(call) if call is not None else None
    if call is None or not isinstance(statement, cst.Assign) or statement.value is not call:
        return None
    target = statement.targets[0].target
    name = dotted(target) or ""
    if name.startswith("self."):
        same = view.enclosing(call, cst.ClassDef) is view.enclosing(at, cst.ClassDef) is not None
    else:
        same = (
            isinstance(target, cst.Name)
            and _one_scope(view, call, at, name)
            and _bound_once(view, call, name)
        )
    return cst.parse_expression(name) if name and same else None


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
