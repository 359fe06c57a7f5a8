"""cut-graph: some of an optimizer's parameters never get a gradient, and what is made of them is taken off its graph.

Features that are cut off to leave a backbone as it is look the same. Nobody freezes by ``torch.tensor(features)``; and
where a layer that is trained takes the features of one that was never given values, never put into evaluation mode
beside others that train, and is written to by nobody, the one below was to be trained, too. A target is taken by no
layer.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import reduce

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.freed import summed
from gradfix.detect.parameters import cuts_of, filled_ever, given, names_of, rewrapped
from gradfix.detect.refused import CUT_WORDS
from gradfix.detect.terms import parting
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, Fed, Mode, Stack

_STARVING = re.compile(r"(.*?) (?:got no gradient in any of|ever gets a gradient)\b")


def starving(conflict: Conflict) -> str:
    """The parameters of which a fault says that no step there was had a gradient of theirs, as its sentence does (here,
    and of whole optimizers in `parameters`): another run may know better. "" for a fault of another kind."""
    said = _STARVING.match(conflict.message) if conflict.kind == "cut-graph" else None
    return said[1] if said is not None else ""


def starved(graph: Graph) -> Found:
    """Parameters of an optimizer that stay without a gradient in every step, while others of it are trained."""
    filled = filled_ever(graph)
    cuts = {c.time: c for c in cuts_of(graph) if c.stack}
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        stepped = {r.storage for s in steps for r in s.refs}
        dead = {r.storage for r in optimizer.refs} - filled - stepped
        first = steps[0].time if steps else 0
        dead = {s for s in dead if not any(given(w, first) for w in graph.writes.get(s, ()))}
        if len(steps) > 1 and stepped and dead:
            told: set[object] = set()
            if cuts:
                yield from _taken_by_layers(graph, number, dead, stepped, cuts, told)
                yield from _in_constant_terms(graph, number, dead, cuts, told)
            yield from _ending(graph, number, dead, cuts.values(), told)


def _taken_by_layers(
    graph: Graph, number: int, dead: set[int], stepped: set[int], cuts: dict[int, Cut], told: set[object]
) -> Found:
    """What is made of them goes into layers that are trained, in more than one pass."""
    steps = graph.steps_of(number)
    wide = {r.storage for r in graph.optimizers[number].refs if len(r.shape) > 1}
    # (a scale, or a bias, is a layer where no weight of the optimizer's is trained)
    weights = graph.mask(stepped & wide or stepped)
    met: dict[Stack, tuple[Fed, Backward]] = {}
    lost: dict[Stack, list[Cut]] = {}
    for fed in (e for e in graph.tape.events if isinstance(e, Fed)):
        mine = [c for time in fed.cuts if (c := cuts.get(time)) and _behind(graph, c) & dead]
        loss = next((b for b in graph.backwards if b.time > fed.time and fed.node in graph.walk(b)), None)
        if (
            not mine
            or loss is None
            or number not in graph.serves(loss)
            or not _layer(graph, loss, fed, weights)
        ):
            continue
        place = parting(mine[-1], fed)
        if place in met and any(met[place][0].time < s.time < fed.time for s in steps):
            lost[place] = [*lost.get(place, []), *mine]
        met.setdefault(place, (fed, loss))
    for place, found in lost.items():
        told.add(place[-1])
        fed, loss = met[place]
        first = next(c for c in cuts.values() if c.stack == found[-1].stack)
        never = reduce(set.union, (_behind(graph, c) & dead for c in found), set[int]())
        asleep = _asleep(graph, never, stepped, first.time)
        yield (
            ("partly", number, place),
            first,
            make(
                "cut-graph",
                "partly",
                f"{names_of(graph, never)} of {optimizer_words(graph, number)} got no gradient in any of {len(steps)} "
                f"steps: {wording.at('made', place)} has no graph, and what is trained takes it as it is",
                [
                    ("cut", place, CUT_WORDS.get(first.how, "the graph is left here")),
                    ("used", fed.stack, "goes into what is trained"),
                    ("needed", loss.stack, "this loss reaches none of them"),
                    ("step", steps[0].stack, "steps the others alone"),
                ],
                "cut",
                severity="note" if asleep else "warning",
                ref=first.ref,
                record=graph.records.get(first.node) if first.node is not None else None,
                backward=loss,
                event=first,
            ),
        )


def _in_constant_terms(
    graph: Graph, number: int, dead: set[int], cuts: dict[int, Cut], told: set[object]
) -> Found:
    """What is made of them ends in a term of the loss that has no graph at all, in more than one pass: detached
    log-probabilities, in an actor's loss."""
    steps = graph.steps_of(number)
    met: dict[Stack, tuple[Fed, Cut]] = {}
    for fed in (e for e in graph.tape.events if isinstance(e, Fed)):
        loss = next((b for b in graph.backwards if b.time > fed.time and fed.node in graph.walk(b)), None)
        added = plain_op(graph.records[fed.node]) in ("add", "stack") if fed.node in graph.records else False
        if not added or loss is None or number not in graph.serves(loss):
            continue
        if fed.node not in summed(graph, loss.roots):
            continue
        for cut in (cuts[t] for t in fed.cuts if t in cuts and _behind(graph, cuts[t]) & dead):
            first, since = met.setdefault(cut.stack, (fed, cut))
            if cut.stack[-1] in told or not any(since.time < s.time < cut.time for s in steps):
                continue
            told.add(cut.stack[-1])
            yield (
                ("partly", number, cut.stack),
                since,
                make(
                    "cut-graph",
                    "partly",
                    f"{names_of(graph, _behind(graph, cut) & dead)} of {optimizer_words(graph, number)} got no "
                    f"gradient in any of {len(steps)} steps: {wording.at('cut', cut.stack)} has no graph, and what is "
                    "made of it is a constant in the loss",
                    [
                        ("cut", since.stack, CUT_WORDS.get(since.how, "the graph is left here")),
                        ("used", first.stack, "a constant in this sum"),
                        ("needed", loss.stack, "this loss reaches none of them"),
                        ("step", steps[0].stack, "steps the others alone"),
                    ],
                    "cut",
                    severity="warning",
                    ref=since.ref,
                    record=graph.records.get(since.node) if since.node is not None else None,
                    backward=loss,
                    event=since,
                ),
            )


def _behind(graph: Graph, cut: Cut) -> frozenset[int]:
    """The leaves of optimizers that a cut leaves behind; under no_grad the tensor may be a leaf itself. (What takes a
    leaf by its value is told as bypassed.)"""
    if cut.node is not None:
        return graph.reaches(cut.node) & graph.owners.keys()
    return frozenset((cut.ref.storage,) if cut.how in ("no_grad", "checkpoint") else ()) & graph.owners.keys()


def _layer(graph: Graph, loss: Backward, fed: Fed, weights: int) -> bool:
    """Whether what was `fed` comes to `loss` by way of a weight that is trained."""
    above = graph.leading(graph.walk(loss), _of_one_call(graph, fed.node))
    parents = (p for node in above if node in graph.records for p in graph.records[node].parents)
    return any(graph.reach_mask(p) & weights for p in parents if p not in above and _of_parameter(graph, p))


def _of_parameter(graph: Graph, node: int) -> bool:
    """Whether `node` is a parameter, or its opposite: ``-scale * distance``."""
    record = graph.records.get(node)
    return graph.is_parameter(record.parents[0] if record and plain_op(record) == "neg" else node)


def _of_one_call(graph: Graph, node: int) -> set[int]:
    """The nodes that the call which made `node` made for it: a recurrent layer is one."""
    place = graph.stack_number(graph.records[node].stack) if node in graph.records else -1
    found, pending = set[int](), [node]
    while pending:
        node = pending.pop()
        record = graph.records.get(node)
        if record is not None and node not in found and graph.stack_number(record.stack) == place:
            found.add(node)
            pending += record.parents
    return found


def _asleep(graph: Graph, dead: set[int], stepped: set[int], time: int) -> bool:
    """Whether the dead ones' module was in evaluation mode, and that of others was not."""
    modes: dict[int, bool] = {}
    for mode in graph.tape.events:
        if isinstance(mode, Mode) and mode.time < time:
            modes.update((r.storage, mode.training) for r in mode.refs)
    return any(not modes.get(s, True) for s in dead) and any(modes.get(s, True) for s in stepped)


def _ending(graph: Graph, number: int, dead: set[int], cuts: Collection[Cut], told: set[object]) -> Found:
    """All that is made of them ends in a cut, wherever that leads; in indices first, which nobody makes to freeze."""
    indices = [e for e in graph.tape.events if isinstance(e, Cut) and e.how == "discrete" and e.stack]
    ended = _ended(graph, [c.node for c in indices if c.node is not None])
    going_on = [r for n, r in graph.records.items() if n not in ended]
    consumed = {p for r in going_on for p in r.parents}
    alive = frozenset().union(*(graph.reaches(p) for p in consumed)) if indices else frozenset[int]()
    again = {key for key, _, _ in rewrapped(graph)}
    steps = graph.steps_of(number)
    said = frozenset[int]()
    for cut in (*indices, *cuts):
        whole = cut.node is not None and cut.node not in consumed
        lost = graph.reaches(cut.node) if cut.node is not None and whole else frozenset[int]()
        if cut.how == "discrete":
            lost = lost & dead - alive
        backward = next((b for b in graph.backwards if b.time > cut.time), None)
        if backward is None or not lost or not lost <= dead or cut.time > steps[0].time:
            continue
        if lost <= said:
            continue
        said |= lost if cut.how == "discrete" else frozenset()
        if cut.stack[-1] in told or ("rewrapped", cut.stack[-1]) in again:
            continue
        where = wording.at("cut", cut.stack)
        yield (
            ("partly", number, cut.stack[-1]),
            cut,
            make(
                "cut-graph",
                "partly",
                f"{names_of(graph, lost)} of {optimizer_words(graph, number)} got no gradient in any of "
                f"{len(steps)} steps: all that is made of them ends in {where}, which cuts the graph",
                [
                    ("cut", cut.stack, CUT_WORDS.get(cut.how, "the graph is left here")),
                    ("needed", backward.stack, "this loss reaches none of them"),
                    ("step", steps[0].stack, "steps the others alone"),
                ],
                "cut",
                severity="warning" if cut.how in ("tensor", "discrete") else "note",
                ref=cut.ref,
                record=graph.records.get(cut.node) if cut.node is not None else None,
                backward=backward,
                event=cut,
            ),
        )


def _ended(graph: Graph, nodes: list[int]) -> set[int]:
    """The nodes of which nothing is made but what ends in `nodes`, and these where nothing else is made of them."""
    consumers: dict[int, set[int]] = {}
    for node, record in graph.records.items():
        for parent in record.parents:
            consumers.setdefault(parent, set()).add(node)
    walked = {node for b in graph.backwards for node in graph.walk(b)} if nodes else set()
    ended, pending = set[int](), nodes
    while pending:
        node = pending.pop()
        if node in graph.records and node not in ended | walked and consumers.get(node, set()) <= ended:
            ended.add(node)
            pending += graph.records[node].parents
    return ended
