"""Take every gradient of a pass before any step, each into the parameters it is meant for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.attacks import leaf_of
from gradfix.detect.opposed import meant_for
from gradfix.detect.terms import has_idle_term
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.behind import DRIVES, Guarded, along, calls, guarded, harmless
from gradfix.rewrite.boundary import OWN, frame, gather, meeting
from gradfix.rewrite.calls import backward_call, says, with_arguments
from gradfix.rewrite.liveness import dotted, scope_of
from gradfix.rewrite.passes import inputs_of, overlap, sharing, stepped_with, trained
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import (
    Block,
    Unit,
    block_of,
    common_block,
    names,
    put_after,
    shown,
    stored,
    take_all_away,
    take_away,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Backward, Record, Step, Zero
from gradfix.verdict import NONE
from gradfix.wording import listed


class BackwardInputs(Codemod):
    """Run the backwards of one forward pass before the steps, with `inputs=` for what each loss trains.

    Why: several losses over one forward pass are right together only if no parameter changes between their
    backwards. Moving the steps behind the last backward does that; `inputs=list(model.parameters())` keeps
    each loss out of the other's gradients, which "both backwards, then both steps" alone does not.

    When not: where the later loss is meant to see the updated model, as in the usual order of a GAN
    (`recompute-after-step`).
    """

    kinds = ("stale-saved-tensor", "freed-graph", "mixed-gradient", "silent-overwrite")
    effects = ("none", "cut-own-loss")

    examples = (
        Example(
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    score = D(G(torch.randn(4, 2))).mean()
    opt_d.zero_grad()
    score.backward(retain_graph=True)
    opt_d.step()  # conflict: stale-saved-tensor
    opt_g.zero_grad()
    (-score).backward()
    opt_g.step()
""",
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    score = D(G(torch.randn(4, 2))).mean()
    opt_d.zero_grad()
    score.backward(retain_graph=True, inputs=list(D.parameters()))
    opt_g.zero_grad()
    (-score).backward(inputs=list(G.parameters()))
    opt_d.step()  # conflict: stale-saved-tensor
    opt_g.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.backward is None:
            return
        if conflict.pattern == "attack":
            yield from _of_the_input(conflict, project)
            return
        if conflict.kind == "mixed-gradient":
            yield from _restricted(conflict, project)
            return
        if has_idle_term(project.graph, conflict.backward):
            return  # (it would be kept from training anything)
        if conflict.record is not None and not _wants(project, conflict.backward, conflict.record):
            yield from _spared(conflict, project)
        found = _together(project, conflict.backward, conflict.event)
        if found is not None:
            yield from found


def _wants(project: Project, backward: Backward, record: Record) -> bool:
    """Whether the gradient of anything that the backward trains flows through what `record` made."""
    graph = project.graph
    wanted = {r.storage for k in graph.serves(backward) for r in graph.optimizers[k].refs}
    return not wanted or bool(graph.reaches(record.node) & wanted)


def _spared(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """`inputs=` on the backward that would walk through what was overwritten for gradients that nobody steps with."""
    assert conflict.backward is not None
    place = backward_call(project, conflict.backward)
    if place is None or says(place[1], "inputs"):
        return
    backward = conflict.backward
    inputs = inputs_of(project, *place, trained(project, backward, [backward]))
    if inputs is not None:
        edits = gather((place[0], [with_arguments(place[1], {"inputs": inputs})]))
        plain = _of_models(inputs)  # and no roundabout way of saying it
        said = "restrict the backward to the parameters it trains"
        yield Proposal(said, OWN, edits, 1 if plain else 4, last_resort=not plain)


def _of_models(inputs: cst.BaseExpression) -> bool:
    """Whether it says ``list(net.parameters())``, or ``[*a.parameters(), *b.parameters()]`` of several."""
    if not isinstance(inputs, cst.List):
        return isinstance(inputs, cst.Call)
    values = [e.value for e in inputs.elements if isinstance(e, cst.StarredElement)]
    calls = [v for v in values if isinstance(v, cst.Call) and function_of(v) == "parameters"]
    return len(calls) == len(inputs.elements)


def _of_the_input(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """`inputs=` on a backward that is there for the gradient of an input: that alone."""
    attack = conflict.earlier
    use = leaf_of(project.graph, attack) if attack is not None else None
    place = backward_call(project, attack) if attack is not None else None
    read = project.node(use.stack[-1]) if use is not None and use.stack else None
    if place is None or read is None or says(place[1], "inputs") or place[0] is not read[0]:
        return
    view, call = place
    wanted = {
        view.code(n.value): n.value
        for n in (read[1], *descendants(read[1]))
        if isinstance(n, cst.Attribute) and n.attr.value == "grad" and dotted(n.value)
    }
    if len(wanted) != 1 or scope_of(view, read[1]) is not scope_of(view, call):
        return
    code, leaf = next(iter(wanted.items()))
    edit = with_arguments(call, {"inputs": cst.List([cst.Element(leaf)])})
    yield Proposal(f"restrict the backward to `{code}`", OWN, gather((view, [edit])), 1)


def _restricted(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """`inputs=` alone, on each backward that fills another's gradients."""
    assert conflict.backward is not None
    group, own = sharing(project, conflict.backward), meant_for(project.graph, conflict)
    named = [b for b in (conflict.earlier, conflict.backward) if b is not None]
    ways = (tuple({b.time: b for b in (*group, *named)}.values()), tuple(named), named[:1])
    for rank, some in enumerate(ways, int(conflict.pattern == "left-over")):  # (what is left can be cleared)
        parts = []
        for b in some:
            place = backward_call(project, b)
            mine = own.get(b.stack) or trained(project, b, group)
            if place is None or says(place[1], "inputs") or _keeps_to_itself(project, b, mine, group):
                continue
            inputs = inputs_of(project, *place, mine)
            if inputs is None:
                continue
            parts.append((place[0], [with_arguments(place[1], {"inputs": inputs})]))
        if parts:
            yield Proposal("restrict each backward to the parameters it trains", OWN, gather(*parts), rank)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A backward with its statement in the body, the call itself in the same place or in a function called there."""

    event: Backward
    view: View
    call: cst.Call
    index: int


def _together(project: Project, backward: Backward, culprit: object) -> Iterator[Proposal] | None:
    """All backwards first, then all steps."""
    group = sharing(project, backward)
    if isinstance(culprit, Step):  # its own loss may share no graph with the one that it comes too early for
        both = {b.time: b for b in (*group, *stepped_with(project, backward, culprit))}
        group = tuple(b for _, b in sorted(both.items()))
    if len({b.stack for b in group}) != len(group) or len(group) < 2:
        return None
    first, last = group[0], group[-1]
    steps = [e for e in project.tape.events if isinstance(e, Step) and first.time < e.time < last.time]
    if not steps:
        return None
    depth = meeting(*(b.stack for b in group), *(s.stack for s in steps))
    if depth < 0:
        return None
    return _moved(project, group, steps, _clearing(project, steps, last), depth)


def _clearing(project: Project, steps: Sequence[Step], last: Backward) -> tuple[Zero, ...]:
    """What clears, before the last backward, gradients that a step put behind it would need."""
    found: dict[int, Zero] = {}
    for step in steps:
        stepped = {r.storage for r in step.refs}
        for e in project.tape.events:
            pending = isinstance(e, Zero) and step.time < e.time < last.time
            if isinstance(e, Zero) and pending and stepped & {r.storage for r in e.refs}:
                found[e.time] = e
    return tuple(found.values())


def _moved(
    project: Project, group: Sequence[Backward], steps: Sequence[Step], zeros: Sequence[Zero], depth: int
) -> Iterator[Proposal] | None:
    calls = [backward_call(project, b) for b in group]
    found = [frame(project, e.stack, depth) for e in (*group, *steps, *zeros)]
    view = found[0][0] if found[0] else None
    if view is None or None in calls or any(p is None or p[0] is not view for p in found):
        return None
    nodes = [p[1] for p in found if p]
    stepping, clears = nodes[len(group) : len(group) + len(steps)], nodes[len(group) + len(steps) :]
    block = common_block(view, *nodes[: len(group)], *stepping)
    if block is None:
        return None
    body = units(block)
    placed = [
        _Placed(b, *c, n)
        for b, c, node in zip(group, calls, nodes, strict=False)
        if c and (n := unit_in(view, block, node)) is not None
    ]
    end = max((p.index for p in placed), default=-1)
    if len(placed) != len(group) or end < 0:
        return None
    if {unit_in(view, block, node) for node in stepping} & {p.index for p in placed}:
        return None  # one statement does both: their order is all there is (`reorder-updates`)
    early = [guarded(view, block, node) for node in dict.fromkeys(stepping)]
    clearing = [guarded(view, block, node) for node in clears]
    chosen = [g for g in early if g is not None]
    cleared = {id(g.unit.node): g for g in clearing if g is not None}
    if not chosen or len(chosen) != len(early) or None in clearing:
        return None
    between = frozenset().union(*(u.writes for u in body[: end + 1]))
    if any(
        g.test is not None and touches(names(g.test).reads, between - _before(body, placed)) for g in chosen
    ):
        return None  # the condition may be another one by then
    # what clears no more than has been stepped goes along; the rest goes for good
    own = [
        g
        for z, g in zip(zeros, clearing, strict=False)
        if g is not None
        and any({r.storage for r in z.refs} <= {r.storage for r in s.refs + s.without} for s in steps)
    ]
    moving = [*chosen, *{id(g.unit.node): g for g in own}.values()]
    gone = [g.unit for key, g in cleared.items() if key not in {id(g.unit.node) for g in own}]
    ways = [_behind(view, block, placed, moving), _behind(view, block, placed, moving, alone=True)]
    if ways[0] is None:
        return None
    proposals = (
        _proposal(project, view, placed, chosen, way, gone, body[end], rank)
        for rank, way in enumerate(ways)
        if way is not None and (rank == 0 or len(way) < len(ways[0] or ()))
    )
    return (p for several in proposals for p in several)


def _behind(
    view: View, block: Block, placed: Sequence[_Placed], moving: Sequence[Guarded], alone: bool = False
) -> tuple[Guarded, ...] | None:
    """What is put behind the last backward, in order: the statements in `moving`, and, unless they go `alone`, what
    may have to see the parameters as the steps leave them. (What it does may as well be meant for the backward: to
    freeze a part, say.)"""
    body = units(block)
    at = {id(g): n for g in moving if (n := unit_in(view, block, g.unit.node)) is not None}
    loop = view.loop(body[placed[0].index].node)
    bound = {w for u in body for w in u.writes if "." not in w}
    bound |= stored(loop.target) if isinstance(loop, cst.For) else set()
    for g in moving:
        inner = units(block_of(view, g.unit.node) or cst.Module([])) if g.test is not None else ()
        rest = inner[[u.node for u in inner].index(g.unit.node) + 1 :] if inner else ()
        if any(not calls(u.node, DRIVES) and not harmless(u.node, bound) for u in rest):
            return None
    first, last = min(at.values()), max(p.index for p in placed)
    own = {at[id(g)] for g in moving if g.test is None}
    fixed = {p.index for p in placed} | {
        n for n, u in enumerate(body) if n not in own and calls(u.node, DRIVES)
    }
    others = frozenset[int]() if alone else along(body, first, last, own, fixed, bound)
    if others is None:
        return None
    for g in (g for g in moving if g.test is not None):
        stay = (body[m] for m in range(at[id(g)] + 1, last + 1) if m not in own and m not in others)
        if any(touches(u.writes, g.unit.reads) for u in stay):
            return None  # a scaler that is updated between its steps
    several = [(at[id(g)], g) for g in _whole(view, body, moving, at)] + [
        (n, Guarded(body[n])) for n in others
    ]
    return tuple(g for _, g in sorted(several, key=lambda item: item[0]))


def _whole(
    view: View, body: Sequence[Unit], moving: Sequence[Guarded], at: dict[int, int]
) -> Iterator[Guarded]:
    """The statements in `moving`; the ``if`` itself for those of one that moves as a whole."""
    for n in dict.fromkeys(at[id(g)] for g in moving):
        some = [g for g in moving if at[id(g)] == n]
        inner = units(block_of(view, some[0].unit.node) or cst.Module([])) if some[0].test is not None else ()
        if inner and {id(u.node) for u in inner} == {id(g.unit.node) for g in some}:
            some = [Guarded(body[n])]
            at[id(some[0])] = n
        yield from some


def _before(body: Sequence[Unit], placed: Sequence[_Placed]) -> frozenset[str]:
    """Names that are bound before the first backward, and by nothing between it and the last."""
    first, end = min(p.index for p in placed), max(p.index for p in placed)
    later = frozenset().union(*(u.writes for u in body[first : end + 1]))
    return frozenset().union(*(u.writes for u in body[:first])) - later


def _keeps_to_itself(
    project: Project, backward: Backward, mine: frozenset[int], group: Sequence[Backward]
) -> bool:
    """Whether a backward fills no gradients but those of the parameters it trains, of the optimizers `mine`: the others
    may be frozen, or cleared before anybody steps with them."""
    graph = project.graph
    used = graph.uses(backward).union(*(trained(project, b, group) for b in group)) - mine
    own, others = ({r.storage for k in some for r in graph.optimizers[k].refs} for some in (mine, used))
    return not (others - own) & {r.storage for r in backward.accumulates}


def _proposal(
    project: Project,
    view: View,
    placed: Sequence[_Placed],
    early: Sequence[Guarded],
    behind: Sequence[Guarded],
    clearing: Sequence[Unit],
    end: Unit,
    rank: int,
) -> Iterator[Proposal]:
    steps = ", ".join(f"`{shown(view, g.unit.node)}`" for g in early)
    around = {id(x) for g in early for x in (g.unit.node, *view.ancestors(g.unit.node))}
    others = [f"`{shown(view, g.unit.node)}`" for g in behind if id(g.unit.node) not in around]
    moved = take_all_away((g.unit for g in behind), view)
    moved += [e for unit in clearing for e in take_away(unit, view, comments=True)]
    moved.append(put_after(end, *(g.line() for g in behind)))
    restricted: list[tuple[View, list[Edit | None]]] = []
    kept: list[tuple[View, list[Edit | None]]] = []
    restrained = False
    every = [p.event for p in placed]
    for n, p in enumerate(placed):
        put: dict[str, cst.BaseExpression] = {}
        mine = trained(project, p.event, every)
        if not says(p.call, "inputs") and not _keeps_to_itself(project, p.event, mine, every):
            inputs = inputs_of(project, p.view, p.call, mine)
            if inputs is None:
                return
            put, restrained = {"inputs": inputs}, True
        keep, drop = _retaining(p, placed, last=n == len(placed) - 1)
        if keep:
            kept.append((p.view, [with_arguments(p.call, keep)]))
        if keep or put or drop:
            restricted.append((p.view, [with_arguments(p.call, {**keep, **put}, drop)]))
    summary = f"take every gradient before {steps}"
    if restrained:
        summary += ", each into its own parameters"
    if others:
        summary += f"; what sees the stepped parameters goes along ({listed(others)})"
    # Where the boundary can be detached, or the later loss be made behind the step, that is the field's way.
    mixed = any(project.graph.uses(b) - trained(project, b, every) for b in every)
    effect = (
        OWN if mixed else NONE
    )  # (what another optimizer would have stepped with is no part of it any more)
    yield Proposal(summary, effect, gather(*restricted, (view, moved)), 2 + rank, last_resort=True)
    if clearing or rank:
        return
    # The plain reorder is in real repositories: shown with what it does to the other gradients.
    yield Proposal(f"only move {steps} behind the last backward", NONE, gather(*kept, (view, moved)), 9)


def _retaining(
    this: _Placed, placed: Sequence[_Placed], last: bool
) -> tuple[dict[str, cst.BaseExpression], tuple[str, ...]]:
    """The ``retain_graph`` to put into a backward's call, and what to drop: all but the last keep what is shared. A
    variable that says so already is for other callers, too."""
    said = says(this.call, "retain_graph")
    if not any(overlap(this.event, other.event) for other in placed if other is not this):
        return {}, ()
    if last:
        return {}, ("retain_graph",) if said == "True" else ()
    if said == "True" or (said and this.event.retain):
        return {}, ()
    return {"retain_graph": cst.Name("True")}, ()
