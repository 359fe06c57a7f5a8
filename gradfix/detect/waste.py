"""wasted-backward and data-attribute: notes on what costs time or memory, or hides from autograd without
need."""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.graph import Graph
from gradfix.tape import Backward, Cut, End, Mutate, Site, Stack


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
