"""Who holds a tensor that is written: a cure that binds one of these places to a new tensor leaves the others with the
old one."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from .names import is_plain_object, variables_of
from .storages import NO_STORAGE, address_of

_LOOKS = 2  # at one place of the program
_MOST = 20_000  # values looked at
_MOST_ITEMS = 1024
_DEEPEST = 4
_OF_MODULES = ("_parameters", "_buffers", "_modules")

Place = tuple[int, Any]  # an object, a dictionary or a list by its id, and the key in it


class Holding:
    """Looks for a tensor in what the variables of the user's frames hold, the first times at each place."""

    def __init__(self, sites: Any) -> None:
        self._sites = sites
        self._looks: dict[Any, int] = {}

    def of(self, tensor: Any, frame: Any, stack: Any) -> list[list[Any]]:
        """The places that hold the tensor or what shares memory with it, each as what the innermost of the user's
        frames calls it, what an outer one does, and how many frames outwards that is (-1: a global of a module that
        runs no more)."""
        address = address_of(tensor)
        self._looks[stack] = looks = self._looks.get(stack, 0) + 1
        if not address or looks > _LOOKS:
            return []
        frames = []
        while frame is not None:
            if self._sites.is_user(frame.f_code):
                frames.append(frame)
            frame = frame.f_back
        if not frames:
            return []
        sought = (address, *_extent(tensor))
        own = variables_of(frames[0])
        here = {place: name for place, name, _ in _found([(_namespace(frames[0]), 0, own)], sought)}
        outer = [(_namespace(f), depth, variables_of(f)) for depth, f in enumerate(frames[1:], 1)]
        running = {_namespace(f) for f in frames}
        known = {id(f.f_globals): f.f_globals for f in frames}
        outer += [(at, -1, iter(list(held.items()))) for at, held in known.items() if at not in running]
        places = {place: ["", name, depth] for place, name, depth in _found(outer, sought)}
        for place, name in here.items():
            places.setdefault(place, ["", name, 0])[0] = name
        return list(places.values())


def _namespace(frame: Any) -> int:
    """What a frame's variables lie in, by its id."""
    return id(frame.f_globals if frame.f_code.co_name == "<module>" else frame)


def _found(roots: Any, sought: tuple[int, int, int]) -> Iterator[tuple[Place, str, int]]:
    """Every place once, by the shortest way to it."""
    todo: deque[tuple[Place, str, int, Any, int]] = deque()
    for at, depth, held in roots:
        todo.extend(((at, name), name, depth, value, 0) for name, value in held)
    seen: set[int] = set()
    places: set[Place] = set()
    left = _MOST
    while todo and left:
        left -= 1
        place, name, depth, value, deep = todo.popleft()
        if isinstance(value, torch.Tensor):
            if place not in places and _shares(value, sought):
                places.add(place)
                yield place, name, depth
        elif id(value) not in seen and deep < _DEEPEST:
            seen.add(id(value))
            module = isinstance(value, torch.nn.Module)
            for at, key, called, item in _within(value):
                todo.append(((at, key), name + called, depth, item, deep if module else deep + 1))


def _within(value: Any) -> Iterator[tuple[int, Any, str, Any]]:
    """What a value holds: where, by which key, how that is written, and what."""
    if isinstance(value, dict):
        if len(value) <= _MOST_ITEMS:
            yield from (
                (id(value), key, f"[{key!r}]", item) for key, item in list(value.items()) if _plain(key)
            )
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        if len(value) <= _MOST_ITEMS:
            fields = getattr(type(value), "_fields", ())
            for i, item in enumerate(list(value)):
                yield id(value), i, f".{fields[i]}" if i < len(fields) else f"[{i}]", item
    elif isinstance(value, FunctionType):
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):  # noqa: B905 (Python 3.9)
            try:
                yield id(cell), 0, f".{key}", cell.cell_contents
            except ValueError:  # not filled yet
                pass
    elif isinstance(value, MethodType):
        yield id(value), 0, ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield id(value), 0, ".args", value.args
        yield id(value), 1, ".keywords", value.keywords
    elif isinstance(value, torch.nn.Module):
        for key, item in list(vars(value).items()):
            if key in _OF_MODULES:
                yield from ((id(item), k, f".{k}", each) for k, each in list(item.items()))
            else:
                yield id(value), key, f".{key}", item
    elif is_plain_object(value) and not isinstance(value, torch.optim.Optimizer):
        yield from ((id(value), key, f".{key}", item) for key, item in list(vars(value).items()))


def _plain(key: Any) -> bool:
    return isinstance(key, (str, int))


def _extent(tensor: Any) -> tuple[int, int]:
    """The bytes from the first to behind the last element, as they lie in the storage."""
    size = tensor.element_size()
    first = tensor.storage_offset() * size
    sizes = tuple(tensor.shape)
    if 0 in sizes:
        return first, first
    steps = sum((n - 1) * step for n, step in zip(sizes, tensor.stride()))  # noqa: B905 (Python 3.9)
    return first, first + (steps + 1) * size


def _shares(tensor: Any, sought: tuple[int, int, int]) -> bool:
    if address_of(tensor) != sought[0]:
        return False
    try:
        first, end = _extent(tensor)
    except NO_STORAGE:
        return False
    return first < sought[2] and sought[1] < end
