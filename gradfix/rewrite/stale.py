"""What a step made stale that a later backward rests on, and the statements that have to be run again for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import libcst as cst

from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.rerun import ONCE, Plan, inside
from gradfix.rewrite.statements import Unit, common_block, names, touches, units, walk
from gradfix.tape import Backward, Mutate, Record, Stack, Step, Zero


def stale(project: Project, backward: Backward) -> tuple[tuple[Record, ...], Stack]:
    """The nodes of `backward`, made since its previous execution, whose saved tensors an optimizer's step
    overwrote, or else the script's own write to parameters (SAM's ascent), and the stack of the last such write;
    nothing and () where there are none."""
    by_step, by_hand = _overwritten(project, backward, True), _overwritten(project, backward, False)
    return by_step if by_step[0] else by_hand


def _overwritten(project: Project, backward: Backward, steps: bool) -> tuple[tuple[Record, ...], Stack]:
    graph = project.graph
    since = graph.pass_begin(backward)
    writes: dict[int, list[Mutate | Step]] = {}
    for e in graph.tape.events:
        if not since < e.time < backward.time:
            continue
        if isinstance(e, Mutate) and (e.optimizer is not None if steps else e.ref.storage in graph.owners):
            writes.setdefault(e.ref.storage, []).append(e)
        elif isinstance(e, Step) and steps:  # (of what is freed already no single write is kept)
            for ref in e.refs:
                writes.setdefault(ref.storage, []).append(e)
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


def _plain_branches(unit: Unit) -> bool:
    """Whether the unit is an ``if`` whose branches only assign."""
    if not isinstance(unit.node, cst.If):
        return False
    inner = list(walk(cst.Module([unit.node])))
    return bool(inner) and all(isinstance(u.node, cst.Assign) for u in inner)


def plan(project: Project, backward: Backward) -> Plan | None:
    """How to give `backward` a graph that no step has made stale; None where the body does not show it."""
    records, step = stale(project, backward)
    mixed, last = _of_stepped(project, backward)
    whole = tuple(dict.fromkeys((*records, *mixed)))
    goal = backward.stack
    found = _plan(project, backward, whole, step or last, goal) if len(whole) > len(records) else None
    found = found or _plan(project, backward, records, step, goal)
    if found is None and (goal := _taken_behind(project, backward, step)):
        return _plan(project, backward, records, step, goal)
    return found


def _taken_behind(project: Project, backward: Backward, step: Stack) -> Stack:
    """Where a stale value is taken behind the step in the function that steps, whose caller differentiates what it
    gives; () where that is nowhere."""
    graph, depth = project.graph, len(step) - 1
    stepped = max((e.time for e in graph.steps if e.stack == step and e.time < backward.time), default=None)
    if stepped is None or depth <= meeting(step, backward.stack):
        return ()
    known = [r for n in backward.nodes if (r := graph.records.get(n)) is not None]
    old = {r.node for r in known if r.time < stepped}
    takers = (r for r in known if r.time > stepped and not old.isdisjoint(r.parents))
    own = (r for r in takers if r.stack[:depth] == step[:depth] and len(r.stack) > depth)
    last = max(own, key=lambda r: r.time, default=None)
    return last.stack if last is not None else ()


def _of_stepped(project: Project, backward: Backward) -> tuple[tuple[Record, ...], Stack]:
    """The nodes of `backward`, made since its previous execution, that take in a parameter which has been stepped
    since, though nothing of it was saved (a first layer's weight): what is made of it alone again would mix parameters
    of before with those of after. With the stack of the last such step, as :func:`stale` gives it."""
    graph = project.graph
    since = graph.pass_begin(backward)
    stepped = {r.storage: s for s in graph.steps if since < s.time < backward.time for r in s.refs}
    records, last = [], None
    for node in backward.nodes:
        record = graph.records.get(node)
        if record is None or record.time < since:
            continue
        steps = [s for p in record.parents if p < 0 and (s := stepped.get(~p)) and s.time > record.time]
        if steps:
            records.append(record)
            last = max((*steps, *([last] if last else [])), key=lambda s: s.time)
    return tuple(records), last.stack if last else ()


def _plan(
    project: Project, backward: Backward, records: tuple[Record, ...], step: Stack, goal: Stack
) -> Plan | None:
    """The plan for what is to be fresh at `goal`."""
    depth = meeting(step, goal) if records else -1
    stepped, needed = frame(project, step, depth), frame(project, goal, depth)
    if depth < 0 or stepped is None or needed is None or stepped[0] is not needed[0]:
        return None
    view = stepped[0]
    block = common_block(view, stepped[1], needed[1])
    if block is None or any(meeting(r.stack, step, goal) != depth for r in records):
        return None
    made = [m[1] for r in records if (m := frame(project, r.stack, depth))]
    acting = _acting(project, view, backward, depth)
    around, flat = _flat(view, block, made, (stepped[1], needed[1]), acting)
    i, j = _find(view, flat, stepped[1]), _find(view, flat, needed[1])
    if i is None or j is None or not i < j:
        return None
    if goal is not backward.stack:  # of a statement that returns more than the loss, what the loss reads
        flat = (*flat[:j], replace(flat[j], names=names(needed[1])), *flat[j + 1 :])
    loop = flat[i]
    if isinstance(loop.node, (cst.For, cst.While)) and any(inside(view, m, loop.node) for m in made):
        # made and stepped in each pass of an inner loop: what its last pass leaves is made again behind it
        around, inner = _flat(view, loop.node.body, made, (stepped[1],), acting)
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
    moved = {w for n in again if n not in kept for w in flat[n].writes}
    anew, feeding = {w for n in again for w in flat[n].writes}, _feeding(flat, j)
    readers = (m for m in range(i + 1, j) if touches(flat[m].reads, anew if m in feeding else moved))
    within = (i, next(readers, j))
    written = i if looped else _last_written(project, view, flat, records, depth, backward, within)
    if not looped:
        written = _last_shown(flat, again, kept, (written, within[1]))
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
    """The last unit `within` two, a step and what reads of it, that writes, by hand, what the stale nodes have saved
    (a clip); the step's own where there is none."""
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


def _last_shown(
    flat: Sequence[Unit], again: Sequence[int], kept: Sequence[int], within: tuple[int, int]
) -> int:
    """The last unit `within` two that shows the value of before (prints the earlier loss) and nothing else; the first
    one where there is none."""
    first, last = within
    bound = {w for n in kept for w in flat[n].writes}
    taken = {r for n in again for r in flat[n].reads}
    readers = [n for n in range(first + 1, last) if touches(flat[n].reads, bound)]
    found = max(readers, default=first)
    return (
        first if any(touches(flat[n].writes, taken | bound) for n in range(first + 1, found + 1)) else found
    )


def _feeding(flat: Sequence[Unit], backward: int) -> set[int]:
    """Indexes of the units that what is differentiated at `backward` is made of."""
    wanted, needed = set(flat[backward].reads), set()
    for n in range(backward - 1, -1, -1):
        if touches(flat[n].writes, wanted):
            needed.add(n)
            if isinstance(flat[n].node, cst.Assign):  # what it was before is not wanted
                anew = flat[n].names.binds
                wanted = {w for w in wanted if not any(w == b or w.startswith(f"{b}.") for b in anew)}
            wanted |= flat[n].reads
    return needed


def _again(
    flat: Sequence[Unit], origins: set[int], step: int, backward: int
) -> tuple[list[int], list[int]] | None:
    """Indexes of the units to run after the step, and of those among them that also stay."""
    needed = _feeding(flat, backward)
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


def _acting(project: Project, view: View, backward: Backward, depth: int) -> frozenset[cst.CSTNode]:
    """The with-statements that step an optimizer or clear gradients where they are entered or left, since the pass of
    `backward` began: to enter one again does it again."""
    since = project.graph.pass_begin(backward)
    stacks = {
        e.stack
        for e in project.tape.events
        if isinstance(e, Step | Zero) and since < e.time < backward.time and depth + 1 < len(e.stack)
    }
    places = (frame(project, stack, depth) for stack in stacks)
    found = (p[1] for p in places if p is not None and p[0] is view)
    return frozenset(node for node in found if isinstance(node, cst.With))


def _flat(
    view: View,
    block: cst.CSTNode,
    made: Sequence[cst.CSTNode],
    ends: Sequence[cst.CSTNode],
    acting: Collection[cst.CSTNode],
) -> tuple[cst.With | None, tuple[Unit, ...]]:
    """The units of a body, those of one with-block that holds what was made among them, and that block, where it has to
    be entered again for them. A block of `acting` stands behind its own units, as what it does when it is left."""
    flat: list[Unit] = []
    around = None
    for unit in units(block):
        node, holds = unit.node, any(inside(view, n, unit.node) for n in made)
        if isinstance(node, cst.With) and holds and node in acting and not _ends_within(view, node, ends):
            head = names(node.with_changes(body=cst.IndentedBlock([])))
            flat += [*units(node.body), Unit(node, unit.line, head)]
        elif isinstance(node, cst.With) and holds and not any(inside(view, n, node) for n in ends):
            around = node
            flat += units(node.body)
        else:
            flat.append(unit)
    return around, tuple(flat)


def _ends_within(view: View, node: cst.With, ends: Sequence[cst.CSTNode]) -> bool:
    return any(inside(view, n, node.body) for n in ends)


def _find(view: View, flat: Sequence[Unit], node: cst.CSTNode) -> int | None:
    return next((n for n, u in enumerate(flat) if inside(view, node, u.node)), None)
