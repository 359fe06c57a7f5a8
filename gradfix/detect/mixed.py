"""mixed-gradient: a step is taken with the gradients of another loss, too.

PyTorch says nothing, and several losses for one model are common; each shape asks for evidence that one of them was not
meant for it. A miss is better than a false alarm.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise, permutations

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.freed import summed
from gradfix.detect.opposed import own_score, pulled_apart, unbounded
from gradfix.graph import Crossing, Graph
from gradfix.index import Leaf
from gradfix.tape import Backward, Event, GradWrite, Stack, Step, Zero


def left_over(graph: Graph) -> Found:
    """A backward made for the step of one model's optimizer leaves gradients in the model that the loss went
    through, and that one's optimizer steps with them."""
    for step in graph.steps:
        mine = graph.owned_mask([step.optimizer])
        since = _since_cleared(graph.before_step(step))
        for foreign, meant in pairwise(since):
            if graph.stack_number(foreign.stack) == graph.stack_number(meant.stack):
                continue
            used = [
                s
                for s in graph.steps
                if foreign.time < s.time < meant.time and s.optimizer in graph.filled(foreign)
            ]
            if not used or step.optimizer in {s.optimizer for s in used}:
                continue
            if not any(managed(graph.before_step(s)) for s in graph.steps_of(step.optimizer)[1:]):
                continue  # that is the fault
            other = graph.owned_mask({used[0].optimizer}) & ~mine
            if not other or not covers(foreign, meant, graph, step):
                continue
            crossings = graph.boundary(foreign, mine, other)
            if not crossings and not _of_a_critic(graph, foreign, meant, mine, used[0].optimizer):
                continue
            if any(_enters(graph, foreign, c) for c in crossings) and _of_several(graph, meant, step):
                continue
            yield _mixed(graph, step, foreign, meant, "left-over", used[0])


def _since_cleared(events: tuple[Leaf, ...]) -> list[Backward]:
    found: list[Backward] = []
    for event in events:
        if isinstance(event, (Zero, GradWrite)):
            found.clear()
        elif isinstance(event, Backward):
            found.append(event)
    return found


def covers(foreign: Backward, meant: Backward, graph: Graph, step: Step) -> bool:
    """Whether the foreign backward fills all that the meant one fills of this optimizer: a part of a model
    that two losses share on purpose is seldom the whole of what an optimizer owns."""
    mine = {s for s, owners in graph.owners.items() if step.optimizer in owners}
    return mine & {r.storage for r in meant.accumulates} <= mine & {r.storage for r in foreign.accumulates}


def _of_several(graph: Graph, meant: Backward, step: Step) -> bool:
    """Whether the loss trains the stepped model together with another: through one that stands behind it, as a
    generator, which may well have several losses; or with one before it that is stepped for this loss, as a decoder of
    two encoders, which each loss trains."""
    mine = graph.owned_mask([step.optimizer])
    between = {s.optimizer for s in graph.steps if meant.time < s.time < step.time}
    for number in graph.optimizers:
        theirs = graph.owned_mask([number]) & ~mine
        if theirs and any(_enters(graph, meant, c) for c in graph.boundary(meant, theirs, mine)):
            return True
        if theirs and number in between and graph.boundary(meant, mine, theirs):
            return True
    return False


def _enters(graph: Graph, loss: Backward, crossing: Crossing) -> bool:
    """Whether one model takes what the other made; terms of the two that the loss adds up are no such thing."""
    return crossing.consumer.node not in summed(graph, loss.roots)


def _of_a_critic(graph: Graph, foreign: Backward, meant: Backward, mine: int, critic: int) -> bool:
    """Whether both losses come to the model by way of a critic, which is stepped for the first alone: what the second
    leaves in it is cleared."""
    theirs = graph.owned_mask([critic]) & ~mine
    return critic in graph.discards(meant) and all(
        any(_enters(graph, loss, c) for c in graph.boundary(loss, theirs, mine)) for loss in (foreign, meant)
    )


def flows_on(graph: Graph) -> Found:
    """Two backwards before two steps. The second model's gradients are cleared between them, so the first
    loss isn't meant to train it; but the second loss flows on into the first model, whose step then uses
    both. (Where it flows through the first model on its way back to the second, that may be meant: of a discriminator
    it is not, from which the two want the opposite.)"""
    told: dict[frozenset[Stack], int] = {}  # two losses in each other's steps are one fault
    for step in graph.steps:
        since = _since_cleared(graph.before_step(step))
        mine = graph.owned_mask([step.optimizer])
        for meant, foreign in pairwise(since):
            if graph.stack_number(foreign.stack) == graph.stack_number(meant.stack):
                continue
            for other in graph.discards(meant) & graph.filled(foreign) - {step.optimizer}:
                theirs = graph.owned_mask([other])
                if theirs & mine or other in graph.discards(foreign):
                    continue
                if graph.boundary(foreign, theirs, mine):
                    yield _mixed(graph, step, foreign, meant, "flows-on", None, theirs)
                elif how := pulled_apart(graph, meant, foreign):
                    yield _mixed(graph, step, foreign, meant, "flows-back", how=how)
        for meant, foreign in permutations(since, 2) if graph.terms or graph.unbounded else ():
            # (a critic's loss of fakes is its own: what it leaves in the generator is cleared)
            used = frozenset[int]().union(*map(graph.uses, graph.passes(foreign)))
            if not used - {step.optimizer}:
                continue
            others = used - graph.filled(meant)
            if any(graph.steps_of(n) for n in others) or _of_both(graph, step.optimizer, meant, foreign):
                early, late = sorted((meant, foreign), key=lambda b: b.time)
                endless = unbounded(graph, foreign, meant, step.optimizer) if others else ""
                how = pulled_apart(graph, early, late) or endless
                losses = frozenset((meant.stack, foreign.stack))
                if how and told.setdefault(losses, step.optimizer) == step.optimizer:
                    yield _mixed(graph, step, foreign, meant, "flows-back", how=how)


def _of_both(graph: Graph, optimizer: int, meant: Backward, foreign: Backward) -> bool:
    """Whether each of two losses trains the networks of both optimizers, and the one `meant` alone has a term of this
    optimizer's network by itself."""
    both = graph.filled(meant)
    return (
        len(both) == 2
        and both == graph.filled(foreign)
        and own_score(graph, meant, optimizer)
        and not own_score(graph, foreign, optimizer)
        and not any(own_score(graph, meant, n) for n in both - {optimizer})
    )


def _mixed(
    graph: Graph,
    step: Step,
    foreign: Backward,
    meant: Backward,
    pattern: str,
    used: Step | None = None,
    own: int = 0,
    how: str = "",
) -> tuple[Hashable, Event, Conflict | None]:
    name = optimizer_words(graph, step.optimizer)
    labels: list[tuple[str, Stack, str]] = []
    record = None
    if pattern == "flows-on":
        for crossing in graph.boundary(foreign, own, graph.owned_mask([step.optimizer])):
            record = record or crossing.producer
            labels.append(("made", crossing.producer.stack, "made by the model that the other loss trains"))
            labels.append(("used", crossing.consumer.stack, "enters the other model here, with its graph"))
    also = f"also fills the gradients that {name} steps with"
    labels.append(("needed", foreign.stack, f"{also}, and {how}" if how else also))
    labels.append(("needed", meant.stack, "the gradient that step is for"))
    if used is not None:
        labels.append(("step", used.stack, "what this gradient was for"))
    labels.append(("step", step.stack, "steps with both gradients"))
    foreign_place = wording.at("needed", foreign.stack)
    return (
        ("mixed", step.optimizer, graph.stack_number(foreign.stack), graph.stack_number(step.stack)),
        foreign,
        make(
            "mixed-gradient",
            pattern,
            f"{name} also steps with the gradient of {foreign_place}, which is meant for another optimizer",
            labels,
            "needed",
            record=record,
            backward=meant,
            earlier=foreign,
            event=step,
        ),
    )


def managed(events: tuple[Leaf, ...]) -> bool:
    """Whether something keeps gradients from adding up over steps: a clearing, gradients that are set anew, or one
    of before that is written to on its way to the next backward (a decay). A write behind the backward is no
    more than clipping."""
    first = next((e.time for e in events if isinstance(e, Backward)), None)
    return any(
        isinstance(e, Zero) or (isinstance(e, GradWrite) and (e.assigned or first is None or e.time < first))
        for e in events
    )
