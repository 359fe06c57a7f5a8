"""cut-graph (zero-derivative): every loss knows some of an optimizer's parameters through an op alone whose derivative
is zero wherever it has one, as PyTorch's derivatives.yaml says. Their gradients are there, and nothing but zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.parameters import filled_ever, names_of
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Record

FLAT = frozenset(("sign", "round", "floor", "ceil", "trunc", "fix"))


def zero_derivatives(graph: Graph) -> Found:
    """One fault for every place of such an op that keeps parameters from each backward which fills their gradients."""
    flat = {n for n, r in graph.records.items() if r.op.startswith("aten.") and plain_op(r) in FLAT}
    if not flat:
        return
    met = [(b, _met(graph, b, flat)) for b in graph.backwards if b.accumulates and not b.inputs]
    filled, trained = filled_ever(graph), 0
    for backward, (reached, _) in met:
        trained |= reached & graph.mask(r.storage for r in backward.accumulates)
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        kept = graph.mask(r.storage for r in optimizer.refs if r.storage in filled) & ~trained
        places: dict[object, list[tuple[Backward, Record]]] = {}
        for backward, (_, ops) in met:
            for record in ops:
                if graph.reach_mask(record.node) & kept:
                    places.setdefault(record.stack, []).append((backward, record))
        for found in places.values():
            backward, record = found[0]
            if len(steps) < 2 or len({b.time for b, _ in found}) < 2 or not record.stack:
                continue
            reached = graph.reach_mask(record.node) & kept
            lost = {r.storage for r in optimizer.refs if graph.mask([r.storage]) & reached}
            whole = len(lost) == len(optimizer.refs)
            yield (
                ("zero", number, record.stack),
                steps[0],
                make(
                    "cut-graph",
                    "zero-derivative",
                    f"{'all parameters' if whole else names_of(graph, lost)} of {optimizer_words(graph, number)} "
                    f"get gradients of zero: {wording.at('cut', record.stack)} has a derivative of zero everywhere",
                    [
                        ("cut", record.stack, "flat between its jumps: no gradient passes"),
                        ("needed", backward.stack, "this loss reaches them by it alone"),
                        ("step", steps[0].stack, "steps with gradients of zero"),
                    ],
                    "cut",
                    severity="error" if whole else "warning",
                    record=record,
                    backward=backward,
                    event=steps[0],
                ),
            )


def _met(graph: Graph, backward: Backward, flat: Iterable[int]) -> tuple[int, list[Record]]:
    """The leaves to which `backward` has a way past all that is `flat`, and the first of these on its other ways."""
    walked, seen, ends, leaves = graph.walk(backward), set(backward.roots), [], 0
    pending = list(backward.roots)
    while pending:
        node = pending.pop()
        if node < 0:
            leaves |= graph.reach_mask(node)
        elif node in flat:
            ends.append(graph.records[node])
        elif node in graph.records and node in walked:
            new = [p for p in graph.records[node].parents if p not in seen]
            seen.update(new)
            pending += new
    return leaves, ends
