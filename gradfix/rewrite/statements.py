"""Statements as units of work: what each reads and writes, and how one is put, moved or taken away.

A *unit* is a small statement (among semicolons, maybe) or a compound one. Names are dotted as the source
says them (``self.fake``, ``opt``): writing ``self.fake`` touches a read of ``self.fake.shape`` and of
``self``, not of ``self.real``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import libcst as cst

from gradfix.edit import Edit, Insert, Replace, View
from gradfix.wording import briefly

Small = cst.BaseSmallStatement
Block = cst.BaseSuite | cst.Module
MUTATORS = frozenset(
    (
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "pop",
        "popleft",
        "appendleft",
        "clear",
        "remove",
        "setdefault",
    )
)


@dataclass(frozen=True, slots=True)
class Names:
    """The dotted names that a piece of source reads, as it says them; that it binds; and that it changes in place (an
    item write, a method that mutates)."""

    reads: frozenset[str] = frozenset()
    binds: frozenset[str] = frozenset()
    changes: frozenset[str] = frozenset()

    @property
    def writes(self) -> frozenset[str]:
        """The names it binds or changes."""
        return self.binds | self.changes


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """One statement of a body, in order."""

    node: Small | cst.BaseCompoundStatement
    line: cst.SimpleStatementLine | cst.BaseCompoundStatement
    names: Names

    @property
    def reads(self) -> frozenset[str]:
        """The names it reads."""
        return self.names.reads

    @property
    def writes(self) -> frozenset[str]:
        """The names it binds or changes."""
        return self.names.writes


def names(node: cst.CSTNode) -> Names:
    """What `node` reads and writes where it stands (a nested function reads its free names when it is
    defined)."""
    found = _Found()
    found.collect(node)
    return found.names()


def assigned(target: cst.CSTNode) -> Names:
    """What assigning to `target` reads and writes."""
    found = _Found()
    found.store(target)
    return found.names()


def stored(target: cst.CSTNode) -> frozenset[str]:
    """The names that assigning to `target` writes."""
    return assigned(target).writes


def reads_of(node: cst.CSTNode, name: str) -> list[cst.BaseExpression]:
    """The expressions below `node` that read `name` (a dotted name), outermost first."""
    if isinstance(node, cst.Assign):
        found = reads_of(node.value, name)
        return found + [
            x for t in node.targets if isinstance(t.target, cst.Subscript) for x in reads_of(t.target, name)
        ]
    if isinstance(node, cst.BaseExpression) and dotted(node) == name:
        return [node]
    if isinstance(node, cst.Attribute):
        return reads_of(node.value, name)
    children = [node.value] if isinstance(node, cst.Arg) else node.children
    return [x for child in children for x in reads_of(child, name)]


def touches(some: Iterable[str], others: Iterable[str]) -> bool:
    """Whether a name of `some` is one of `others`, or lies inside one, or holds one."""
    theirs = set(others)
    return any(a == b or a.startswith(b + ".") or b.startswith(a + ".") for a in some for b in theirs)


def dotted(node: cst.CSTNode) -> str | None:
    """``a.b.c`` of a chain of attributes on a name, else None."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr.value}" if inner else None
    return None


def named(view: View, node: cst.CSTNode) -> str:
    """What `node` is called in the source: a chain of attributes, maybe with literal keys at its end
    (``self.sums["d"]``); "" where it is neither."""
    held = node
    while isinstance(held, cst.Subscript) and literal_key(held):
        held = held.value
    return view.code(node) if dotted(held) is not None else ""


def literal_key(node: cst.Subscript) -> bool:
    """Whether the item's key is a string as the source says it."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    return isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString)


class _Found:
    """Collects names as it walks."""

    def __init__(self) -> None:
        self.reads: set[str] = set()
        self.binds: set[str] = set()
        self.changes: set[str] = set()

    def names(self) -> Names:
        return Names(frozenset(self.reads), frozenset(self.binds), frozenset(self.changes))

    def collect(self, node: cst.CSTNode) -> None:
        name = dotted(node)
        if name is not None:
            self.reads.add(name)
        elif isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.NamedExpr)):
            self._assignment(node)
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            self._definition(node)
        elif isinstance(node, cst.Lambda):
            self._defaults(node)
            self._inner(names(node.body), _parameters(node))
        elif isinstance(node, cst.BaseComp):
            self._comprehension(node)
        elif isinstance(node, (cst.For, cst.CompFor)):
            for child in node.children:
                if child is node.target:
                    self.store(node.target)
                else:
                    self.collect(child)
        elif isinstance(node, cst.AsName):
            self.store(node.name)
        elif isinstance(node, cst.Del):
            self.store(node.target)
        elif isinstance(node, (cst.Import, cst.ImportFrom)):
            self._import(node)
        elif isinstance(node, (cst.Arg, cst.Attribute)):
            self.collect(node.value)
        elif isinstance(node, cst.Call):
            self._call(node)
        elif not isinstance(node, (cst.Global, cst.Nonlocal)):
            for child in node.children:
                self.collect(child)

    def store(self, target: cst.CSTNode) -> None:
        name = dotted(target)
        if name is not None:
            self.binds.add(name)
        elif isinstance(target, cst.Subscript):
            inner = dotted(target.value)
            if inner:
                self.changes.add(inner)
            self.collect(target)
        elif isinstance(target, cst.Attribute):
            self.collect(target.value)
        else:
            for child in target.children:
                self.store(child)

    def _comprehension(self, node: cst.BaseComp) -> None:
        inner, own = _Found(), set[str]()
        for child in node.children:
            inner.collect(child)
        part: cst.CompFor | None = node.for_in
        while part is not None:
            own |= assigned(part.target).binds
            part = part.inner_for_in
        self._inner(inner.names(), own)
        self.binds |= inner.binds - own  # by a walrus
        self.changes.update(c for c in inner.changes if c.partition(".")[0] not in own)

    def _assignment(self, node: cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr) -> None:
        if node.value is None:
            return  # an annotation alone
        self.collect(node.value)
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        for target in targets:
            self.store(target)
            if isinstance(node, cst.AugAssign):
                self.collect(target)

    def _definition(self, node: cst.FunctionDef | cst.ClassDef) -> None:
        self.binds.add(node.name.value)
        for decorator in node.decorators:
            self.collect(decorator)
        body = names(node.body)
        if isinstance(node, cst.FunctionDef):
            self._defaults(node)
            own = {b for b in body.binds if "." not in b} - _declared(node.body)
            self._inner(body, own | _parameters(node))
        else:
            for base in node.bases:
                self.collect(base)
            self._inner(body, set())  # its methods do not see what its body binds

    def _inner(self, found: Names, own: set[str]) -> None:
        """What a scope of its own reads of this one."""
        self.reads.update(r for r in found.reads if r.partition(".")[0] not in own)

    def _defaults(self, node: cst.FunctionDef | cst.Lambda) -> None:
        for parameter in every_parameter(node):
            if parameter.default is not None:
                self.collect(parameter.default)

    def _import(self, node: cst.Import | cst.ImportFrom) -> None:
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            bound_as = alias.asname.name if alias.asname else alias.name
            self.binds.add((dotted(bound_as) or "").split(".")[0])

    def _call(self, node: cst.Call) -> None:
        receiver = dotted(node.func.value) if isinstance(node.func, cst.Attribute) else None
        if isinstance(node.func, cst.Attribute) and receiver is not None:
            self.reads.add(f"{receiver}.{node.func.attr.value}")
            if mutates(node.func.attr.value) and receiver not in ("self", "cls"):  # (a method of its own)
                self.changes.add(receiver)
        else:
            self.collect(node.func)
        for arg in node.args:
            self.collect(arg)


def mutates(method: str) -> bool:
    """Whether a method of this name changes what it is called on (``append``, ``add_``)."""
    return method in MUTATORS or (method.endswith("_") and not method.startswith("_") and method != "_")


def every_parameter(function: cst.FunctionDef | cst.Lambda) -> list[cst.Param]:
    """The parameters of a function, those that take the rest among them."""
    p = function.params
    every = [*p.posonly_params, *p.params, *p.kwonly_params, p.star_arg, p.star_kwarg]
    return [x for x in every if isinstance(x, cst.Param)]


def _parameters(function: cst.FunctionDef | cst.Lambda) -> set[str]:
    return {x.name.value for x in every_parameter(function)}


def _declared(body: cst.CSTNode) -> frozenset[str]:
    """Names declared global or nonlocal in `body`, functions inside left out."""
    if isinstance(body, cst.Global | cst.Nonlocal):
        return frozenset(x.name.value for x in body.names)
    if isinstance(body, cst.BaseExpression | cst.FunctionDef | cst.ClassDef):
        return frozenset()
    return frozenset[str]().union(*map(_declared, body.children))


def renamed(node: cst.CSTNode, named: Mapping[cst.CSTNode, str]) -> cst.CSTNode:
    """`node` with a (dotted) name in the place of each of the expressions in it."""
    changed = node.visit(_Renaming(named)) if named else node
    assert isinstance(changed, cst.CSTNode)
    return changed


class _Renaming(cst.CSTTransformer):
    """All at once: a tree that was visited has none of the nodes that it was made of."""

    def __init__(self, named: Mapping[cst.CSTNode, str]) -> None:
        super().__init__()
        self.named = named

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.named

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Any:
        name = self.named.get(original_node)
        return updated_node if name is None else cst.parse_expression(name)


def parameters(function: cst.FunctionDef) -> tuple[str, ...]:
    """The names of a function's positional and keyword parameters, in order."""
    p = function.params
    return tuple(x.name.value for x in [*p.posonly_params, *p.params, *p.kwonly_params])


def units(block: Block | cst.CSTNode) -> tuple[Unit, ...]:
    """The units of a body, in order; compound statements are one unit each."""
    found: list[Unit] = []
    lines = cast(Sequence[cst.CSTNode], getattr(block, "body", ()))
    for line in lines:
        if isinstance(line, cst.SimpleStatementLine):
            found += [Unit(small, line, names(small)) for small in line.body]
        elif isinstance(line, cst.BaseCompoundStatement):
            found.append(Unit(line, line, names(line)))
    return tuple(found)


def bound(statement: cst.CSTNode) -> tuple[tuple[cst.BaseExpression, cst.BaseExpression], ...]:
    """What an assignment binds, each with its value: of ``a, b = x, y`` the two apart."""
    if not isinstance(statement, cst.Assign):
        return ()
    value, found = statement.value, []
    for target in (t.target for t in statement.targets):
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            if len(target.elements) == len(value.elements):
                found += [(t.value, v.value) for t, v in zip(target.elements, value.elements, strict=True)]
        else:
            found.append((target, value))
    return tuple(found)


def inside(unit: Unit) -> Iterator[Unit]:
    """The small statements that the unit is made of: itself, or those of its bodies."""
    return _nested(unit.node) if isinstance(unit.node, cst.BaseCompoundStatement) else iter((unit,))


def walk(block: cst.CSTNode) -> Iterator[Unit]:
    """Every small statement below `block`, in order, those of nested bodies too; not of nested functions."""
    for unit in units(block):
        if isinstance(unit.node, cst.BaseCompoundStatement):
            if not isinstance(unit.node, (cst.FunctionDef, cst.ClassDef)):
                yield from _nested(unit.node)
        else:
            yield unit


def _nested(node: cst.CSTNode) -> Iterator[Unit]:
    for child in node.children:
        if isinstance(child, cst.IndentedBlock):
            yield from walk(child)
        elif isinstance(child, (cst.Else, cst.ExceptHandler, cst.Finally, cst.If)):
            yield from _nested(child)


def body_of(view: View, node: cst.CSTNode) -> Block:
    """The body of the function around `node`, or the module."""
    function = view.function(node)
    return function.body if isinstance(function, cst.FunctionDef) else view.module


def block_of(view: View, node: cst.CSTNode) -> Block | None:
    """The body that the statement of `node` stands in."""
    for x in view.ancestors(node):
        if isinstance(x, (cst.IndentedBlock, cst.Module)):
            return x
    return None


def unit_in(view: View, block: Block, node: cst.CSTNode) -> int | None:
    """The index in units(block) of the unit that `node` lies in."""
    above = {id(x) for x in (node, *view.ancestors(node))}
    return next((i for i, u in enumerate(units(block)) if id(u.node) in above), None)


def common_block(view: View, *nodes: cst.CSTNode) -> Block | None:
    """The innermost body that all `nodes` lie in."""
    blocks = [[x for x in view.ancestors(n) if isinstance(x, (cst.IndentedBlock, cst.Module))] for n in nodes]
    rest = [{id(x) for x in some} for some in blocks[1:]]
    return next((x for x in blocks[0] if all(id(x) in some for some in rest)), None) if blocks else None


def shown(view: View, node: cst.CSTNode) -> str:
    """A statement for a sentence: on one line, a block by its head."""
    if isinstance(node, cst.BaseCompoundStatement):
        bare = node.with_changes(leading_lines=())
        return view.code(bare).strip().splitlines()[0].rstrip(" :")
    return briefly(view.code(node))


def line_of(*smalls: cst.CSTNode) -> cst.SimpleStatementLine:
    """A line of its own for small statements (copies of nodes, or parsed ones)."""
    return cst.SimpleStatementLine(
        [cast(Small, s.deep_clone()).with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for s in smalls]
    )


def put_after(unit: Unit, *lines: cst.BaseStatement) -> Edit:
    """Lines after the unit's own line, or after the unit where others follow on that line."""
    return _put(unit, lines, last=True)


def put_before(unit: Unit, *lines: cst.BaseStatement) -> Edit:
    """Lines before the unit's own line, or before the unit where others precede it on that line."""
    return _put(unit, lines, last=False)


def _put(unit: Unit, lines: Sequence[cst.BaseStatement], last: bool) -> Edit:
    body = unit.line.body if isinstance(unit.line, cst.SimpleStatementLine) else ()
    alone = len(body) < 2 or unit.node is body[-1 if last else 0]
    node = unit.line if alone else unit.node  # the line is split there
    return Insert(node, after=tuple(lines)) if last else Insert(node, before=tuple(lines))


def take_all_away(several: Iterable[Unit], view: View) -> list[Edit]:
    """Remove the units; the blank lines above them go to a statement that stays."""
    every = list(several)
    lines = [unit.line for unit in every]
    return [edit for unit in every for edit in take_away(unit, view, besides=lines)]


def take_away(
    unit: Unit, view: View, comments: bool = False, besides: Collection[cst.CSTNode | None] = ()
) -> tuple[Edit, ...]:
    """Remove the unit, with its line where it is alone there. Blank lines above it go to the statement
    behind it that is not one of `besides`, which go, too; and with `comments` its comments do (leave them out where
    the unit is put elsewhere with `lifted`)."""
    line = unit.line
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) == 1:
        gone: Edit = Replace(line, lambda _: cst.RemoveFromParent())
        behind = _behind(view, line)
        while behind is not None and behind in besides:
            behind = _behind(view, behind)
        above = _left_behind(line, comments)
        if behind is None or not above:
            return (gone,)
        return (gone, Replace(behind, lambda n: _with_above(n, above)))
    edits: list[Edit] = [Replace(unit.node, lambda _: cst.RemoveFromParent())]
    if unit.node is line.body[-1]:
        edits.append(Replace(line.body[-2], _last_of_line))
    return tuple(edits)


def _last_of_line(node: cst.CSTNode) -> cst.CSTNode:
    plain = isinstance(node, cst.BaseSmallStatement)
    return node.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) if plain else node


def _behind(view: View, line: cst.CSTNode) -> cst.CSTNode | None:
    body = cast(Sequence[cst.CSTNode], getattr(view.parents.get(line), "body", ()))
    at = next((n for n, x in enumerate(body) if x is line), len(body))
    return body[at + 1] if at + 1 < len(body) else None


def _left_behind(line: cst.CSTNode, comments: bool) -> tuple[cst.EmptyLine, ...]:
    leading = cast(Sequence[cst.EmptyLine], getattr(line, "leading_lines", ()))
    kept = [x for x in leading if comments or not x.comment]
    if comments and isinstance(line, cst.SimpleStatementLine) and line.trailing_whitespace.comment:
        kept.append(cst.EmptyLine(comment=line.trailing_whitespace.comment))
    return tuple(kept)


def _with_above(node: cst.CSTNode, above: Sequence[cst.EmptyLine]) -> cst.CSTNode:
    if not isinstance(node, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
        return node  # taken away itself
    own = list(node.leading_lines)
    if own and not own[0].comment:
        while above and not above[-1].comment:
            above = above[:-1]  # there is a blank line already
    return node.with_changes(leading_lines=[*above, *own])


def lifted(unit: Unit) -> cst.BaseStatement:
    """The unit as a line that can be put elsewhere: with the comment behind it and the comments right
    above it."""
    line = unit.line
    if isinstance(line, cst.SimpleStatementLine):
        if len(line.body) > 1:
            return line_of(unit.node)
        kept = [x for x in line.leading_lines if x.comment]
        return line.deep_clone().with_changes(leading_lines=kept)
    return line.deep_clone()
