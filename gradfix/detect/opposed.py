"""mixed-gradient by one backward of two losses: a discriminator's and a generator's, added up.

Two networks that are stepped by optimizers of their own, and trained on a sum of losses, are most often meant so.
Not where one of them only stands before the other, and two terms through both want the value that is handed over to
go opposite ways: what each network gets of the other's loss undoes its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make, optimizer_words
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Record, Stack, Step, Terms, Unbounded

_WORDS = {1: "higher", -1: "lower"}
OPPOSED = -0.9  # of tasks that were meant to share a network, no pass shows that


def opposed_terms(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """One conflict a backward, where every pass that was measured shows it, two at least."""
    found = Findings()
    measured: dict[tuple[int, int], list[Terms]] = {}
    for event in graph.terms:
        if event.node in graph.records and _of_one(graph, event):
            made = graph.stack_number(graph.records[event.node].stack)
            measured.setdefault((graph.stack_number(event.stack), made), []).append(event)
    for (place, _), events in measured.items():
        if len(events) > 1 and all(e.cosine is None or e.cosine < OPPOSED for e in events):
            found.add(("opposed", place), events[0].time, _mixed(graph, events[0]))
    for seen in (e for e in graph.unbounded if e.node in graph.records):
        backward = next((b for b in reversed(graph.backwards) if b.time < seen.time), None)
        if backward is not None and unbounded(graph, backward, backward, seen.optimizer):
            found.add(("opposed", graph.stack_number(seen.stack)), seen.time, _mixed(graph, seen))
    return found.conflicts()


def pulled_apart(graph: Graph, first: Backward, second: Backward) -> str:
    """How the losses of two backwards pull what one network gives to another opposite ways, in words: where they do so
    in every pass that was measured, two at least."""
    if not graph.terms:
        return ""
    roots = [{r for b in graph.passes(backward) for r in b.roots} for backward in (first, second)]
    cosines = [e.cosine for e in graph.terms if e.nodes[0] in roots[0] and e.nodes[1] in roots[1]]
    if len(cosines) < 2 or any(c is not None and c >= OPPOSED for c in cosines):
        return ""
    return f"pulls the other way{_cosine(max(filter(None, cosines), default=None))}"


def unbounded(graph: Graph, foreign: Backward, meant: Backward, optimizer: int) -> str:
    """How the loss of `foreign` pulls what that optimizer's network gives one way without end, in words: where it does
    so in every pass that was looked at, two at least, and that of `meant` has a term of this network alone that has a
    best value."""
    here = {b.stack for b in graph.passes(foreign)}
    signs = [e.sign for e in graph.unbounded if e.stack in here and e.optimizer == optimizer]
    if len(signs) < 2:
        return ""
    alone = (n for root in meant.roots for n in _terms_alone(graph, root, frozenset((optimizer,))))
    if len(set(signs)) > 1 or all(linear(graph, n) for n in alone):
        return ""
    return f"wants ever {_WORDS[signs[0]]} values from that model"


def linear(graph: Graph, node: int) -> bool:
    """Whether a term is linear in what a layer gives."""
    while (record := graph.records.get(node)) is not None:
        inner = [p for p in record.parents if p >= 0 and not graph.is_parameter(p)]
        if len(inner) < len(record.parents):
            return True
        if plain_op(record) not in _LINEAR or len(inner) != 1:
            return False
        node = inner[0]
    return True


def _cosine(cosine: float | None) -> str:
    return "" if cosine is None else f" (cosine {cosine:.2f})"


def own_score(graph: Graph, backward: Backward, optimizer: int) -> bool:
    """Whether the loss has a term of that optimizer's network alone, as a discriminator's score of real data is."""
    return any(True for root in backward.roots for _ in _terms_alone(graph, root, frozenset((optimizer,))))


def meant_for(graph: Graph, conflict: Conflict) -> dict[Stack, frozenset[int]]:
    """Of two losses that are differentiated one by one, what each is there for, by the place of its backward."""
    foreign, meant, step = conflict.earlier, conflict.backward, conflict.event
    if conflict.pattern != "flows-back" or foreign is None or meant is None or not isinstance(step, Step):
        return {}
    filled, own = graph.filled(foreign), graph.filled(meant)
    if filled <= own:
        own = frozenset((step.optimizer,))
    return {meant.stack: own, foreign.stack: filled - own}


def _of_one(graph: Graph, event: Terms) -> bool:
    """Whether the two are terms of one loss, not losses that are differentiated one by one (of which one may be a term
    of the other)."""
    backward = next((b for b in reversed(graph.backwards) if b.time < event.time), None)
    if backward is None or not set(backward.roots).isdisjoint(event.nodes):
        return False
    return graph.walk(backward).issuperset(event.nodes)


Side = tuple[int, frozenset[int]]  # a summand, and the optimizers that it is there for
_SCALES = {"mul", "div", "neg"}
_LINEAR = {
    *_SCALES,
    "mean",
    "sum",
    "view",
    "reshape",
    "squeeze",
    "unsqueeze",
    "select",
    "slice",
    "t",
    "transpose",
}


def sides(graph: Graph, backward: Backward, event: Terms | Unbounded) -> tuple[Side, ...]:
    """The summands of a loss, in order, each with the optimizers that it is there for; nothing where that is not seen.

    Of two terms that pull opposite ways, the two that are added up: that is a discriminator's which has terms of its
    network alone (its score of real data), that one a generator's which has terms of that network alone; the other is
    the other's. Of one that has no best value in the other network: every number that makes up the loss; this one is
    there for what it differentiates through that network, all others for the networks that alone compute them.
    """
    first = graph.reached_optimizers(event.node)
    later = graph.serves(backward) - first
    total = total_of(graph, backward)
    if total is None or not first or not later:
        return ()
    if isinstance(event, Unbounded):
        return _each_alone(graph, total, event, first, later)
    left, right = total.parents
    ours = [
        [any(True for _ in _terms_alone(graph, side, k)) for k in (first, later)] for side in (left, right)
    ]
    for one, other in ((0, 1), (1, 0)):
        if (ours[one][1] and not ours[one][0] and not ours[other][1]) or (
            ours[one][0] and not ours[one][1] and not ours[other][0]
        ):
            mine = later if ours[one][1] else first
            pair = (mine, (first | later) - mine)
            return (left, pair[one]), (right, pair[other])
    return ()


def _each_alone(
    graph: Graph, total: Record, event: Unbounded, first: frozenset[int], later: frozenset[int]
) -> tuple[Side, ...]:
    found: list[Side] = []
    for node in ends(graph, total.node):
        reached = graph.reached_optimizers(node)
        its = next((some for some in (first, later) if reached <= some), None)
        if its is None and graph.stack_number(graph.records[event.node].stack) in {
            graph.stack_number(graph.records[n].stack) for n in graph.below(node) if n in graph.records
        }:
            its = first
        if its is None:
            return ()
        found.append((node, its))
    return tuple(sorted(found)) if len({its for _, its in found}) > 1 else ()


def total_of(graph: Graph, backward: Backward) -> Record | None:
    """The sum (or difference) of two that the backward differentiates, scaled maybe."""
    node = backward.roots[0] if len(backward.roots) == 1 else -1
    while (record := graph.records.get(node)) is not None:
        if plain_op(record) in ("add", "sub") and len(record.parents) == 2 and min(record.parents) >= 0:
            return record
        if plain_op(record) not in _SCALES or len(record.parents) != 1:
            return None
        node = record.parents[0]
    return None


def _terms_alone(graph: Graph, node: int, optimizers: frozenset[int]) -> Iterator[int]:
    """Those of the numbers that make up a summand which the networks of `optimizers` alone compute."""
    for end in ends(graph, node):
        for n in _averaged(graph, end):
            reached = graph.reached_optimizers(n)
            if reached and reached <= optimizers:
                yield n


def _averaged(graph: Graph, node: int) -> Iterator[int]:
    """What a number is the mean, or the sum, of: the tensors that are added up in it; itself where it is neither."""
    record = graph.records.get(node)
    if record is None or plain_op(record) not in ("mean", "sum"):
        yield node
        return
    pending = [p for p in record.parents if p >= 0]
    while pending:
        inner = graph.records.get(pending.pop())
        if inner is None:
            continue
        parents = [p for p in inner.parents if p >= 0]
        if parents and (
            plain_op(inner) in ("add", "sub") or (plain_op(inner) in _SCALES and len(parents) == 1)
        ):
            pending += parents
        else:
            yield inner.node


def ends(graph: Graph, node: int) -> Iterator[int]:
    """The numbers that `node` adds up."""
    pending = [node]
    while pending:
        record = graph.records.get(pending.pop())
        if record is None:
            continue
        adds = plain_op(record) in {"add", "sub", *_SCALES}  # (of numbers, as `node` is one)
        inner = [p for p in record.parents if p >= 0]
        if adds and inner:
            pending += inner
        elif not graph.is_parameter(record.node):
            yield record.node


def _mixed(graph: Graph, event: Terms | Unbounded) -> Conflict | None:
    backward = next((b for b in reversed(graph.backwards) if b.time < event.time), None)
    if backward is None:
        return None
    first = graph.reached_optimizers(event.node)
    both = graph.serves(backward)
    later = both - first
    if len(first) != 1 or not later or not first <= both:
        return None  # they are not stepped for this loss
    made = graph.records[event.node]
    users = [r for n in graph.walk(backward) if (r := graph.records.get(n)) and event.node in r.parents]
    name = wording.name(made.output, "what one model gives to the other")
    labels: list[tuple[str, Stack, str]] = [("made", made.stack, f"{name} is made by one model")]
    if users:
        labels.append(
            ("used", min(users, key=lambda r: r.time).stack, "enters the other model, with its graph")
        )
    labels.append(("needed", backward.stack, "gives each model the gradient of both losses"))
    number = min(later)
    if isinstance(event, Terms):
        those = f" that pull {name} opposite ways{_cosine(event.cosine)}"
    else:
        those = f", one of which wants ever {_WORDS[event.sign]} values from the other model"
    return make(
        "mixed-gradient",
        "opposed",
        f"{wording.at('needed', backward.stack)} differentiates two losses at once{those}: "
        f"{optimizer_words(graph, min(first))} and {optimizer_words(graph, number)} step with the gradient of both",
        labels,
        "needed",
        record=made,
        backward=backward,
        event=event,
    )
