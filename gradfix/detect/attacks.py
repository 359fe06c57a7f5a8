"""mixed-gradient of one optimizer: a backward that is there for the gradient of an input fills the network's, too.

An attack, or a walk downhill to a sample, is made with the gradient of a tensor that no optimizer holds. What its
backward leaves in the network's parameters is stepped with, unless it is cleared before the loss that trains.
"""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.graph import Graph
from gradfix.index import Leaf
from gradfix.tape import Backward, GradUse, GradWrite, Stack, Step, Zero


def attacks(graph: Graph) -> Found:
    """Backwards whose gradient of a leaf is used before the loss that trains is made, in a function of its own, or
    several times for one step. (A single one beside the loss may well be a term of it.)"""
    uses = [e for e in graph.tape.events if isinstance(e, GradUse) and e.ref.storage not in graph.owners]
    for step in graph.steps if uses else ():
        events = graph.before_step(step)
        cleared = max((e.time for e in events if isinstance(e, Zero | GradWrite)), default=-1)
        since = [e for e in events if isinstance(e, Backward) and e.time > cleared]
        if len(since) < 2 or not any(map(_clears, _others(graph, step))):
            continue
        meant = since[-1]
        found = [b for b in since[:-1] if _attacks(graph, b, meant, step, uses)]
        apart = bool(found) and _place(found[-1].stack) != _place(meant.stack)
        if not found or found[-1] is not since[-2] or not (apart or len(found) > 1):
            continue
        attack, name = found[-1], optimizer_words(graph, step.optimizer)
        yield (
            ("attack", step.optimizer, graph.stack_number(attack.stack)),
            attack,
            make(
                "mixed-gradient",
                "attack",
                f"{name} also steps with the gradient of {wording.at('needed', attack.stack)}, which is there for the "
                "gradient of an input",
                [
                    ("needed", attack.stack, f"also fills the gradients that {name} steps with"),
                    ("needed", meant.stack, "adds the gradient that the step is for"),
                    ("step", step.stack, "steps with their sum"),
                ],
                "needed",
                backward=meant,
                earlier=attack,
                event=step,
            ),
        )


def leaf_of(graph: Graph, attack: Backward) -> GradUse | None:
    """Where the gradient that `attack` is there for is used first."""
    filled = {r.storage for r in attack.accumulates if r.storage not in graph.owners}
    used = (e for e in graph.tape.events if isinstance(e, GradUse) and e.time > attack.time)
    return next((u for u in used if u.ref.storage in filled), None)


def _attacks(graph: Graph, backward: Backward, meant: Backward, step: Step, uses: list[GradUse]) -> bool:
    if backward.create or backward.inputs or backward.refused or backward.stack == meant.stack:
        return False
    leaves = {r.storage for r in backward.accumulates if r.storage not in graph.owners}
    leaves -= {r.storage for r in meant.accumulates}
    mine = {r.storage for r in step.refs}
    whole = mine & {r.storage for r in meant.accumulates} <= {r.storage for r in backward.accumulates}
    return whole and any(u.ref.storage in leaves and backward.time < u.time < meant.time for u in uses)


def _others(graph: Graph, step: Step) -> tuple[Leaf, ...]:
    """What happens to the gradients before any step of the same optimizer."""
    return tuple(e for s in graph.steps_of(step.optimizer) for e in graph.before_step(s))


def _clears(event: Leaf) -> bool:
    return isinstance(event, Zero)


def _place(stack: Stack) -> tuple[str, str]:
    return (stack[-1].file, stack[-1].function) if stack else ("", "")
