"""What has to be made again after an optimizer's step, and how: which statements move behind it, and which stay (the
earlier loss needs them) and are run once more. See gradfix.rewrite.stale for how that is found out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import libcst as cst

from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.boundary import (
    Feed,
    crossings,
    detach,
    detached,
    feeds,
)
from gradfix.rewrite.calls import backward_call, drop_retain
from gradfix.rewrite.drawn import draws
from gradfix.rewrite.statements import (
    Unit,
    dotted,
    lifted,
    line_of,
    names,
    put_after,
    put_before,
    reads_of,
    renamed,
    stored,
    take_all_away,
    take_away,
    touches,
    units,
)
from gradfix.tape import Backward
from gradfix.verdict import Effect

LATER = Effect("later-parameters", "the later loss is computed with the parameters as the step left them")
DRAW = Effect(
    "new-draw", "the later loss is computed with the stepped parameters and random numbers of its own"
)
ONCE = re.compile(r"\b(next|input|print|open)\(|\.(pop|popleft|append|next_batch|get_batch|write|log)\(")


@dataclass(frozen=True)
class Plan:
    """One body with a stale computation: `again` are the statements to run after `step`, of which `kept`
    also stay where they are. They are put after `behind`: the step, what writes the same parameters after it (a clip),
    or the loop around it; what comes after `until` is run later than the step."""

    project: Project
    view: View
    flat: tuple[Unit, ...]
    step: Unit
    until: Unit
    behind: Unit
    backward: Unit
    again: tuple[Unit, ...]
    kept: tuple[Unit, ...]
    around: cst.With | None
    event: Backward
    # expressions in `kept` that are made once, under this name, before them
    named: Mapping[cst.CSTNode, str] = field(default_factory=dict)

    @property
    def moved(self) -> tuple[Unit, ...]:
        """Statements that move behind the step and are not run before it any more."""
        return tuple(u for u in self.again if u not in self.kept)

    @cached_property
    def read_later(self) -> frozenset[str]:
        """Names that the backward's loss is computed from after the step."""
        after = self.flat[self.flat.index(self.until) + 1 :]
        wanted: set[str] = set(self.backward.reads)
        for unit in reversed(after[: after.index(self.backward)] if self.backward in after else ()):
            if touches(unit.writes, wanted):
                wanted |= unit.reads
        for unit in self.again:
            wanted |= unit.reads
        return frozenset(wanted)

    def edits(self, inline: bool = False) -> tuple[Edit, ...]:
        """Put what must be made again after the step. `inline` puts the one kept expression where it is
        read."""
        moved = take_all_away(self.moved, self.view)
        moved += self._made_once()
        if self.around and all(u in self.moved for u in units(self.around.body)):
            moved = list(take_away(Unit(self.around, self.around, names(self.around)), self.view))
        if inline:
            return (*moved, *self._inlined())
        lines = [lifted(u) if u in self.moved else self._once_more(u) for u in self.again]
        return (*moved, *self._placed(lines))

    def _made_once(self) -> Iterator[Edit]:
        for unit in self.kept:
            values = [v for v in self.named if inside(self.view, v, unit.node)]
            if values:
                yield put_before(unit, *(line_of(_bind(self.named[v], v)) for v in values))

    def _placed(self, lines: Sequence[cst.BaseStatement]) -> tuple[Edit, ...]:
        if not lines:
            return ()
        if self.around is not None:
            body = cst.IndentedBlock(list(lines))
            lines = [self.around.deep_clone().with_changes(body=body, leading_lines=())]
        return (put_after(self.behind, *lines),)

    def _once_more(self, unit: Unit) -> cst.BaseStatement:
        """The unit as a line to run again; of an ``if`` only what is read afterwards."""
        if not isinstance(unit.node, cst.If):
            return line_of(self._quiet(unit))
        pruned = unit.node.deep_clone().with_changes(leading_lines=()).visit(_Needed(self.read_later))
        assert isinstance(pruned, cst.If)
        return pruned

    def _quiet(self, unit: Unit) -> cst.CSTNode:
        """The statement to run again, with targets that nobody reads afterwards as ``_``."""
        node = renamed(unit.node, self.named)
        if not isinstance(node, cst.Assign) or len(node.targets) != 1:
            return node
        target = node.targets[0].target
        if not isinstance(target, (cst.Tuple, cst.List)):
            return node
        needed = [touches(stored(e.value), self.read_later) for e in target.elements]
        value = node.value
        if isinstance(value, cst.Tuple) and len(value.elements) == len(needed) and any(needed):
            return _those(node, target, value, needed)
        elements = [
            e if wanted else e.with_changes(value=cst.Name("_"))
            for e, wanted in zip(target.elements, needed, strict=True)
        ]
        return node.with_changes(
            targets=[node.targets[0].with_changes(target=target.with_changes(elements=elements))]
        )

    def can_inline(self) -> bool:
        """Whether the one kept statement binds one name that is read once after the step."""
        if len(self.kept) != 1 or self.kept[0] is not self.again[0]:
            return False
        node = self.kept[0].node
        if not (isinstance(node, cst.Assign) and len(node.targets) == 1 and isinstance(node.value, cst.Call)):
            return False
        name = dotted(node.targets[0].target)
        reads = self._reads_of(name) if name is not None else []
        # (in a comprehension it would be computed for each element; a loss keeps its name)
        return len(reads) == 1 and not any(
            isinstance(x, (cst.BaseComp, cst.Lambda))
            or (isinstance(x, cst.Attribute) and x.value is reads[0][1] and x.attr.value == "backward")
            for x in self.view.ancestors(reads[0][1])
        )

    def inlined(self) -> tuple[str, str]:
        """The name that the one kept statement binds, and what it binds it to."""
        node = cst.ensure_type(self.kept[0].node, cst.Assign)
        return dotted(node.targets[0].target) or "", self.view.code(renamed(node.value, self.named))

    def later(self) -> tuple[Unit, ...]:
        """What runs behind the step until the backward, the moved statements first."""
        here = self.flat.index(self.until) + 1
        return (*self.moved, *self.flat[here : self.flat.index(self.backward) + 1])

    def _reads_of(self, name: str) -> list[tuple[Unit, cst.BaseExpression]]:
        return [(u, n) for u in self.later() for n in reads_of(u.node, name)]

    def _inlined(self) -> tuple[Edit, ...]:
        node = self.kept[0].node
        assert isinstance(node, cst.Assign)
        value, name = renamed(node.value, self.named), dotted(node.targets[0].target)
        assert name is not None
        ((unit, read),) = self._reads_of(name)
        lines = []
        for u in self.moved:
            line = lifted(u)
            if u is unit:
                (inner,) = reads_of(line, name)
                new = line.deep_replace(inner, value.deep_clone())
                assert isinstance(new, cst.BaseStatement)
                line = new
            lines.append(line)
        edits = self._placed(lines)
        if unit not in self.moved:
            edits = (*edits, Replace(read, lambda _: value.deep_clone()))
        return edits

    def cuts(self) -> tuple[tuple[View, Edit], ...]:
        """Detach the kept calls at the boundary: once the later backward has a graph of its own, the
        earlier one need not reach what its loss is not meant to train."""
        return tuple((f.view, self._cut(f.value)) for f in self.boundary())

    def _cut(self, value: cst.BaseExpression) -> Edit:
        if value in self.named:
            return Replace(value, lambda _: detached(cst.Name(self.named[value])))
        return detach(value)

    def boundary(self) -> tuple[Feed, ...]:
        """Where other models' values enter the kept calls, as far as earlier losses reach through them."""
        return entering(self.project, self.earlier(), self.view, [u.node for u in self.kept])

    def drops(self) -> tuple[tuple[View, tuple[Edit, ...]], ...]:
        """Drop retain_graph from the earlier backwards."""
        found: dict[int, tuple[View, tuple[Edit, ...]]] = {}
        for earlier in self.earlier():
            place = backward_call(self.project, earlier)
            edits = drop_retain(*place) if place else ()
            if place and edits:
                found[id(place[1])] = (place[0], edits)
        return tuple(found.values())

    def earlier(self) -> Iterator[Backward]:
        """The backwards of the same pass that walked nodes of this one before it."""
        return earlier(self.project, self.event)

    def draws(self) -> bool:
        """Whether what is run once more draws random numbers."""
        return any(draws(self.project, self.view, u.node, self.named) for u in self.kept)


def earlier(project: Project, event: Backward) -> Iterator[Backward]:
    """The backwards of the same pass that walked nodes of `event` before it."""
    mine = set(event.nodes)
    since = project.graph.pass_begin(event)
    for e in project.tape.events:
        if isinstance(e, Backward) and since < e.time < event.time and mine & set(e.nodes):
            yield e


def entering(
    project: Project, backwards: Iterable[Backward], view: View, nodes: Sequence[cst.CSTNode]
) -> tuple[Feed, ...]:
    """Where other models' values enter what is called in `nodes`, as far as the losses of `backwards` reach through
    them."""
    found: dict[tuple[str, int, int, int], Feed] = {}
    for backward in backwards:
        for crossing in crossings(project.graph, backward):
            for feed in feeds(project, crossing):
                if feed.view is view and any(inside(view, feed.value, n) for n in nodes):
                    found[feed.key] = feed
    return tuple(found.values())


def _those(
    node: cst.Assign, target: cst.Tuple | cst.List, value: cst.Tuple, needed: Sequence[bool]
) -> cst.Assign:
    """``a, b = f(x), g(x)`` with those alone that are needed: each has a value of its own."""
    targets = [e for e, wanted in zip(target.elements, needed, strict=True) if wanted]
    values = [e for e, wanted in zip(value.elements, needed, strict=True) if wanted]
    if len(values) == 1:
        (one,), (made,) = targets, values
        return node.with_changes(targets=[node.targets[0].with_changes(target=one.value)], value=made.value)
    last = cst.MaybeSentinel.DEFAULT
    both = [[*some[:-1], some[-1].with_changes(comma=last)] for some in (targets, values)]
    bound = node.targets[0].with_changes(target=target.with_changes(elements=both[0]))
    return node.with_changes(targets=[bound], value=value.with_changes(elements=both[1]))


def _bind(name: str, value: cst.CSTNode) -> cst.Assign:
    assert isinstance(value, cst.BaseExpression)
    return cst.Assign([cst.AssignTarget(cst.Name(name))], value.deep_clone())


class _Needed(cst.CSTTransformer):
    """Takes away what assigns names that nobody reads; a body keeps at least one line."""

    def __init__(self, read: frozenset[str]) -> None:
        super().__init__()
        self.read = read

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        kept = [
            line
            for line in updated_node.body
            if not isinstance(line, cst.SimpleStatementLine)
            or any(touches(names(small).writes, self.read) for small in line.body)
        ]
        kept = [
            x.with_changes(leading_lines=()) if isinstance(x, cst.SimpleStatementLine) else x for x in kept
        ]
        return updated_node.with_changes(body=kept or [line_of(cst.Pass())])


def inside(view: View, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether `node` is `outer` or lies in it."""
    return node is outer or any(x is outer for x in view.ancestors(node))
