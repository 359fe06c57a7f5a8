"""Leaves: parameters, mostly, which are spoken of several times a pass, and nearly always all together."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .storages import Storage, Storages, address_of, addresses_of
from .tapewriter import Clock, TapeWriter
from .told import Refs

_MOST = 100_000
_MOST_GROUPS = 1000


class _Leaf:
    __slots__ = ("address", "storage", "weak")

    def __init__(self, tensor: Any, address: int, storage: Storage, gone: Callable[[Any], Any]) -> None:
        self.address = address
        self.storage = storage
        self.weak = weakref.ref(tensor, gone)


class _Group:
    """Leaves that are named together, in this order, again and again."""

    __slots__ = ("addresses", "fixed", "storages", "weak")

    def __init__(self, addresses: list[int], tensors: list[Any], gone: Callable[[Any], Any]) -> None:
        self.addresses = addresses
        self.storages: list[Storage] = []
        self.fixed: list[Any] = []
        self.weak = [weakref.ref(tensor, gone) for tensor in tensors]


class Leaves:
    """Every leaf that an event spoke of. What is known by the id of a tensor is forgotten when that tensor goes."""

    def __init__(self, storages: Storages, tape: TapeWriter, clock: Clock) -> None:
        self._clock = clock
        self._storages = storages
        self._tape = tape
        self._by_number: dict[int, weakref.ref[Any]] = {}
        self._known: dict[int, _Leaf] = {}
        self._groups: dict[tuple[int, ...], _Group] = {}

    def of(self, tensor: Any) -> Storage:
        """The storage of a leaf, marked as one."""
        known = self._known.get(id(tensor))
        address = address_of(tensor)
        if known is not None and known.address == address:
            return known.storage
        storage = self._storages.of(tensor)
        if not storage.leaf:
            storage.leaf = True
            self._by_number[storage.number] = weakref.ref(tensor)
        if len(self._known) > _MOST:
            self._known.clear()
        key, forget = id(tensor), self._known.pop
        self._known[key] = _Leaf(tensor, address, storage, lambda _: forget(key, None))
        return storage

    def refs(self, tensors: Iterable[Any]) -> Refs:
        """``tape.ref(of(tensor), tensor)`` of each, as of now."""
        group = self._together(list(tensors))
        return Refs(group.storages, group.fixed, self._clock.now)

    def storages(self, tensors: list[Any]) -> list[Storage]:
        """``of(tensor)`` for each of many."""
        return self._together(tensors).storages

    def tensor(self, storage: Storage) -> Any:
        """The leaf that has `storage`, while it lives."""
        weak = self._by_number.get(storage.number)
        return weak() if weak is not None else None

    def living(self) -> list[Any]:
        """The leaves that live."""
        return [leaf for weak in list(self._by_number.values()) if (leaf := weak()) is not None]

    def _together(self, tensors: list[Any]) -> _Group:
        key, addresses = tuple(map(id, tensors)), addresses_of(tensors)
        group = self._groups.get(key)
        if group is None or group.addresses != addresses:
            group = self._meet(key, addresses, tensors)
        return group

    def _meet(self, key: tuple[int, ...], addresses: list[int], tensors: list[Any]) -> _Group:
        if len(self._groups) >= _MOST_GROUPS:
            self._groups.clear()
        forget = self._groups.pop
        group = self._groups[key] = _Group(addresses, tensors, lambda _: forget(key, None))
        for tensor in tensors:
            storage = self.of(tensor)
            group.storages.append(storage)
            group.fixed.append(self._tape.ref(storage, tensor)[2:])
        return group
