"""attached-target: a value meant as a target or a weight carries its graph into the loss.

Regressing one attached output on another is often meant (siamese and consistency losses, autoencoders), so
only shapes that are hardly ever meant are reported: a bootstrapped target, a return folded of values, and a
weight of log-probabilities that its own value loss trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gradfix import wording
from gradfix.detect.advantages import Advantages
from gradfix.detect.conflict import Conflict
from gradfix.detect.dropped import dropped_edges
from gradfix.detect.finding import Findings, make
from gradfix.detect.ratios import OLD, ratios
from gradfix.detect.returns import SHAPES, WRITTEN, is_return, through
from gradfix.detect.upkept import Upkept
from gradfix.detect.weights import PRODUCTS, REGRESSIONS, Weights
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Cut, GradUse, Record, Stack, Step

LEAST = {"minimum", "min", "amin"}
TORN = {"freed-graph", "stale-saved-tensor", "silent-overwrite"}
JOINED = {"stack", "cat", "select", "slice"}


def attached_targets(graph: Graph) -> Iterable[tuple[int, Conflict]]:
    """Both shapes, in every backward that fills an optimizer's parameters."""
    found = Findings()
    detached = {
        e.node: e
        for e in graph.tape.events
        if isinstance(e, Cut) and e.how == "detach" and e.node is not None
    }
    for pattern, value, loss, backward in _attached(graph):
        if pattern == "kept-up":
            conflict = _kept_up(value, loss, backward)
        elif pattern != "advantage":
            conflict = _bootstrapped(pattern, value, loss, backward, detached)
        else:
            conflict = _weighted(value, loss, backward)
        found.add((pattern, value.stack), backward.time, conflict)
    return found.conflicts()


def target_edges(graph: Graph, conflict: Conflict) -> Iterator[tuple[int, ...]]:
    """(consumer, producer) of every edge, in any pass, through which the conflict's value gets the loss's
    gradient: what a cure of it may cut. Where the value may stand on both sides, which input of the consumer's it is,
    too."""
    if conflict.kind != "attached-target" or conflict.record is None:
        return
    if conflict.pattern == "ratio":
        for ratio in ratios(graph):
            if ratio.compared.stack == conflict.labels[conflict.primary].stack:
                yield ratio.compared.node, ratio.old.node, OLD
        return
    if conflict.pattern == "dropped":
        yield from dropped_edges(graph, conflict)
        return
    for pattern, value, loss, _ in _attached(graph):
        if (pattern, value.stack) == (conflict.pattern, conflict.record.stack):
            for node in graph.below(loss.node):
                record = graph.records.get(node)
                if record is not None and value.node in record.parents:
                    yield node, value.node


def carries(graph: Graph, target: Conflict, torn: Conflict) -> bool:
    """Whether a backward fails, or is wrong, on what only an attached target has led it to: a graph that is freed, a
    tensor that is overwritten."""
    if torn.kind not in TORN or torn.backward is None or torn.backward is not target.backward:
        return False
    besides = _besides(graph, target, torn.backward)
    if besides is None:
        return False
    if torn.kind != "freed-graph":
        return all(c.record is not None and c.record.node not in besides for c in (torn, *torn.also))
    freed = graph.walk(torn.earlier) if torn.earlier is not None else besides
    return besides.isdisjoint(n for n in freed if n in graph.records and graph.records[n].saves)


def waits(target: Conflict, torn: Conflict) -> bool:
    """Whether a ratio's backward fails in a later pass, on the graph of the old probabilities as a rule: that is told
    first, as PyTorch says it, and the ratio if it is left then."""
    if target.pattern != "ratio" or torn.kind not in TORN or target.backward is None or torn.backward is None:
        return False
    return torn.backward.stack == target.backward.stack


def mixes(graph: Graph, target: Conflict, mixed: Conflict) -> bool:
    """Whether a mixed gradient comes of an attached target: all that the loss gives the other optimizer's parameters
    flows through it."""
    step, loss = mixed.event, mixed.earlier
    if mixed.kind != "mixed-gradient" or not isinstance(step, Step):
        return False
    if loss is None or target.backward is None or loss.stack != target.backward.stack:
        return False
    theirs = graph.owned_mask([step.optimizer])
    besides = _besides(graph, target, loss)
    if besides is None:
        return False
    fed = (p for n in besides if n in graph.records for p in graph.records[n].parents if p < 0)
    return not any(graph.reach_mask(p) & theirs for p in fed)


def _besides(graph: Graph, target: Conflict, backward: Backward) -> set[int] | None:
    """The nodes that `backward` comes to, and not through the attached value."""
    value, records = target.record, graph.records
    if target.kind != "attached-target" or target.pattern == "ratio" or value is None:
        return None  # (of a ratio, the value may be the other side as well)
    nodes = {n for n in graph.walk(backward) if n in records and records[n].stack == value.stack}
    besides, pending = set(backward.roots), list(backward.roots)
    while pending:
        record = records.get(pending.pop())
        for parent in record.parents if record else ():
            if parent >= 0 and parent not in besides and parent not in nodes:
                besides.add(parent)
                pending.append(parent)
    return besides


def _attached(graph: Graph) -> Iterator[tuple[str, Record, Record, Backward]]:
    """(pattern, the attached value, the op of the loss that it enters, the backward) in every pass."""
    weights = Weights(graph)
    advantages, upkept = Advantages(graph, weights), Upkept(graph)
    read = {e.ref.storage for e in graph.tape.events if isinstance(e, GradUse)}
    for backward in graph.backwards:
        if backward.create:
            continue
        owned = graph.owned_mask(graph.uses(backward))  # what is cleared before it is used does no harm
        if not graph.filled(
            backward
        ):  # the program hands the gradients on by itself: A3C's, to a shared model
            leaves = {r.storage for r in backward.accumulates}
            owned = graph.mask(leaves) if leaves & read else 0
        if not owned:
            continue
        for value, loss in upkept.values(backward):
            yield "kept-up", value, loss, backward
        records = [graph.records[n] for n in sorted(graph.walk(backward), reverse=True) if n in graph.records]
        regressed = [r for r in records if plain_op(r) in REGRESSIONS and len(r.parents) == _inputs(r)]
        returns = {r.node: target for r in regressed if (target := _return(graph, r, owned, advantages))}
        folds = {_place(graph, graph.records[node], target) for node, target in returns.items()}
        for record in records:
            if record in regressed:
                target = returns.get(record.node) or _first_step(graph, record, folds)
                if target is not None:
                    yield "return", target, record, backward
                else:
                    for target in _bootstraps(graph, record, owned, advantages):
                        yield "bootstrap", target, record, backward
            elif plain_op(record) in PRODUCTS and len(record.parents) == 2:
                weight = weights.weight(record, backward, owned)
                if weight is not None:
                    yield "advantage", weight, record, backward


def _inputs(record: Record) -> int:
    return 1 if plain_op(record) in ("pow", "square", "abs") else 2


def _place(graph: Graph, loss: Record, target: Record) -> tuple[int, int]:
    return graph.stack_number(loss.stack), graph.stack_number(target.stack)


def _first_step(graph: Graph, loss: Record, folds: set[tuple[int, int]]) -> Record | None:
    """What a return is folded of by one step, where more are regressed on at the same place."""
    for _, target in _sides(graph, loss) if folds else ():
        record = graph.records.get(target)
        if record is not None and _place(graph, loss, record) in folds:
            return record
    return None


def _sides(graph: Graph, record: Record) -> Iterator[tuple[int, int]]:
    """(one side, the other) of what is regressed: the two inputs of a loss, or of the difference that is
    squared."""
    parents = record.parents
    if len(parents) == 1:
        difference = graph.records.get(through(graph, parents[0], SHAPES))
        if (
            difference is None
            or plain_op(difference) not in ("sub", "add", "rsub")
            or len(difference.parents) != 2
        ):
            return
        parents = difference.parents
    yield parents[0], parents[1]
    yield parents[1], parents[0]


def _bootstraps(graph: Graph, record: Record, owned: int, advantages: Advantages) -> Iterator[Record]:
    """The value of every ``r + gamma * value`` that an output of the same parameters is regressed on."""
    for prediction, target in _sides(graph, record):
        for total in _totals(graph, target):
            scaled = graph.records.get(through(graph, total.parents[0], SHAPES))
            if scaled is None or plain_op(scaled) != "mul" or len(scaled.parents) != 1:
                continue
            while (
                scaled is not None and plain_op(scaled) == "mul" and len(scaled.parents) == 1
            ):  # gamma * (1 - done) * v
                value = graph.records.get(through(graph, scaled.parents[0], SHAPES))
                node, scaled = scaled.parents[0], value
            # both sides are outputs of the same model, by two passes of their own; or parts of one pass's, whose
            # difference is known to be an advantage
            if node not in graph.records or not _values(
                graph, node, graph.reach_mask(prediction) & owned, owned
            ):
                continue
            if _made_alike(graph, total, prediction):
                continue
            if not _shares(graph, node, prediction) or (
                advantages.parts_of_one(prediction, node) and advantages.known(prediction, target)
            ):
                yield graph.records[node]


def _totals(graph: Graph, target: int) -> Iterator[Record]:
    """Every sum of one value and a constant that `target` is, is joined of, or has had written into it."""
    pending, seen = [target], set[int]()
    while pending:
        node = through(graph, pending.pop(), SHAPES)
        record = graph.records.get(node)
        if record is None or node in seen:
            continue
        seen.add(node)
        op = plain_op(record)
        if op in JOINED | WRITTEN:
            pending += record.parents
        elif op in ("add", "sub", "rsub") and len(record.parents) == 1:
            yield record


def _values(graph: Graph, node: int, mine: int, owned: int) -> bool:
    """Whether `node` is a value that the leaves `mine` have made, or the least of several critics' values, of which
    those of `mine` are one."""
    if not mine or graph.reach_mask(node) & owned == mine:
        return bool(mine)
    pending, masks = [node], list[int]()
    while pending:
        record = graph.records.get(pending.pop())
        if record is None:
            return False
        op = plain_op(record)
        if op in LEAST or (op in SHAPES | {"cat", "stack"} and record.node != node):
            pending += record.parents
        else:
            masks.append(graph.reach_mask(record.node) & owned)
    return mine in masks and sum(masks) == graph.reach_mask(node) & owned  # no two have a leaf in common


def _return(graph: Graph, record: Record, owned: int, advantages: Advantages) -> Record | None:
    """The return ``R = r + gamma * R`` that is regressed on, over values of the model that made the prediction; or
    None."""
    if len(record.parents) == 1:
        difference = graph.records.get(through(graph, record.parents[0], SHAPES))
        if difference is None or plain_op(difference) == "add":
            return None
    for prediction, target in _sides(graph, record):
        mine = graph.reach_mask(prediction) & owned
        valued = advantages.valued(prediction)
        if mine and target in graph.records and is_return(graph, target, prediction, mine, valued):
            return graph.records[target]
    return None


def _shares(graph: Graph, a: int, b: int) -> bool:
    """Whether the two nodes have a node in common below them."""
    return bool(graph.below(a) & graph.below(b))


def _made_alike(graph: Graph, total: Record, prediction: int) -> bool:
    """Whether the prediction comes of the same sum: what the model itself ends in (a residual, a scaled mean), of which
    neither is the target."""
    at = total.stack[-1:]
    return any(graph.records[n].stack[-1:] == at for n in graph.below(prediction) if n in graph.records)


def _bootstrapped(
    pattern: str, target: Record, loss: Record, backward: Backward, detached: dict[int, Cut]
) -> Conflict | None:
    cut = detached.get(target.node)
    name = wording.name(target.output, wording.at("target", target.stack))
    labels: list[tuple[str, Stack, str]] = [("target", target.stack, "the target's value, with its graph")]
    if cut is not None:
        labels.append(
            ("cut", cut.stack, "detach() returns a new tensor; the one used below still has its graph")
        )
    labels.append(("used", loss.stack, "regressed on here"))
    labels.append(("needed", backward.stack, "the gradient flows into the target too"))
    what = "a return, folded of rewards and values," if pattern == "return" else "part of a target,"
    place = "used" if pattern == "return" else "target"
    return make(
        "attached-target",
        pattern,
        f"{name} is {what} but carries its graph into the loss: the target is trained towards the prediction",
        labels,
        place if cut is None else "cut",
        ref=target.output,
        record=target,
        backward=backward,
        event=cut,
    )


def _kept_up(value: Record, loss: Record, backward: Backward) -> Conflict | None:
    name = wording.name(value.output, wording.at("target", value.stack))
    return make(
        "attached-target",
        "kept-up",
        f"{name} is made by parameters that are kept up with others, and carries its graph into the loss: the "
        "optimizer of both trains them, too",
        [
            ("target", value.stack, "the target network's value, with its graph"),
            ("used", loss.stack, "meets what the other parameters made here"),
            ("needed", backward.stack, "the gradient flows into both"),
        ],
        "target",
        severity="warning",
        ref=value.output,
        record=value,
        backward=backward,
    )


def _weighted(weight: Record, product: Record, backward: Backward) -> Conflict | None:
    name = wording.name(weight.output, wording.at("target", weight.stack))
    return make(
        "attached-target",
        "advantage",
        f"{name} weighs a log-probability and carries its graph: the policy's loss trains the value model "
        "too",
        [
            ("target", weight.stack, "the weight, with its graph"),
            ("used", product.stack, "multiplied with the log-probability here"),
            ("needed", backward.stack, "the gradient flows into both"),
        ],
        "used",
        ref=weight.output,
        record=weight,
        backward=backward,
    )
