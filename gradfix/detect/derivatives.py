"""cut-graph in gradients of gradients: a loss, or an update, is made of gradients that are plain numbers."""

from __future__ import annotations

from itertools import pairwise

from gradfix import wording
from gradfix.detect.finding import Found, make
from gradfix.detect.freed import summed
from gradfix.graph import Graph
from gradfix.tape import Added, Mutate


def second_order(graph: Graph) -> Found:
    """create_graph=True asks for the gradients' own graph, and the update made of them goes by ``.data``:
    what is differentiated next knows nothing of it (MAML's second-order terms)."""
    writes = [e for e in graph.tape.events if isinstance(e, Mutate) and e.how in ("data", "set_data")]
    for backward, following in pairwise(graph.backwards):
        if not writes or not backward.create or not backward.inputs or following.create:
            continue
        walked = (graph.records[n] for n in graph.walk(backward) if n in graph.records)
        saved = {ref.storage for record in walked for ref in record.saves}
        for write in writes:
            between = backward.time < write.time < following.time
            leaf = graph.mask([write.ref.storage])
            if not between or leaf or write.ref.storage not in saved or not graph.filled(following):
                continue
            yield (
                ("second-order", write.stack[-1:]),
                write,
                make(
                    "cut-graph",
                    "second-order",
                    f"{wording.name(write.ref)} is updated through `.data`: the gradients' own graph, which "
                    f"create_graph=True asked for, does not reach {wording.at('needed', following.stack)}",
                    [
                        ("made", backward.stack, "the gradients, with their graph"),
                        ("cut", write.stack, "updated behind autograd's back"),
                        ("needed", following.stack, "differentiates without the update"),
                    ],
                    "cut",
                    severity="warning",
                    ref=write.ref,
                    write=write,
                    backward=following,
                    earlier=backward,
                ),
            )


def plain_terms(graph: Graph) -> Found:
    """A term of the loss is made of gradients that have no graph (a gradient penalty without create_graph=True)."""
    for event in (e for e in graph.tape.events if isinstance(e, Added)):
        call = next((c for c in reversed(graph.plain_calls) if c.time < event.time), None)
        losses = (b for b in graph.backwards if b.time > event.time and b.accumulates)
        loss = next((b for b in losses if event.node in summed(graph, b.roots)), None)
        if call is None or loss is None:
            continue
        trained = graph.mask(r.storage for r in loss.accumulates if r.storage in graph.owners)
        if not any(graph.reach_mask(root) & trained for root in call.roots):
            continue  # of another model's gradient, or of none: a number by right
        name = wording.name(event.ref, "a term of the loss")
        yield (
            ("plain-gradient", graph.stack_number(call.stack), graph.stack_number(event.stack)),
            event,
            make(
                "cut-graph",
                "plain-gradient",
                f"{name} is made of gradients that have no graph of their own ({wording.at('needed', call.stack)} "
                f"is called without create_graph=True): in the loss it is a constant, and trains nothing",
                [
                    ("made", call.stack, "gives plain numbers"),
                    ("used", event.stack, "a constant in this sum"),
                    ("needed", loss.stack, "no gradient flows through that term"),
                ],
                "made",
                severity="warning",
                ref=event.ref,
                backward=loss,
                earlier=call,
                event=event,
            ),
        )
