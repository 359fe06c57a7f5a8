"""cut-graph in gradients of gradients: an update that is made of them is made behind autograd's back."""

from __future__ import annotations

from itertools import pairwise

from gradfix import wording
from gradfix.detect.finding import Found, make
from gradfix.graph import Graph
from gradfix.tape import Mutate


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
