"""What has to be made again after an optimizer's step: which statements a later backward rests on that the
step made stale, which of them can move behind it, and which have to stay (the earlier loss needs them) and
be run once more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
    frame,
    meeting,
    same_place,
)
from gradfix.rewrite.calls import backward_call, drop_retain
from gradfix.rewrite.drawn import draws
from gradfix.rewrite.statements import (
    Unit,
    common_block,
    dotted,
    lifted,
    line_of,
    names,
    put_after,
    put_before,
    reads_of,
    renamed,
    stored,
    take_away,
    touches,
    units,
    walk,
)
from gradfix.tape import Backward, Mutate, Record, Stack
from gradfix.verdict import Effect

LATER = Effect("later-parameters", "the later loss is computed with the parameters as the step left them")
DRAW = Effect(
    "new-draw", "the later loss is computed with the stepped parameters and random numbers of its own"
)
ONCE = re.compile(r"\b(next|input|print|open)\(|\.(pop|popleft|append|next_batch|get_batch|write|log)\(")


def stale(project: Project, backward: Backward) -> tuple[tuple[Record, ...], Stack]:
    """The nodes of `backward`, made since its previous execution, whose saved tensors an optimizer's step
    overwrote, or else the script's own write to parameters (SAM's ascent), and the stack of the last such write;
    nothing and () where there are none."""
    by_step, by_hand = _overwritten(project, backward, True), _overwritten(project, backward, False)
    return by_step if by_step[0] else by_hand


def _overwritten(project: Project, backward: Backward, steps: bool) -> tuple[tuple[Record, ...], Stack]:
    graph = project.graph
    since = max((b.time for b in same_place(graph, backward) if b.time < backward.time), default=-1)
    writes: dict[int, list[Mutate]] = {}
    for e in graph.tape.events:
        if not isinstance(e, Mutate) or not since < e.time < backward.time:
            continue
        if e.optimizer is not None if steps else e.ref.storage in graph.owners:
            writes.setdefault(e.ref.storage, []).append(e)
    records, last = [], None
    for node in backward.nodes:
        record = graph.records.get(node)
        if record is None or record.time < since:
            continue
        hits = [w for ref in record.saves for w in writes.get(ref.storage, ()) if w.time > record.time]
        if hits:
            records.append(record)
            last = max((*hits, *([last] if last else [])), key=lambda w: w.time)
    return tuple(records), last.stack if last else ()


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
        moved = [e for unit in self.moved for e in take_away(unit, self.view)]
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
        elements = [
            e if touches(stored(e.value), self.read_later) else e.with_changes(value=cst.Name("_"))
            for e in target.elements
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
        # (in a comprehension it would be computed for each element)
        return len(reads) == 1 and not any(
            isinstance(x, (cst.BaseComp, cst.Lambda)) for x in self.view.ancestors(reads[0][1])
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
        found: dict[tuple[str, int, int, int], Feed] = {}
        for earlier in self.earlier():
            for crossing in crossings(self.project.graph, earlier):
                for feed in feeds(self.project, crossing):
                    if feed.view is self.view and any(
                        inside(self.view, feed.value, u.node) for u in self.kept
                    ):
                        found[feed.key] = feed
        return tuple(found.values())

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
        mine = set(self.event.nodes)
        since = max(
            (b.time for b in same_place(self.project.graph, self.event) if b.time < self.event.time),
            default=-1,
        )
        for e in self.project.tape.events:
            if isinstance(e, Backward) and since < e.time < self.event.time and mine & set(e.nodes):
                yield e

    def draws(self) -> bool:
        """Whether what is run once more draws random numbers."""
        return any(draws(self.project, self.view, u.node, self.named) for u in self.kept)


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


def _plain_branches(unit: Unit) -> bool:
    """Whether the unit is an ``if`` whose branches only assign."""
    if not isinstance(unit.node, cst.If):
        return False
    inner = list(walk(cst.Module([unit.node])))
    return bool(inner) and all(isinstance(u.node, cst.Assign) for u in inner)


def plan(project: Project, backward: Backward) -> Plan | None:
    """How to give `backward` a graph that no step has made stale; None where the body does not show it."""
    records, step = stale(project, backward)
    whole = tuple(dict.fromkeys((*records, *_of_stepped(project, backward))))
    found = _plan(project, backward, whole, step) if len(whole) > len(records) else None
    return found or _plan(project, backward, records, step)


def _of_stepped(project: Project, backward: Backward) -> Iterator[Record]:
    """The nodes of `backward`, made since its previous execution, that take in a parameter which has been stepped
    since, though nothing of it was saved (a first layer's weight): what is made of it alone again would mix parameters
    of before with those of after."""
    graph = project.graph
    since = max((b.time for b in same_place(graph, backward) if b.time < backward.time), default=-1)
    stepped = {r.storage: s.time for s in graph.steps if since < s.time < backward.time for r in s.refs}
    for node in backward.nodes:
        record = graph.records.get(node)
        if record is None or record.time < since:
            continue
        if any(p < 0 and stepped.get(~p, -1) > record.time for p in record.parents):
            yield record


def _plan(project: Project, backward: Backward, records: tuple[Record, ...], step: Stack) -> Plan | None:
    depth = meeting(step, backward.stack) if records else -1
    stepped, needed = frame(project, step, depth), frame(project, backward.stack, depth)
    if depth < 0 or stepped is None or needed is None or stepped[0] is not needed[0]:
        return None
    view = stepped[0]
    block = common_block(view, stepped[1], needed[1])
    if block is None or any(meeting(r.stack, step, backward.stack) != depth for r in records):
        return None
    made = [m[1] for r in records if (m := frame(project, r.stack, depth))]
    around, flat = _flat(view, block, made, (stepped[1], needed[1]))
    i, j = _find(view, flat, stepped[1]), _find(view, flat, needed[1])
    if i is None or j is None or not i < j:
        return None
    loop = flat[i]
    if isinstance(loop.node, (cst.For, cst.While)) and any(inside(view, m, loop.node) for m in made):
        # made and stepped in each pass of an inner loop: what its last pass leaves is made again behind it
        around, inner = _flat(view, loop.node.body, made, (stepped[1],))
        flat, i, j = (*inner, *flat[i + 1 : j + 1]), len(inner) - 1, len(inner) + j - i - 1
    origins = {_find(view, flat, m) for m in made}
    if None in origins or not origins:
        return None
    found = _again(flat, {o for o in origins if o is not None}, i, j)
    if found is None:
        return None
    again, kept = found
    if any(ONCE.search(view.code(flat[n].node)) for n in kept):
        return None  # reads data or writes a log: not to be done twice
    at = _find(view, flat, stepped[1])
    if at is None:
        return None
    looped = flat[i] is not loop
    written = i if looped else _last_written(project, view, flat, records, depth, backward, (i, j))
    moved = {w for n in again if n not in kept for w in flat[n].writes}
    while written > i and any(touches(flat[m].reads, moved) for m in range(i + 1, written + 1)):
        written -= 1
    return Plan(
        project,
        view,
        flat,
        flat[at],
        flat[i],
        loop if looped else flat[written],
        flat[j],
        tuple(flat[n] for n in again),
        tuple(flat[n] for n in kept),
        around,
        backward,
    )


def _last_written(
    project: Project,
    view: View,
    flat: Sequence[Unit],
    records: Sequence[Record],
    depth: int,
    backward: Backward,
    within: tuple[int, int],
) -> int:
    """The last unit between a step and a backward that writes, by hand, what the stale nodes have saved (a clip);
    the step's own where there is none."""
    first, last = within
    saved = {ref.storage for r in records for ref in r.saves}
    found = first
    for e in project.tape.events:
        if not isinstance(e, Mutate) or e.optimizer is not None or e.ref.storage not in saved:
            continue
        if records[0].time < e.time < backward.time and meeting(e.stack, backward.stack) == depth:
            place = frame(project, e.stack, depth)
            index = _find(view, flat, place[1]) if place is not None and place[0] is view else None
            if index is not None and first < index < last:
                found = max(found, index)
    return found


def _again(
    flat: Sequence[Unit], origins: set[int], step: int, backward: int
) -> tuple[list[int], list[int]] | None:
    """Indexes of the units to run after the step, and of those among them that also stay."""
    wanted, needed = set(flat[backward].reads), set()
    for n in range(backward - 1, -1, -1):
        if touches(flat[n].writes, wanted):
            needed.add(n)
            wanted |= flat[n].reads
    if not origins <= needed:
        return None
    again: list[int] = []
    dirty: set[str] = set()
    for n in range(step):
        if n in origins or (n in needed and touches(flat[n].reads, dirty)):
            again.append(n)
            dirty |= flat[n].writes
    if not again or any(
        (isinstance(flat[n].node, cst.BaseCompoundStatement) and not _plain_branches(flat[n]))
        or not flat[n].writes
        for n in again
    ):
        return None
    kept: set[int] = set()
    while True:
        grown = {
            n
            for n in again
            if any(
                touches(flat[m].reads, flat[n].writes) and (m not in again or m in kept)
                for m in range(n + 1, step + 1)
            )
        }
        if grown == kept:
            break
        kept = grown
    if any(isinstance(flat[n].node, cst.AugAssign) for n in kept):
        return None
    moved = [n for n in again if n not in kept]
    for n in moved:  # what a moved statement reads must not be bound anew on its way
        if any(touches(flat[m].writes, flat[n].reads) for m in range(n + 1, step + 1) if m not in again):
            return None
    return again, sorted(kept)


def _flat(
    view: View, block: cst.CSTNode, made: Sequence[cst.CSTNode], ends: Sequence[cst.CSTNode]
) -> tuple[cst.With | None, tuple[Unit, ...]]:
    """The units of a body, those of one with-block that holds what was made among them."""
    flat: list[Unit] = []
    around = None
    for unit in units(block):
        holds = any(inside(view, n, unit.node) for n in made)
        if isinstance(unit.node, cst.With) and holds and not any(inside(view, n, unit.node) for n in ends):
            around = unit.node
            flat += units(unit.node.body)
        else:
            flat.append(unit)
    return around, tuple(flat)


def _find(view: View, flat: Sequence[Unit], node: cst.CSTNode) -> int | None:
    return next((n for n, u in enumerate(flat) if inside(view, node, u.node)), None)


def inside(view: View, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
    """Whether `node` is `outer` or lies in it."""
    return node is outer or any(x is outer for x in view.ancestors(node))
