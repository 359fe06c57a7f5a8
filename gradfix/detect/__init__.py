"""From a tape to the faults it shows: pure, without torch and without libcst.

`detect` returns conflicts, one a fault: consequences are folded into their cause. One module a family of
kinds; each takes the graph and yields (time, conflict).
"""

from __future__ import annotations

from dataclasses import replace

from gradfix.detect import (
    custom,
    dropped,
    freed,
    itself,
    opposed,
    overwritten,
    ratios,
    refused,
    targets,
    training,
)
from gradfix.detect.conflict import KINDS, PATTERNS, Conflict, Label, Severity, describe
from gradfix.graph import Graph
from gradfix.tape import Tape

__all__ = ["KINDS", "PATTERNS", "Conflict", "Label", "Severity", "describe", "detect"]


def detect(tape: Tape) -> tuple[Conflict, ...]:
    """Every fault `tape` shows, in order of time, one conflict a fault."""
    graph = Graph(tape)
    writes = refused.refused_writes(graph)
    torn = freed.freed_graphs(graph)
    found = [
        *overwritten.overwrites(graph, writes, torn),  # first: it folds consequences into the other two
        *custom.custom_functions(graph),
        *writes.conflicts(),
        *torn.findings.conflicts(),
        *refused.refusals(graph),
        *training.habits(graph),
        *targets.attached_targets(graph),
        *itself.targets_of_themselves(graph),
        *ratios.attached_ratios(graph),
        *opposed.opposed_terms(graph),
    ]
    found = _of_targets(graph, _of_parameters(found))
    found += dropped.dropped_results(graph, found)
    kept = [
        (time, c)
        for time, c in found
        if not any(
            _told(c, other) or targets.waits(c, other) or targets.mixes(graph, other, c) for _, other in found
        )
    ]
    return tuple(conflict for _, conflict in sorted(kept, key=lambda item: item[0]))


def _of_parameters(found: list[tuple[int, Conflict]]) -> list[tuple[int, Conflict]]:
    """A "parameter" that an op made has a graph, which the first backward frees: that the next one raises is a
    consequence. (Cured alone, it would only leave what was meant as a parameter as it was made.)"""
    made = {c.record.stack for _, c in found if c.pattern == "parameter" and c.record is not None}
    torn = [
        c for _, c in found if c.kind == "freed-graph" and c.record is not None and c.record.stack in made
    ]
    kept = [(time, c) for time, c in found if not any(c is t for t in torn)]
    return [(time, _with(c, torn)) for time, c in kept]


def _with(conflict: Conflict, torn: list[Conflict]) -> Conflict:
    record = conflict.record
    if conflict.pattern != "parameter" or record is None:
        return conflict
    mine = tuple(c for c in torn if c.record is not None and c.record.stack == record.stack)
    return replace(conflict, severity="error", also=(*conflict.also, *mine)) if mine else conflict


def _of_targets(graph: Graph, found: list[tuple[int, Conflict]]) -> list[tuple[int, Conflict]]:
    """A value that was to be a constant leads the backward into a graph that another has freed, or whose tensors a step
    has overwritten: a consequence. (Computed anew behind the step, it would still carry its graph.)"""
    led = {
        id(torn): target for _, torn in found for _, target in found if targets.carries(graph, target, torn)
    }
    kept = []
    for time, conflict in found:
        mine = tuple(c for _, c in found if led.get(id(c)) is conflict)
        if mine:
            gravest = "error" if any(c.severity == "error" for c in mine) else conflict.severity
            conflict = replace(conflict, severity=gravest, also=(*conflict.also, *mine))
        if id(conflict) not in led:
            kept.append((time, conflict))
    return kept


def _told(note: Conflict, fault: Conflict) -> bool:
    """Whether `fault` says already what `note` says: the flow of one loss into the other model that broke
    the graph, the
    `.data` that hid a write."""
    if note.severity != "note" or fault.severity == "note":
        return False
    if note.kind == "wasted-backward" and fault.kind == "freed-graph":
        return (
            note.backward is not None
            and fault.earlier is not None
            and note.backward.stack == fault.earlier.stack
        )
    if note.kind == "data-attribute":
        return any(x.at.file == note.at.file and x.at.line == note.at.line for x in fault.labels)
    return False
