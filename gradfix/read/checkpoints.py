"""torch.utils.checkpoint: the function is called, and what its ops save is made anew in the backward.

A reentrant one runs without a graph, and has none in the end either where no input requires grad; the graph it makes
in the backward is checked like any other. One that is not reentrant checks no version, and stops its second run at the
last tensor that is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gradfix.read import calls, iteration, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Native, Node, Saved, Storage, Tensor, Unknown, Value
from gradfix.tape import Mutate

_OPTIONS = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


def checkpoint(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What ``checkpoint(function, *args, **kwargs)`` gives."""
    reentrant = kwargs.get("use_reentrant") in (True, None)
    if not args or not (reentrant or kwargs.get("use_reentrant") is False):
        return m.unknown("checkpoint")
    function, inputs = args[0], args[1:]
    given = {name: value for name, value in kwargs.items() if name not in _OPTIONS}
    if not m.grad:
        return calls.call(m, function, inputs, given)
    if reentrant:
        tensors = [t for value in inputs for t in ops.tensors_of(value)]
        if not any(t.requires for t in tensors):
            known = not any(isinstance(value, Unknown) for value in inputs)
            if not known or any(t.requires is None for t in tensors):
                return m.unknown("checkpoint")
            return _without_graph(m, function, inputs)
    first, storages = m.trace.made(), len(m.trace.storages)
    result = calls.call(m, function, inputs, given)
    nodes, _ = m.trace.reached([t.node for t in _tensors(result) if t.node is not None], None)
    outer = {t.storage for t in _tensors([*inputs, *given.values()])}
    made = [n for n in nodes if n.number >= first and n.custom is None and not n.checkpoint]
    _make_anew(m, made, storages, outer, reentrant, kwargs.get("early_stop") is not False)
    return result


def sequential(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``checkpoint_sequential(functions, segments, input)``: every segment but the last is a checkpoint."""
    given = {**dict(zip(("functions", "segments", "input", "use_reentrant"), args, strict=False)), **kwargs}
    functions, segments = iteration.listed(m, given.get("functions")), given.get("segments")
    if functions is None or not isinstance(segments, int) or not 0 < segments <= len(functions):
        return m.unknown("checkpoint_sequential")
    size = len(functions) // segments
    last = size * (segments - 1)
    value = given.get("input")
    for start in range(0, last, size):
        chain = _chain(functions[start : start + size])
        value = checkpoint(m, [chain, value], {"use_reentrant": given.get("use_reentrant")})
    return calls.call(m, _chain(functions[last:]), [value], {})


def _chain(functions: Sequence[Value]) -> Native:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = args[0]
        for function in functions:
            value = calls.call(m, function, [value], {})
        return value

    return Native("chain", run)


def _without_graph(m: Machine, function: Value, inputs: list[Value]) -> Value:
    outer, m.checkpoint, m.grad = m.checkpoint, m.checkpoint or m.stack(), False
    try:
        return calls.call(m, function, inputs, {})
    finally:
        m.checkpoint, m.grad = outer, True


def _tensors(value: Value) -> list[Tensor]:
    values = (
        value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
    )
    return [t for each in values for t in ops.tensors_of(each)]


def _make_anew(
    m: Machine, nodes: list[Node], storages: int, inputs: set[Storage], reentrant: bool, early: bool
) -> None:
    """What these nodes saved in storages that are new, with a number from `storages` on, counts as it is left behind
    its save by the function itself; what was there before, if it is no input, as it is at the backward."""
    last = max((n.time for n in nodes if n.saves), default=0)
    for node in nodes:
        if not node.saves:
            continue
        saves, node.saves = node.saves, []
        node.bare = node.checkpoint = True
        if reentrant:
            node.saves = [
                s for s in saves if s.storage.number >= storages and _overwritten(m, s, m.trace.now())
            ]
        else:
            node.held = tuple(_unchecked(m, saves, storages, inputs, last if early else m.trace.now()))


def _unchecked(
    m: Machine, saves: list[Saved], storages: int, inputs: set[Storage], until: int
) -> Iterable[Saved]:
    for saved in saves:
        if saved.storage.number < storages:
            if saved.storage not in inputs:
                yield saved
        elif _overwritten(m, saved, until):
            yield saved


def _overwritten(m: Machine, saved: Saved, until: int) -> bool:
    """Whether the first write behind the save was before the time `until`."""
    number, version = saved.storage.number, saved.version + 1
    return saved.storage.version != saved.version and any(
        isinstance(e, Mutate) and e.ref.storage == number and e.ref.version == version and e.time < until
        for e in m.trace.events
    )


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "torch.utils.checkpoint.checkpoint": checkpoint,
    "torch.utils.checkpoint.checkpoint_sequential": sequential,
}
