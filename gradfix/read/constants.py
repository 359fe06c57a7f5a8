"""What has no graph though it was made of what has one: cut off it, or gradients; see gradfix.run.child.constants."""

from __future__ import annotations

from collections.abc import Sequence

from gradfix.read import ops
from gradfix.read.frames import Machine
from gradfix.read.values import Node, Taken, Tensor, Value
from gradfix.tape import Added

SUMS, SCALING = {"add", "stack"}, {"mul", "rmul", "imul", "multiply"}
ADDING = {*SUMS, "sub", "rsub"}  # a term keeps its weight in them


def follow(m: Machine, name: str, args: Sequence[Value], made: Value) -> None:
    """A call was made after ``autograd.grad`` gave gradients without a graph, or something was cut off its own: is what
    it makes a constant of that kind still, or a sum in which they look like a term of the loss? What takes a value that
    was cut off and has a graph is told in any case."""
    terms: list[Tensor | Taken] = [v for v in args if isinstance(v, Taken)]
    terms += [t for value in args for t in ops.tensors_of(value) if t.cut or t.storage.plain or t.left]
    if not terms and not m.leaving:
        return
    if name.strip("_") in SCALING and any(type(a) in (int, float) and not a for a in args):
        m.leaving.clear()
        return  # nothing is left of it
    fresh = frozenset(m.leaving)
    left = fresh.union(*(t.left for t in terms if isinstance(t, Tensor) and not t.requires))
    m.leaving.clear()
    for result in ops.tensors_of(made):
        if result.requires is False and result.dtype not in ops.INTEGERS:
            result.storage.plain = any(_plain(t) for t in terms)
            result.cut = frozenset[int]().union(*(t.cut for t in terms))
            result.left |= left
        elif result.requires is False and (fresh or left & m.drawn):
            m.drawn |= fresh
            result.left |= left
        elif result.requires is None:
            result.left |= left
        elif result.requires and result.node is not None:
            for term in terms:
                _used(m, name.strip("_"), term, result.node)
            if left:
                m.trace.fed(result.node, left)


def drawn(m: Machine, made: Tensor) -> Tensor:
    """`made` are indices that were drawn just now."""
    made.left |= m.leaving
    m.drawn |= m.leaving
    m.leaving.clear()
    return made


def _plain(term: Tensor | Taken) -> bool:
    return isinstance(term, Tensor) and term.storage.plain


def _used(m: Machine, name: str, term: Tensor | Taken, node: Node) -> None:
    """`term` went into what `node` made."""
    from gradfix.read import names

    if name not in SUMS:
        number(m, term.cut)
    cuts: list[int | None] = [*(term.cut - m.numbers)]
    tensor = term.tensor if isinstance(term, Taken) else term
    for cut in cuts or ([None] if _plain(term) and name in ADDING else []):
        if tensor is not None:
            names.local(m, tensor)
            m.trace.added(tensor, node, cut, cut in m.computed)


def number(m: Machine, cut: frozenset[int]) -> None:
    """What was cut off these nodes is used as a number on purpose: so what is computed of it may be, too."""
    m.numbers |= cut
    if cut & m.computed:
        events = m.trace.events
        events[:] = [e for e in events if not (isinstance(e, Added) and e.function and e.cut in cut)]


def constant(m: Machine, made: Tensor, tensor: Tensor) -> Tensor:
    """`made` is the value of `tensor` off its graph."""
    if tensor.requires and tensor.node is not None and made.dtype not in ops.INTEGERS:
        made.cut, m.constants = frozenset((tensor.node.number,)), True
    elif not tensor.requires:
        made.cut = tensor.cut
    return made


def left(m: Machine, made: Tensor, tensor: Tensor, time: int | None) -> Tensor:
    """`made` is the value of `tensor` off its graph, by the Cut at `time` if there was one."""
    made.left = tensor.left if time is None else tensor.left | {time}
    m.constants = m.constants or time is not None
    return made
