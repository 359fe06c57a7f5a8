"""mixed-gradient by one backward of two losses: a discriminator's and a generator's, added up.

Two networks that are stepped by optimizers of their own, and trained on a sum of losses, are most often meant so.
Not where one of them only stands before the other, and two terms through both want the value that is handed over to
go opposite ways: what each network gets of the other's loss undoes its own.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make, optimizer_words
from gradfix.graph import Graph
from gradfix.tape import Stack, Terms

OPPOSED = -0.9  # of tasks that were meant to share a network, no pass shows that


def opposed_terms(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """One conflict a backward, where every pass that was measured shows it, two at least."""
    found = Findings()
    measured: dict[tuple[int, int], list[Terms]] = {}
    for event in graph.tape.events:
        if isinstance(event, Terms) and event.node in graph.records:
            made = graph.stack_number(graph.records[event.node].stack)
            measured.setdefault((graph.stack_number(event.stack), made), []).append(event)
    for (place, _), events in measured.items():
        if len(events) > 1 and all(e.cosine < OPPOSED for e in events):
            found.add(("opposed", place), events[0].time, _mixed(graph, events[0]))
    return found.conflicts()


def _mixed(graph: Graph, event: Terms) -> Conflict | None:
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
    return make(
        "mixed-gradient",
        "opposed",
        f"{wording.at('needed', backward.stack)} differentiates two losses at once that pull {name} opposite ways "
        f"(cosine {event.cosine:.2f}): {optimizer_words(graph, min(first))} and {optimizer_words(graph, number)} step "
        "with the gradient of both",
        labels,
        "needed",
        record=made,
        backward=backward,
        event=event,
    )
