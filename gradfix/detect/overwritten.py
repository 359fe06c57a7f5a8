"""stale-saved-tensor and silent-overwrite: a saved tensor was written to before a backward needed it.

Counted writes raise in plain PyTorch, whatever their values; writes the version counter does not see raise
nothing, and are a fault only where the recorder measured that the gradient differs (BatchNorm's statistics
are written and unused).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import isinf

from gradfix import wording
from gradfix.dataclass import dataclass
from gradfix.detect.conflict import Conflict
from gradfix.detect.finding import Findings, make
from gradfix.detect.freed import Torn
from gradfix.detect.refused import refusal_key
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, Mutate, Record, Ref, Stack, Step

ONE_CALL = 4  # ticks within which an op records its node and its write
WRONG = 1e-6  # relative difference of the gradients from which a silent overwrite counts

Writes = Mapping[int, list[Mutate | Step]]  # storage -> writes into it, in order of version
Labels = Sequence[tuple[str, Stack, str]]


@dataclass(frozen=True, slots=True)
class Hit:
    """`record` saved `ref`, or keeps it `held` where no version is checked; `write` is the first write after
    that (of the kind looked for); `backward` needed it."""

    record: Record
    ref: Ref
    write: Mutate | Step
    backward: Backward
    held: bool = False


def overwrites(graph: Graph, refusals: Findings, torn: Torn) -> Iterable[tuple[int, Conflict]]:
    """Every stale saved tensor and silent overwrite. What follows from a refused write or a freed graph is
    put among the consequences of those."""
    found = Findings()
    counted = {s: [w for w in ws if _counted(w)] for s, ws in graph.writes.items()}
    hidden = {s: [w for w in ws if not _counted(w) and not _statistics(w)] for s, ws in graph.writes.items()}
    said: set[Hashable] = set()
    for backward in graph.backwards:
        spoilt = torn.spoilt.get(backward.time, {})
        for hit in _hits(graph, backward, counted):
            places = _places(graph, hit)
            if places in said:
                continue  # the same in a later pass, or another of the many that one statement wrote
            said.add(places)
            if hit.record.node in spoilt:
                torn.findings.fold(spoilt[hit.record.node], _stale(graph, hit))
            elif isinstance(hit.write, Mutate) and hit.write.refused:
                refusals.fold(refusal_key(hit.write), _stale(graph, hit))
            elif (key := _fault(graph, hit)) in found:
                found.fold(key, _stale(graph, hit))
            else:
                found.add(key, backward.time, _stale(graph, hit, _carried(graph, hit)))
        if backward.wrong > WRONG:
            _add_silent(found, graph, backward, counted, hidden, spoilt)
    return found.conflicts()


def _add_silent(
    found: Findings,
    graph: Graph,
    backward: Backward,
    counted: Writes,
    hidden: Writes,
    spoilt: Mapping[int, Hashable],
) -> None:
    """Every statement that was measured to change the gradient by itself is a fault, and who was not changes none.
    Where only the whole gradient was measured: one fault, the statements that may share it folded in."""
    stale = {(h.record.node, h.ref.storage) for h in _hits(graph, backward, counted)}
    shares = _shares(graph, backward)
    first: Hashable = None
    for hit in (*_hits(graph, backward, hidden), *_hits(graph, backward, graph.writes, held=True)):
        if hit.record.node in spoilt or (not hit.held and (hit.record.node, hit.ref.storage) in stale):
            continue
        key = _fault(graph, hit)
        wrong = shares.get(graph.stack_number(hit.write.stack), 0.0) if shares else backward.wrong
        if wrong <= WRONG or (isinf(wrong) and _renormalised(graph, hit)):
            continue
        first = first or key
        known = shares or isinf(wrong) or key in found
        found.add(key if known else first, backward.time, _silent(graph, hit, wrong))


def _renormalised(graph: Graph, hit: Hit) -> bool:
    """Whether what was written was divided in the same hidden way behind it: a mask after a softmax is right by then,
    and what is read of the text has no numbers to tell."""
    writes = (w for w in graph.writes.get(hit.ref.storage, ()) if isinstance(w, Mutate))
    later = (w for w in writes if hit.write.time < w.time < hit.backward.time)
    return any(not _counted(w) and plain_op(w) == "div" for w in later)


def _shares(graph: Graph, backward: Backward) -> dict[int, float]:
    """stack number of a write -> how wrong the writes at that place alone make the gradient. Empty where nobody
    measured that, or where only several together do."""
    times = dict(backward.blame)
    shares: dict[int, float] = {}
    for storage in {
        ref.storage
        for n in graph.walk(backward)
        if n in graph.records
        for ref in graph.records[n].saves + graph.records[n].held
    }:
        for write in graph.writes.get(storage, ()):
            if write.time in times:
                place = graph.stack_number(write.stack)
                shares[place] = max(shares.get(place, 0.0), times[write.time])
    return shares if any(wrong > WRONG for wrong in shares.values()) else {}


def _places(graph: Graph, hit: Hit) -> Hashable:
    stacks = (hit.record.stack, hit.write.stack, hit.backward.stack)
    return (hit.ref.name, graph.earlier_pass(hit.record, hit.backward), *map(graph.stack_number, stacks))


def _hits(graph: Graph, backward: Backward, writes: Writes, held: bool = False) -> Iterator[Hit]:
    """In the engine's order: the node made last comes first."""
    for node in sorted(graph.walk(backward), reverse=True):
        record = graph.records.get(node)
        for ref in (record.held if held else record.saves) if record else ():
            after = writes.get(ref.storage)
            if not after:
                continue
            assert record is not None
            at = bisect_right(after, ref.version, key=lambda w: _version(w, ref.storage))
            while at < len(after) and after[at].time < record.time:
                at += 1  # what was written before the op can't have spoilt what it saved
            if at < len(after) and after[at].time < backward.time:
                yield Hit(record, ref, after[at], backward, held)


def _version(write: Mutate | Step, storage: int) -> int:
    if isinstance(write, Mutate):
        return write.ref.version
    return next(ref.version for ref in write.refs if ref.storage == storage)


def _versions(hit: Hit) -> tuple[int, int]:
    """The tensor's version as saved and as overwritten: PyTorch's numbers where both are known, else the tape's."""
    now = hit.write.ref.counter if isinstance(hit.write, Mutate) else None
    if hit.ref.counter is not None and now is not None:
        return hit.ref.counter, now
    return hit.ref.version, _version(hit.write, hit.ref.storage)


def _counted(write: Mutate | Step) -> bool:
    return not isinstance(write, Mutate) or write.counted


def _statistics(write: Mutate | Step) -> bool:
    return isinstance(write, Mutate) and "batch_norm" in write.op


def _fault(graph: Graph, hit: Hit) -> Hashable:
    """What makes two hits the same fault: one statement that writes is one fault, wherever it is called from;
    an optimizer's step is one fault for every backward that needed what it overwrote."""
    write = hit.write
    kind = "stale" if _counted(write) else "silent"
    if isinstance(write, Mutate) and write.optimizer is None:
        return kind, write.stack[-1] if write.stack else None, write.module
    return kind, graph.stack_number(write.stack), graph.stack_number(hit.backward.stack)


def _stale(graph: Graph, hit: Hit, carried: Labels = ()) -> Conflict | None:
    pattern = _pattern(hit)
    before, after = _versions(hit)
    labels = [("saved", hit.record.stack, f"{wording.shaped(hit.ref)} saved here, version {before}")]
    by_step = pattern == "optimizer-step"
    labels.append(("overwritten", hit.write.stack, f"overwritten here, version {after}"))
    labels.append(("needed", hit.backward.stack, "needed here"))
    labels[1:1] = carried
    name = wording.name(hit.ref, _unnamed(hit))
    writer = _writer(graph, hit.write, by_step)
    message = f"{name} is overwritten by {writer} before {wording.at('needed', hit.backward.stack)} needs it"
    if pattern == "self-write":
        message = message.replace("is overwritten by", "is overwritten by the very op that saved it,")
    return make(
        "stale-saved-tensor",
        pattern,
        message,
        labels,
        "overwritten",
        ref=hit.ref,
        record=hit.record,
        write=hit.write if isinstance(hit.write, Mutate) else None,
        backward=hit.backward,
        event=_step(graph, hit.write),
    )


def _silent(graph: Graph, hit: Hit, wrong: float) -> Conflict | None:
    if hit.held:
        return _kept(graph, hit, wrong)
    write, ref = hit.write, hit.ref
    assert isinstance(write, Mutate)
    pattern = "fused-step" if write.optimizer is not None else write.how
    if pattern not in ("data", "detach", "numpy", "set_data", "fused-step"):
        pattern = "write"
    route = {
        "data": "through `.data`",
        "detach": "through a detached alias",
        "numpy": "through a NumPy array that shares its memory",
        "fused-step": "by a fused optimizer",
        "set_data": "by assigning to `.data`",
        "write": "unseen by autograd",
    }[pattern]
    name = wording.name(ref, _unnamed(hit))
    return make(
        "silent-overwrite",
        pattern,
        f"{name} is overwritten {route} before {wording.at('needed', hit.backward.stack)} needs it: no "
        f"error, and the gradient is {wording.off(wrong)}",
        (
            ("saved", hit.record.stack, f"{wording.shaped(ref)} saved here, version {ref.version}"),
            ("overwritten", write.stack, f"overwritten here {route}, version {write.ref.version}"),
            ("needed", hit.backward.stack, "needed here: wrong gradient, no error"),
        ),
        "overwritten",
        ref=ref,
        record=hit.record,
        write=write,
        backward=hit.backward,
    )


def _kept(graph: Graph, hit: Hit, wrong: float) -> Conflict | None:
    """What autograd checks no version of: what a custom Function keeps without ``save_for_backward``, what is saved
    within a checkpoint."""
    write, ref, function = hit.write, hit.ref, hit.record.op
    needed = wording.at("needed", hit.backward.stack)
    writer = _writer(graph, write, _pattern(hit) == "optimizer-step")
    if hit.record.checkpoint:
        pattern, kept = "checkpoint", "saved within a checkpoint"
        name = f"{wording.name(ref)}, {kept}," if ref.name else f"{_unnamed(hit)} within a checkpoint"
        message = f"{name} is overwritten by {writer} before {needed} needs it"
    else:
        pattern, kept = "ctx-attribute", "kept on ctx"
        name = wording.name(ref, f"a tensor on the ctx of `{function}`")
        message = (
            f"`{function}` keeps {name} as an attribute of ctx, where autograd checks nothing, and {writer} overwrites "
            f"it before {needed} needs it"
        )
    before, after = _versions(hit)
    return make(
        "silent-overwrite",
        pattern,
        f"{message}: no error, and the gradient is {wording.off(wrong)}",
        (
            ("saved", hit.record.stack, f"{wording.shaped(ref)} {kept} here, version {before}"),
            ("overwritten", write.stack, f"overwritten here, version {after}"),
            ("needed", hit.backward.stack, "needed here: wrong gradient, no error"),
        ),
        "overwritten",
        ref=ref,
        record=hit.record,
        write=write if isinstance(write, Mutate) else None,
        backward=hit.backward,
        event=_step(graph, write),
    )


def _carried(graph: Graph, hit: Hit) -> Labels:
    """Where an earlier pass's graph is taken over, if the tensor was saved in one: there it can be cut or
    made anew."""
    if not graph.earlier_pass(hit.record, hit.backward):
        return []
    previous = graph.previous(hit.backward)
    assert previous is not None
    old = {
        n for n in graph.walk(hit.backward) if n in graph.records and graph.records[n].time < previous.time
    }
    labels: list[tuple[str, Stack, str]] = []
    for entry in graph.entries(hit.backward, old.__contains__, {hit.record.node}):
        labels.append(
            ("made", entry.producer.stack, "made in an earlier pass, with the graph that is walked again")
        )
        if entry.consumer is not None:
            labels.append(("used", entry.consumer.stack, "taken over from the earlier pass here"))
    return labels


def _pattern(hit: Hit) -> str:
    write, record = hit.write, hit.record
    if not isinstance(write, Mutate) or write.optimizer is not None:
        return "optimizer-step"
    if renormalises(write):
        return "renormalised"
    if write.how == "module":
        return "module"
    if write.stack == record.stack and write.time - record.time <= ONE_CALL and _same_op(write, record):
        return "self-write"
    return "write"


def renormalises(write: Mutate) -> bool:
    """Whether an embedding lookup with max_norm did the write."""
    return "embedding" in write.op or "renorm" in write.op


def _same_op(write: Mutate, record: Record) -> bool:
    """Whether the node is the in-place op's own: ``aten.mul`` for ``aten.mul_`` as for ``__imul__``."""
    made, wrote = plain_op(record), plain_op(write)
    return made in (wrote, wrote.removeprefix("i"))


def _step(graph: Graph, write: Mutate | Step) -> Step | None:
    if isinstance(write, Step):
        return write
    if write.optimizer is None:
        return None
    return next((s for s in graph.steps_of(write.optimizer) if s.time >= write.time), None)


def _writer(graph: Graph, write: Mutate | Step, by_step: bool) -> str:
    optimizer = graph.optimizers.get(write.optimizer) if write.optimizer is not None else None
    if by_step and optimizer is not None and optimizer.name:
        return f"`{optimizer.name}.step()`"
    if by_step:
        return wording.at("step", write.stack)
    if isinstance(write, Mutate) and write.module:
        if renormalises(write):
            return f"the renormalising lookup `{write.module}`"
        return f"the in-place module `{write.module}` (`inplace=True`)"
    return wording.at("overwritten", write.stack)


def _unnamed(hit: Hit) -> str:
    return f"a tensor that {wording.at('saved', hit.record.stack)} saved"
