"""cut-graph (drawn): a loss is given what was drawn or chosen by a model's output, and nothing else of it. ``one_hot``
of ``argmax()`` or of ``sample()`` is a constant, and the model's optimizer steps without a gradient.
"""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.frozen import frozen_in_every_pass
from gradfix.detect.parameters import untrained
from gradfix.detect.refused import CUT_WORDS
from gradfix.graph import Graph
from gradfix.tape import Backward, Cut, Fed, Step

DRAWN = "drawn without a graph: the graph ends here"


def drawn(graph: Graph) -> Found:
    """No step of an optimizer has a gradient, and the loss before each, which is for no other's step, is given indices
    that its parameters made."""
    cuts = {
        c.time: c
        for c in graph.tape.events
        if isinstance(c, Cut) and c.how in ("discrete", "no_grad") and c.stack and c.node is not None
    }
    fed = [e for e in graph.tape.events if isinstance(e, Fed)] if cuts else []
    for number, steps in untrained(graph) if fed else ():
        if frozen_in_every_pass(graph, number) is not None:
            continue
        met = [(step, _met(graph, number, step, cuts, fed)) for step in steps]
        whole = [(step, found) for step, found in met if found is not None]
        if len(whole) < 2:
            continue
        step, (cut, into, loss) = whole[0]
        words = DRAWN if cut.how == "no_grad" else CUT_WORDS["discrete"]
        yield (
            ("dead", number),
            step,
            make(
                "cut-graph",
                "drawn",
                f"no parameter of {optimizer_words(graph, number)} ever gets a gradient: all that its loss is given is "
                f"made of indices ({wording.at('cut', cut.stack)})",
                [
                    ("cut", cut.stack, words),
                    ("used", into.stack, "goes into the loss as a constant"),
                    ("needed", loss.stack, "this loss reaches none of its parameters"),
                    ("step", step.stack, "steps without a single gradient"),
                ],
                "cut",
                ref=cut.ref,
                record=graph.records.get(cut.node) if cut.node is not None else None,
                backward=loss,
                event=cut,
            ),
        )


def _met(
    graph: Graph, number: int, step: Step, cuts: dict[int, Cut], fed: list[Fed]
) -> tuple[Cut, Fed, Backward] | None:
    """The indices that went into the loss right before a step, and the op that took them."""
    before = max((s.time for s in graph.steps if s.time < step.time), default=-1)
    loss = next((b for b in reversed(graph.backwards) if before < b.time < step.time and b.accumulates), None)
    if loss is None:
        return None
    mine, walk = graph.owned_mask([number]), graph.walk(loss)
    since = max((s.time for s in graph.steps_of(number) if s.time < step.time), default=-1)
    for into in (e for e in fed if since < e.time < loss.time and e.node in walk):
        for time in sorted(into.cuts, reverse=True):
            cut = cuts.get(time)
            if (
                cut is not None
                and cut.node is not None
                and time > since
                and graph.reach_mask(cut.node) & mine
            ):
                return cut, into, loss
    return None
