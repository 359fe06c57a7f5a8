"""cut-graph: parameters that were frozen where a gradient was meant for them."""

from __future__ import annotations

from collections.abc import Sequence

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.graph import Graph
from gradfix.tape import Backward, Frozen, Zero


def frozen_before(graph: Graph, backward: Backward, frozen: Sequence[Frozen]) -> Conflict | None:
    """A loss without a graph, where what it trained in the pass before, or what was cleared for it, is frozen."""
    previous = graph.previous(backward)
    trained = {r.storage for r in previous.accumulates} if previous is not None else set[int]()
    if not trained:
        cleared = [e for e in graph.tape.events if isinstance(e, Zero) and e.time < backward.time]
        trained = (
            {r.storage for r in cleared[-1].refs} if cleared and cleared[-1].optimizer is not None else set()
        )
    event = next(
        (f for f in reversed(frozen) if f.until is None and trained & {r.storage for r in f.refs}), None
    )
    if event is None or not trained <= {r.storage for f in frozen for r in f.refs}:
        return None
    return make(
        "cut-graph",
        "frozen",
        f"{wording.at('needed', backward.stack)} has nothing to differentiate: what it trains was frozen by "
        f"{wording.at('cut', event.stack)}, and nothing has made it require gradients again",
        [
            ("cut", event.stack, "frozen here"),
            ("needed", backward.stack, "this loss has no graph"),
        ],
        "needed",
        ref=event.refs[0] if event.refs else None,
        backward=backward,
        event=event,
    )


def frozen_in_every_pass(graph: Graph, number: int) -> Conflict | None:
    """What an optimizer steps is frozen anew before every step of it, so that none has a gradient to step with. (Frozen
    once and left so, it may be meant to stay as it is.)"""
    steps, mine = graph.steps_of(number), {r.storage for r in graph.optimizers[number].refs}
    events = [e for e in graph.tape.events if isinstance(e, Frozen) and mine & {r.storage for r in e.refs}]
    times = [0, *(s.time for s in steps)]
    for last, step in zip(times, steps, strict=False):
        since = {r.storage for e in events if last < e.time < step.time for r in e.refs}
        if not mine or not mine <= since:
            return None
    event = events[0]
    backward = next((b for b in reversed(graph.backwards) if b.time < steps[0].time), None)
    taken_back = event.until is not None
    how = "has them frozen for the forward of every step" if taken_back else "freezes them before every step"
    where = "frozen here; by the backward that was taken back" if taken_back else "frozen here"
    labels = [("cut", event.stack, where)]
    if backward is not None:
        labels.append(("needed", backward.stack, "gives them no gradient"))
    labels.append(("step", steps[0].stack, "steps without a single gradient"))
    return make(
        "cut-graph",
        "frozen",
        f"no parameter of {optimizer_words(graph, number)} ever gets a gradient: {wording.at('cut', event.stack)} "
        + how,
        labels,
        "needed" if backward is not None else "step",
        ref=event.refs[0],
        backward=backward,
        event=event,
    )


def frozen_since(graph: Graph, number: int, leading: list[Backward]) -> Found:
    """The graph of backwards does lead to them, and they take no gradient: they were frozen since. Where nothing at all
    takes one, before every step, that is not to keep them from what is meant for others."""
    steps = graph.steps_of(number)
    idle = [b for b in leading if not b.accumulates and not b.inputs and not b.refused]
    times = [0, *(s.time for s in steps)]
    if not all(any(t < b.time < s.time for b in idle) for t, s in zip(times, steps, strict=False)):
        return
    yield (
        ("dead", number),
        steps[0],
        make(
            "cut-graph",
            "frozen",
            f"no parameter of {optimizer_words(graph, number)} ever gets a gradient: "
            f"{wording.at('needed', idle[0].stack)} leads to them, but they were frozen since the forward",
            [
                ("needed", idle[0].stack, "fills no gradient: nothing that it leads to requires one by now"),
                ("step", steps[0].stack, "steps without a single gradient"),
            ],
            "needed",
            backward=idle[0],
            event=steps[0],
        ),
    )
