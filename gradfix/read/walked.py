"""The backwards of custom Functions, read where a backward walks to their nodes: whether they ask for what was saved,
what they use of what ctx keeps, which gradients they write into, and what they give back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.read import calls, objects, ops, shared
from gradfix.read.backward import blur
from gradfix.read.custom import Applied, Instead, Spoilt
from gradfix.read.frames import Deep, Machine, Raised
from gradfix.read.objects import CTX
from gradfix.read.trace import UNMEASURED, Trace
from gradfix.read.values import Bound, Function, Instance, Node, Storage, Tensor, Value
from gradfix.tape import AnyEvent, Backward, Custom, Stack

_PLAIN = (int, float, complex, bool, str, type(None))
Blame = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A write into the gradient that a backward was given: where, behind the call of the backward."""

    stack: Stack
    sure: bool


@dataclass(frozen=True, slots=True)
class Walked:
    """What a backward does. `asked` for the saved tensors, for certain or not; `used` of those on ctx, by number;
    `written` into its gradient; `given` as gradients, by number of the input, the `same` that it was given itself."""

    asked: tuple[bool, ...] = ()
    used: frozenset[int] = frozenset()
    written: tuple[Written, ...] = ()
    given: frozenset[int] = frozenset()
    same: frozenset[int] = frozenset()
    differentiates: bool = False  # by a backward of its own
    assigns: bool = False  # gradients, to whichever tensors


def met(
    m: Machine, roots: Sequence[Node | Tensor], inputs: Sequence[Node | Tensor] | None, create: bool
) -> Blame:
    """A backward from `roots` is about to walk. Settles what the custom Functions on its way have saved, tells what
    they do to gradients, and gives the times of that with how wrong it makes them."""
    nodes, leaves = m.trace.reached(roots, inputs)
    blame: dict[int, float] = {} if create else _hooked(m, nodes, leaves, roots)
    users: shared.Users | None = None
    for node in sorted((n for n in nodes if n.custom is not None), key=lambda n: -n.number):
        applied: Applied = node.custom
        walked = _walked(m, node, applied)
        m.assigned = m.assigned or walked is None or walked.assigns
        if walked is None:
            node.saves.clear()
            blur(m)
            continue
        _settle(m, node, applied, walked)
        if walked.differentiates or len(walked.given) < len(applied.edges):
            blur(m)
        users = users or shared.users(nodes, leaves, roots)
        if _bypassed(users, node, applied, walked):
            blame[_tell_unmarked(m, node, applied)] = UNMEASURED
        for spoilt in applied.spoilt:
            blame[_tell_spoilt(m, node, spoilt)] = UNMEASURED
        if applied.instead is not None:
            blame[_tell_instead(m, node, applied.instead)] = UNMEASURED
        if create or m.hooked:
            continue
        for write in walked.written:
            sure = shared.with_others(users, node, _same(m))
            if sure is not None:
                blame[_tell_written(m, node, applied, write, sure and write.sure)] = UNMEASURED
    return tuple(blame.items())


def _same(m: Machine) -> shared.Same:
    """Which inputs of a custom Function's node are given the very gradient that the node is given."""

    def same(node: Node) -> Sequence[Node | Tensor]:
        walked = _walked(m, node, node.custom)
        return [node.custom.edges[n] for n in walked.same] if walked is not None else []

    return same


# ---- hooks of tensors


def _hooked(
    m: Machine, nodes: Sequence[Node], leaves: Sequence[Tensor], roots: Sequence[Node | Tensor]
) -> dict[int, float]:
    """What hooks of tensors write into that others are given, too, where all hooks of this walk are known to hand on
    the gradient that they are given."""
    hooked = [n for n in nodes if n.hooks]
    writes = {id(n): _heard(m, n) for n in hooked}
    if not hooked or None in writes.values():
        return {}
    users = shared.users(nodes, leaves, roots)
    for node in sorted(hooked, key=lambda n: -n.number):
        for write in writes[id(node)] or ():
            sure = shared.with_others(users, node, _same(m))
            if sure is not None:
                gradient = _gradient(m, node.output)
                stack, certain = (*m.stack(), *write.stack), sure and write.sure
                return {_tell(m, node, "hook", stack, gradient, None, certain): UNMEASURED}
    return {}


def _heard(m: Machine, node: Node) -> list[Written] | None:
    """The writes of a node's one hook into the gradient that it is given, and hands on; None where that is not known
    of it."""
    if len(node.hooks) != 1 or not _known(node.hooks[0]) or node.output is None:
        return None
    outside = len(m.stack())
    with _aside(m) as aside:
        gradient = _gradient(m, node.output)
        try:
            result = calls.call(m, node.hooks[0], [gradient], {})
        except (Raised, Deep):
            return None
    same = result is None or (isinstance(result, Tensor) and result.storage is gradient.storage)
    if not same or aside.differentiates:
        return None
    return [Written(w.stack[outside:], w.sure) for s, w in aside.writes if s is gradient.storage]


def _known(hook: Value) -> bool:
    """Whether it is a function of the program's, or what calls one: a partial of it, an object with a __call__."""
    if isinstance(hook, Instance) and hook.kind == "functools.partial":
        return _known(hook.extra["call"][0])
    if isinstance(hook, Instance) and hook.cls is not None:
        return isinstance(objects.lookup(hook.cls, "__call__"), Function)
    return isinstance(hook, Function | Bound)


# ---- reading a backward


class _Aside(Trace):
    """What a backward of the user's does to the graph is no part of the tape. Its writes are noted; what they make of
    tensors that were there before is taken back."""

    def __init__(self, tape: Trace) -> None:
        super().__init__(tape._stack, tape._sure, tape._most)
        self.storages, self._time, self._nodes = tape.storages, tape._time, tape._nodes
        self._end, self.guessed = tape._end, tape.guessed
        self._first = len(self.storages)
        self._before: list[tuple[Tensor, tuple[Any, ...]]] = []
        self.writes: list[tuple[Storage, Written]] = []
        self.differentiates = False

    def wrote(self, op: str, tensor: Tensor, *_: Any, **__: Any) -> None:
        for each in (tensor, tensor.base):
            if each is not None and each.storage.number < self._first:
                self._before.append((each, (each.node, each.requires, each.rebased)))
        self.writes.append((tensor.storage, Written(self._stack(), self._sure())))

    def save(self, node: Node, tensor: Tensor, itself: bool = False) -> None:
        return

    def save_own(self, node: Node) -> None:
        return

    def add(self, event: AnyEvent) -> None:
        self.differentiates = self.differentiates or isinstance(event, Backward)

    def leave(self, tape: Trace) -> None:
        for tensor, (node, requires, rebased) in reversed(self._before):
            tensor.node, tensor.requires, tensor.rebased = node, requires, rebased
        tape._time, tape._nodes = self._time, self._nodes


@contextmanager
def _aside(m: Machine) -> Iterator[_Aside]:
    tape, grad = m.trace, m.grad
    aside = _Aside(tape)
    m.trace, m.grad = aside, True  # so that the graph shows what the gradients are made of
    try:
        yield aside
    finally:
        aside.leave(tape)
        m.trace, m.grad = tape, grad


def _walked(m: Machine, node: Node, applied: Applied) -> Walked | None:
    """What the backward of `node` does; None where that can't be said. The same call, with the same in ctx, is read
    once."""
    known = m.functions[id(applied.cls)]
    key = _key(node, applied)
    if key not in known:
        known[key] = None  # a backward that comes to itself
        known[key] = _read(m, applied)
    found: Walked | None = known[key]
    return found


def _key(node: Node, applied: Applied) -> Any:
    attrs = tuple((k, _plain(v)) for k, v in sorted(applied.ctx.attrs.items()))
    extra = tuple(len(applied.ctx.extra.get(k, ())) for k in ("saved", "dirty", "plain"))
    return node.stack, attrs, extra, tuple(applied.edges), len(applied.held)


def _plain(value: Value) -> Any:
    """What a value on ctx may decide: itself, where it is one of Python's."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return value if isinstance(value, _PLAIN) else type(value)


def _read(m: Machine, applied: Applied) -> Walked | None:
    function = objects.lookup(applied.cls, "backward")
    if not isinstance(function, Function):
        function = objects.lookup(applied.cls, "vjp")
    if not isinstance(function, Function):
        return None
    outside = len(m.stack())
    with _aside(m) as aside:
        stands = {id(t): _stand_in(m, t) for t, _ in applied.held}
        grads = [_gradient(m, o) for o in applied.outputs]
        ctx = _ctx(applied, stands)
        try:
            result = calls.call(m, function, [ctx, *grads], {})
        except (Raised, Deep):
            return None
        results = result if isinstance(result, tuple) else (result,)
        made = {n: results[n] for n in applied.edges if n < len(results) and isinstance(results[n], Tensor)}
        edges = [ops.edge(m, t) for t in made.values() if ops.requires(m, t)]
        _, leaves = aside.reached(edges, None)
        given = _only(applied, grads)
        return Walked(
            tuple(ctx.extra["asked"]),
            frozenset(n for n, (t, _) in enumerate(applied.held) if stands[id(t)] in leaves),
            tuple(
                Written(w.stack[outside:], w.sure)
                for s, w in aside.writes
                if given is not None and s is given.storage
            ),
            frozenset(made),
            frozenset(n for n, t in made.items() if given is not None and t.storage is given.storage),
            aside.differentiates,
            aside.assigned,
        )


def _stand_in(m: Machine, tensor: Tensor) -> Tensor:
    """What is on ctx, as a leaf: whatever is made of it leads back there."""
    return ops.new(m, tensor.shape, tensor.dtype, tensor.dtype not in ops.INTEGERS)


def _gradient(m: Machine, output: Value) -> Any:
    return ops.new(m, output.shape, output.dtype) if isinstance(output, Tensor) else None


def _only(applied: Applied, grads: Sequence[Value]) -> Tensor | None:
    """The gradient of the one output that has a graph."""
    numbers = applied.differentiable
    return grads[numbers[0]] if len(numbers) == 1 else None


def _ctx(applied: Applied, stands: dict[int, Tensor]) -> Instance:
    def stood(value: Value) -> Value:
        if isinstance(value, Tensor):
            return stands.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(stood, value))  # (of its own: what it takes off it, it has)
        return {k: stood(v) for k, v in value.items()} if isinstance(value, dict) else value

    tensors = tuple(
        Tensor(t.storage, False, None, t.shape, t.dtype) if isinstance(t, Tensor) else t
        for t in applied.ctx.extra.get("saved", ())
    )
    attrs = {name: stood(value) for name, value in applied.ctx.attrs.items()}
    return Instance(None, attrs, CTX, {"tensors": tensors, "asked": []})


# ---- what comes of it


def _settle(m: Machine, node: Node, applied: Applied, walked: Walked) -> None:
    """What a backward does not look at, no write can spoil."""
    if applied.settled:
        return
    applied.settled = True
    if not walked.asked:
        node.saves.clear()
    elif True not in walked.asked:
        m.trace.likely.add(node.time)
    node.held = tuple(saved for n, (_, saved) in enumerate(applied.held) if n in walked.used)


def _bypassed(users: shared.Users, node: Node, applied: Applied, walked: Walked) -> bool:
    """Whether an unmarked input is read past the Function, and that makes a difference."""
    unmarked = applied.unmarked
    if unmarked is None or unmarked.number not in walked.given - walked.same:
        return False
    return any(user is not unmarked.alias for user, _ in users.of(node))


def _tell_unmarked(m: Machine, node: Node, applied: Applied) -> int:
    unmarked = applied.unmarked
    assert unmarked is not None
    if not unmarked.time:
        unmarked.time = _tell(
            m, node, "unmarked", unmarked.write.stack, unmarked.tensor, unmarked.alias.number, unmarked.sure
        )
    return unmarked.time


def _tell_spoilt(m: Machine, node: Node, spoilt: Spoilt) -> int:
    if not spoilt.time:
        spoilt.time = _tell(m, node, "spoilt", spoilt.write.stack, spoilt.tensor, None, spoilt.sure)
    return spoilt.time


def _tell_instead(m: Machine, node: Node, instead: Instead) -> int:
    if not instead.time:
        instead.time = _tell(m, node, "instead", instead.stack, instead.tensor, instead.number, instead.sure)
    return instead.time


def _tell_written(m: Machine, node: Node, applied: Applied, write: Written, sure: bool) -> int:
    stack = (*m.stack(), *write.stack)
    if stack not in applied.told:
        output = applied.outputs[applied.differentiable[0]]
        gradient = ops.new(m, output.shape, output.dtype)
        applied.told[stack] = _tell(m, node, "grad_output", stack, gradient, None, sure)
    return applied.told[stack]


def _tell(
    m: Machine, node: Node, what: str, stack: Stack, tensor: Tensor, alias: int | None, sure: bool
) -> int:
    time = m.trace.tick()
    m.trace.add(Custom(time, stack, node.number, what, m.trace.ref(tensor), alias))
    if not sure:
        m.trace.likely.add(time)
    return time
