"""A value that waits in an attribute: computed in one method (``self.score = self.D(self.fake)``), read in
another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View, parenthesized
from gradfix.rewrite.statements import (
    Unit,
    body_of,
    dotted,
    lifted,
    line_of,
    names,
    put_before,
    reads_of,
    take_away,
    touches,
    units,
    walk,
)
from gradfix.tape import Backward, Record


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """`name` is bound by `source` (in a method of one object) and read by `reader`, in the method that
    differentiates it."""

    name: str
    view: View
    source: Unit
    reader: Unit

    @property
    def value(self) -> cst.BaseExpression:
        """What the attribute is bound to."""
        assert isinstance(self.source.node, cst.Assign)
        return self.source.node.value

    def inline(self) -> tuple[Edit, ...]:
        """The value's expression where it is read, if it is read once there and nowhere later in the
        method."""
        method = body_of(self.view, self.reader.node)
        reads = [n for u in walk(method) for n in reads_of(u.node, self.name)]
        if len(reads) != 1:
            return ()
        value = self.value

        def build(_: cst.CSTNode) -> cst.CSTNode:
            return parenthesized(value.deep_clone())

        return (Replace(reads[0], build),)

    def again(self) -> tuple[Edit, ...]:
        """The statement once more before its value is read."""
        return (put_before(self.reader, line_of(self.source.node)),)

    def moved(self) -> tuple[Edit, ...]:
        """As again(), and no longer where it was; () where other methods read the value too."""
        method = self.view.function(self.reader.node)
        own = self.view.function(self.source.node)
        attribute = self.name.rpartition(".")[2]
        for node in self.view.parents:
            if isinstance(node, cst.Attribute) and node.attr.value == attribute:
                function = self.view.function(node)
                if function is not method and not (function is own and _target(self.view, node)):
                    return ()
        return (put_before(self.reader, lifted(self.source)), *take_away(self.source, self.view))


def _target(view: View, node: cst.CSTNode) -> bool:
    return isinstance(view.parents[node], cst.AssignTarget)


def cached(project: Project, records: Iterable[Record], backward: Backward) -> Cached | None:
    """How the value that `records` belong to waits for `backward`; None where no attribute of one file
    shows it, or where its expression needs more than the object itself."""
    for record in records:
        for view, source in _sources(project, record):
            for name in source.writes:
                if "." not in name:
                    continue
                for reader in _readers(project, backward, view, source, name):
                    return Cached(name, view, source, reader)
    return None


def _sources(project: Project, record: Record) -> Iterator[tuple[View, Unit]]:
    """Statements ``self.x = …`` among the frames of a record."""
    for view, node in project.frames(record.stack):
        small = view.small_statement(node)
        if not isinstance(small, cst.Assign) or len(small.targets) != 1:
            continue
        if not isinstance(small.targets[0].target, cst.Attribute):
            continue
        if view.function(small) is None:
            continue
        root = (dotted(small.targets[0].target) or "").split(".")[0]
        known = _module_names(view)
        if all(r.split(".")[0] in known | {root} for r in names(small.value).reads):
            line = view.statement(small)
            assert isinstance(line, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
            yield view, Unit(small, line, names(small))


def _module_names(view: View) -> frozenset[str]:
    import builtins

    return frozenset(dir(builtins)).union(*(u.writes for u in units(view.module)))


def _readers(project: Project, backward: Backward, view: View, source: Unit, name: str) -> Iterator[Unit]:
    """The first statement, in each method on the way to the backward, that reads the attribute before
    binding it."""
    for other, node in project.frames(backward.stack):
        if other is not view or other.function(node) in (None, view.function(source.node)):
            continue
        if view.enclosing(node, cst.ClassDef) is not view.enclosing(source.node, cst.ClassDef):
            continue
        for unit in units(body_of(view, node)):
            if touches({r for r in unit.reads if r.count(".") >= name.count(".")}, {name}):
                yield unit
                break
            if name in unit.writes:
                break
