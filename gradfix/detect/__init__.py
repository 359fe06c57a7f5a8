"""From a tape to the faults it shows: pure, without torch and without libcst.

`detect` returns conflicts, one a fault: consequences are folded into their cause. One module a family of
kinds; each takes the graph and yields (time, conflict).
"""

from __future__ import annotations

from gradfix.detect import freed, overwritten, refused, targets, training
from gradfix.detect.conflict import KINDS, PATTERNS, Conflict, Label, Severity
from gradfix.graph import Graph
from gradfix.tape import Tape

__all__ = ["KINDS", "PATTERNS", "Conflict", "Label", "Severity", "detect"]


def detect(tape: Tape) -> tuple[Conflict, ...]:
    """Every fault `tape` shows, in order of time, one conflict a fault."""
    graph = Graph(tape)
    writes = refused.refused_writes(graph)
    torn = freed.freed_graphs(graph)
    found = [
        *overwritten.overwrites(graph, writes, torn),  # first: it folds consequences into the other two
        *writes.conflicts(),
        *torn.findings.conflicts(),
        *refused.refusals(graph),
        *training.habits(graph),
        *targets.attached_targets(graph),
    ]
    return tuple(conflict for _, conflict in sorted(found, key=lambda item: item[0]))
