"""attached-target (itself): prediction and target are one tensor by two names, or share their memory. What is written
as the target is written into the prediction, too: their difference is zero, and so is every gradient of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.returns import ADDING, SHAPES, WRITTEN, through
from gradfix.detect.weights import REGRESSIONS
from gradfix.graph import VIEWS, Graph, plain_op
from gradfix.tape import Backward, Cut, Itself, Mutate, Record

ALIASES = ("detach", "data", "numpy")
Write = Record | Mutate | Itself


def targets_of_themselves(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """Every place that, each time it was come to, regressed a tensor on itself once something was written into it. (A
    loop over all pairs compares some with themselves.)"""
    every = [e for e in graph.tape.events if isinstance(e, Itself)]
    events = [e for e in every if not e.wrote]
    by_array = {e.node: e for e in every if e.wrote}
    found = Findings()
    same = {e.node for e in events}
    places = {graph.stack_number(e.stack) for e in events}
    records = (r for r in graph.records.values() if graph.stack_number(r.stack) in places)
    apart = {(r.stack, r.op) for r in records if r.node not in same}
    for event in events:
        record = graph.records.get(event.node)
        if record is None or (record.stack, record.op) in apart:
            continue
        loss = next((b for b in graph.backwards if _regressed(graph, b, record)), None)
        written = _written(graph, event, record, by_array.get(event.node))
        if loss is not None and written is not None:
            found.add(("itself", event.stack), loss.time, _told(graph, event, *written, loss))
    return found.conflicts()


def _regressed(graph: Graph, backward: Backward, record: Record) -> bool:
    """Whether the loss is a distance of the two that `record` compares."""
    walk = graph.walk(backward)
    if record.node not in walk or not graph.filled(backward) or plain_op(record) == "div":
        return False
    if plain_op(record) not in ADDING:
        return True  # (the call gave their distance)
    above = (graph.records[n] for n in walk if n in graph.records)
    return any(
        plain_op(r) in REGRESSIONS and r.parents and through(graph, r.parents[0], SHAPES) == record.node
        for r in above
    )


def _of_one_call(graph: Graph, record: Record) -> Iterator[Record]:
    """`record` and what the call that made it made for it: a mean, of magnitudes, of a difference."""
    yield record
    while len(record.parents) == 1:
        below = graph.records.get(record.parents[0])
        if below is None or below.stack != record.stack:
            return
        yield (record := below)


def _written(
    graph: Graph, event: Itself, record: Record, by_array: Itself | None
) -> tuple[Record, Write, Cut | None] | None:
    """What made the prediction, the first write into it, and where its alias was made."""
    *_, compared = _of_one_call(graph, record)
    first: Record | None = None
    made = _through_views(graph, compared.parents[0])
    while made is not None and plain_op(made) in WRITTEN and made.parents:
        first, made = made, _through_views(graph, made.parents[0])
    if made is None:
        return None
    one = len(set(compared.parents)) == 1
    if first is not None and one:
        return made, first, None
    # (into the tensor itself, and no gradient knows of it: under no_grad)
    hows = (*ALIASES, "") if one else ALIASES
    writes = (
        e
        for e in graph.tape.events
        if isinstance(e, Mutate) and e.ref.storage == event.ref.storage and e.how in hows
    )
    write = next((e for e in writes if made.time < e.time < event.time), None) or by_array
    if write is None:
        return None
    cuts = (e for e in graph.tape.events if isinstance(e, Cut) and e.how in ALIASES)
    return made, write, next((e for e in cuts if e.ref.storage == event.ref.storage), None)


def _through_views(graph: Graph, node: int) -> Record | None:
    """The op that made the memory of what `node` made: a write may have gone through views of it."""
    return graph.records.get(through(graph, node, VIEWS | {"select", "slice", "as_strided"}))


def _told(
    graph: Graph, event: Itself, made: Record, write: Write, cut: Cut | None, loss: Backward
) -> Conflict | None:
    name = wording.name(event.ref, wording.at("target", made.stack))
    labels = [("target", made.stack, "the prediction")]
    if cut is not None:
        labels.append(("cut", cut.stack, "the same memory by another name"))
    labels += [
        ("overwritten", write.stack, "written into the prediction as well"),
        ("used", event.stack, "both sides are this one tensor"),
        ("needed", loss.stack, "a gradient of zero"),
    ]
    return make(
        "attached-target",
        "itself",
        f"{name} is prediction and target at once: what is written into the one is written into the other, and "
        f"{wording.at('used', event.stack)} compares it with itself, which is zero and trains nothing",
        labels,
        "used",
        severity="error",
        ref=event.ref,
        record=made,
        write=write if isinstance(write, Mutate) else None,
        backward=loss,
        event=event,
    )
