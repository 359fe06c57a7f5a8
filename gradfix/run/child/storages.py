"""Storages by number, never by address, and the recorder's own count of the writes to each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

# of the StorageImpl: one for all views
_address: Callable[[Any], int] = torch._C._storage_address  # type: ignore[attr-defined]


def _weak(tensor: Any) -> Any:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def address_of(tensor: Any) -> int:
    """The address of the tensor's storage, 0 for one without (sparse, a wrapper). Only good while somebody
    holds it."""
    try:
        return _address(tensor)
    except (RuntimeError, NotImplementedError, TypeError):
        return 0


class Storage:
    """One storage, alive or gone. `writes` are the times of the writes seen, so that a version can be told
    later."""

    __slots__ = ("former", "known_name", "leaf", "name", "number", "weak", "writes")

    def __init__(self, number: int, weak: Any) -> None:
        self.number = number
        self.weak = weak
        self.former: tuple[tuple[int, Any], ...] = ()  # (address, weak reference) of storages it was before
        self.writes: list[int] = []
        self.leaf = False
        self.name = ""
        self.known_name = ""  # the name as it was last written to the tape

    def gone(self) -> bool:
        return self.weak is None or bool(self.weak.expired())

    def version(self, time: int | None = None) -> int:
        """The version as of `time`, or as of now."""
        return len(self.writes) if time is None else bisect_right(self.writes, time)


class Storages:
    """Every storage that an event may speak of.

    While a StorageWeakRef is held its address is not given out again, so an address in the table means one
    storage.
    """

    def __init__(self) -> None:
        self._table: dict[int, Storage] = {}
        self._next = 0
        self._sweep_at = 4096

    def of(self, tensor: Any) -> Storage:
        """The storage of `tensor`, numbered now if it is new."""
        address = address_of(tensor)
        found = self._table.get(address) if address else None
        if found is None:
            found = self._new(tensor, address)
        return found

    def at(self, address: int) -> Storage | None:
        return self._table.get(address)

    def alive(self) -> list[Storage]:
        return [s for s in self._table.values() if not s.gone()]

    def rebind(self, storage: Storage, tensor: Any, old: int) -> None:
        """`tensor` keeps its number although ``x.data = y`` gave it another storage than that at `old`, which
        aliases and saves may still hold."""
        address = address_of(tensor)
        if not address or address in self._table:
            return
        former = [*storage.former, (old, storage.weak)]
        storage.former = tuple(each for each in former if not each[1].expired())
        for at, weak in former:
            if weak.expired() and self._table.get(at) is storage:
                del self._table[at]
        storage.weak = _weak(tensor)
        self._table[address] = storage

    def _new(self, tensor: Any, address: int) -> Storage:
        if len(self._table) > self._sweep_at:
            self._table = {a: s for a, s in self._table.items() if not s.gone()}
            self._sweep_at = max(4096, 2 * len(self._table))
        storage = Storage(self._next, None)
        self._next += 1
        if address:
            storage.weak = _weak(tensor)
            self._table[address] = storage
        return storage
