"""Storages by number, never by address, and the recorder's own count of the writes to each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch

_FEW = 128

# of the StorageImpl: one for all views
_address: Callable[[Any], int] = torch._C._storage_address  # type: ignore[attr-defined]


_free: Callable[[int], None] = torch.Storage._free_weak_ref  # type: ignore[attr-defined]
_expired: Callable[[int], bool] = torch.Storage._expired  # type: ignore[attr-defined]


class Weak:
    """A weak reference to a tensor's storage: torch's StorageWeakRef without what it looks up for each."""

    __slots__ = ("_data",)

    def __init__(self, tensor: Any) -> None:
        self._data = tensor.untyped_storage()._weak_ref()

    def expired(self) -> bool:
        return _expired(self._data)

    def __del__(self, free: Callable[[int], None] = _free) -> None:
        free(self._data)


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

    def __init__(self, number: int, weak: Weak | None) -> None:
        self.number = number
        self.weak = weak
        self.former: tuple[tuple[int, Weak], ...] = ()  # (address, weak reference) of storages it was before
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

    While a Weak is held its address is not given out again, so an address in the table means one storage. Nor can
    the memory around it be: those of storages that are gone are let go soon, lest the heap grow by every pass.
    """

    def __init__(self) -> None:
        self._table: dict[int, Storage] = {}
        self._next = 0
        self._sweep_at = _FEW

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
        if not address or address in self._table or storage.weak is None:
            return
        former = [*storage.former, (old, storage.weak)]
        storage.former = tuple(each for each in former if not each[1].expired())
        for at, weak in former:
            if weak.expired() and self._table.get(at) is storage:
                del self._table[at]
        storage.weak = Weak(tensor)
        self._table[address] = storage

    def _new(self, tensor: Any, address: int) -> Storage:
        if len(self._table) > self._sweep_at:
            self._sweep()
        storage = Storage(self._next, None)
        self._next += 1
        if address:
            storage.weak = Weak(tensor)
            self._table[address] = storage
        return storage

    def _sweep(self) -> None:
        kept = {}
        for address, storage in self._table.items():
            if storage.gone():
                storage.weak, storage.former = None, ()  # events that are not sent yet may hold it
            else:
                kept[address] = storage
        self._table = kept
        self._sweep_at = max(_FEW, 2 * len(kept))
