"""cut-graph: an optimizer whose parameters get no gradient, since each loss trains copies of them that an inner update
has changed off the graph.

Meta-learning by ``copy.deepcopy(model)`` and ``p.data -= rate * g`` runs without a word, and the model stays as it was.
"""

from __future__ import annotations

from collections import Counter

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.graph import Graph
from gradfix.tape import Backward, GradUse, GradWrite, Mutate, Ref, Step


def trained_in_its_stead(graph: Graph, number: int, steps: list[Step]) -> Found:
    """Before every step the last backward fills the gradients of such copies alone, and nobody takes them from there:
    the parameters of an optimizer that a first-order update is copied to have gradients of their own."""
    own = Counter(r.shape for r in graph.optimizers[number].refs)
    first: tuple[Backward, list[Mutate | Step]] | None = None
    since = 0
    for step in steps:
        backward = next((b for b in reversed(graph.backwards) if since < b.time < step.time), None)
        writes = _updates(graph, backward, own, since) if backward is not None else []
        if backward is None or not writes:
            return
        first = first or (backward, writes)
        since = step.time
    if first is None:
        return
    backward, (write, *others) = first
    yield (
        ("dead", number),
        steps[0],
        make(
            "cut-graph",
            "updated-copies",
            f"no parameter of {optimizer_words(graph, number)} ever gets a gradient: "
            f"{wording.at('needed', backward.stack)} gives them to copies, which {wording.at('cut', write.stack)} "
            "changes off the graph",
            [
                (
                    "cut",
                    write.stack,
                    "a copy is updated here, and nothing leads back to what it was copied from",
                ),
                *(("cut", w.stack, "as is this one") for w in others),
                ("needed", backward.stack, "this loss reaches the copies alone"),
                ("step", steps[0].stack, "steps without a single gradient"),
            ],
            "cut",
            ref=backward.accumulates[0],
            backward=backward,
        ),
    )


def _updates(
    graph: Graph, backward: Backward, own: Counter[tuple[int, ...]], since: int
) -> list[Mutate | Step]:
    """The updates of the leaves that `backward` fills, whole copies of the `own` parameters: the first of each
    place."""
    filled: dict[int, Ref] = {r.storage: r for r in backward.accumulates}
    shapes = Counter(r.shape for r in filled.values())
    times = {count // own[shape] if shape in own else 0 for shape, count in shapes.items()}
    copies = times.pop() if len(times) == 1 else 0
    if not copies or shapes != Counter({s: n * copies for s, n in own.items()}) or backward.inputs:
        return []
    if _taken(graph, backward, set(filled)):
        return []
    written = [
        _stepped(graph, s, since, backward.time)
        if s in graph.owners
        else _by_hand(graph, s, since, backward.time)
        for s in filled
    ]
    if not all(written):
        return []
    known = sorted((w for w in written if w is not None), key=lambda w: w.time)
    return list({w.stack[-1]: w for w in reversed(known)}.values())[::-1]


def _stepped(graph: Graph, storage: int, since: int, until: int) -> Step | None:
    """The step that changes a copy, of an optimizer that does not step again: it was made for this copy."""
    steps = [s for n in graph.owners[storage] for s in graph.steps_of(n) if s.stack]
    return (
        next((s for s in steps if since < s.time < until), None)
        if all(s.time < until for s in steps)
        else None
    )


def _by_hand(graph: Graph, storage: int, since: int, until: int) -> Mutate | None:
    """What changes a copy; to be given values (``load_state_dict()``) is none of it."""
    writes = (w for w in graph.writes.get(storage, ()) if isinstance(w, Mutate) and w.optimizer is None)
    return next(
        (w for w in writes if since < w.time < until and w.stack and not w.op.startswith("aten.copy_")), None
    )


def _taken(graph: Graph, backward: Backward, storages: set[int]) -> bool:
    """Whether the program reads or sets the gradients that the backward has filled."""
    later = [e for e in graph.tape.events if e.time > backward.time]
    used = [e.ref for e in later if isinstance(e, GradUse)]
    used += [r for e in later if isinstance(e, GradWrite) for r in e.refs]
    return any(r.storage in storages for r in used)
