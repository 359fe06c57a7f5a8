"""cut-graph (quantized): what an encoder makes is replaced by the nearest code of a table, which indices choose. What
is decoded of that trains the decoder and the table; the encoder is only kept near its codes: indices have no gradient.

It is such a table where the loss compares the codes with what they stand for, one of the two without its graph.
"""

from __future__ import annotations

from gradfix import wording
from gradfix.detect.finding import Found, make
from gradfix.detect.parameters import names_of
from gradfix.detect.refused import CUT_WORDS
from gradfix.detect.terms import summands
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, Fed

_COMPARING = {"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "sub", "rsub"}
_LOOKUPS = {"embedding", "index", "index_select", "mm", "addmm", "gather", "matmul", "bmm", "einsum"}
_DISTANCES = {
    "_cdist_forward",
    "_euclidean_dist",
    "cdist",
    "add",
    "sub",
    "rsub",
    "sum",
    "norm",
    "linalg_vector_norm",
}


def quantized(graph: Graph) -> Found:
    """In every pass the loss has a term of the codes that reaches neither the encoder nor the table alone."""
    cuts = {c.time: c for c in graph.tape.events if isinstance(c, Cut) and c.stack and c.node is not None}
    indices = {time for time, c in cuts.items() if c.how == "discrete"}
    fed = [e for e in graph.tape.events if isinstance(e, Fed)] if indices else []
    told: dict[object, list[tuple[Cut, Fed, Fed, Backward, frozenset[int]]]] = {}
    for loss in graph.backwards if fed else ():
        since = max((b.time for b in graph.backwards if b.time < loss.time), default=-1)
        walk = graph.walk(loss)
        mine = [e for e in fed if since < e.time < loss.time and e.node in walk]
        for into in mine:
            for cut in (cuts[t] for t in into.cuts if t in indices):
                found = _encoder(graph, loss, cut, into, mine, cuts)
                if found is not None:
                    told.setdefault(cut.stack, []).append((cut, into, found[0], loss, found[1]))
    for times in told.values():
        cut, into, compared, loss, encoder = times[0]
        if len({b.time for _, _, _, b, _ in times}) < 2:
            continue
        yield (
            ("quantized", graph.stack_number(cut.stack)),
            loss,
            make(
                "cut-graph",
                "quantized",
                f"nothing that is decoded trains {names_of(graph, encoder)}: {wording.at('cut', cut.stack)} chooses "
                "codes in the place of what they make, and indices have no gradient",
                [
                    ("cut", cut.stack, CUT_WORDS["discrete"]),
                    ("used", into.stack, "takes codes by these indices"),
                    ("other", compared.stack, "keeps the two near each other"),
                    ("needed", loss.stack, "no gradient of what is decoded comes to the encoder"),
                ],
                "used",
                severity="warning",
                ref=cut.ref,
                record=graph.records.get(cut.node) if cut.node is not None else None,
                backward=loss,
                event=compared,
            ),
        )


def _encoder(
    graph: Graph, loss: Backward, cut: Cut, into: Fed, fed: list[Fed], cuts: dict[int, Cut]
) -> tuple[Fed, frozenset[int]] | None:
    """Where the codes are compared with what they stand for, and the parameters that this is made by, where a term of
    the loss that goes through the codes reaches none of them, and others beside the table."""
    if cut.node is None or not loss.accumulates or loss.inputs:
        return None
    trained = {r.storage for r in loss.accumulates}
    above = graph.leading(graph.walk(loss), [into.node])
    summed = list(summands(graph, loss.roots))
    terms = [graph.reaches(n) for n in summed if n in above]
    others = [graph.reaches(n) & graph.owners.keys() for n in summed if n not in above]
    looked_up = (
        graph.reaches(into.node) if plain_op(graph.records[into.node]) in _LOOKUPS else frozenset[int]()
    )
    for book in dict.fromkeys((looked_up, frozenset[int]())):  # a table that is trained, or one that is not
        encoder = (graph.reaches(cut.node) & graph.owners.keys()) - book
        if not encoder or not encoder <= trained:
            continue
        if not any(reached - book and not reached & encoder for reached in terms):
            continue
        if any(reached & encoder and reached - encoder - book for reached in others):
            continue  # what it makes is decoded without the codes, too
        compared = next((e for e in fed if _compares(graph, e, cut, encoder, book, cuts)), None)
        if compared is not None:
            return compared, encoder
    return None


def _compares(
    graph: Graph, fed: Fed, cut: Cut, encoder: frozenset[int], book: frozenset[int], cuts: dict[int, Cut]
) -> bool:
    """Whether an op takes the codes without their graph and what they stand for, or the other way round."""
    record = graph.records.get(fed.node)
    if record is None or plain_op(record) not in _COMPARING:
        return False
    reached = graph.reaches(fed.node)
    for time in fed.cuts:
        other = cuts.get(time)
        if other is None or other.node is None:
            continue
        if other is cut and not book and reached and reached <= encoder:
            return plain_op(graph.records[other.node]) in _DISTANCES if other.node in graph.records else False
        behind = graph.reaches(other.node) & graph.owners.keys()
        if other.how == "discrete" or not behind or not reached:
            continue
        if (behind <= encoder and reached <= book) or (behind <= book and reached <= encoder):
            return True
    return False
