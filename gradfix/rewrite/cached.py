"""A value that waits in an attribute: computed in one method (``self.score = self.D(self.fake)``), read in
another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View, parenthesized, parse_small
from gradfix.rewrite.drawn import constructs
from gradfix.rewrite.rerun import inside
from gradfix.rewrite.statements import (
    Block,
    Unit,
    body_of,
    bound,
    dotted,
    every_parameter,
    lifted,
    line_of,
    names,
    put_after,
    put_before,
    reads_of,
    renamed,
    take_all_away,
    touches,
    units,
    walk,
)
from gradfix.tape import Record, Stack


class Needs(NamedTuple):
    """What a statement needs to be run elsewhere; see Cached."""

    before: tuple[Unit, ...]
    elsewhere: Mapping[str, str]
    stored: tuple[Unit, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """`names` are bound by `source` (in a method of one object) and read by `reader`, in the method that
    differentiates them. `before` are the statements that bind what `source` reads; of what it reads, `elsewhere` has
    those local names that have another in the object, and `stored` binds those that get one."""

    names: tuple[str, ...]
    view: View
    source: Unit
    reader: Unit
    before: tuple[Unit, ...] = ()
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    stored: tuple[Unit, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether it is one name."""
        return len(self.names) == 1

    @property
    def said(self) -> str:
        """The names, in words."""
        return ", ".join(f"`{name}`" for name in self.names)

    @property
    def value(self) -> cst.BaseExpression:
        """What the attribute is bound to."""
        assert isinstance(self.source.node, cst.Assign)
        return self.source.node.value

    def inline(self) -> tuple[Edit, ...]:
        """The value's expression where it is read, if it is read once there and nowhere later in the
        method."""
        method = body_of(self.view, self.reader.node)
        reads = [n for u in walk(method) for name in self.names for n in reads_of(u.node, name)]
        if len(reads) != 1 or not self.alone or self.before or self.elsewhere:
            return ()
        value = self.value

        def build(_: cst.CSTNode) -> cst.CSTNode:
            return parenthesized(value.deep_clone())

        return (Replace(reads[0], build),)

    def again(self) -> tuple[Edit, ...]:
        """The statement once more before its value is read."""
        again = put_before(self.reader, *(self._of_object(line_of(u.node)) for u in self._whole))
        return (again, *self._stored())

    def moved(self) -> tuple[Edit, ...]:
        """As again(), and no longer where it was; () where other methods read the value too."""
        method = self.view.function(self.reader.node)
        own = self.view.function(self.source.node)
        attributes = {name.rpartition(".")[2] for name in self.names}
        for node in self.view.parents:
            if isinstance(node, cst.Attribute) and node.attr.value in attributes:
                function = self.view.function(node)
                if function is not method and not (function is own and _target(self.view, node)):
                    return ()
        whole, rest = self._whole, units(body_of(self.view, self.source.node))
        others = set().union(*(u.reads for u in rest if all(u.node is not w.node for w in whole)))
        if any(touches(u.writes, others) for u in self.before):
            return ()
        lines = [self._of_object(lifted(u)) for u in whole]
        away = take_all_away(whole, self.view)
        return (put_before(self.reader, *lines), *away, *self._stored())

    @property
    def _whole(self) -> tuple[Unit, ...]:
        return (*self.before, self.source)

    def _stored(self) -> Iterator[Edit]:
        """Each such local value as an attribute, too."""
        for unit in self.stored:
            (name,) = unit.writes
            yield put_after(unit, line_of(parse_small(f"{self.elsewhere[name]} = {name}")))

    def _of_object(self, line: cst.BaseStatement) -> cst.BaseStatement:
        """The statement, with what the object calls its tensors."""
        new = renamed(line, {n: new for old, new in self.elsewhere.items() for n in reads_of(line, old)})
        assert isinstance(new, cst.BaseStatement)
        return new


def _target(view: View, node: cst.CSTNode) -> bool:
    around = view.parents[node]
    if isinstance(around, cst.Element):
        around = view.parents[view.parents[around]]
    return isinstance(around, cst.AssignTarget)


def cached(project: Project, records: Iterable[Record], *stacks: Stack) -> Cached | None:
    """How the value that `records` belong to waits for what runs at one of `stacks`; None where no attribute of one
    file shows it, or where its expression needs more than the object itself."""
    for record in records:
        for view, source, needs in _sources(project, record):
            kept = tuple(sorted(source.writes, key=view.code(source.node).find))
            for stack in stacks:
                for reader in _readers(project, stack, view, source, kept):
                    return Cached(kept, view, source, reader, *needs)
    return None


def _sources(project: Project, record: Record) -> Iterator[tuple[View, Unit, Needs]]:
    """Statements ``self.x = …`` among the frames of a record, or behind them; see Cached."""
    lines = {(s.file, s.line) for e in project.tape.events if isinstance(e, Record) for s in e.stack}
    for view, node in project.frames(record.stack):
        if view.function(node) is None:
            continue
        small = view.small_statement(node)
        body = units(body_of(view, node))
        start = next((n for n, u in enumerate(body) if u.node is small), None)
        if start is None or not isinstance(small, cst.Assign) or constructs(project, small):
            continue
        for end in range(start, len(body)):
            root = _root(body[end].node)
            found = _needed(view, body, end, root, lines) if root else None
            if found and small in (body[end].node, *(u.node for u in found.before)):
                yield view, body[end], found


def _root(node: cst.CSTNode) -> str:
    """The name of the object of which a statement binds attributes and nothing else, or ""."""
    if not isinstance(node, cst.Assign) or len(node.targets) != 1:
        return ""
    target = node.targets[0].target
    each = [e.value for e in target.elements] if isinstance(target, (cst.Tuple, cst.List)) else [target]
    roots = {(dotted(e) or "").split(".")[0] for e in each if isinstance(e, cst.Attribute)}
    return next(iter(roots)) if len(roots) == 1 and all(isinstance(e, cst.Attribute) for e in each) else ""


def _needed(
    view: View, body: Sequence[Unit], end: int, root: str, lines: Collection[tuple[str, int]]
) -> Needs | None:
    """What the statement at `end` needs of those before it, and what it may take of the object `root` in their place;
    None where it needs more. What is in no graph (a network, its input) is not computed again, but kept."""
    function = view.function(body[end].node)
    own = {p.name.value for p in every_parameter(function)} if function is not None else set[str]()
    known = _module_names(view) - own | {root}
    wanted = {r.split(".")[0] for r in names(_value(body[end])).reads} - known
    before: list[Unit] = []
    elsewhere: dict[str, str] = {}
    stored: list[Unit] = []
    for unit in reversed(body[:end]):
        node = unit.node
        each = [(dotted(target) or "", dotted(value)) for target, value in bound(node)]
        kept = {value: name for name, value in each if value in wanted and name.startswith(f"{root}.")}
        if kept and not touches(unit.writes, wanted):
            elsewhere |= kept
            wanted -= kept.keys()
        elif touches(unit.writes, wanted):
            if not isinstance(node, cst.Assign) or touches(unit.writes, elsewhere):
                return None
            name = _of_its_own(view, unit, root, lines)
            if name is not None:
                elsewhere[name] = f"{root}.{name}"
                stored.append(unit)
                wanted.discard(name)
                continue
            before.insert(0, unit)
            wanted -= unit.writes
            wanted |= {r.split(".")[0] for r in names(node.value).reads} - known
    return Needs(tuple(before), elsewhere, tuple(stored)) if not wanted else None


def _of_its_own(view: View, unit: Unit, root: str, lines: Collection[tuple[str, int]]) -> str | None:
    """The local name that a statement binds to what is in no graph, where the object has nothing of that name."""
    name = next(iter(unit.writes)) if len(unit.writes) == 1 else ""
    first, last = view.span(unit.node).start.line, view.span(unit.node).end.line
    if not name.isidentifier() or any((view.path, line) in lines for line in range(first, last + 1)):
        return None
    taken = (n.attr.value for n in view.parents if isinstance(n, cst.Attribute) and dotted(n.value) == root)
    return None if name in taken else name


def _value(unit: Unit) -> cst.BaseExpression:
    assert isinstance(unit.node, cst.Assign)
    return unit.node.value


def _module_names(view: View) -> frozenset[str]:
    import builtins

    return frozenset(dir(builtins)).union(*(u.writes for u in units(view.module)))


def _readers(project: Project, stack: Stack, view: View, source: Unit, kept: Sequence[str]) -> Iterator[Unit]:
    """The first statement, in each method of the stack, that reads one of the attributes before binding it."""
    wanted = set(kept)
    for other, node in project.frames(stack):
        if other is not view or other.function(node) in (None, view.function(source.node)):
            continue
        if view.enclosing(node, cst.ClassDef) is not view.enclosing(source.node, cst.ClassDef):
            continue
        reader = _reader(view, body_of(view, node), node, wanted)
        if reader is not None:
            yield reader


def _reader(view: View, body: Block, node: cst.CSTNode, wanted: Collection[str]) -> Unit | None:
    """The first unit of `body` that reads one of the attributes before binding it: within the loop around `node`,
    whose passes read it each."""
    for unit in units(body):
        if touches({r for r in unit.reads if "." in r}, wanted):
            loop = unit.node
            if not isinstance(loop, cst.For | cst.While) or not inside(view, node, loop.body):
                return unit
            header = loop.iter if isinstance(loop, cst.For) else loop.test
            return unit if touches(names(header).reads, wanted) else _reader(view, loop.body, node, wanted)
        if not unit.writes.isdisjoint(wanted):
            return None
    return None
