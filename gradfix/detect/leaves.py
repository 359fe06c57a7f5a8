"""unreset-grad without an optimizer: a tensor that is updated by hand with a gradient that nothing ever clears."""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.finding import Found, make
from gradfix.graph import Graph
from gradfix.index import Leaf
from gradfix.tape import Backward, GradUse, GradWrite, Mutate, Step, Zero


def unreset_leaf(graph: Graph) -> Found:
    """Backward, update, backward, update (an attack, gradient descent by hand), each update with `.grad` as it was read
    since the backward; and no clearing. Where passes are gathered for one update, nobody updates between them."""
    uses: dict[int, list[GradUse]] = {}
    for event in graph.tape.events:
        if isinstance(event, GradUse):
            uses.setdefault(event.ref.storage, []).append(event)
    for storage, mine in uses.items():
        history = graph.history.get(storage, [])
        backwards = [e for e in history if isinstance(e, Backward)]
        if storage in graph.owners or len(backwards) < 2 or any(map(_manages, history)):
            continue
        writes = [w for w in graph.writes.get(storage, []) if isinstance(w, Mutate) and not w.refused]
        first, second = backwards[:2]
        if first.stack != second.stack or first.refused or second.refused:
            continue
        end = backwards[2].time if len(backwards) > 2 else None
        before, behind = (
            _update(mine, writes, first.time, second.time),
            _update(mine, writes, second.time, end),
        )
        if before is None or behind is None or before[1].isdisjoint(behind[1]):
            continue
        update = behind[0]
        use = next(u for u in mine if u.leaf in behind[1] and u.time > second.time)
        elsewhere = [("used", use.stack, "their sum is used here")] if use.stack != update.stack else []
        name = wording.name(update.ref, "this tensor")
        yield (
            ("never-cleared-leaf", graph.stack_number(second.stack), graph.stack_number(update.stack)),
            second,
            make(
                "unreset-grad",
                "never-cleared-leaf",
                f"nothing clears the gradient of {name} between its updates: each uses the sum of all passes so far",
                [
                    ("needed", second.stack, "adds to the gradients of all earlier passes"),
                    *elsewhere,
                    (
                        "step",
                        update.stack,
                        "new values, and the gradient stays" if elsewhere else "updates with their sum",
                    ),
                ],
                "needed",
                ref=update.ref,
                backward=second,
                earlier=first,
                write=update,
            ),
        )


def _manages(event: Leaf) -> bool:
    return isinstance(event, Zero | GradWrite | Step)


def _update(
    uses: list[GradUse], writes: list[Mutate], after: int, before: int | None
) -> tuple[Mutate, set[int]] | None:
    """The first write of this time, and the leaves in its memory whose gradient was read before it."""
    write = next((w for w in writes if after < w.time and (before is None or w.time < before)), None)
    return (write, {u.leaf for u in uses if after < u.time < write.time}) if write is not None else None
