"""Detach what one pass of the loop hands to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.averages import averages
from gradfix.detect.freed import alone_in_loss
from gradfix.detect.parameters import differentiated_by
from gradfix.edit import Edit, Project, View
from gradfix.graph import Crossing
from gradfix.rewrite.averaged import begun_without, made_without
from gradfix.rewrite.boundary import LEAVES, detach, frame, gather, meeting, rebinding, shape_of
from gradfix.rewrite.calls import drop_carried_retain
from gradfix.rewrite.carried import Carried, carried, entries, made_outside, sets_back
from gradfix.rewrite.dropped import dropped, kept
from gradfix.rewrite.items import Item, kept_items
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import (
    dotted,
    inside,
    line_of,
    put_after,
    put_before,
    reads_of,
    touches,
    units,
    walk,
)
from gradfix.rewrite.stored import grows, stored_alike, stored_elements
from gradfix.rewrite.windows import window_ends
from gradfix.tape import Backward
from gradfix.verdict import Effect
from gradfix.wording import listed

DATA = Effect("cut-round", "what is stored is data: no gradient flows through it; its values stay the same")
ROUND = Effect("cut-round", "no gradient flows into an earlier pass; the values carried over stay the same")
AVERAGE = 6  # the rank of what is done to the averages of parameters


class DetachCarriedState(Codemod):
    """Detach the state that a pass takes over from the one before: `state = state.detach()`.

    Why: a hidden state, a running average or a stored output drags the graph of every earlier pass along. The
    second backward walks into graphs that the first one freed, and, were they kept, into weights that the
    steps have overwritten. Truncated backpropagation through time detaches the state between passes: values
    go on, gradients stop. (What `torch.autograd.grad` is asked about in the next pass has to be a leaf again: the fast
    weights of a learned optimizer.)

    When not: where gradients through several passes are meant; then sum the losses of those passes and run
    one backward. Where sequences are independent, start each from a fresh state instead.
    """

    kinds = ("freed-graph", "stale-saved-tensor")
    effects = ("cut-round",)

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
h = torch.zeros(4, 3)
for x in torch.randn(3, 4, 3):
    h = net(x + h).tanh()
    loss = (h - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
h = torch.zeros(4, 3)
for x in torch.randn(3, 4, 3):
    h = h.detach()
    h = net(x + h).tanh()
    loss = (h - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            effect="cut-round",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found, backward = averages(project.graph, (conflict,)), conflict.backward
        if found is None or backward is None:
            yield from cls._found(conflict, project)
            return
        # an average of parameters is no state, and average-under-no-grad leaves nothing attached; beside a state, both
        each = [*cls._found(conflict, project)]
        outset = begun_without(project, found)
        for proposal in () if found.alone else each[:3]:
            for n, (said, parts) in enumerate([*made_without(project, found, backward)][:2]):
                own = [
                    (view, edits) for path, edits in proposal.edits.items() if (view := project.view(path))
                ]
                both = gather(*own, *parts, *outset)
                said = f"{proposal.summary}, and {said}"
                yield replace(proposal, summary=said, edits=both, rank=2 * proposal.rank + n)
        for proposal in each:
            yield replace(proposal, rank=proposal.rank + AVERAGE)

    @classmethod
    def _found(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.backward is None:
            return
        backward = conflict.backward
        edges = tuple(
            e for e in entries(project, backward) if not made_outside(project, e.producer, backward)
        )
        terms = [e for e in edges if alone_in_loss(project.graph, backward, e.producer.node)]
        summands = stored_elements(project, (e.producer for e in terms))
        if any(grows(project, append) for _, append, _ in summands):
            edges = tuple(e for e in edges if e not in terms)  # (as constants they were idle: clear-history)
        if not edges:
            return
        drop = drop_carried_retain(project, conflict.backward)
        found = carried(project, edges, backward)
        kept_now = kept_items(project, edges, backward)
        ways = [
            *_ways(project, _together(found), edges),
            *_items(project, kept_now),
            *window_ends(project, found, edges, backward),
            *_ways(project, _alone(found), edges),
        ]
        summed = conflict.pattern == "accumulated"  # a number that is kept, not a state: accumulate-item
        elements = [
            (view, append, element)
            for view, append, element in stored_elements(project, (e.producer for e in edges))
            if not _made_plain(view, element)
        ]
        for rank, (summary, parts) in enumerate(ways, 3 if summed else bool(elements)):
            yield Proposal(summary, ROUND, gather(*parts, *drop), rank)
        if any(differentiated_by(project.graph, e.producer.node) for e in edges):  # fast weights, say
            for rank, (summary, parts) in enumerate(_ways(project, _together(found), edges, leaves=True), 5):
                said = f"{summary}, as leaves that the next one differentiates by"
                yield Proposal(said, ROUND, gather(*parts, *drop), rank)
        for view, append, element in elements:
            held = dotted(append.func.value) if isinstance(append.func, cst.Attribute) else None
            summary = f"store `{view.code(element).strip()}` detached in `{held or 'the history'}`"
            edits = gather((view, [detach(element)]), *drop)
            yield Proposal(summary, DATA, edits, 0)
        for held, alike in _everywhere(project, elements).items() if elements else ():
            kept = listed([*dict.fromkeys(f"`{view.code(element).strip()}`" for view, element in alike)])
            edits = gather(*((view, [detach(element)]) for view, element in alike), *drop)
            said = f"store {kept} detached in `{held}`, wherever it is filled"
            yield Proposal(said, DATA, edits, 2 if ways else 0)
        for summary, parts in ways[:2] if elements else ():
            stored = [(view, [detach(element)]) for view, _, element in elements]
            kept = ", ".join(f"`{view.code(element).strip()}`" for view, _, element in elements)
            said = f"{summary}, and store {kept} detached"
            yield Proposal(said, ROUND, gather(*parts, *stored, *drop), 2)
        for name, parts in _taken_over(project, edges):
            summary = f"detach `{name}` where it is taken over from the pass before"
            yield Proposal(summary, ROUND, gather(*parts, *drop), 4)
        for name, part in _settled(project, edges, backward):
            summary = f"detach `{name}`: only its value goes to the next pass"
            yield Proposal(summary, ROUND, gather(part, *drop), 4)


Part = tuple[View, list[Edit]]


def _made_plain(view: View, element: cst.BaseExpression) -> bool:
    """Whether the element has no graph any more: ``loss.item()``."""
    return isinstance(element, cst.Call) and view.code(element.func).endswith((".item", ".detach", ".tolist"))


def _everywhere(
    project: Project, elements: Sequence[tuple[View, cst.Call, cst.BaseExpression]]
) -> dict[str, list[tuple[View, cst.BaseExpression]]]:
    """By container: what any pass takes over out of it, in each of the statements that fill it, where those are more
    than the `elements`, or several."""
    every = stored_elements(
        project, (e.producer for b in project.graph.backwards for e in entries(project, b))
    )
    alike = stored_alike(project, [*elements, *every])
    plain = {held: [(v, e) for v, e in some if not _made_plain(v, e)] for held, some in alike.items() if held}
    return {held: some for held, some in plain.items() if len(some) > 1}


def _taken_over(project: Project, edges: Sequence[Crossing]) -> Iterator[tuple[str, list[Part]]]:
    """The one local name through which all that an earlier pass made enters this pass, where it was taken out of
    something whose name is not spelled: ``before = getattr(self, name)``, ``before = self.means[key]``."""
    found: dict[cst.Name, View] = {}
    for edge in edges:
        place = frame(project, edge.consumer.stack, len(edge.consumer.stack) - 1)
        if place is None:
            return
        view, node = place
        read = (n for n in (node, *descendants(node)) if isinstance(n, cst.Name))
        operands = [n for n in read if _taken_out(view, n)]
        if len(operands) != 1:
            return
        found[operands[0]] = view
    names = {n.value for n in found}
    if len(names) == 1:
        yield names.pop(), [(view, [detach(name)]) for name, view in found.items()]


def _taken_out(view: View, name: cst.Name) -> bool:
    """Whether the function binds the name to entries of something alone, each under a key that the run knows."""
    function = view.function(name)
    if not isinstance(function, cst.FunctionDef):
        return False
    every = [u.node for u in walk(function.body) if name.value in u.writes]
    values = [n.value for n in every if isinstance(n, cst.Assign)]
    return 0 < len(values) == len(every) and all(
        isinstance(v, cst.Subscript) or (isinstance(v, cst.Call) and function_of(v) in ("getattr", "get"))
        for v in values
    )


def _settled(project: Project, edges: Sequence[Crossing], backward: Backward) -> Iterator[tuple[str, Part]]:
    """The statements behind the backward that make something of this pass's losses, the last one first: it may be for
    the next pass, under a name that holds a number at times (``k = k + rate * balance``)."""
    found: dict[int, tuple[str, Part]] = {}
    for edge in edges:
        depth = meeting(edge.consumer.stack, backward.stack)
        taken, needed = frame(project, edge.consumer.stack, depth), frame(project, backward.stack, depth)
        small = taken[0].small_statement(taken[1]) if taken else None
        if taken is None or needed is None or taken[0] is not needed[0] or not isinstance(small, cst.Assign):
            continue
        view, name = taken[0], dotted(small.targets[0].target)
        line = view.span(small).start.line
        alone = name is not None and len(small.targets) == 1 and view.loop(small) is not None
        if name is not None and alone and line > view.span(needed[1]).start.line:
            found[line] = (name, (view, [detach(small.value)]))
    yield from (found[line] for line in sorted(found, reverse=True)[:2])


Held = TypeVar("Held", Carried, Item)


def _by_body(found: Sequence[Held]) -> list[list[Held]]:
    """What each body hands on."""
    bodies: dict[int, list[Held]] = {}
    for item in found:
        bodies.setdefault(id(item.body), []).append(item)
    return list(bodies.values())


def _together(found: Sequence[Carried]) -> list[list[Carried]]:
    """The names of one body that hold what the earlier pass made, then all that it hands on."""
    groups: list[list[Carried]] = []
    for some in _by_body(found):
        direct = [i for i in some if i.direct]
        groups += [direct, some] if 0 < len(direct) < len(some) else [some]
    return groups


def _alone(found: Sequence[Carried]) -> list[list[Carried]]:
    """Each name of several that one body hands on, what the earlier pass made before what it was made of."""
    together = _together(found)
    every = [i for some in _by_body(found) if len(some) > 1 for i in some]
    return [[i] for i in sorted(every, key=lambda i: not i.direct) if [i] not in together]


def _ways(
    project: Project,
    groups: Sequence[Sequence[Carried]],
    edges: Sequence[Crossing],
    leaves: bool = False,
) -> Iterator[tuple[str, list[Part]]]:
    """Each group of names, detached in each way that fits; as `leaves`, each requires a gradient again."""
    for group in groups:
        shapes = {i.name: ("tensor", "tuple") if _entries(i) else i.shapes(project, edges) for i in group}
        if leaves:
            shapes = {name: tuple(LEAVES[s] for s in some if s in LEAVES) for name, some in shapes.items()}
            if not all(shapes.values()):
                continue
        # another method may read an attribute after it is stored, so it is detached where it is read
        # (a buffer that is written in part would go on gathering graphs)
        elsewhere = any("." in i.name and not _in_part(i) and i.read_elsewhere(project) for i in group)
        ways = [_read, _stored, _after] if elsewhere else [_stored, _read, _after]
        if any(map(_entries, group)):
            ways = [_stored]
        elif any(dropped(i.view, i.reader.node, i.name) for i in group):
            ways = [_kept, *ways]
        for way in ways:
            for n in range(max(len(s) for s in shapes.values())):
                parts: list[Part] = []
                cut: list[str] = []
                for item in group:
                    shape = shapes[item.name][min(n, len(shapes[item.name]) - 1)]
                    edits = way(item, shape)
                    if edits:
                        parts.append((item.view, edits))
                        cut.append(f"`{item.name}`")
                if parts:
                    said = ", ".join(cut)
                    yield f"detach {said} between passes", parts


def _items(project: Project, found: Sequence[Item]) -> Iterator[tuple[str, list[Part]]]:
    """Entries under a key, all that one body hands on together."""
    lstm = any("LSTM" in text for text in project.files.values())
    for group in _by_body(found):
        for shape in ("tuple", "tensor") if lstm else ("tensor", "tuple"):
            for way in (Item.stored, Item.read, Item.before, Item.after):
                edits = [(item.view, way(item, shape)) for item in group]
                if all(some for _, some in edits):
                    said = ", ".join(f"`{i.said}`" for i in group)
                    yield f"detach {said} between passes", edits


def _kept(item: Carried, shape: str) -> list[Edit]:
    """``state = state.detach()`` for a ``state.detach()`` whose result is thrown away."""
    return [kept(u, item.name, shape) for u in dropped(item.view, item.reader.node, item.name)]


def _stored(item: Carried, shape: str) -> list[Edit]:
    """``last = now.detach()``: where the name is bound for the next pass, if this pass reads it no more."""
    if not item.in_loop and "." not in item.name:
        return []
    edits = []
    for unit in item.stores:
        node = unit.node
        if sets_back(unit, item.name):
            continue
        if not (isinstance(node, cst.Assign) and len(node.targets) == 1):
            return []
        target = node.targets[0].target
        held = dotted(target.value) if isinstance(target, cst.Subscript) else dotted(target)
        if held != item.name or item.read_after(unit):
            return []
        edits.append(detach(node.value, shape))
    return edits


def _in_part(item: Carried) -> bool:
    """Whether the name is a tensor whose items are written: ``self.memory[index] = features``."""
    targets = [t.target for u in item.stores if isinstance(u.node, cst.Assign) for t in u.node.targets]
    return bool(targets) and all(isinstance(t, cst.Subscript) for t in targets)


def _entries(item: Carried) -> bool:
    """Whether the name is a container whose entries are what is carried: ``self.state[key] = state``."""
    targets = [t.target for u in item.stores if isinstance(u.node, cst.Assign) for t in u.node.targets]
    written = any(isinstance(t, cst.Subscript) and dotted(t.value) == item.name for t in targets)
    return written and any(shape_of(item.view, v) in ("dict", "list") for v in item.first_values())


def _read(item: Carried, shape: str) -> list[Edit]:
    """``state = state.detach()`` before the pass first reads it; in the expression itself for an
    attribute, and where that is read only if it holds something."""
    if item.starts_bare():
        return [detach(read, shape) for read in item.guarded_reads()] if "." in item.name else []
    reader = item.reader
    reads = item.reads_until_stored()
    if "." in item.name and shape == "tensor" and len(reads) == 1:
        return [detach(reads[0], shape)]
    headed = isinstance(reader.node, cst.For) and bool(reads_of(reader.node.iter, item.name))
    if isinstance(reader.node, cst.BaseCompoundStatement) and not item.in_loop and not headed:
        return []
    return [put_before(reader, line_of(rebinding(item.name, shape)))]


def _after(item: Carried, shape: str) -> list[Edit]:
    """``state = state.detach()`` behind the last statement of the pass that needs it: where the name first
    holds None, or a number, or is not bound yet."""
    if not item.starts_bare():
        return []
    needs = [u for u in units(item.body) if touches(u.reads | u.writes, {item.name})]
    while needs and (
        isinstance(needs[-1].node, cst.Return) or any(sets_back(u, item.name) for u in inside(needs[-1]))
    ):
        needs.pop()
    if not needs:
        return []
    return [put_after(needs[-1], line_of(rebinding(item.name, shape)))]
