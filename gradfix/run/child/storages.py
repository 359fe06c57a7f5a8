"""Storages by number, never by address, and the recorder's own count of the writes to each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch

_FEW = 128

# of the StorageImpl: one for all views. Raises one of NO_STORAGE for a tensor without
storage_address: Callable[[Any], int] = torch._C._storage_address  # type: ignore[attr-defined]


_free: Callable[[int], None] = torch.UntypedStorage._free_weak_ref
_expired: Callable[[int], bool] = torch.UntypedStorage._expired  # type: ignore[assignment]


class Weak:
    """A weak reference to a tensor's storage: torch's StorageWeakRef without what it looks up for each, and without
    the functions in Python that torch.Storage has around those of UntypedStorage."""

    __slots__ = ("reference",)

    def __init__(self, reference: int) -> None:
        self.reference = reference  # owned; 0 is to none

    def gone(self) -> bool:
        return not self.reference or _expired(self.reference)

    def given(self) -> Weak:
        """Another that owns the reference; this one has none any more."""
        reference, self.reference = self.reference, 0
        return Weak(reference)

    def drop(self, free: Callable[[int], None] = _free) -> None:
        """Be a reference to nothing."""
        if self.reference:
            free(self.reference)
            self.reference = 0

    __del__ = drop  # (its default is there when the module's globals are gone)


def weak_reference(tensor: Any) -> int:
    """A reference to the tensor's storage for a Weak to own. Raises one of NO_STORAGE for a tensor without."""
    return int(tensor.untyped_storage()._weak_ref())


NO_STORAGE = (RuntimeError, NotImplementedError, TypeError)


def address_of(tensor: Any) -> int:
    """The address of the tensor's storage, 0 for one without (sparse, a wrapper). Only good while somebody
    holds it."""
    try:
        return storage_address(tensor)
    except NO_STORAGE:
        return 0


def addresses_of(tensors: list[Any]) -> list[int]:
    """That of each."""
    try:
        return list(map(storage_address, tensors))
    except NO_STORAGE:
        return list(map(address_of, tensors))


_NEVER: Sequence[int] = ()


class Storage(Weak):
    """One storage, alive or gone. `writes` are the times of the writes seen, so that a version can be told
    later. There are as many as saved tensors: the list of the writes is made with the first."""

    __slots__ = ("former", "known_name", "leaf", "name", "number", "writes")

    def __init__(self, number: int, reference: int) -> None:
        self.reference = reference
        self.number = number
        self.former: tuple[tuple[int, Weak], ...] = ()  # (address, weak reference) of storages it was before
        self.writes = _NEVER
        self.leaf = False
        self.name = ""
        self.known_name = ""  # the name as it was last written to the tape

    def written(self, time: int) -> None:
        """Count a write."""
        if type(self.writes) is list:
            self.writes.append(time)
        else:
            self.writes = [time]

    def version(self, time: int | None = None) -> int:
        """The version as of `time`, or as of now."""
        return len(self.writes) if time is None else bisect_right(self.writes, time)

    def rebind(self, tensor: Any, old: int) -> None:
        """It is that of `tensor` now; the one that it was lies at `old`, where aliases and saves may still hold it."""
        former = [*self.former, (old, self.given())]
        self.former = tuple(each for each in former if not each[1].gone())
        self.reference = weak_reference(tensor)

    def let_go(self) -> None:
        """Hold no memory any more; events that are not sent yet may hold this."""
        self.former = ()
        self.drop()


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
        try:
            address = storage_address(tensor)
        except NO_STORAGE:
            return self._new(tensor, 0)
        return self._table.get(address) or self._new(tensor, address)

    def of_each(self, tensors: list[Any], addresses: list[int]) -> list[Storage]:
        """That of each; `addresses` are where they lie."""
        known = self._table.get
        return [
            known(address) or self._new(tensor, address)
            for address, tensor in zip(addresses, tensors)  # noqa: B905 (Python 3.9)
        ]

    def at(self, address: int) -> Storage | None:
        return self._table.get(address)

    def alive(self) -> list[Storage]:
        return [s for s in self._table.values() if not s.gone()]

    def rebind(self, storage: Storage, tensor: Any, old: int) -> None:
        """`tensor` keeps its number although ``x.data = y`` gave it another storage than that at `old`, which
        aliases and saves may still hold."""
        address = address_of(tensor)
        if not address or address in self._table or not storage.reference:
            return
        places = {old, *(at for at, _ in storage.former)}
        storage.rebind(tensor, old)
        for at in places.difference(at for at, _ in storage.former):
            if self._table.get(at) is storage:
                del self._table[at]
        self._table[address] = storage

    def _new(self, tensor: Any, address: int) -> Storage:
        if len(self._table) > self._sweep_at:
            self._sweep()
        storage = Storage(self._next, tensor.untyped_storage()._weak_ref() if address else 0)
        self._next += 1
        if address:
            self._table[address] = storage
        return storage

    def _sweep(self) -> None:
        gone = [address for address, storage in self._table.items() if _expired(storage.reference)]
        for address in gone:
            self._table.pop(address).let_go()
        self._sweep_at = max(_FEW, 2 * len(self._table))
