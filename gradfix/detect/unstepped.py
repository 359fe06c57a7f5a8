"""unreset-grad: an optimizer whose gradients are computed and cleared in every pass, and that never steps.

Many optimizers step late, behind a pretraining of another: the recorder tells of those alone that no call in the text
may step (`End.unstepped`).
"""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.opposed import linear
from gradfix.detect.parameters import by_hand, given, untrained
from gradfix.graph import Graph
from gradfix.tape import Backward, Clip, End, GradUse, GradWrite, Uncalled, Zero


def never_stepped(graph: Graph) -> Found:
    """Its parameters get gradients, which are cleared, again and again; nothing else trains them."""
    ends = (e for e in graph.tape.events if isinstance(e, End))
    stepped = {r.storage for s in graph.steps for r in s.refs}
    begun = graph.steps or graph.backwards
    first = begun[0].time if begun else 0
    used = set() if graph.steps else _used(graph)
    for number in next(ends, End(0, (), "")).unstepped:
        optimizer = graph.optimizers.get(number)
        own = {r.storage for r in optimizer.refs} if optimizer is not None else set()
        if optimizer is None or own & stepped or graph.steps_of(number):
            continue
        if own & used or any(by_hand(w) and w.time > first for s in own for w in graph.writes.get(s, ())):
            continue
        lost = _lost(graph, own)
        if len(lost) < 2 or (not graph.steps and all(_no_loss(graph, b) or _tested(b) for b, _ in lost)):
            continue
        # (of several that fill them, one that no other optimizer uses, either, was there for this one)
        backward, zero = next((pair for pair in lost if not graph.uses(pair[0])), lost[0])
        if graph.uses(backward) and any(given(w, first) for s in own for w in graph.writes.get(s, ())):
            continue  # it was loaded, and another is trained through it or behind it: a latent, a new head
        yield (
            ("never-stepped", number),
            backward,
            make(
                "unreset-grad",
                "never-stepped",
                f"{optimizer_words(graph, number)} never steps: {wording.at('needed', backward.stack)} computes "
                "gradients for its parameters in every pass, and they are cleared unused",
                [
                    ("made", optimizer.stack, "no call of its step() is left in the text"),
                    ("needed", backward.stack, "computes gradients in every pass"),
                    ("zero", zero.stack, "clears them in every pass"),
                ],
                "needed",
                ref=optimizer.refs[0],
                backward=backward,
                event=zero,
            ),
        )


def never_differentiated(graph: Graph) -> Found:
    """A statement names the backward of a loss, and an optimizer steps without ever a gradient."""
    events = [e for e in graph.tape.events if isinstance(e, Uncalled)]
    for number, steps in untrained(graph) if events else ():
        step = next((s for s in steps if s.time > events[0].time), None)
        if step is None:
            continue
        yield (
            ("uncalled", events[0].stack),
            step,
            make(
                "cut-graph",
                "uncalled",
                f"{wording.at('needed', events[0].stack)} is named and not called: "
                f"{optimizer_words(graph, number)} steps without a gradient",
                [
                    ("needed", events[0].stack, "nothing is called without parentheses"),
                    ("step", step.stack, "steps without a single gradient"),
                ],
                "needed",
                ref=events[0].ref,
                event=events[0],
            ),
        )


def step_due(graph: Graph, conflict: Conflict) -> Backward | None:
    """The backward behind which the optimizer is to step: the last before the gradients are cleared again of those that
    fill them and that no other optimizer uses."""
    zero, first = conflict.event, conflict.backward
    if not isinstance(zero, Zero) or first is None:
        return None
    lost = _lost(graph, {r.storage for r in zero.refs})
    return next((b for b, z in reversed(lost) if z == zero and not graph.uses(b)), first)


def step_behind(graph: Graph, conflict: Conflict) -> Backward | Clip | None:
    """What the step is to come behind: the backward that it is due to, or what clips the gradients of that."""
    zero, due = conflict.event, step_due(graph, conflict)
    if not isinstance(zero, Zero) or due is None:
        return due
    own = {r.storage for r in zero.refs}
    clips = [e for e in graph.tape.events if isinstance(e, Clip) and due.time < e.time]
    end = next(z.time for b, z in _lost(graph, own) if b == due)
    return next((e for e in reversed(clips) if e.time < end and any(r.storage in own for r in e.refs)), due)


def _no_loss(graph: Graph, backward: Backward) -> bool:
    """Whether the backward begins at a mere sum or mean of what a layer gives, which has no best value: it is timed, or
    tried how much fits into memory."""
    return bool(backward.roots) and all(linear(graph, n) for n in backward.roots)


def _tested(backward: Backward) -> bool:
    """Whether a test of the program calls the backward: that it can be done may be all that it asks."""
    return any(site.function.rpartition(".")[2].startswith("test_") for site in backward.stack)


def _used(graph: Graph) -> set[int]:
    """The leaves whose gradients the program itself reads or writes to: more may not be meant with them."""
    read = {e.ref.storage for e in graph.tape.events if isinstance(e, GradUse)}
    return read.union(r.storage for e in graph.tape.events if isinstance(e, GradWrite) for r in e.refs)


def _lost(graph: Graph, own: set[int]) -> list[tuple[Backward, Zero]]:
    """Every backward that fills gradients of the leaves `own`, with the next clearing of them."""
    found: list[tuple[Backward, Zero]] = []
    filling: list[Backward] = []
    for event in graph.tape.events:
        if isinstance(event, Backward) and any(r.storage in own for r in event.accumulates):
            filling.append(event)
        elif isinstance(event, Zero) and any(r.storage in own for r in event.refs):
            found += [(b, event) for b in filling]
            filling.clear()
    return found
