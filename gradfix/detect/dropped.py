"""attached-target (dropped): ``x.detach()`` as a statement of its own, which changes nothing, and a loss that trains
through `x` what it trains without it, too: a consistency's or a distillation's target, a penalty's center.

A loss that has nothing else to train was never meant to leave `x`, and the statement is a left-over. Where the graph
of `x` is what breaks a backward, or trains another's parameters, that is the fault that is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.graph import Graph
from gradfix.tape import Backward, Cut, Record, Stack


class Dropped(NamedTuple):
    """The statement, what made its tensor, the ops that take the tensor behind it, and the backward through them."""

    cut: Cut
    value: Record
    uses: tuple[Record, ...]
    backward: Backward


def dropped_results(graph: Graph, found: Sequence[tuple[int, Conflict]]) -> Iterable[tuple[int, Conflict]]:
    """One conflict for every statement, unless what it leaves undone is among those that were `found`."""
    broken = {graph.stack_number(c.backward.stack) for _, c in found if c.backward and c.severity == "error"}
    told = {id(c.event) for _, c in found if c.kind == "attached-target"}
    findings = Findings()
    for each in _dropped(graph):
        if graph.stack_number(each.backward.stack) not in broken and id(each.cut) not in told:
            findings.add(each.cut.stack, each.backward.time, _told(each))
    return findings.conflicts()


def dropped_edges(graph: Graph, conflict: Conflict) -> Iterator[tuple[int, ...]]:
    """(consumer, producer) of what the statement was to part, in every pass."""
    for each in _dropped(graph):
        if each.cut is conflict.event:
            for node in graph.records:
                yield from ((node, parent) for parent in _parted(graph, each.uses, each.value, node))


def _dropped(graph: Graph) -> Iterator[Dropped]:
    cuts = [e for e in graph.tape.events if isinstance(e, Cut) and e.dropped and e.node in graph.records]
    for cut in cuts:
        if cut.node is None or cut.at is None or _shown(cut.stack):
            continue
        value = graph.records[cut.node]
        for backward in graph.backwards:
            if backward.time < cut.time or value.node not in graph.walk(backward) or backward.create:
                continue
            records = [r for n in graph.walk(backward) if (r := graph.records.get(n)) is not None]
            uses = tuple(r for r in records if r.time > cut.time and value.node in r.parents)
            if uses and _trains_besides(graph, backward, uses, value):
                yield Dropped(cut, value, uses, backward)
                break


def _shown(stack: Stack) -> bool:
    """Whether a notebook may show what a statement of a cell gives."""
    return stack[-1].file.endswith(".ipynb") and stack[-1].function == "<module>"


def _parted(graph: Graph, uses: Sequence[Record], value: Record, node: int) -> Iterator[int]:
    """What `node` takes of what is made where `value` was, if it is one of the `uses`, in whatever pass."""
    taker = graph.records.get(node)
    if taker is not None and any((taker.stack, taker.op) == (u.stack, u.op) for u in uses):
        for parent in taker.parents:
            made = graph.records.get(parent)
            if made is not None and made.stack == value.stack:
                yield parent


def _trains_besides(graph: Graph, backward: Backward, uses: Sequence[Record], value: Record) -> bool:
    """Whether the gradient that comes through `value` is stepped with, and every parameter has another one."""
    trained = graph.reach_mask(value.node) & graph.owned_mask(graph.uses(backward))
    seen, pending, besides = set(backward.roots), list(backward.roots), 0
    while pending and trained & ~besides:
        node = pending.pop()
        record, parted = graph.records.get(node), set(_parted(graph, uses, value, node))
        for parent in record.parents if record is not None else ():
            if parent < 0:
                besides |= graph.reach_mask(parent)
            elif parent not in seen and parent not in parted:
                seen.add(parent)
                pending.append(parent)
    return bool(trained) and not trained & ~besides


def _told(each: Dropped) -> Conflict | None:
    cut, value, uses, backward = each
    name = wording.name(value.output, wording.at("target", value.stack))
    return make(
        "attached-target",
        "dropped",
        f"{name} was to be detached, but what detach() returns is thrown away: the loss trains what made it, too",
        [
            ("target", value.stack, "the value, with its graph"),
            ("cut", cut.stack, "detach() returns a new tensor; the one used below still has its graph"),
            ("used", uses[0].stack, "used here"),
            ("needed", backward.stack, "the gradient flows into both"),
        ],
        "cut",
        ref=value.output,
        record=value,
        backward=backward,
        event=cut,
    )
