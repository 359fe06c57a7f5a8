"""What each statement of a function reads and binds, and which bindings it may read: reaching definitions."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from gradfix.read.effects import overloads

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Places = dict[str, frozenset[int]]  # by name, the statements that may have bound it last; -1 a parameter

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))
TOLD = {
    "print",
    "float",
    "int",
    "bool",
    "str",
    "len",
    "repr",
    "isinstance",
}  # take nothing but a number or a text
NUMBERS = {"item", "tolist"}  # the same as methods
OWNERS = {"self", "cls"}  # what changes in them is an attribute of theirs, which has its own name
PARAMETER = -1
DEEP = 6  # loops in one another; those deeper are gone through once
BODIES = {"body": "", "orelse": " else", "finalbody": " finally"}


@dataclass(slots=True)
class Statement:
    """One statement, or the head of a compound one. `path` are the compound statements around it, in its function:
    which, and how they are called.

    `reads` are the names that it reads, with the statements (by their number) that may have bound them; those in
    `told` are only read for their number. `binds` are those that it binds, and `writes` those whose object it
    may change. Attributes have a dot before, whosever they are.
    """

    number: int
    node: ast.stmt
    first: int
    last: int
    path: tuple[tuple[int, str], ...]
    binds: frozenset[str]
    writes: frozenset[str]
    told: frozenset[str]
    reads: dict[str, set[int]] = field(default_factory=dict)


@dataclass(slots=True)
class Function:
    """The statements of a function, a class or the module itself, in the order of the text. `local` are the names that
    are its own."""

    scope: Scope
    statements: list[Statement]
    local: frozenset[str]


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function, class and the module itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield _Reaching(node).function


def parts(node: ast.stmt) -> Iterator[ast.AST]:
    """What a statement evaluates itself: of a compound one, its head."""
    for name, value in ast.iter_fields(node):
        if isinstance(node, SCOPES) and name == "body":
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and not isinstance(
                each, ast.stmt | ast.excepthandler | ast.match_case
            ):
                yield each


def names(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    """Every name and attribute in an expression with its node, and whether only a number or a text is taken of it.
    Those of a comprehension's or a lambda's own are left out."""
    inner = [c.target for c in ast.walk(node) if isinstance(c, ast.comprehension)]
    own = {n.id for target in inner for n in ast.walk(target) if isinstance(n, ast.Name)}
    own |= {a.arg for x in ast.walk(node) if isinstance(x, ast.Lambda) for a in ast.walk(x.args)
            if isinstance(a, ast.arg)}  # fmt: skip
    stack = [(node, False)]
    while stack:
        each, told = stack.pop()
        if isinstance(each, ast.Name) and each.id not in own:
            yield each.id, each, told
        elif isinstance(each, ast.Attribute):
            yield f".{each.attr}", each, told
        inside = told or isinstance(each, ast.FormattedValue)
        if isinstance(each, ast.Call):
            called = each.func
            inside |= isinstance(called, ast.Name) and called.id in TOLD
            inside |= isinstance(called, ast.Attribute) and called.attr in NUMBERS
        stack += [(child, inside) for child in ast.iter_child_nodes(each)]


def takes_parameters(node: ast.stmt, fix: Set[str]) -> bool:
    """Whether a statement is a call that is given ``module.parameters()``, or a loop over them that writes to each in
    place, and uses none of the names `fix` in another way."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and not node.orelse:
        own = {node.target.id}
        return _parameters_of(node.iter) and not own & fix and all(_writes_to(x, own, fix) for x in node.body)
    bound = isinstance(node, ast.Assign) and [n for t in node.targets for n, _, _ in names(t)]
    if (
        not isinstance(node, ast.Expr | ast.Assign)
        or not isinstance(node.value, ast.Call)
        or {*(bound or ())} & fix
    ):
        return False
    given = [*node.value.args, *(k.value for k in node.value.keywords)]
    others = [each for each in given if not _parameters_of(each)]
    return len(others) < len(given) and not any(
        isinstance(x, ast.Call) or (isinstance(x, ast.Name) and x.id in fix)
        for each in (node.value.func, *others)
        for x in ast.walk(each)
    )


def _parameters_of(node: ast.expr) -> bool:
    """``module.parameters()``."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    method = node.func
    return (
        isinstance(method, ast.Attribute)
        and method.attr == "parameters"
        and isinstance(method.value, ast.Name)
    )


def _writes_to(node: ast.stmt, own: Set[str], fix: Set[str]) -> bool:
    if isinstance(node, ast.With):
        return all(_writes_to(x, own, fix) for x in node.body)
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    used = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    nested = sum(isinstance(x, ast.Call) for x in ast.walk(node)) > 1
    return bool(used & own) and not used & fix and not nested and any(True for _ in _written(node))


def objects(function: Function, name: str, values: set[int]) -> dict[str, set[int]]:
    """The names under which the object lies that `name` has when one of the statements `values` bound it, or a part or
    a view of it: each with the statements that bind it to that."""
    found = {name: set(values)} if values else {}
    known = 0
    while known != (known := sum(map(len, found.values()))):
        for s in function.statements:
            for given, to in _aliases(s.node):
                if s.reads[given] & found.get(given, set()):
                    found.setdefault(to, set()).add(s.number)
                if s.number in found.get(to, ()):
                    found.setdefault(given, set()).update(s.reads[given])
    return found


def _aliases(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The names that a statement gives to what another name has: (given, new)."""
    if isinstance(node, ast.Assign):
        value, targets = node.value, node.targets
    elif isinstance(node, ast.For):
        value, targets = node.iter, [node.target]
    else:
        return
    while True:
        if isinstance(value, ast.Attribute | ast.Subscript):
            value = value.value
        elif (
            isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _views(value.func.attr)
        ):
            value = value.func.value
        else:
            break
    if isinstance(value, ast.Name):
        for target in targets:
            yield from ((value.id, n.id) for n in ast.walk(target) if isinstance(n, ast.Name))


def _views(method: str) -> bool:
    """Whether a tensor's method gives a view of it, or may."""
    return any({*overload.results} & {"v", "m", "w"} for overload in overloads(method))


class _Reaching:
    """One pass over a function, loops as often as it takes for their bindings to come round."""

    def __init__(self, scope: Scope) -> None:
        self._numbers: dict[int, Statement] = {}
        self._loops: list[tuple[list[Places], list[Places]]] = []
        statements: list[Statement] = []
        self.function = Function(scope, statements, frozenset())
        self._collect(scope.body, (), statements)
        arguments = _parameters(scope)
        outer = {n for s in statements if isinstance(s.node, ast.Global | ast.Nonlocal) for n in s.node.names}
        bound = {n for s in statements for n in s.binds if n[0] != "."}
        self.function.local = frozenset((bound | arguments) - outer)
        self._run(scope.body, {name: frozenset({PARAMETER}) for name in arguments})

    def _collect(
        self, body: Iterable[ast.stmt], path: tuple[tuple[int, str], ...], out: list[Statement]
    ) -> None:
        for node in body:
            out.append(_statement(len(out), node, path))
            self._numbers[id(node)] = out[-1]
            if isinstance(node, SCOPES):
                continue
            kind = type(node).__name__.removeprefix("Async").lower()
            for name, said in BODIES.items():
                self._collect(getattr(node, name, None) or (), (*path, (id(node), kind + said)), out)
            for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                self._collect(
                    each.body, (*path, (id(each), "except" if kind.startswith("try") else "case")), out
                )

    def _run(self, body: Iterable[ast.stmt], places: Places | None) -> Places | None:
        """What is bound where after `body`; None where nothing comes after it."""
        for node in body:
            if places is None:
                return None
            places = self._step(node, places)
        return places

    def _step(self, node: ast.stmt, places: Places) -> Places | None:
        statement = self._numbers[id(node)]
        for name, found in statement.reads.items():
            found |= places.get(name, frozenset())
        after = {**places, **dict.fromkeys(statement.binds, frozenset({statement.number}))}
        if isinstance(node, ast.Return | ast.Raise):
            return None
        if isinstance(node, ast.Break | ast.Continue):
            if self._loops:
                self._loops[-1][isinstance(node, ast.Continue)].append(after)
            return None
        if isinstance(node, ast.If):
            return _joined(self._run(node.body, after), self._run(node.orelse, after))
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, places, statement)
        if isinstance(node, ast.With | ast.AsyncWith):
            return self._run(node.body, after)
        if isinstance(node, TRIES):
            done = self._run(node.body, after)
            failed = _joined(after, done)
            ends = [self._run(h.body, _bound(failed, h.name, statement.number)) for h in node.handlers]
            left = _joined(self._run(node.orelse, done), *ends)
            return self._run(node.finalbody, left)
        if isinstance(node, ast.Match):
            return _joined(after, *(self._run(case.body, after) for case in node.cases))
        return after

    def _loop(
        self, node: ast.For | ast.AsyncFor | ast.While, places: Places, head: Statement
    ) -> Places | None:
        before: Places | None = places
        for _ in range(2 if len(self._loops) < DEEP else 1):  # what one pass binds is what the next one reads
            for name, found in head.reads.items():
                found |= (before or {}).get(name, frozenset())
            self._loops.append(([], []))
            bound = dict.fromkeys(head.binds, frozenset({head.number}))
            end = self._run(node.body, {**(before or {}), **bound})
            breaks, continues = self._loops.pop()
            before = _joined(places, end, *continues)
        return _joined(self._run(node.orelse, before), *breaks)


def _statement(number: int, node: ast.stmt, path: tuple[tuple[int, str], ...]) -> Statement:
    reads: dict[str, set[int]] = {}
    binds: set[str] = set()
    writes: set[str] = set()
    told: set[str] = set()
    full: set[str] = set()
    if isinstance(node, SCOPES):
        binds.add(node.name)
    if isinstance(node, ast.Import | ast.ImportFrom):
        binds |= {a.asname or a.name.partition(".")[0] for a in node.names}
    for part in parts(node):
        for name, each, only in names(part):
            if isinstance(each.ctx, ast.Load):  # type: ignore[attr-defined]
                reads[name] = set()
                (told if only or isinstance(node, ast.Assert) else full).add(name)
            else:
                binds.add(name)
        writes |= {name for base in _written(part) for name, _, _ in names(base) if name not in OWNERS}
    if isinstance(node, ast.AugAssign):
        writes |= {name for name, _, _ in names(node.target) if name not in OWNERS}
        reads |= {name: set() for name, _, _ in names(node.target)}
        full |= {name for name, _, _ in names(node.target)}
    first = min((d.lineno for d in getattr(node, "decorator_list", ())), default=node.lineno)
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    last = (node.end_lineno or first) if not isinstance(body, list) else max(_head(body[0]) - 1, first)
    return Statement(
        number, node, first, last, path, frozenset(binds), frozenset(writes), frozenset(told - full), reads
    )


def _head(node: ast.stmt | ast.match_case) -> int:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _written(node: ast.AST) -> Iterator[ast.AST]:
    """What may be another thing after `node`, by PyTorch's conventions: ``x[0] =``, ``x.add_()``, ``out=x``, and the
    arguments of a call with ``inplace=True``."""
    for each in ast.walk(node):
        if isinstance(each, ast.Subscript) and not isinstance(each.ctx, ast.Load):
            yield each.value
        if not isinstance(each, ast.Call):
            continue
        if isinstance(each.func, ast.Attribute) and each.func.attr.endswith("_"):
            yield each.func.value
        for keyword in each.keywords:
            if keyword.arg == "out":
                yield keyword.value
            if keyword.arg == "inplace":
                yield from each.args


def _parameters(scope: Scope) -> set[str]:
    if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    return {a.arg for a in ast.walk(scope.args) if isinstance(a, ast.arg)}


def _bound(places: Places | None, name: str | None, number: int) -> Places | None:
    return {**places, name: frozenset({number})} if places is not None and name else places


def _joined(*some: Places | None) -> Places | None:
    """What is bound where if any of these ways was taken; None of them where none was."""
    ways = [each for each in some if each is not None]
    if not ways:
        return None
    return {n: frozenset().union(*(w.get(n, frozenset()) for w in ways)) for w in ways for n in w}
