"""Build a graph anew in each pass of the loop that differentiates it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import libcst as cst

from gradfix.alike import kept_to_compare
from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.freed import one_update
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.blocks import of_torch, under
from gradfix.rewrite.boundary import detach, frame, gather, meeting, operands, owned, rebinding, shape_of
from gradfix.rewrite.cached import cached
from gradfix.rewrite.calls import drop_carried_retain
from gradfix.rewrite.carried import entered, entries, made_outside
from gradfix.rewrite.closures import into_closure
from gradfix.rewrite.drawn import constructs, draws
from gradfix.rewrite.statements import (
    Block,
    Unit,
    block_of,
    dotted,
    lifted,
    line_of,
    names,
    put_after,
    put_before,
    take_all_away,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Backward, Event, GradUse, Mutate, Record, Stack
from gradfix.verdict import NONE, Effect

LATER = Effect("later-parameters", "each pass computes the value with the parameters as they are then")
DRAW = Effect("new-draw", "each pass computes the value anew, with random numbers of its own")
ROUND = Effect("cut-round", "the passes take the value as a constant: no gradient flows into its making")
UNTRAINED = Proposal("detach what no optimizer trains", NONE, {})
UNUSED = Proposal("detach what nothing trains", ROUND, {})
COMPARED = Proposal("detach what the passes compare with where it is made", ROUND, {}, 5)
Part = tuple[View, Iterable[Edit | None]]


class MoveIntoLoop(Codemod):
    """Move the statement that builds a graph before the loop into the loop, or detach it where nothing of it
    trains.

    Why: a graph built once can be differentiated once, and after the first step it is stale. What trains (a
    penalty on the weights, an encoder's output, `log_alpha.exp()`) has to be computed in every pass; what
    does not train (the features of a frozen network, a style target) is a constant and should be detached.

    Several views that one op made of a parameter (chunk, unbind) are refused after its first step, too.

    When not: detaching a value that stepped parameters feed runs without a word, and stops their training. Where the
    losses of all passes are for one step, `sum-losses` computes the value once.
    """

    kinds = ("freed-graph", "stale-saved-tensor", "forbidden-view-write")
    effects = ("none", "later-parameters", "new-draw", "cut-round")

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
penalty = net.weight.pow(2).sum()
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean() + penalty
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    penalty = net.weight.pow(2).sum()
    loss = (net(x) - x).pow(2).mean() + penalty
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            effect="later-parameters",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        backward = conflict.backward
        if conflict.pattern == "behind-views" and conflict.record and conflict.event and conflict.write:
            yield from _views(project, conflict.record, conflict.event, conflict.write)
        if backward is None:
            return
        early = _early(project, backward)
        drop: Sequence[Part] = drop_carried_retain(project, backward)
        for summary, part in into_closure(project, backward):
            yield Proposal(summary, LATER, gather(part, *drop), 1 if early else 0)
        if not early:
            return
        trains = any(owned(project.graph, r.node) or _updated_by_hand(project, r) for r in early)
        outside = [r for r in entered(project, backward) if made_outside(project, r, backward)]
        earlier = conflict.earlier
        together = earlier is not None and one_update(project.graph, earlier, backward)
        if trains and not together:
            constant = list(_as_constant(project, backward, drop))
            yield from constant or _detached(project, outside, backward, drop, COMPARED)
            if any(kept_to_compare(project.graph, r, backward) for r in early):
                yield from _without_graph(project, early, backward, drop)
        elif not trains and conflict.kind == "freed-graph":
            unused = not project.graph.optimizers and _leaves_unused(project, early, backward)
            yield from _detached(project, outside, backward, drop, UNUSED if unused else UNTRAINED)
        for proposal in _moved(project, early, [backward.stack], drop, trains):
            # (for one step the value is the same in all passes: their losses are better added up)
            yield replace(proposal, rank=proposal.rank + 2) if trains and together else proposal
        places = {r.stack for r in early}
        used = [e.consumer.stack for e in entries(project, backward) if e.producer.stack in places]
        yield from _cached(project, early, [backward.stack, *used], drop, LATER if trains else NONE)


def _views(project: Project, made: Record, use: Event, write: Event) -> Iterator[Proposal]:
    """The views taken anew: of the same memory, and with its history. What else moves along is computed anew."""
    stacks = [use.stack, write.stack]
    for proposal in (
        *_moved(project, [made], stacks, (), True),
        *_cached(project, [made], stacks, (), LATER),
    ):
        yield replace(proposal, effect=NONE, idea="views")
        yield replace(proposal, rank=proposal.rank + 1, idea="views")


def _cached(
    project: Project, early: list[Record], stacks: Sequence[Stack], drop: Sequence[Part], effect: Effect
) -> Iterator[Proposal]:
    place = cached(project, early, *stacks)
    if place is not None:
        summary = f"compute {place.said} again where each pass reads {'it' if place.alone else 'them'}"
        for rank, edits in enumerate(filter(None, (place.moved(), place.again()))):
            yield Proposal(summary, effect, gather((place.view, edits), *drop), rank)


def _updated_by_hand(project: Project, record: Record) -> bool:
    """Whether the script itself writes into a leaf that the node reaches, later than in making it."""
    later = (e for e in project.tape.events if isinstance(e, Mutate) and e.time > record.time)
    written = {e.ref.storage for e in later if e.optimizer is None}
    return bool(project.graph.reaches(record.node) & written)


def _leaves_unused(project: Project, early: list[Record], backward: Backward) -> bool:
    """Whether the gradients of the leaves behind the value are for nobody (those of the weights that made the data, of
    which the labels still know), in a script that updates what the backward trains by hand."""
    filled = {ref.storage for ref in backward.accumulates}
    behind = frozenset().union(*(project.graph.reaches(r.node) for r in early)) & filled
    later = [e for e in project.tape.events if e.time > backward.time]
    written = {e.ref.storage for e in later if isinstance(e, Mutate) and e.optimizer is None}
    read = {e.ref.storage for e in later if isinstance(e, GradUse)}
    return bool(behind) and not behind & (written | read) and bool(filled & written)


def _early(project: Project, backward: Backward) -> list[Record]:
    """One node for each place outside the loop that made a part of the graph which the loop walks again."""
    outside = [r for r in entered(project, backward) if made_outside(project, r, backward)]
    last = max((r.time for r in outside), default=-1)
    places: dict[Stack, Record] = {}
    for record in (*outside, *filter(None, map(project.graph.records.get, backward.nodes))):
        if record.time <= last and record.stack not in places and made_outside(project, record, backward):
            places[record.stack] = record
    return list(places.values())


def _detached(
    project: Project, early: list[Record], backward: Backward, drop: Sequence[Part], cure: Proposal
) -> Iterator[Proposal]:
    """The value as a constant, at the outermost frame first: as `cure`, which has no edits yet."""
    seen: set[int] = set()
    for extra in range(3):
        parts: list[Part] = []
        for record in early:
            depth = meeting(record.stack, backward.stack)
            found = frame(project, record.stack, max(depth, 0) + extra)
            node = _written_item(*found) if found else None
            if found and isinstance(node, cst.BaseExpression) and id(node) not in seen:
                seen.add(id(node))
                parts.append((found[0], [detach(node)]))
        if parts:
            yield replace(cure, edits=gather(*parts, *drop), rank=cure.rank + extra)


def _written_item(view: View, node: cst.CSTNode) -> cst.CSTNode:
    """The value of ``advantages[t] = gae = delta + …``, where that is the statement; else the node itself."""
    small = view.small_statement(node)
    if not isinstance(small, cst.Assign) or node is small.value:
        return node
    items = [t.target for t in small.targets if isinstance(t.target, cst.Subscript)]
    return small.value if node is small or node in items else node


def _as_constant(project: Project, backward: Backward, drop: Sequence[Part]) -> Iterator[Proposal]:
    """The value that the passes compare with (an old log-probability, a reference output), without its graph:
    the first thing to try where each pass computes a live one of its own by the same call."""
    edges = [e for e in entries(project, backward) if made_outside(project, e.producer, backward)]
    parts: list[Part] = []
    done: dict[str, None] = {}
    live = False
    for edge in edges:
        depth = meeting(edge.producer.stack, backward.stack)
        made, used = frame(project, edge.producer.stack, depth), frame(project, edge.consumer.stack, depth)
        block = block_of(made[0], made[1]) if made else None
        index = unit_in(made[0], block, made[1]) if made and block else None
        if made is None or used is None or made[0] is not used[0] or block is None or index is None:
            return
        view, unit = made[0], units(block)[index]
        loop = view.loop(used[1])
        live = live or (loop is not None and bool(_called(unit.node) & _called(loop.body)))
        taken = names(used[1]).reads
        direct = {d for o in operands(used[1]) if (d := dotted(o)) is not None and d in unit.writes}
        read = sorted(w for w in unit.writes if touches({w}, direct or taken))
        if not read or not isinstance(unit.node, cst.Assign):
            return
        for name in read:
            if name in done:
                continue
            done[name] = None
            inner = made[1] if isinstance(made[1], cst.BaseExpression) else unit.node.value
            whole = unit.node.value if not _holds(unit.node.value, inner) else inner
            shape = shape_of(view, whole, project)
            if len(unit.node.targets) == 1 and dotted(unit.node.targets[0].target) == name:
                parts.append((view, [detach(whole, shape)]))
            else:
                parts.append((view, [put_after(unit, line_of(rebinding(name)))]))
    if parts:
        said = ", ".join(f"`{n}`" for n in done)
        rank = 0 if live else 5
        yield Proposal(f"detach {said}: a constant for every pass", ROUND, gather(*parts, *drop), rank)


def _without_graph(
    project: Project, early: list[Record], backward: Backward, drop: Sequence[Part]
) -> Iterator[Proposal]:
    """The same for what is no plain tensor, or waits in an attribute: the statement that makes it, under no_grad."""
    depth = meeting(early[0].stack, backward.stack)
    done: list[cst.CSTNode] = []
    for extra in range(2):
        needed = frame(project, backward.stack, depth + extra)
        found: dict[cst.CSTNode, View] = {}
        for record in early:
            made = frame(project, record.stack, depth + extra)
            small = made[0].small_statement(made[1]) if made is not None else None
            shared = needed is not None and small is needed[0].small_statement(needed[1])
            if made is None or shared or not isinstance(small, cst.Assign) or constructs(project, small):
                found.clear()
                break
            found[small] = made[0]
        if not found or list(found) == done:
            continue
        done = list(found)
        said = ", ".join(f"`{w}`" for small in found for w in sorted(names(small).binds))
        parts = list(_under_no_grad(found))
        summary = f"make {said} without a graph: a constant for every pass"
        yield Proposal(summary, ROUND, gather(*parts, *drop), 6 + extra)


def _under_no_grad(found: Mapping[cst.CSTNode, View]) -> Iterator[Part]:
    """The statements under no_grad, neighbours in one block."""
    rows: list[tuple[View, Block, list[int]]] = []
    for small, view in sorted(found.items(), key=lambda item: item[1].span(item[0]).start.line):
        block = block_of(view, small)
        index = unit_in(view, block, small) if block is not None else None
        if block is None or index is None:
            continue
        row = next((r for _, b, r in rows if b is block and index - 1 in r), None)
        if row is None:
            rows.append((view, block, [index]))
        else:
            row.append(index)
    for view, block, row in rows:
        no_grad = of_torch(view, "no_grad")
        smalls = [units(block)[n].node for n in row]
        lines = [view.parents[s] for s in smalls]
        alone = all(isinstance(x, cst.SimpleStatementLine) and len(x.body) == 1 for x in lines)
        together = [lines] if alone else [[s] for s in smalls]
        edits = [edit for some in together for edit in under(view, no_grad.expression, some)]
        yield view, (*edits, *no_grad.edits)


def _holds(value: cst.BaseExpression, made: cst.BaseExpression) -> bool:
    """Whether an object is made of the value: ``target = Content(features(photo))``."""
    return isinstance(value, cst.Call) and any(a.value is made for a in value.args)


def _called(node: cst.CSTNode) -> set[str]:
    """What is called below `node`, as written (``agent.evaluate``); not torch's own functions, nor methods of a
    value just computed."""
    found: set[str] = set()
    if isinstance(node, cst.Call):
        name = dotted(node.func) or ""
        if name and name.split(".")[0] not in ("torch", "F", "nn", "np", "range", "len", "print", "zip"):
            found.add(name)
    return found.union(*(_called(c) for c in node.children))


def _moved(
    project: Project, early: list[Record], stacks: Sequence[Stack], drop: Sequence[Part], trains: bool
) -> Iterator[Proposal]:
    depth = meeting(early[0].stack, *stacks)
    early = [r for r in early if meeting(r.stack, *stacks) == depth]
    needed = [frame(project, stack, depth) for stack in stacks]
    made = [frame(project, r.stack, depth) for r in early]
    if needed[0] is None or any(m is None or m[0] is not needed[0][0] for m in (*needed, *made)):
        return
    view, nodes = needed[0][0], [m[1] for m in made if m]
    loop = _loop_around(view, [n[1] for n in needed if n], nodes)
    if loop is None:
        return
    statements: list[Unit] = []
    for node in nodes:
        block = block_of(view, node)
        index = unit_in(view, block, node) if block else None
        if block is None or index is None:
            return
        unit = units(block)[index]
        if unit.node not in [s.node for s in statements]:
            statements.append(unit)
    if any(isinstance(s.node, cst.BaseCompoundStatement) or not s.writes for s in statements):
        return
    statements.sort(key=lambda s: view.span(s.node).start.line)  # what enters the graph last is met first
    first = units(loop.body)
    if not first or (trains and any(constructs(project, s.node) for s in statements)):
        return
    chain = _chain(view, loop, statements)
    random = any(draws(project, view, u.node) for u in (chain or statements))
    effect = DRAW if random else LATER if trains else NONE
    said = ", ".join(f"`{w}`" for u in statements for w in sorted(u.writes))
    if chain is not None:
        edits: list[Edit | None] = [*take_all_away(chain, view)]
        edits.append(put_before(first[0], *(lifted(u) for u in chain)))
        yield Proposal(
            f"compute {said} in each pass", effect, gather((view, edits), *drop), 0 if trains else 3
        )
    else:
        again = [put_before(first[0], *(line_of(u.node) for u in statements))]
        yield Proposal(
            f"compute {said} again in each pass", effect, gather((view, again), *drop), 0 if trains else 3
        )


def _loop_around(
    view: View, within: list[cst.CSTNode], outside: list[cst.CSTNode]
) -> cst.For | cst.While | None:
    """The innermost loop around all of `within`, if it holds none of `outside`."""
    for x in view.ancestors(within[0]):
        if isinstance(x, (cst.For, cst.While)) and all(x in list(view.ancestors(n)) for n in within):
            return x if not any(x in list(view.ancestors(o)) for o in outside) else None
        if isinstance(x, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return None
    return None


def _chain(view: View, loop: cst.For | cst.While, statements: list[Unit]) -> tuple[Unit, ...] | None:
    """The statements and those between them and the loop that rest on them; None where one of them is read
    outside the loop, or where what they read is bound anew on the way (then they are run again instead)."""
    block: Block | None = block_of(view, loop)
    if block is None:
        return None
    body = units(block)
    end = unit_in(view, block, loop)
    start = [unit_in(view, block, s.node) for s in statements]
    if end is None or any(
        s is None or body[s].node is not u.node for s, u in zip(start, statements, strict=True)
    ):
        return None
    chosen = {s for s in start if s is not None}
    bound = set().union(*(body[s].writes for s in chosen))
    for n in range(min(chosen) + 1, end):
        if n in chosen or not touches(body[n].reads, bound):
            continue
        if isinstance(body[n].node, cst.BaseCompoundStatement) or not body[n].writes:
            return None
        chosen.add(n)
        bound |= body[n].writes
    header = loop.iter if isinstance(loop, cst.For) else loop.test
    if touches(names(header).reads, bound) or _reads_outside(body, chosen, end, bound):
        return None
    reads = set().union(*(body[n].reads for n in chosen))
    rebound = set().union(*(names(u.node).writes for u in units(loop.body)), frozenset())
    if touches(bound, rebound) and any(touches(body[n].writes, rebound) for n in chosen):
        return None  # the loop binds it anew itself: it is state, not a constant
    if any(
        touches(body[n].writes, reads) for n in range(min(chosen), end) if n not in chosen and n > min(chosen)
    ):
        return None
    return tuple(body[n] for n in sorted(chosen))


def _reads_outside(body: tuple[Unit, ...], chosen: set[int], end: int, bound: set[str]) -> bool:
    return any(touches(body[n].reads, bound) for n in range(min(chosen), end) if n not in chosen)
