"""What is drawn at random of a list: any of what was put into it may come back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from gradfix.read import containers, iteration
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Tensor, Value

_DEEPEST = 3


def _held(value: Value, depth: int = 0) -> Iterator[Tensor]:
    """The tensors of a record: in a tuple, a dictionary or an object of the program's."""
    value = containers.plain(value)
    if isinstance(value, Tensor):
        yield value
    elif depth < _DEEPEST:
        inner: list[Value] = []
        if isinstance(value, list | tuple | dict):
            inner = list(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, Instance) and value.cls is not None:
            inner = list(value.attrs.values())
        for each in inner:
            yield from _held(each, depth + 1)


def _of(m: Machine, items: list[Value] | None, count: Value) -> list[Value] | None:
    """So many of `items`, in which there are tensors; where these need a gradient, nothing more can be said for
    certain. None of other things: it counts too much which."""
    if not items or not isinstance(count, int) or not 0 < count <= iteration.DRAWN:
        return None
    tensors = [list(_held(item)) for item in items]
    if not all(tensors):
        return None
    if any(t.requires is not False for found in tensors for t in found):
        m.doubts += 1  # for all that this function does from now on
    # (from a memory that is not full yet, each as often as it takes)
    return list(itertools.islice(itertools.cycle(items[-count:]), count))


def _next(m: Machine, items: Sequence[Value]) -> Value:
    """One of `items`, another one whenever the same call draws."""
    drawn = m.draws[id(m.frame.node)] = m.draws.get(id(m.frame.node), -1) + 1
    return items[drawn % len(items)]


def _several(position: int | None) -> Callable[..., Value]:
    """A function that draws as many as its argument at `position` says, or `k`."""

    def draw(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = args[position] if position is not None and len(args) > position else kwargs.get("k", 1)
        drawn = _of(m, iteration.listed(m, args[0]) if args else None, given)
        return m.unknown("drawn") if drawn is None else drawn

    return draw


def _one(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = iteration.listed(m, args[0]) if args else None
    return m.unknown("drawn") if items is None or _of(m, items, 1) is None else _next(m, items)


def _of_array(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``numpy.random.choice(records, count)``: NumPy takes no tuples, it would make columns of them."""
    source, size = [*args, None, None][:2] if args else (kwargs.get("a"), None)
    size = kwargs.get("size", size)
    items = iteration.listed(m, source) if isinstance(source, list) else None
    if any(
        not isinstance(item, dict | Instance) or isinstance(containers.plain(item), list)
        for item in items or ()
    ):
        items = None
    drawn = _of(m, items, 1 if size is None else size)
    if items is None or drawn is None:
        return m.unknown("drawn")
    return _next(m, items) if size is None else drawn


def item(m: Machine, owner: list[Value] | tuple[Value, ...]) -> Value:
    """``owner[index]``, where it is not known which: the first, unless they have graphs: then it counts which."""
    if all(t.node is None for each in owner[: iteration.DRAWN] for t in _held(each)):
        return owner[0]
    m.doubts += len(owner) > 1  # as above
    return _next(m, owner)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "random.sample": _several(1),
    "random.choices": _several(None),
    "random.choice": _one,
    "numpy.random.choice": _of_array,
}
