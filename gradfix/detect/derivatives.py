"""cut-graph in gradients of gradients: an update that is made of them is made behind autograd's back, or of values that
were cut off what it updates.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

from gradfix import wording
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Found, make
from gradfix.detect.refused import CUT_WORDS
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, Event, Fed, Mutate

UPDATES = frozenset(("add", "sub", "rsub", "addcmul", "addcdiv", "lerp"))


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


def fast_weights(graph: Graph) -> Found:
    """An inner update is made of the values of the parameters alone (``p.data - lr * g``, where ``g`` has its graph as
    create_graph=True asked): the loss behind it trains them through the gradients, and not through what they are."""
    cuts = {
        e.time: e for e in graph.tape.events if isinstance(e, Cut) and e.how in ("data", "detach") and e.stack
    }
    calls = [b for b in graph.backwards if b.create and b.inputs]
    if not cuts or not calls:
        return
    for fed in (e for e in graph.tape.events if isinstance(e, Fed)):
        record = graph.records.get(fed.node)
        call = next((b for b in reversed(calls) if b.time < fed.time), None)
        if record is None or call is None or plain_op(record) not in UPDATES:
            continue
        loss = next((b for b in graph.backwards if b.time > fed.time and b.accumulates), None)
        if loss is None or fed.node not in graph.walk(loss):
            continue
        for cut in (cuts[t] for t in fed.cuts if t in cuts):
            if _adapted(graph, cut, call, loss):
                yield _of_values(graph, cut, call, fed, loss)


def _adapted(graph: Graph, cut: Cut, call: Backward, loss: Backward) -> bool:
    """Whether what was cut off is a parameter that `call` differentiated, or a value by `call` that an update before
    has made to take its place; and an optimizer steps the parameter with the gradients of `loss`."""
    if call.time > cut.time or any(call.time < s.time < loss.time for s in graph.steps):
        return False
    stepped = [r for r in loss.accumulates if r.storage in graph.owners]
    if cut.node is None:
        return ~cut.ref.storage in call.nodes and any(r.storage == cut.ref.storage for r in stepped)
    made, behind = graph.records.get(cut.node), graph.reaches(cut.node)
    taken = (graph.records[n].parents for n in call.nodes if n in graph.records)
    if made is None or plain_op(made) not in UPDATES or not any(cut.node in parents for parents in taken):
        return False
    return any(r.shape == cut.ref.shape and r.storage in behind for r in stepped)


def _of_values(
    graph: Graph, cut: Cut, call: Backward, fed: Fed, loss: Backward
) -> tuple[Hashable, Event, Conflict | None]:
    name = wording.name(cut.ref, "a parameter")
    return (
        ("fast-weights", graph.stack_number(cut.stack)),
        fed,
        make(
            "cut-graph",
            "fast-weights",
            f"the update is made of the values of {name} alone ({wording.at('cut', cut.stack)}): the loss behind it "
            "trains it through the gradients, and not through what it is",
            [
                ("made", call.stack, "the gradients, with their graph"),
                ("cut", cut.stack, CUT_WORDS[cut.how]),
                ("needed", loss.stack, "no gradient flows through the parameters themselves"),
            ],
            "cut",
            severity="warning",
            ref=cut.ref,
            backward=loss,
            event=cut,
        ),
    )
