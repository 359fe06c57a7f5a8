"""cut-graph in a sum: a term of the loss has no graph, and is a constant in it; or it has that of a network alone which
the loss isn't there for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gradfix import wording
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.freed import SUMMING, summed
from gradfix.detect.parameters import cuts_of
from gradfix.detect.refused import CUT_WORDS
from gradfix.graph import Graph, plain_op
from gradfix.tape import Added, Backward, Cut, Fed, Stack


def _added(graph: Graph, cut: bool) -> Iterator[Added]:
    return (e for e in graph.tape.events if isinstance(e, Added) and (e.cut is not None) is cut)


def _loss(graph: Graph, event: Added | Fed) -> Backward | None:
    """The backward whose loss the sum is, or is part of."""
    losses = (b for b in graph.backwards if b.time > event.time and b.accumulates)
    return next((b for b in losses if event.node in summed(graph, b.roots)), None)


def _trained(graph: Graph, loss: Backward) -> int:
    """What an optimizer steps with this loss's gradients, as a bit mask: not the critic that it is only computed by."""
    filled = graph.mask(r.storage for r in loss.accumulates if r.storage in graph.owners)
    serves = graph.serves(loss)
    return filled & graph.owned_mask(serves) if serves else filled


def _residual(graph: Graph, event: Added, call: Backward) -> Backward | None:
    """The backward whose loss is a function of the sum, a differential equation's residual say, where the gradients of
    `call` were to be differentiated: those beside it are, or their graph is kept though nothing but inputs of the
    network is differentiated by. (A step of an inner loop is taken with plain gradients of parameters; what an attack
    adds to is no output of a network.)"""
    inputs = [~n for n in call.nodes if n < 0]
    if any(s in graph.owners for s in inputs):
        return None
    begin = max((s.time for s in graph.steps if s.time < call.time), default=-1)
    beside = (b for b in graph.backwards if b.create and b.inputs and begin < b.time < event.time)
    if not (call.retain and inputs) and not any(
        graph.walk(b) & graph.walk(call) for b in beside if _of_one_function(b, call)
    ):
        return None
    losses = (
        b for b in graph.backwards if b.time > event.time and b.accumulates and event.node in graph.walk(b)
    )
    return next((b for b in losses if graph.reach_mask(event.node) & _trained(graph, b)), None)


def _of_one_function(one: Backward, other: Backward) -> bool:
    places = [(b.stack[-1].file, b.stack[-1].function) for b in (one, other) if b.stack]
    return len(places) == 2 and places[0] == places[1]


def plain_terms(graph: Graph) -> Found:
    """A term of the loss is made of gradients that have no graph (a gradient penalty without create_graph=True)."""
    for event in _added(graph, False):
        call = next((c for c in reversed(graph.plain_calls) if c.time < event.time), None)
        loss = _loss(graph, event) or (_residual(graph, event, call) if call is not None else None)
        if call is None or loss is None:
            continue
        if not any(graph.reach_mask(root) & _trained(graph, loss) for root in call.roots):
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


def constant_terms(graph: Graph) -> Found:
    """A term of the loss was cut off its graph in the same pass. (What was kept over a step is an old value.)"""
    cuts: dict[int | None, list[Cut]] = {}
    for each in (e for e in graph.tape.events if isinstance(e, Cut)):
        cuts.setdefault(_source(each), []).append(each)
    kept = {c.stack for e in _added(graph, True) if (c := _before(cuts, e)) and _stepped(graph, c, e)}
    for event in _added(graph, True):
        cut, loss = _before(cuts, event), _loss(graph, event)
        if cut is None or loss is None or not cut.stack or cut.stack in kept:
            continue
        lost = graph.reach_mask(_source(cut)) & _trained(graph, loss)
        if not lost or _meant(graph, cut, loss, event.function):
            continue
        name = wording.name(event.ref, "one term")
        pattern = "computed-term" if event.function else "constant-term"
        if event.function:
            name = f"what is computed of {wording.name(cut.ref, 'a tensor')} past torch"
        yield (
            ("constant-term", graph.stack_number(cut.stack)),
            event,
            make(
                "cut-graph",
                pattern,
                f"{name} is a constant in the loss: {wording.at('cut', cut.stack)} cuts it off its graph, and nothing "
                "is trained by it",
                [
                    ("cut", cut.stack, CUT_WORDS.get(cut.how, "the graph is left here")),
                    ("used", event.stack, "a constant in this sum"),
                    ("needed", loss.stack, "no gradient flows through that term"),
                ],
                "cut",
                severity="warning",
                ref=cut.ref,
                record=graph.records.get(_source(cut)),
                backward=loss,
                event=cut,
            ),
        )


def unrecorded_terms(graph: Graph) -> Found:
    """A term of the loss was computed under no_grad of what the loss trains: by a network that is frozen, say, whose
    input is not."""
    cuts = {c.time: c for c in cuts_of(graph) if c.stack and c.how == "no_grad" and c.node is not None}
    detached = [c for c in cuts_of(graph) if c.how in ("detach", "data") and c.node is not None]
    for fed in (e for e in graph.tape.events if isinstance(e, Fed)) if cuts else ():
        record, loss = graph.records.get(fed.node), _loss(graph, fed)
        if record is None or loss is None or plain_op(record) != "add" or len(record.parents) != 1:
            continue
        since, trained = graph.pass_begin(loss), _trained(graph, loss)
        cut = next((cuts[t] for t in fed.cuts if t in cuts and t > since), None)
        if cut is None or cut.node is None or not graph.reach_mask(cut.node) & trained:
            continue
        terms = summed(graph, loss.roots)
        if cut.node in terms or any(c.node in terms for c in detached if since < c.time < loss.time):
            continue  # a term is there for its gradient, and for its value another
        place = parting(cut, fed)
        yield (
            ("constant-term", graph.stack_number(place)),
            fed,
            make(
                "cut-graph",
                "constant-term",
                f"one term is a constant in the loss: {wording.at('cut', place)} is made without a graph, and "
                "nothing is trained by it",
                [
                    ("cut", place, CUT_WORDS["no_grad"]),
                    ("used", fed.stack, "a constant in this sum"),
                    ("needed", loss.stack, "no gradient flows through that term"),
                ],
                "cut",
                severity="warning",
                ref=cut.ref,
                record=graph.records.get(cut.node),
                backward=loss,
                event=cut,
            ),
        )


def parting(cut: Cut, fed: Fed) -> Stack:
    """The place of the cut. Under no_grad each op is one: of them all, the call by which the way to them leaves the
    function that takes what they give."""
    if cut.how != "no_grad":
        return cut.stack
    pairs = enumerate(zip(cut.stack, fed.stack, strict=False))
    common = next((i for i, (a, b) in pairs if a != b), len(fed.stack))
    return cut.stack[: common + 1]


def _source(cut: Cut) -> int:
    """The node that a value was cut off, or that of a leaf."""
    return cut.node if cut.node is not None else ~cut.ref.storage


def _before(cuts: Mapping[int | None, list[Cut]], event: Added) -> Cut | None:
    """Where the value was cut off that was added: the first time of one pass, for a node; of a leaf, in that pass."""
    known = [c for c in cuts.get(event.cut, ()) if c.time < event.time]
    return None if not known else known[0] if known[0].node is not None else known[-1]


def idle_terms(graph: Graph) -> Found:
    """A term of the loss is given what the loss trains without its graph, and goes through a network that nobody steps
    for it: ``D(fake.detach())`` in the generator's loss. (Where the loss has another term of that network, it may be
    the network's own; and where its gradients are used in another pass, they are meant.)"""
    cuts = {c.time: c for c in cuts_of(graph) if c.stack}
    given = [e for e in graph.tape.events if isinstance(e, Fed)]
    looked = set[tuple[int, int]]()
    for fed in given:
        loss = next((b for b in graph.backwards if b.time > fed.time and fed.node in graph.walk(b)), None)
        place = graph.stack_number(fed.stack), loss.time if loss is not None else 0
        if place in looked:
            continue
        looked.add(place)
        found = _idle(graph, fed, loss, cuts, given) if loss is not None else None
        if loss is None or found is None:
            continue
        term, theirs, cut = found
        made = graph.records[term]
        name = wording.name(made.output, "one term")
        yield (
            ("idle-term", graph.stack_number(cut.stack)),
            fed,
            make(
                "cut-graph",
                "idle-term",
                f"{name} trains nothing: {wording.at('cut', cut.stack)} cuts off what this loss is there for, and its "
                f"gradients in {optimizer_words(graph, min(theirs))} are cleared unused",
                [
                    ("cut", cut.stack, CUT_WORDS.get(cut.how, "the graph is left here")),
                    ("used", fed.stack, "enters a model that is not stepped for this loss"),
                    ("needed", loss.stack, "no gradient flows through that term"),
                ],
                "cut",
                severity="warning",
                ref=cut.ref,
                record=graph.records.get(cut.node) if cut.node is not None else None,
                backward=loss,
                event=cut,
            ),
        )


def has_idle_term(graph: Graph, loss: Backward) -> bool:
    """Whether a term of this loss is given without its graph what the loss trains, and goes through a network that is
    not stepped for it, whatever else was computed with that term."""
    cuts = {c.time: c for c in cuts_of(graph) if c.stack}
    fed = [e for e in graph.tape.events if isinstance(e, Fed) and e.time < loss.time]
    return any(e.node in graph.walk(loss) and _idle(graph, e, loss, cuts, fed) for e in fed)


def _idle(
    graph: Graph, fed: Fed, loss: Backward, cuts: Mapping[int, Cut], given: Iterable[Fed]
) -> tuple[int, frozenset[int], Cut] | None:
    """A term that is given what was `fed` (a score and a distance of features may both be), the optimizers whose
    networks it goes through, and where the value was cut off, one of `cuts` by their times; if it trains nothing.
    Where the loss is added up in a loop, every round has such a term, of what was `given` it by the same statement."""
    if not loss.accumulates or loss.inputs:
        return None
    since = max((b.time for b in graph.passes(loss) if b.time < loss.time), default=-1)
    trained = graph.owned_mask(graph.serves(loss) | graph.uses(loss))
    mine = (cuts[t] for t in sorted(fed.cuts, reverse=True) if t > since and t in cuts)
    cut = next((c for c in mine if _behind(graph, c) & trained), None)
    if cut is None:
        return None
    terms = [(n, graph.reached_optimizers(n), graph.reach_mask(n)) for n in summands(graph, loss.roots)]
    rounds = (e for e in given if e.stack == fed.stack and since < e.time < loss.time)
    alike = [e.node for e in rounds if any(t in cuts and _behind(graph, cuts[t]) & trained for t in e.cuts)]
    above = graph.leading(graph.walk(loss), alike)
    idle = [(n, theirs) for n, theirs, mask in terms if n in above and theirs and not mask & trained]
    others = [(theirs, mask) for n, theirs, mask in terms if n not in above]
    models = frozenset[int]().union(*(theirs for _, theirs in idle))
    if (
        not idle
        or len(idle) + len(others) != len(terms)
        or not any(mask & trained for _, mask in others)
        or any(theirs & models for theirs, _ in others)
        or not all(models <= graph.discards(b) for b in graph.passes(loss)[:-1] or [loss])
    ):
        return None
    return idle[0][0], models, cut


def _behind(graph: Graph, cut: Cut) -> int:
    """The leaves behind a cut, as a bit mask; under no_grad the tensor may be a leaf itself."""
    return graph.reach_mask(cut.node) if cut.node is not None else graph.mask([cut.ref.storage])


def summands(graph: Graph, roots: Iterable[int]) -> Iterator[int]:
    """The nodes that a loss adds up, scaled and averaged maybe."""
    pending, seen = list(roots), set(roots)
    while pending:
        node = pending.pop()
        record = graph.records.get(node)
        inner = [p for p in record.parents if p >= 0] if record is not None else []
        op = plain_op(record) if record is not None else ""
        if op in SUMMING and inner and (len(inner) == 1 or op in ("add", "sub", "stack")):
            pending += [p for p in inner if p not in seen]
            seen.update(inner)
        elif node >= 0:
            yield node


def _stepped(graph: Graph, cut: Cut, event: Added) -> bool:
    return any(cut.time < step.time < event.time for step in graph.steps)


def _meant(graph: Graph, cut: Cut, loss: Backward, function: bool) -> bool:
    """Whether what was cut off is a number on purpose: the value itself is a term as well (`x + y - y.detach()`), or is
    differentiated elsewhere and only shown in this sum: of a function of it that was computed past torch, where the
    value is a loss there. A network's output that ``torch.tensor(t)`` makes anew, and a loss of that, is meant by
    nobody."""
    source = _source(cut)
    if source in summed(graph, loss.roots):
        return True
    if function:
        return any(source in summed(graph, b.roots) for b in graph.backwards)
    return cut.how != "tensor" and any(source in graph.walk(b) for b in graph.backwards)
