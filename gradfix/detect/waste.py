"""wasted-backward and data-attribute: notes on what costs time or memory, or hides from autograd without
need."""

from __future__ import annotations

from bisect import bisect_left

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, End, Kept, Mutate, Record, Site, Stack


def discarded(graph: Graph) -> Found:
    """A loss flows on into a model whose gradients are cleared before any step: detaching the value that
    crosses over would save the work. (The model that a loss must go through gets gradients in vain too; that
    can't be cut.)"""
    for backward in graph.backwards:
        serves = graph.serves(backward)
        for other in graph.discards(backward) - serves:
            theirs = graph.owned_mask([other]) & ~graph.owned_mask(serves)
            crossings = graph.boundary(backward, graph.owned_mask(serves), theirs)
            if not crossings:
                continue
            name = optimizer_words(graph, other)
            value = crossings[0].producer
            labels: list[tuple[str, Stack, str]] = []
            for crossing in crossings:
                labels.append(("made", crossing.producer.stack, "made by the other model"))
                labels.append(("used", crossing.consumer.stack, "enters here with its graph"))
            labels.append(("needed", backward.stack, "computes gradients that are cleared before any step"))
            yield (
                ("discarded", graph.stack_number(backward.stack), other),
                backward,
                make(
                    "wasted-backward",
                    "discarded",
                    f"{wording.at('needed', backward.stack)} also computes gradients for {name}, and they "
                    "are thrown away",
                    labels,
                    "needed",
                    ref=value.output,
                    record=value,
                    backward=backward,
                ),
            )


def idle_retain(graph: Graph) -> Found:
    """retain_graph=True although no later backward, in any pass, walks a node of that graph that saved
    something."""
    last_walk: dict[int, int] = {}
    for backward in graph.backwards:
        for node in graph.walk(backward):
            last_walk[node] = backward.time
    finished = any(isinstance(e, End) and e.how == "finished" for e in graph.tape.events)
    statements: dict[tuple[Site, ...], list[Backward]] = {}
    for backward in graph.backwards:
        statements.setdefault(backward.stack[-1:], []).append(
            backward
        )  # a helper's one statement may serve many losses
    for where, passes in statements.items():
        backward = passes[0]
        judged = passes if finished else passes[:-1]  # a run that was cut short says nothing of its last pass
        if not where or not judged or any(not b.retain or b.create for b in passes):
            continue
        if any(_walked_later(graph, b, last_walk) for b in passes):
            continue
        yield (
            ("idle-retain", where),
            backward,
            make(
                "wasted-backward",
                "idle-retain",
                f"{wording.at('needed', backward.stack)} keeps its graph (retain_graph=True), and no later "
                "backward uses it",
                [("needed", backward.stack, "retain_graph=True is not needed")],
                "needed",
                backward=backward,
            ),
        )


def _walked_later(graph: Graph, backward: Backward, last_walk: dict[int, int]) -> bool:
    return any(
        last_walk[n] > backward.time and graph.records[n].saves
        for n in graph.walk(backward)
        if n in graph.records
    )


def running_sums(graph: Graph) -> Found:
    """A sum that takes up the graph of every pass across optimizer steps, and that nothing goes back through: its
    terms were freed by backwards of their own, or the run has come to its end without one."""
    walked = {node for backward in graph.backwards for node in backward.nodes}
    finished = any(isinstance(e, End) and e.how == "finished" for e in graph.tape.events)
    for record in graph.records.values():
        if record.node in walked or plain_op(record) != "add" or not record.stack:
            continue
        before = _summed_before(graph, record)
        if before is None:
            continue
        freeing = _freed_term(graph, record, before)
        if freeing is None and not finished:
            continue
        name = wording.name(record.output, "a running sum")
        labels = [("made", record.stack, f"{name} takes up the graph of every pass here")]
        if freeing is not None:
            labels.append(("freed", freeing.stack, "this backward is the last that can go through it"))
        yield (
            ("running-sum", graph.stack_number(record.stack)),
            record,
            make(
                "wasted-backward",
                "running-sum",
                f"{name} keeps the graphs of all passes, and no backward ever walks them: memory grows with "
                "every step",
                labels,
                "made",
                ref=record.output,
                record=record,
                earlier=freeing,
            ),
        )


def _summed_before(graph: Graph, record: Record) -> Record | None:
    """What the same addition made before a step, which `record` takes in: as it is, or scaled."""
    for parent in (graph.records.get(p) for p in record.parents):
        if parent is None:
            continue
        for older in (parent, *(graph.records[p] for p in parent.parents if p in graph.records)):
            same = older.stack == record.stack and plain_op(older) == "add"
            if same and _steps_before(graph, older) < _steps_before(graph, record):
                return parent
    return None


def _steps_before(graph: Graph, record: Record) -> int:
    return bisect_left(graph.steps, record.time, key=lambda step: step.time)


def _freed_term(graph: Graph, record: Record, before: Record) -> Backward | None:
    """The backward that has freed what the newest term of the sum needs."""
    pending, seen = [p for p in record.parents if p != before.node], set[int]()
    while pending:
        node = pending.pop()
        if node in graph.freed and graph.records[node].saves:
            return graph.freed[node]
        if node in graph.records and node not in seen:
            seen.add(node)
            pending += graph.records[node].parents
    return None


def kept_losses(graph: Graph) -> Found:
    """Losses of one backward that something holds over steps, graphs and all, after they were freed."""
    for event in graph.tape.events:
        if not isinstance(event, Kept):
            continue
        record = next((graph.records[n] for n in event.nodes if n in graph.records), None)
        backward = next((b for b in graph.backwards if record is not None and record.node in b.roots), None)
        if record is None or backward is None:
            continue
        text = "the loss of every pass is still held, with its graph, after this"
        yield (
            ("kept-losses", graph.stack_number(event.stack)),
            event,
            make(
                "wasted-backward",
                "kept-losses",
                f"{wording.name(record.output, 'the loss')} of every pass is kept together with its graph, which "
                f"{wording.at('freed', event.stack)} has freed: memory grows with every step",
                [("freed", event.stack, text)],
                "freed",
                ref=record.output,
                record=record,
                earlier=backward,
                event=event,
            ),
        )


def data_attributes(graph: Graph) -> Found:
    """One note for each place in the source that uses ``.data``."""
    for event in graph.tape.events:
        if not isinstance(event, Cut | Mutate) or event.how not in ("data", "set_data") or not event.stack:
            continue
        verb = "written" if isinstance(event, Mutate) else "used"
        yield (
            ("data", event.stack[-1].file, event.stack[-1].line, event.how == "set_data"),
            event,
            make(
                "data-attribute",
                "",
                f"`.data` of {wording.name(event.ref)} is {verb}: autograd does not see it; `.detach()` or "
                "`torch.no_grad()` says the same and is watched",
                [("read", event.stack, ".data hides this from autograd")],
                "read",
                ref=event.ref,
                event=event,
                write=event if isinstance(event, Mutate) else None,
            ),
        )
