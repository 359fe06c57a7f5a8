"""unreset-grad: gradients never cleared or cleared too early; and the order of all that the optimizers show.

PyTorch says nothing about any of these, and much sound code looks alike (several losses for one model,
accumulation over batches), so each asks for evidence that the person did not mean it; a miss is better than a
false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, takewhile

from gradfix import wording
from gradfix.detect.attacks import attacks
from gradfix.detect.conflict import Conflict
from gradfix.detect.derivatives import fast_weights, second_order
from gradfix.detect.drawn import drawn
from gradfix.detect.finding import Findings, Found, make, optimizer_words
from gradfix.detect.flat import zero_derivatives
from gradfix.detect.leaves import unreset_leaf
from gradfix.detect.legacy import outdated
from gradfix.detect.mixed import covers, flows_on, left_over, managed
from gradfix.detect.parameters import (
    bypassed,
    converted,
    dead_parameters,
    names_of,
    rewrapped,
    withheld,
)
from gradfix.detect.quantized import quantized
from gradfix.detect.starved import starved
from gradfix.detect.stray import replaced_later, stray_optimizers, unregistered
from gradfix.detect.terms import constant_terms, idle_terms, plain_terms, unrecorded_terms
from gradfix.detect.twins import held_twice
from gradfix.detect.unstepped import never_differentiated, never_stepped
from gradfix.detect.waste import data_attributes, discarded, idle_retain, kept_losses, running_sums
from gradfix.graph import Graph
from gradfix.index import Leaf
from gradfix.tape import Backward, End, GradUse, GradWrite, Optimizer, Step, Zero


def habits(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """Every conflict that the optimizers show, and the notes."""
    found = Findings()
    without = (
        stray_optimizers,  # first: that a target's graph is cut is a consequence, where its optimizer is a stray one
        drawn,
        quantized,
        dead_parameters,
        starved,
        zero_derivatives,
        rewrapped,
        replaced_later,
        held_twice,
        unregistered,
        converted,
        second_order,
        fast_weights,
        plain_terms,
        constant_terms,
        unrecorded_terms,
        idle_terms,
        withheld,
        bypassed,
        never_stepped,
        never_differentiated,
    )
    notes = (discarded, idle_retain, kept_losses, running_sums, data_attributes, outdated)
    for find in (*without, unreset, unreset_leaf, left_over, flows_on, attacks, *notes):
        for key, event, conflict in find(graph):
            if conflict is None or not _of_a_phase(graph, conflict):
                found.add(key, event.time, conflict)
    return found.conflicts()


def _of_a_phase(graph: Graph, conflict: Conflict) -> bool:
    """Whether the graph is left where the program says when it is, and the run may not have come to when it is not."""
    cut = conflict.label("cut") if conflict.kind == "cut-graph" else None
    ends = [e for e in graph.tape.events if isinstance(e, End) and e.phases] if cut is not None else []
    return any(
        site.file == file and first <= site.line <= last and (said or conflict.severity != "error")
        for end in ends
        for file, first, last, said in end.phases
        for site in (cut.stack if cut is not None else ())
    )


def unreset(graph: Graph) -> Found:
    """No clearing between any two steps, or only once in a while; or clearing always between the backward and the step
    it was for."""
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if len(steps) < 2:
            continue
        between = [graph.before_step(s) for s in steps]
        if not any(map(managed, between[1:])):
            yield from _never_cleared(graph, number, optimizer, steps)
        elif all(_cleared_last(graph, s, events) for s, events in zip(steps, between, strict=True) if events):
            yield from _cleared_early(graph, number, optimizer, steps, between)
        else:
            other = (
                *_cleared_between(graph, number, steps, between),
                *_cleared_apart(graph, number, steps, between),
            )
            yield from other or _cleared_seldom(graph, number, optimizer, steps, between)


def _cleared_seldom(
    graph: Graph, number: int, optimizer: Optimizer, steps: list[Step], between: list[tuple[Leaf, ...]]
) -> Found:
    """Clearing once an epoch, say: whenever it is done, one place steps more than once, with what one backward has
    added to what the step before was taken with. Every time: a pass that goes without may have its reason."""
    starts = [0, *(n for n, events in enumerate(between) if n and managed(events))]
    rounds = [steps[a:b] for a, b in pairwise([*starts, len(steps)])]
    whole = rounds[:-1] if len(rounds[-1]) == 1 else rounds
    added = (e for events in between for e in takewhile(lambda e: not isinstance(e, Zero), reversed(events)))
    backwards = {e.stack for e in added if isinstance(e, Backward)}  # (not what an actor left to its critic)
    if not whole or min(map(len, whole)) < 2 or len({s.stack for s in steps}) > 1 or len(backwards) > 1:
        return
    yield from _never_cleared(graph, number, optimizer, whole[0])


def _never_cleared(graph: Graph, number: int, optimizer: Optimizer, steps: list[Step]) -> Found:
    first, second = steps[0], steps[1]
    stepped = {r.storage for r in first.refs} & {r.storage for r in second.refs}
    again = [b for b in graph.before_step(second) if isinstance(b, Backward)]
    again = [b for b in again if any(r.storage in stepped for r in b.accumulates)]
    before = [b for b in graph.before_step(first) if isinstance(b, Backward)]
    if not again or not before:
        return
    name, other = optimizer_words(graph, number), _for_another(graph, second, again)
    yield (
        ("never-cleared", number),
        again[-1],
        make(
            "unreset-grad",
            "never-cleared",
            f"nothing clears the gradients of {name} between its steps: every step uses the sum of all "
            "passes so far",
            [
                *(
                    [("other", other.stack, "adds to them on its way to what another steps with")]
                    if other
                    else ()
                ),
                ("needed", again[-1].stack, "adds to the gradients of all earlier passes"),
                ("step", second.stack, "steps with their sum"),
            ],
            "needed",
            backward=again[-1],
            earlier=before[-1],
            event=second,
        ),
    )


def _for_another(graph: Graph, step: Step, backwards: list[Backward]) -> Backward | None:
    """The last but one of the backwards that fill what is stepped, where each before the last was for the step of
    another optimizer, which comes between them, and only comes by this one's model: all of it."""
    *others, meant = backwards
    between = {s.optimizer for s in graph.steps if others and others[-1].time < s.time < meant.time}
    mine = graph.owned_mask([step.optimizer])
    theirs = graph.owned_mask(between - {step.optimizer}) & ~mine
    passing = [theirs and graph.boundary(b, mine, theirs) and covers(b, meant, graph, step) for b in others]
    return others[-1] if passing and all(passing) else None


def _cleared_last(graph: Graph, step: Step, events: tuple[Leaf, ...]) -> bool:
    """Whether all that the backwards filled of what is stepped was cleared behind them, and nothing put in its place;
    part of it is cleared to keep that part as it is. What another optimizer has stepped with was not for this step."""
    own = {r.storage for r in step.refs + step.without}
    filled: set[int] = set()
    others = [s for s in graph.steps if s.optimizer != step.optimizer and s.time < step.time]
    for event in events:
        if isinstance(event, Backward):
            given = own & {r.storage for r in event.accumulates}
            if any(s.time > event.time and given & {r.storage for r in s.refs} for s in others):
                return False
            filled |= given
        elif isinstance(event, Zero):
            filled -= {r.storage for r in event.refs}
        elif isinstance(event, GradWrite):
            filled |= {r.storage for r in event.refs}
    return not filled


def _cleared_early(
    graph: Graph, number: int, optimizer: Optimizer, steps: list[Step], between: list[tuple[Leaf, ...]]
) -> Found:
    for step, events in zip(steps, between, strict=True):
        backward = next((b for b in reversed(events) if isinstance(b, Backward)), None)
        zero = next((z for z in reversed(events) if isinstance(z, Zero)), None)
        if backward is None or zero is None or zero.time < backward.time:
            continue
        if any(not graph.filled(b) for b in graph.backwards if zero.time < b.time < step.time):
            return  # the loss of the step comes behind the clearing, and is cut off: that is the fault
        yield (
            ("cleared", number),
            step,
            make(
                "unreset-grad",
                "cleared-before-step",
                f"the gradients of {optimizer_words(graph, number)} are cleared before its step can use them",
                [
                    ("needed", backward.stack, "computes the gradients"),
                    ("zero", zero.stack, "clears them"),
                    ("step", step.stack, "steps without them"),
                ],
                "step",
                backward=backward,
                event=zero,
            ),
        )
        return


def _cleared_between(graph: Graph, number: int, steps: list[Step], between: list[tuple[Leaf, ...]]) -> Found:
    """Several passes for one step, as gradients are gathered; but each is cleared before the next, and the last alone
    is stepped with. Every time: what is skipped now and then has a reason of its own."""
    lost: list[tuple[Backward, Zero]] = []
    passes = 0
    for step, events in zip(steps, between, strict=True):
        gone = _thrown_away(graph, events, step)
        if not gone:
            return
        lost += gone
        passes += len(gone) + 1
    backward, zero = lost[-1]
    name = optimizer_words(graph, number)
    yield (
        ("cleared-between", number),
        backward,
        make(
            "unreset-grad",
            "cleared-between",
            f"{len(lost)} of {passes} passes of {wording.at('needed', backward.stack)} are for nothing: "
            f"{wording.at('zero', zero.stack)} clears their gradients before {name} steps",
            [
                ("needed", backward.stack, "computes gradients in every pass"),
                ("zero", zero.stack, "clears them in every pass"),
                ("step", steps[-1].stack, "steps with those of the last pass alone"),
            ],
            "zero",
            backward=backward,
            event=zero,
        ),
    )


def _thrown_away(graph: Graph, events: tuple[Leaf, ...], step: Step) -> list[tuple[Backward, Zero]]:
    """The earlier passes of the backward that is stepped with, whose gradients were cleared, all of them, and that
    nobody looked at, nor another optimizer stepped behind; with what cleared them. (A closure that the step calls
    itself is its own affair.)"""
    own = {r.storage for r in step.refs}
    last = next((e for e in reversed(events) if isinstance(e, Backward)), None)
    found: list[tuple[Backward, Zero]] = []
    for backward, zero in pairwise(e for e in events if isinstance(e, Backward | Zero)):
        if last is None or not isinstance(backward, Backward) or not isinstance(zero, Zero):
            continue
        within = backward.stack[: len(step.stack)] == step.stack
        filled = own & {r.storage for r in backward.accumulates}
        if (
            backward is last
            or backward.stack != last.stack
            or within
            or not filled
            or not filled <= {r.storage for r in zero.refs}
        ):
            continue
        looks = (e.time for e in graph.tape.events if isinstance(e, GradUse | GradWrite | Step))
        if not any(backward.time < time < zero.time for time in looks):
            found.append((backward, zero))
    return found


def _cleared_apart(graph: Graph, number: int, steps: list[Step], between: list[tuple[Leaf, ...]]) -> Found:
    """Losses for one step, each of models of its own, and the optimizer clears all before each of them: the step has
    the gradients of the last loss alone, and the models of the others are never trained."""
    if not all(between):
        return
    lost: dict[int, tuple[Backward, Zero]] = {}
    for step, events in zip(steps, between, strict=True):
        gone = _gone(graph, number, step, events)
        lost = {s: at for s, at in gone.items() if step is steps[0] or s in lost}
        if not lost:
            return
    backward, zero = max(lost.values(), key=lambda at: at[0].time)
    last = next(e for e in reversed(between[-1]) if isinstance(e, Backward))
    if graph.stack_number(backward.stack) == graph.stack_number(last.stack):
        return  # one backward in a loop over models: which of them is whose is not said
    name = optimizer_words(graph, number)
    yield (
        ("cleared-apart", number),
        backward,
        make(
            "unreset-grad",
            "cleared-apart",
            f"{names_of(graph, lost)} of {name} are never trained: {wording.at('zero', zero.stack)} clears the "
            f"gradients of {wording.at('needed', backward.stack)} in every pass before the step",
            [
                ("needed", backward.stack, "computes their gradients"),
                ("zero", zero.stack, "clears them"),
                ("other", last.stack, "fills others alone"),
                ("step", steps[-1].stack, "steps without them"),
            ],
            "zero",
            backward=backward,
            earlier=last,
            event=zero,
        ),
    )


def _gone(
    graph: Graph, number: int, step: Step, events: tuple[Leaf, ...]
) -> dict[int, tuple[Backward, Zero]]:
    """The parameters whose gradients the optimizer's own zero_grad() has cleared before its `step`, and nothing filled
    again; with the backward and what cleared. None, where there is nothing to step with, or where the gradients
    were looked at or another optimizer stepped."""
    own = {s for s, owners in graph.owners.items() if {n for n in owners if graph.steps_of(n)} == {number}}
    filled: dict[int, Backward] = {}
    gone: dict[int, tuple[Backward, Zero]] = {}
    for event in events:
        if isinstance(event, Backward):
            for ref in event.accumulates:
                if ref.storage in own:
                    filled[ref.storage] = event
                    gone.pop(ref.storage, None)
        elif isinstance(event, Zero):
            for ref in event.refs:
                backward = filled.pop(ref.storage, None)
                if backward is not None and event.optimizer == number:
                    gone[ref.storage] = backward, event
    if not filled or not gone:
        return {}
    begin, end = min(b.time for b, _ in gone.values()), max(z.time for _, z in gone.values())
    looks = (e.time for e in graph.tape.events if isinstance(e, GradUse | GradWrite | Step) and e is not step)
    return {} if any(begin < time < end for time in looks) else gone
