"""Which names a piece of source reads and binds, what may still be read after a statement, and what shares a
storage.

Names are dotted (``h``, ``self.h``): an attribute of a name counts as a variable of its own. All answers are
about one function (or the module's top level) and lean to the safe side: a read that may happen is a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from gradfix.edit import Statement, View
from gradfix.rewrite import statements

Scope = cst.Module | cst.FunctionDef
Use = Literal["read", "bound"]
Origin = Literal["made", "parameter", "element", "free"]

# Tensor methods whose result may share the storage of what they are called on.
_VIEWS = """
    view reshape view_as reshape_as expand expand_as squeeze unsqueeze transpose permute flatten unflatten t
    chunk split unbind narrow select diagonal unfold swapaxes swapdims movedim contiguous to float double
    detach requires_grad_ hsplit vsplit tensor_split real imag numpy cpu cuda type_as type
"""
VIEWS = frozenset(_VIEWS.split())
_OF_FUNCTIONS = ("forward", "backward", "setup_context", "vjp")
SHARED_ATTRIBUTES = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))


def dotted(node: cst.CSTNode) -> str:
    """``self.h`` for a name or a chain of attributes of one, "" for anything else."""
    return statements.dotted(node) or ""


def reads(node: cst.CSTNode) -> frozenset[str]:
    """Every dotted name `node` may read, prefixes included (``self.h.sum()`` reads ``self``, ``self.h``)."""
    found = statements.names(node)
    return frozenset(_prefixes(found.reads)) | {
        p for name in found.binds for p in _prefixes([name]) if p != name
    }


def _prefixes(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[: i + 1]) for i in range(len(parts)))


def binds(node: cst.CSTNode) -> frozenset[str]:
    """Every dotted name `node` may bind: assignment, for, with, import, def, class, except, walrus, del."""
    return statements.names(node).binds


def target_names(target: cst.BaseExpression) -> frozenset[str]:
    """The dotted names that an assignment's or a for loop's target binds."""
    return statements.assigned(target).binds


def later(view: View, node: cst.CSTNode) -> Iterator[Sequence[cst.CSTNode]]:
    """The statements that may run after the one around `node`, as straight runs, innermost body first; the
    body of a loop around it comes once more, from its start."""
    statement: cst.CSTNode | None = view.small_statement(node) or view.statement(node)
    while statement is not None:
        parent = view.parents.get(statement)
        if parent is None:
            return
        body = getattr(parent, "body", ())
        if isinstance(body, Sequence) and any(x is statement for x in body):
            at = next(i for i, x in enumerate(body) if x is statement)
            yield body[at + 1 :]
        if isinstance(parent, cst.For | cst.While) and statement is parent.body:
            yield (parent,)
        if isinstance(parent, cst.FunctionDef | cst.Lambda | cst.ClassDef | cst.Module):
            return
        statement = parent


def live_after(view: View, node: cst.CSTNode, name: str) -> bool:
    """Whether `name`'s value at the end of the statement around `node` may be read again in its function. An
    attribute of what outlives the function counts as read by whoever has the object."""
    for run in later(view, node):
        use = first_use(run, name)
        if use:
            return use == "read"
    scope = scope_of(view, node)
    if "." in name:
        return True
    if isinstance(scope, cst.FunctionDef):
        return name in declared(scope) or _read_by_inner(scope, name)
    return any(name in reads(f) for f in functions(view.module))


def first_use(run: Iterable[cst.CSTNode], name: str) -> Use | None:
    """What a straight run of statements may first do with `name`: ``read`` where any path reads the value it
    had before, ``bound`` where every path binds it anew first, None where it may be left alone."""
    for node in run:
        use = _first_use(node, name)
        if use:
            return use
    return None


def _first_use(node: cst.CSTNode, name: str) -> Use | None:
    if isinstance(node, cst.SimpleStatementLine | cst.IndentedBlock):
        return first_use(node.body, name)
    if isinstance(node, cst.If):
        if name in reads(node.test):
            return "read"
        branches = [_first_use(node.body, name), _first_use(node.orelse, name) if node.orelse else None]
        return _joined(branches)
    if isinstance(node, cst.Else):
        return _first_use(node.body, name)
    if isinstance(node, cst.For | cst.While):
        head = node.iter if isinstance(node, cst.For) else node.test
        if name in reads(head):
            return "read"
        if isinstance(node, cst.For) and name in binds(
            cst.Assign([cst.AssignTarget(node.target)], cst.Name("_"))
        ):
            return None  # bound only if the loop runs at all
        uses = [_first_use(node.body, name), _first_use(node.orelse, name) if node.orelse else None]
        return "read" if "read" in uses else None
    if isinstance(node, cst.With):
        if any(name in reads(item) for item in node.items):
            return "read"
        if any(name in binds(item) for item in node.items):
            return "bound"
        return _first_use(node.body, name)
    if isinstance(node, cst.AugAssign):
        return "read" if name in reads(node) or name in binds(node) else None
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        if name in reads(node):
            return "read"
        return "bound" if node.name.value == name else None
    if name in reads(node):
        return "read"
    if isinstance(node, cst.Try | cst.TryStar | cst.Match):
        return None
    return "bound" if name in binds(node) else None


def _joined(uses: Sequence[Use | None]) -> Use | None:
    if "read" in uses:
        return "read"
    return "bound" if all(u == "bound" for u in uses) else None


def scope_of(view: View, node: cst.CSTNode) -> Scope:
    """The function (lambdas left out) or module whose local names `node` sees."""
    return next((x for x in view.ancestors(node) if isinstance(x, cst.FunctionDef)), view.module)


def functions(node: cst.CSTNode) -> list[cst.FunctionDef]:
    """Every function defined in `node`."""
    found: list[cst.FunctionDef] = []

    class Find(cst.CSTVisitor):
        def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
            found.append(node)

    node.visit(Find())
    return found


def parameters(function: cst.FunctionDef) -> list[str]:
    """Names of the parameters, in order, ``*args`` and ``**kwargs`` last."""
    p = function.params
    named = [x.name.value for x in (*p.posonly_params, *p.params, *p.kwonly_params)]
    stars = [x.name.value for x in (p.star_arg, p.star_kwarg) if isinstance(x, cst.Param)]
    return named + stars


def declared(function: cst.FunctionDef) -> frozenset[str]:
    """Names that `function` declares global or nonlocal."""
    names: set[str] = set()

    class Find(cst.CSTVisitor):
        def visit_Global(self, node: cst.Global) -> None:
            names.update(x.name.value for x in node.names)

        def visit_Nonlocal(self, node: cst.Nonlocal) -> None:
            names.update(x.name.value for x in node.names)

    function.body.visit(Find())
    return frozenset(names)


def locals_of(function: cst.FunctionDef) -> frozenset[str]:
    """Names local to `function`: its parameters and what it binds, less what it declares global or
    nonlocal."""
    return (frozenset(parameters(function)) | binds(function.body)) - declared(function)


def _read_by_inner(function: cst.FunctionDef, name: str) -> bool:
    return any(name in reads(f) and name not in locals_of(f) for f in functions(function.body))


@dataclass(frozen=True, slots=True)
class Sharing:
    """What else may hold the storage that `name` has at a statement.

    `names` are other dotted names (containers it was put into among them). `origin` is where the storage came
    from:
    ``made`` in this function, a ``parameter``, an ``element`` that a for loop hands out, or ``free`` (a
    global, a closure's name, an attribute). `views` are the statements, nearest first, that made one name
    from another.
    """

    names: frozenset[str]
    origin: Origin
    views: tuple[cst.CSTNode, ...] = ()


def sharing(view: View, node: cst.CSTNode, name: str) -> Sharing:
    """Read backwards from the statement around `node`: straight-line, in the order of the text."""
    scope = scope_of(view, node)
    holding, aliases, rebound = {name}, set[str](), set[str]()
    views: list[cst.CSTNode] = []
    element = False
    for statement in _before(view, node, scope):
        if isinstance(statement, cst.For):
            bound = target_names(statement.target)
            if holding & bound and _inside(view, node, statement):
                element = True
                break
            continue
        if isinstance(statement, cst.Expr):
            aliases |= _stored(statement.value, holding) - rebound
            continue
        for targets, value in _bindings(statement):
            sources = shared_with(value)
            if targets & holding:
                holding -= targets
                if sources:
                    views.append(statement)
                holding |= sources
                aliases |= sources - rebound
            elif sources & holding or _contained(value) & holding:
                aliases |= targets - rebound
                if sources & holding:
                    views.append(statement)
            rebound |= targets
    aliases.discard(name)
    keeper = _context(view, scope)
    if keeper:  # what a custom Function keeps on its ctx is for a backward that wants it as it was kept
        aliases = {a for a in aliases if not a.startswith(keeper)}
        holding = {h for h in holding if not h.startswith(keeper)}
    return Sharing(frozenset(aliases), _origin(scope, holding, element), tuple(views))


def _context(view: View, scope: Scope) -> str:
    """``ctx.`` in a method of a custom autograd.Function, "" elsewhere."""
    holder = view.enclosing(scope, cst.ClassDef) if isinstance(scope, cst.FunctionDef) else None
    if not isinstance(holder, cst.ClassDef) or not isinstance(scope, cst.FunctionDef):
        return ""
    names = [*parameters(scope), ""]
    function = any(dotted(base.value).rpartition(".")[2] == "Function" for base in holder.bases)
    return f"{names[0]}." if function and scope.name.value in _OF_FUNCTIONS and names[0] else ""


def _origin(scope: Scope, holding: set[str], element: bool) -> Origin:
    if element:
        return "element"
    if not holding:
        return "made"
    if isinstance(scope, cst.FunctionDef) and holding & set(parameters(scope)):
        return "parameter"
    return "free"


def _inside(view: View, node: cst.CSTNode, loop: cst.For) -> bool:
    return any(x is loop for x in view.ancestors(node))


def _before(view: View, node: cst.CSTNode, scope: Scope) -> list[cst.CSTNode]:
    """Small statements and for loops of `scope` that stand before the statement around `node`, last first."""
    found: list[cst.CSTNode] = []
    here = view.small_statement(node) or node
    start = view.span(here).start

    class Find(cst.CSTVisitor):
        def on_visit(self, node: cst.CSTNode) -> bool:
            if isinstance(node, cst.FunctionDef | cst.ClassDef | cst.Lambda) and node is not scope:
                return False
            if isinstance(node, cst.BaseSmallStatement | cst.For):
                at = view.span(node).start
                if (at.line, at.column) < (start.line, start.column):
                    found.append(node)
            return not isinstance(node, cst.BaseSmallStatement)

    scope.visit(Find())
    return found[::-1]


def _bindings(statement: cst.CSTNode) -> Iterator[tuple[frozenset[str], cst.BaseExpression]]:
    if isinstance(statement, cst.Assign):
        targets = frozenset[str]()
        for target in statement.targets:
            pair = target.target
            if (
                isinstance(pair, cst.Tuple)
                and isinstance(statement.value, cst.Tuple)
                and len(pair.elements) == len(statement.value.elements)
            ):
                for left, right in zip(pair.elements, statement.value.elements, strict=True):
                    yield target_names(left.value), right.value
            elif isinstance(pair, cst.Subscript):
                targets |= {dotted(pair.value)} - {""}
            else:
                targets |= target_names(pair)
        if targets:
            yield targets, statement.value
    elif isinstance(statement, cst.AnnAssign) and statement.value is not None:
        yield frozenset({dotted(statement.target)}), statement.value


def shared_with(value: cst.BaseExpression) -> frozenset[str]:
    """The dotted names whose storage the value of this expression may share."""
    if isinstance(value, cst.IfExp):
        return shared_with(value.body) | shared_with(value.orelse)
    if isinstance(value, cst.NamedExpr):
        return shared_with(value.value) | {dotted(value.target)}
    if isinstance(value, cst.Attribute) and value.attr.value in SHARED_ATTRIBUTES:
        return shared_with(value.value)
    if name := dotted(value):
        return frozenset({name})
    if isinstance(value, cst.Subscript):
        return shared_with(value.value)
    if isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute):
        method = value.func.attr.value
        if method in VIEWS or (method.endswith("_") and not method.startswith("_")):
            return shared_with(value.func.value)
    return frozenset()


def _contained(value: cst.BaseExpression) -> frozenset[str]:
    """Names whose tensors a new list, tuple or dict holds."""
    if isinstance(value, cst.List | cst.Tuple | cst.Set):
        return frozenset[str]().union(*(shared_with(e.value) for e in value.elements))
    if isinstance(value, cst.Dict):
        return frozenset[str]().union(*(shared_with(e.value) for e in value.elements))
    return frozenset()


def _stored(call: cst.BaseExpression, holding: set[str]) -> set[str]:
    """The container that ``container.append(x)`` (insert, add, setdefault, ...) puts a held name into."""
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
        puts = call.func.attr.value in (
            "append",
            "appendleft",
            "insert",
            "add",
            "extend",
            "setdefault",
            "update",
            "push",
        )
        container = dotted(call.func.value)
        if (
            puts
            and container
            and any(shared_with(a.value) & holding or _contained(a.value) & holding for a in call.args)
        ):
            return {container}
    return set()


def statement_before(view: View, node: cst.CSTNode, name: str) -> Statement | None:
    """The nearest statement line before `node`, in the same function, that binds `name`."""
    for statement in _before(view, node, scope_of(view, node)):
        if not isinstance(statement, cst.For) and name in binds(statement):
            return view.statement(statement)
    return None
