"""stray-optimizer: an optimizer steps tensors that are no longer the model's.

PyTorch says nothing: the layer that was put in place of another gets gradients, and keeps its first values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from itertools import pairwise

from gradfix import wording
from gradfix.detect.copies import trained_in_its_stead
from gradfix.detect.finding import Found, make, optimizer_words
from gradfix.detect.freed import SUMMING
from gradfix.detect.parameters import by_hand, differentiated_by, filled_ever, given, given_values, rewrapped
from gradfix.graph import Graph, plain_op
from gradfix.tape import Backward, GradUse, GradWrite, Mutate, Optimizer, Record, Ref, Site

# what gives parts of a tensor, or its numbers in another order
_PARTS = {
    *(
        "select",
        "slice",
        "index",
        "index_select",
        "gather",
        "narrow",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
    ),
    *("expand", "permute", "transpose", "t", "flatten", "cat", "stack", "clone", "split", "chunk", "unbind"),
}
_HOLDERS = {"list": ("list", "lists"), "tuple": ("tuple", "tuples"), "dict": ("dictionary", "dictionaries")}


def stray_optimizers(graph: Graph) -> Found:
    """An optimizer holds a parameter that was replaced, or another model's (a copy that targets are computed with):
    that is dead, the new one gets gradients and is nobody's. Where no step has a gradient and what does is not looked
    at, none of the model's are held."""
    filled = filled_ever(graph)
    found = {storage: met for storage, met in nobodys(graph).items() if not _by_the_program(graph, storage)}
    if not found:
        return
    idle = not any(s.refs for s in graph.steps) and not _looked_at(graph, found) and _last(graph, found)
    homeless = {storage: ref for storage, (ref, _) in found.items()}
    models: dict[int, list[Ref]] = {}  # by the time of their first backward: each pass may make another
    for ref, backward in found.values():
        models.setdefault(backward.time, []).append(ref)
    first = next(iter(models.values()))
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        given = {r.storage for s in steps for r in s.refs}  # a gradient from somewhere: pushed by hand
        quiet = (r for r in optimizer.refs if r.storage not in filled and r.storage not in given)
        kept_up = given_values(graph, number)
        dead = [r for r in quiet if r.storage in kept_up or not _used(graph, r.storage)]
        if not steps or not dead:
            continue
        unused = [r for r in dead if not _used(graph, r.storage)]
        places = ((old, [new for new in homeless.values() if _takes_the_place(new, old)]) for old in unused)
        replaced = [(old, found[0]) for old, found in places if found]
        whole = (
            all(r.shape for r in dead)
            and len(dead) == len(optimizer.refs)
            and (
                (idle and len(models) == 1)
                or all(Counter(r.shape for r in dead) == Counter(r.shape for r in m) for m in models.values())
            )
        )
        if not replaced and (not whole or any(trained_in_its_stead(graph, number, steps))):
            continue  # (copies that an inner update changes are told as such)
        new = [r for _, r in replaced] or first
        names = [f"`{r.name}`" for r in new if r.name]
        whose = "no loss trains" if whole and not replaced else "are no longer the model's"
        yield (
            ("dead", number),
            steps[0],
            make(
                "stray-optimizer",
                "replaced",
                f"{optimizer_words(graph, number)} steps tensors that {whose}: "
                f"{wording.listed(names) if names else 'its parameters'} get gradients and are never updated",
                [
                    ("made", optimizer.stack, "made with the parameters as they were here"),
                    ("step", steps[0].stack, "steps tensors that no loss trains"),
                ],
                "made",
                ref=new[0],
                event=optimizer,
            ),
        )


def _takes_the_place(new: Ref, old: Ref) -> bool:
    """Whether they are called the same. What a method calls ``self.model`` is ``trainer.model`` outside, and what is
    handed to a constructor as ``model`` is ``self.model`` behind it."""
    now, was = new.name.removeprefix("self."), old.name.removeprefix("self.")
    return bool(was) and (now == was or (was != old.name and now.endswith(f".{was}")))


def replaced_later(graph: Graph) -> Found:
    """What an optimizer has stepped is used no more from some pass on: another parameter, of that name or read in its
    place, gets the gradients of the steps that follow, and is nobody's."""
    written = {e.ref.storage for e in graph.tape.events if isinstance(e, Mutate) and e.optimizer is None}
    homeless = {storage: found for storage, found in nobodys(graph).items() if storage not in written}
    if not homeless:
        return
    remade = {s for _, _, c in rewrapped(graph) if c and c.record for s in graph.reaches(c.record.node)}
    read = _Reads(graph)
    by_name = {ref.name: (ref, backward) for ref, backward in homeless.values() if ref.name}
    by_place = {place: found for storage, found in homeless.items() for place in read.first(storage)}
    for number, optimizer in graph.optimizers.items():
        if any(r.storage in remade for r in optimizer.refs):
            continue  # leaves are made of its parameters again and again, and none takes the place of one
        new: list[tuple[Ref, Backward]] = []
        # where it is made a model may have another name than its steps know it by
        called = {r.storage: r.name for s in graph.steps_of(number) for r in (*s.refs, *s.without) if r.name}
        for old in optimizer.refs:
            places = [by_place[place] for place in read.last(old.storage) if place in by_place]
            found = by_name.get(called.get(old.storage, old.name)) or next(
                (f for f in places if f[0].shape[1:] == old.shape[1:]), None
            )  # (a layer with other outputs takes the same inputs)
            last = _last_use(graph, old.storage) if found is not None else None
            if found is not None and last is not None and last < found[1].time and found not in new:
                new.append(found)
        steps = [s for s in graph.steps_of(number) if new and s.time > new[0][1].time]
        if not steps:
            continue
        first = new[0][1]
        named = [f"`{ref.name}`" for ref, _ in new if ref.name]
        names = wording.listed(named) if named else "parameters"
        were, they = (
            ("was", "it gets gradients and is") if len(new) == 1 else ("were", "they get gradients and are")
        )
        yield (
            ("stray-later", number),
            steps[0],
            make(
                "stray-optimizer",
                "replaced-later",
                f"{names} {were} replaced after {optimizer_words(graph, number)} was made, which goes on with the old: "
                f"{they} never updated",
                [
                    ("made", optimizer.stack, "made with the parameters as they were here"),
                    ("needed", first.stack, "the new ones get their gradients here"),
                    ("step", steps[0].stack, "steps without them"),
                ],
                "step",
                ref=new[0][0],
                backward=first,
                event=steps[0],
            ),
        )


def unregistered(graph: Graph) -> Found:
    """Layers that a module holds in a plain list or dictionary, or a plain tensor: its other parameters are stepped,
    and of these its ``parameters()`` knows nothing."""
    for number, optimizer in graph.optimizers.items():
        steps = graph.steps_of(number)
        if not optimizer.unregistered or len(steps) < 2:
            continue
        homeless = nobodys(graph)
        how = dict(zip((r.storage for r in optimizer.unregistered), optimizer.attributes, strict=True))
        left = left_out(graph, optimizer)
        if not left or _looked_at(graph, {r.storage for r in left}):
            continue
        first = homeless[left[0].storage][1]
        if len(graph.passes(first)) < 2 or number not in graph.serves(first):
            continue
        names = wording.listed([f"`{r.name}`" for r in left])
        attribute, inner, *types = how[left[0].storage]
        held = name.removesuffix(inner) if (name := left[0].name).endswith(attribute + inner) else attribute
        kind = " of ".join(_HOLDERS[each][at > 0] for at, each in enumerate(types)) or "tensor"
        what = f"what `{held}` holds" if types else f"`{held}`"
        yield (
            ("unregistered", number),
            steps[0],
            make(
                "stray-optimizer",
                "unregistered",
                f"{names} {'get gradients and are' if len(left) > 1 else 'gets a gradient and is'} never updated: "
                f"`{held}` is a plain {kind}, and parameters() knows nothing of {what if types else 'it'}",
                [
                    ("made", optimizer.stack, f"is not given {what}"),
                    ("needed", first.stack, "computes gradients for it"),
                    ("step", steps[0].stack, "steps without it"),
                ],
                "made",
                ref=left[0],
                backward=first,
                event=optimizer,
            ),
        )


def left_out(graph: Graph, optimizer: Optimizer) -> list[Ref]:
    """What is not registered and is to be trained: not what was given values (a teacher's, out of sight), nor what
    something is differentiated by (collocation points), nor a tensor that is handed to a layer as data are, to a
    checkpoint for its own sake, or that losses are added to."""
    homeless, steps = nobodys(graph), graph.steps_of(optimizer.optimizer)
    return [
        r
        for r, (_, inner, *_) in zip(optimizer.unregistered, optimizer.attributes, strict=True)
        if r.storage in homeless
        and not _by_the_program(graph, r.storage)
        and not any(given(w, steps[0].time) for w in graph.writes.get(r.storage, ()))
        and not differentiated_by(graph, ~r.storage)
        and (inner or not (_enters_a_layer(graph, r) or _for_its_own_sake(graph, r)))
    ]


def _for_its_own_sake(graph: Graph, leaf: Ref) -> bool:
    """Whether a leaf is there to require a gradient and for nothing else: it goes into custom Functions alone, as a
    reentrant checkpoint asks for one, or the losses are linear in it, as in a zero that they are added to."""
    users = [r for r in graph.records.values() if ~leaf.storage in r.parents]
    if all("." not in r.op for r in users):
        return True
    for backward in graph.backwards:
        chain, pending = set[int](), list(backward.roots)
        while pending:
            record = graph.records.get(pending.pop())
            if record is None or record.node in chain or plain_op(record) not in SUMMING:
                continue
            if len(record.parents) == 1 or plain_op(record) in ("add", "sub", "stack"):
                chain.add(record.node)
                pending += [p for p in record.parents if p >= 0]
        if any(r.node not in chain and r.node in graph.walk(backward) for r in users):
            return False
    return True


def _enters_a_layer(graph: Graph, leaf: Ref) -> bool:
    """Whether a leaf, or a part of it, meets a parameter of an optimizer's in an op."""
    made = {~leaf.storage}
    for record in sorted(graph.records.values(), key=lambda r: r.time):
        if made.isdisjoint(record.parents):
            continue
        if any(p < 0 and ~p in graph.owners for p in record.parents):
            return True
        if plain_op(record) in _PARTS:
            made.add(record.node)
    return False


def nobodys(graph: Graph) -> dict[int, tuple[Ref, Backward]]:
    """The leaves that get gradients and that no optimizer has, as they are called, with the first backward of each."""
    found: dict[int, tuple[Ref, Backward]] = {}
    for backward in graph.backwards:
        for ref in () if backward.inputs else backward.accumulates:
            if ref.storage not in graph.owners:
                known = found.get(ref.storage, (ref, backward))
                found[ref.storage] = (known[0] if known[0].name else ref, known[1])
    return found


_Place = tuple[Site, str, int]


class _Reads:
    """By which ops a leaf is read: the innermost place of the person's, the op, and which of its inputs it is."""

    def __init__(self, graph: Graph) -> None:
        self.of: dict[int, list[Record]] = {}
        for record in graph.records.values():
            for parent in record.parents:
                if parent < 0:
                    self.of.setdefault(~parent, []).append(record)

    def first(self, storage: int) -> list[_Place]:
        """Of the first op alone, or nothing."""
        return self._places(storage, min)

    def last(self, storage: int) -> list[_Place]:
        """Of the last op alone, or nothing."""
        return self._places(storage, max)

    def _places(self, storage: int, which: Callable[..., Record]) -> list[_Place]:
        records = self.of.get(storage)
        if not records:
            return []
        record = which(records, key=lambda r: r.time)
        return [(record.stack[-1], record.op, record.parents.index(~storage))] if record.stack else []


def _last_use(graph: Graph, storage: int) -> int | None:
    """When an op last read a leaf, a backward filled it, or the program wrote its gradient; None if never."""
    times = [r.time for r in graph.records.values() if ~storage in r.parents]
    times += [b.time for b in graph.backwards if any(r.storage == storage for r in b.accumulates)]
    written = (e for e in graph.tape.events if isinstance(e, GradWrite))
    times += [e.time for e in written if any(r.storage == storage for r in e.refs)]
    return max(times, default=None)


def _by_the_program(graph: Graph, storage: int) -> bool:
    """Whether the program itself trains a leaf: it writes to it from step to step, and not only what another model has
    come to."""
    first = next((s.time for s in graph.steps), 0)
    written = [w for w in graph.writes.get(storage, ()) if by_hand(w) and w.time > first]
    copied = all(isinstance(w, Mutate) and plain_op(w) == "copy" for w in written)
    return bool(written) and (not copied or _looked_at(graph, (storage,)))


def kept_by_the_program(graph: Graph, storage: int) -> bool:
    """Whether the program has its own use for a leaf's gradient, or changes the leaf itself."""
    return _by_the_program(graph, storage) or _looked_at(graph, (storage,))


def _looked_at(graph: Graph, storages: Collection[int]) -> bool:
    """Whether the program reads or sets gradients of these leaves: it may have its own use for them."""
    events = graph.tape.events
    set_ = any(isinstance(e, GradWrite) and any(r.storage in storages for r in e.refs) for e in events)
    return set_ or any(isinstance(e, GradUse) and e.ref.storage in storages for e in events)


def _last(graph: Graph, storages: Collection[int]) -> bool:
    """Whether these leaves get gradients before one step and before the next: they are what a training would train."""
    times = [0, *(s.time for s in graph.steps[:2])]
    rounds = [
        {r.storage for b in graph.backwards if begin < b.time < end for r in b.accumulates}
        for begin, end in pairwise(times)
    ]
    return len(rounds) > 1 and all(set(storages) <= filled for filled in rounds)


def _used(graph: Graph, storage: int) -> bool:
    return any(~storage in r.parents for r in graph.records.values())
