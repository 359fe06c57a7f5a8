"""Detach the value that carries one model's graph into another model's loss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.terms import has_idle_term
from gradfix.edit import Edit, Project, Replace, View, exchange
from gradfix.graph import Crossing, Graph
from gradfix.rewrite.boundary import (
    OWN,
    SHAPES,
    Feed,
    cleared,
    crossings,
    detach,
    detached,
    feeds,
    frame,
    gather,
    meeting,
    operands,
    pass_end,
    shape_of,
    shared,
)
from gradfix.rewrite.calls import backward_call, drop_retain, loss_of, taken_as
from gradfix.rewrite.dropped import without
from gradfix.rewrite.liveness import statement_before
from gradfix.rewrite.spelling import unused
from gradfix.rewrite.stale import plan
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    body_of,
    common_block,
    dotted,
    line_of,
    names,
    put_before,
    reads_of,
    shown,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward, Record, Stack
from gradfix.verdict import NONE


class DetachBoundary(Codemod):
    """Detach what one model hands to another in the pass whose loss trains only the other.

    Why: the discriminator's loss has no business in the generator: its gradients there are thrown away at
    best, and at worst free the generator's graph before the generator's own loss needs it, or are added to
    its step. The field's idiom is `D(fake.detach())` in the discriminator's pass, at the call, so that the
    generator's pass keeps its graph.

    When not: where one optimizer steps both models with that loss (chained parameters), or where the
    detached output is used by the generator's loss as well: it would learn nothing, without a word.
    """

    kinds = ("freed-graph", "stale-saved-tensor", "wasted-backward", "mixed-gradient")
    effects = ("none", "cut-own-loss")

    examples = (
        Example(
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    fake = G(torch.randn(4, 2))
    loss_d = D(fake).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = -D(fake).mean()
    opt_g.zero_grad()
    loss_g.backward()  # conflict: freed-graph
    opt_g.step()
""",
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    fake = G(torch.randn(4, 2))
    loss_d = D(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()
    loss_g = -D(fake).mean()
    opt_g.zero_grad()
    loss_g.backward()  # conflict: freed-graph
    opt_g.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.kind == "wasted-backward" and conflict.pattern != "discarded":
            return
        if conflict.backward is not None and has_idle_term(project.graph, conflict.backward):
            return  # (its graph would be cut once more)
        seen: set[tuple[tuple[str, int, int, int], ...]] = set()
        for backward in filter(None, (conflict.earlier, conflict.backward)):
            edges = crossings(project.graph, backward)
            own = [c for c in edges if not _shared(project, backward, c)]
            for found in _choices(project, own, backward):
                key = tuple(sorted(f.key for f in found))
                if key not in seen:
                    seen.add(key)
                    stored = _stored(project, backward, found)
                    if stored:
                        yield from _proposals(project, backward, own, stored)
                    later = conflict.pattern == "before-loop" or bool(stored)
                    yield from _proposals(project, backward, own, found, later)
            if inner := _in_the_helper(project, own, backward):
                yield from _proposals(project, backward, own, inner, conflict.pattern == "before-loop")
            yield from _separated(project, backward, [c for c in edges if c not in own])
        yield from _together(project, conflict)
        yield from _handed_down(project, conflict)
        if conflict.backward is not None and conflict.severity == "error":
            yield from _given_up(project, conflict.backward)


def _together(project: Project, conflict: Conflict) -> Iterator[Proposal]:
    """What several models' losses take of another model, where each of them frees its graph for the next: detached for
    all of them. They are those of one pass, or the passes of a loop over losses are."""
    needed, graph = conflict.backward, project.graph
    if conflict.kind != "freed-graph" or needed is None:
        return
    round_ = _rounds_losses(graph, needed)
    since = graph.pass_begin(needed)
    end, walk = pass_end(graph, needed), graph.walk(needed)
    cuts: dict[tuple[str, int, int, int], Feed] = {}
    drops: list[tuple[View, tuple[Edit, ...]]] = []
    quiet, several = True, 0
    for backward in round_ or (graph.backwards if conflict.pattern == "two-losses" else ()):
        if round_ or (since < backward.time < end and walk & graph.walk(backward)):
            edges = [c for c in crossings(graph, backward) if not _shared(project, backward, c)]
            taken = [f for edge in edges for f in feeds(project, edge, backward)]
            cuts.update((f.key, f) for f in taken)
            several += bool(taken)
            quiet &= cleared(graph, backward, set().union(*(graph.reaches(c.producer.node) for c in edges)))
            drops += _idle(project, backward, edges)
    if several > 1:
        said = ", ".join(dict.fromkeys(f"`{f.view.code(f.value).strip()}`" for f in cuts.values()))
        edits = gather(*((f.view, [_cut(f, project)]) for f in cuts.values()), *drops)
        yield Proposal(f"detach {said} for each of the other models' losses", NONE if quiet else OWN, edits)


def _rounds_losses(graph: Graph, needed: Backward) -> tuple[Backward, ...]:
    """The passes of one round through a loop over losses that share a graph, each with optimizers of its own; none
    where two are for the same."""
    nodes, found = set(graph.walk(needed)), [needed]
    for one in sorted(graph.passes(needed), key=lambda b: abs(b.time - needed.time)):
        if one is not needed and nodes & graph.walk(one):
            nodes |= graph.walk(one)
            found.append(one)
    served = [graph.serves(b) for b in found]
    apart = all(served) and sum(map(len, served)) == len(frozenset().union(*served))
    return tuple(sorted(found, key=lambda b: b.time)) if len(found) > 2 and apart else ()


def _handed_down(project: Project, conflict: Conflict) -> Iterator[Proposal]:
    """What the first loss has trained is data to the second, which trains nothing of it: detached where the second
    begins with it (an actor that is trained on from the states of a model)."""
    first, second, graph = conflict.earlier, conflict.backward, project.graph
    if conflict.pattern != "two-losses" or first is None or second is None or first.stack == second.stack:
        return
    old, own = graph.walk(first), graph.owned_mask(graph.serves(second))
    takers: dict[Stack, Record] = {}
    for node in sorted(graph.walk(second) - old):
        record = graph.records.get(node)
        if record is None or old.isdisjoint(record.parents):
            continue
        if not old.issuperset(record.parents) or graph.reach_mask(node) & own:
            return  # it is made of something else besides
        takers[record.stack] = record
    cuts: dict[int, tuple[View, cst.BaseExpression]] = {}
    for record in takers.values():
        place = frame(project, record.stack, meeting(record.stack, second.stack))
        if place is None or not isinstance(place[1], cst.BaseExpression):
            return
        cuts[id(place[1])] = (place[0], place[1])
    if cuts:
        storages = set().union(*(graph.reaches(r.node) for r in takers.values()))
        effect = NONE if cleared(graph, second, storages) else OWN
        named = ", ".join(f"`{shown(view, node)}`" for view, node in cuts.values())
        edits = gather(*((view, [detach(node)]) for view, node in cuts.values()))
        yield Proposal(f"detach {named}: data to the later loss", effect, edits, 1)


def _shared(project: Project, backward: Backward, crossing: Crossing) -> bool:
    others = shared(project.graph, backward, crossing.consumer.node)
    return any(b.stack != backward.stack for b in others)


def _choices(project: Project, edges: Sequence[Crossing], backward: Backward) -> Iterator[tuple[Feed, ...]]:
    """Sets of expressions to detach: all of them together; where a call takes several values that may
    carry the graph, each alone too."""
    found: dict[tuple[str, int, int, int], Feed] = {}
    several: list[tuple[Feed, ...]] = []
    for edge in edges:
        options = feeds(project, edge, backward)
        found.update((f.key, f) for f in options)
        if len(options) > 1:
            several.append(options)
    if found:
        yield tuple(found.values())
    for option in chain.from_iterable(several[:1]):
        yield (option,)


def _in_the_helper(project: Project, edges: Sequence[Crossing], backward: Backward) -> tuple[Feed, ...]:
    """Where a function that several calls hand their values to (a discriminator's pass, for each of them) takes what
    it was handed; nothing where one of the edges shows no such function."""
    found: dict[tuple[str, int, int, int], Feed] = {}
    for edge in edges:
        inner = [_handed_on(project, edge.consumer.stack, f) for f in feeds(project, edge, backward)]
        if None in inner or not inner:
            return ()
        found.update((f.key, f) for f in inner if f is not None)
    return tuple(found.values())


def _handed_on(project: Project, stack: Stack, feed: Feed) -> Feed | None:
    """The parameter that the function called with the feed's value hands on to the next call, as it is."""
    depth = next(
        (k for k in range(len(stack) - 1) if (p := frame(project, stack, k)) and p[1] is feed.into), None
    )
    within = frame(project, stack, depth + 1) if depth is not None else None
    function = within[0].function(within[1]) if within is not None else None
    if depth is None or within is None or not isinstance(function, cst.FunctionDef):
        return None
    callers = {
        r.stack[n - 1]
        for r in project.graph.records.values()
        for n, site in enumerate(r.stack)
        if n and (site.file, site.function) == (stack[depth + 1].file, stack[depth + 1].function)
    }
    name = taken_as(feed.into, feed.value, function, within[0])
    read = [o for o in operands(within[1]) if dotted(o) == name]
    return Feed(within[0], read[0], within[1]) if name and len(callers) > 1 and len(read) == 1 else None


def _stored(project: Project, backward: Backward, found: tuple[Feed, ...]) -> tuple[Feed, ...]:
    """What the calls that give the values are given themselves, where in some pass they give values of earlier passes,
    too: what a pool keeps is kept without its graph."""
    records = project.graph.records
    passes = pairwise(project.graph.passes(backward))
    if not any(n in records and records[n].time < before.time for before, b in passes for n in b.nodes):
        return ()
    calls = [(f.view, _made_by(f.view, f.value)) for f in found]
    given = [(view, c, list(operands(c))) for view, c in calls if isinstance(c, cst.Call)]
    whole = len(given) == len(found) and all(len(taken) == 1 for _, _, taken in given)
    return tuple(Feed(view, taken[0], call) for view, call, taken in given) if whole else ()


def _made_by(view: View, value: cst.BaseExpression) -> cst.BaseExpression:
    """What the nearest statement before binds a name to; else `value` itself."""
    name = dotted(value)
    line = statement_before(view, value, name) if name is not None else None
    made = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
    plain = isinstance(made, cst.Assign) and [dotted(t.target) for t in made.targets] == [name]
    return made.value if plain and isinstance(made, cst.Assign) else value


def _proposals(
    project: Project,
    backward: Backward,
    edges: Sequence[Crossing],
    found: tuple[Feed, ...],
    later: bool = False,
) -> Iterator[Proposal]:
    graph = project.graph
    storages = set().union(*(graph.reaches(c.producer.node) for c in edges))
    quiet = cleared(graph, backward, storages)
    effect = NONE if quiet else OWN
    named = ", ".join(dict.fromkeys(f"`{f.view.code(f.value).strip()}`" for f in found))
    summary = f"detach {named} where {_takers(found)} it"
    cuts = [(f.view, [_cut(f, project), *without(f.view, f.value, dotted(f.value))]) for f in found]
    drops = _idle(project, backward, edges)
    if drops:
        dropped = f"{summary}; drop the idle retain_graph"
        yield Proposal(dropped, effect, gather(*cuts, *drops), int(later), idea=summary)
    yield Proposal(summary, effect, gather(*cuts), int(later) + bool(drops), idea=summary)


def _idle(
    project: Project, backward: Backward, edges: Sequence[Crossing]
) -> list[tuple[View, tuple[Edit, ...]]]:
    """Drop retain_graph from the backward, and from those before it that kept the producers' graph for it."""
    walked = {c.producer.node for c in edges}
    since = project.graph.pass_begin(backward)
    found: dict[int, tuple[View, tuple[Edit, ...]]] = {}
    for b in project.graph.backwards:
        if since < b.time <= backward.time and walked & set(b.nodes):
            place = backward_call(project, b)
            edits = drop_retain(*place) if place else ()
            if place and edits:
                found[id(place[1])] = (place[0], edits)
    return list(found.values())


def _takers(found: Iterable[Feed]) -> str:
    called = {dotted(f.into.func) for f in found if isinstance(f.into, cst.Call)} - {None}
    if len(called) == 1:
        return f"`{called.pop()}` takes"
    return "the other model takes"


def _cut(feed: Feed, project: Project) -> Edit:
    arg = feed.view.parents[feed.value]
    if isinstance(arg, cst.Arg) and arg.star == "*":
        return detach(feed.value, "list")
    shape = shape_of(feed.view, feed.value, project)
    name = dotted(feed.value)
    if shape == "tensor" and name and any(n.startswith(f"{name}[") for n in _named(project)):
        shape = "list"
    return detach(feed.value, shape if shape in SHAPES else "tensor")


def _named(project: Project) -> Iterator[str]:
    """What the tape calls the tensors that it saw made."""
    return (r.output.name for r in project.graph.records.values() if r.output is not None)


def _separated(project: Project, backward: Backward, edges: Sequence[Crossing]) -> Iterator[Proposal]:
    """The value's consumer serves another loss too: this loss gets an output of its own, of the detached
    value."""
    call = backward_call(project, backward)
    done: set[int] = set()
    for edge in edges:
        for feed in feeds(project, edge):
            bound = _binding(feed)
            if bound is None or id(bound) in done or call is None or call[0] is not feed.view:
                continue
            done.add(id(bound))
            name = dotted(bound.targets[0].target)
            own = _own_reads(feed.view, call[1], bound, name or "")
            if not own:
                continue
            value = bound.value.deep_replace(feed.value, detached(feed.value.deep_clone()))
            edits = _read_instead(feed.view, own, bound, value)
            code = cst.Module([]).code_for_node(value)
            summary = f"`{code}` of its own for `{feed.view.code(call[1]).strip()}`"
            others = [
                b for b in shared(project.graph, backward, edge.consumer.node) if b.time < backward.time
            ]
            drops: list[tuple[View, tuple[Edit, ...]]] = []
            for other in others[-1:]:
                place = backward_call(project, other)
                if place:
                    drops.append((place[0], drop_retain(*place)))
            with_drop = gather((feed.view, edits), *drops)
            yield Proposal(summary, NONE, with_drop, 1)
            yield Proposal(summary, OWN, with_drop, 2)
            if any(some for _, some in drops):
                yield Proposal(summary, NONE, gather((feed.view, edits)), 3)


def _read_instead(
    view: View, reads: Sequence[cst.BaseExpression], bound: cst.Assign, value: cst.BaseExpression
) -> list[Edit]:
    """`value` where another one is read, which `bound` binds; computed once, under a name, before the first of several
    reads: under the same one where nothing else reads it from there on."""
    first, block = reads[0], common_block(view, *reads)
    at = unit_in(view, block, first) if block is not None else None
    if len(reads) == 1 or block is None or at is None or block is not block_of(view, first):
        return [Replace(n, lambda _: value.deep_clone()) for n in reads]
    old = bound.targets[0].target
    name = dotted(old) or ""
    line = view.span(first).start.line
    later = (n for n in reads_of(body_of(view, first), name) if view.span(n).start.line >= line)
    alone = isinstance(old, cst.Name) and block_of(view, bound) is block and set(later) <= set(reads)
    own = cst.Name(name if alone else unused(view, f"{name.rpartition('.')[2]}_detached"))
    made = put_before(units(block)[at], line_of(cst.Assign([cst.AssignTarget(own)], value.deep_clone())))
    return [made] if alone else [made, *(exchange(n, own.deep_clone()) for n in reads)]


def _given_up(project: Project, backward: Backward) -> Iterator[Proposal]:
    """The advice given most often: detach the stale output in the later loss. It is right only where that
    loss has nothing to learn through it, so it is shown with what was measured, last of all."""
    found = plan(project, backward)
    if found is None or found.moved:
        return
    bound = [w for u in found.kept for w in sorted(u.writes)]
    reads = [n for name in bound for u in found.later() for n in reads_of(u.node, name)]
    if not reads:
        return
    summary = f"detach {', '.join(f'`{b}`' for b in bound)} in the later loss"
    edits: list[Edit] = [detach(n) for n in reads]
    cuts = [(v, [e]) for v, e in found.cuts()]
    if cuts:
        yield Proposal(f"{summary}, and at the boundary", OWN, gather((found.view, edits), *cuts), 8)
    yield Proposal(summary, OWN, gather((found.view, edits)), 8)


def _binding(feed: Feed) -> cst.Assign | None:
    """The statement ``name = …`` whose whole value is what takes the detached expression."""
    small = feed.view.small_statement(feed.value)
    if isinstance(small, cst.Assign) and len(small.targets) == 1 and dotted(small.targets[0].target):
        return small
    return None


def _own_reads(view: View, call: cst.Call, bound: cst.Assign, name: str) -> list[cst.BaseExpression]:
    """Where the statements that lead to a backward's loss, and to no other's, read `name`."""
    body = body_of(view, call)
    before = [u for u in walk(body) if view.span(u.node).end.line <= view.span(call).start.line]
    calls = [n for u in walk(body) for n in _backwards(u.node) if n is not call]
    needed = _leads(before, _loss_names(call))
    elsewhere: set[int] = set()
    for other in calls:
        line = view.span(other).start.line
        elsewhere |= _leads([u for u in walk(body) if view.span(u.node).end.line <= line], _loss_names(other))
    own = [u for u in before if id(u.node) in needed - elsewhere and u.node is not bound]
    return [n for u in own for n in reads_of(u.node, name)]


def _loss_names(call: cst.Call) -> frozenset[str]:
    return names(loss_of(call)).reads


def _leads(before: Sequence[Unit], wanted: frozenset[str]) -> set[int]:
    need, found = set(wanted), set()
    for unit in reversed(before):
        if touches(unit.writes, need):
            found.add(id(unit.node))
            need |= unit.reads
    return found


def _backwards(node: cst.CSTNode) -> Iterator[cst.Call]:
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "backward"
    ):
        yield node
    for child in node.children:
        yield from _backwards(child)
