"""What forward ops saved for their backwards: entries that stand in for the saved tensors.

A pack hook sees every saved tensor, a parameter's too. It must cost next to nothing, so an entry is only put
on a list there; it is filed by storage and by node when somebody asks. An entry lives exactly as long as
PyTorch's own saved variable would, for the node holds it and the files hold it weakly.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from .storages import NO_STORAGE, address_of, storage_address

_sequence: Callable[[], int] = torch._C._autograd._get_sequence_nr
_modes: Callable[[], int] = torch._C._len_torch_function_stack

NOBODY = -1
GONE = "gone"  # in place of the tensor of an entry whose evidence was dropped for memory
NEVER = float("inf")
EVERYWHERE = "everywhere"  # all that was overwritten, wherever it was done


class Overwrite:
    """What happened to a saved tensor after it was saved. `value` is a clone taken before, where one could
    be."""

    __slots__ = ("counted", "late", "place", "time", "value")

    def __init__(self) -> None:
        self.late = 0  # its time, where it was done by a backward that had asked for the tensor before
        self.value: Any = None
        self.time: int | None = None  # of the first write
        self.place: Any = ()  # the stack it was done at
        self.counted = True


class Entry:
    """One saved tensor. `tensor` is the tensor itself; for an op's own output an alias, since the output
    holds the node and the node the entry. `node` is the sequence number, `version` PyTorch's counter, `time`
    the tape's."""

    __slots__ = ("__weakref__", "address", "fate", "freed", "maker", "node", "tensor", "time", "version")

    tensor: Any
    node: int
    version: int
    time: int
    address: int  # of its storage, from when it is filed on
    maker: int  # the number of the node that made the tensor, or NOBODY
    fate: Overwrite | None
    freed: int | None  # time of the backward that would have freed it

    @property
    def output(self) -> bool:
        """Whether it was saved by the op that made it."""
        return self.maker == self.node

    def counted(self) -> bool:
        """Whether the tensor's version counter shows a write since the save."""
        return self.tensor is not GONE and bool(self.tensor._version != self.version)

    def moved(self) -> bool:
        """Whether PyTorch would refuse to hand it to a backward for such a write."""
        return self.counted()


class Saves:
    """The pack and unpack hooks and the files of living entries. `clock` gives the time."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._new: list[weakref.ref[Entry]] = []
        self._by_address: dict[int, list[weakref.ref[Entry]]] = {}
        self._by_node: dict[int, Any] = {}  # the only one of a node, or a list
        self._sweep_at = 20000
        self.used: list[Entry] | None = None  # entries that the running backward asked for, in order
        self.as_plain: Any = None  # the place where what was overwritten is handed out as plain PyTorch would
        self.since: float = (
            NEVER  # time of the backward that is measured: what is overwritten late in it is no fault
        )
        self.lends = False  # what is handed out goes to a custom Function's backward, which may write into it
        self.measured = False  # the backward at work is none of the program's
        self.exposed: dict[int, Any] = {}  # addresses that memory outside torch aliases -> stack of the alias
        self.writing: Any = None  # address a running in-place op writes to
        self.lost: Callable[[], None] = lambda: None
        self.off = 0

    def pack(self, tensor: Any) -> Any:
        if self.off:
            return tensor
        entry = Entry()
        entry.node = node = _sequence() - 1
        entry.version = tensor._version
        entry.time = self._clock.now
        entry.fate = entry.freed = None
        maker = tensor.grad_fn
        entry.maker = made = NOBODY if maker is None else maker._sequence_nr()
        if made != node:
            entry.tensor = tensor
        elif _modes():
            with torch._C.DisableTorchFunction():
                entry.tensor = tensor.detach()
        else:
            entry.tensor = tensor.detach()
        self._new.append(weakref.ref(entry))
        if self.writing is not None or self.exposed:
            self.keep_if_written(entry)
        if len(self._new) > 20000:
            self.file()
        return entry

    def keep_if_written(self, entry: Entry) -> None:
        """The running op is about to overwrite what it saves (``x *= x``), or somebody else may, unseen."""
        address = address_of(entry.tensor)
        if address and (address in self.exposed or (address == self.writing and not entry.output)):
            keep_value(entry)

    def unpack(self, entry: Any) -> Any:
        if type(entry) is not Entry:
            return entry
        used = self.used
        if used is not None:
            used.append(entry)
        fate = entry.fate
        if fate is not None and fate.value is not None and not self.plainly(fate):
            return _copy(fate.value) if self.lends else fate.value
        if entry.tensor is GONE:
            self.lost()
        return _copy(entry.tensor) if self.lends and self.measured else entry.tensor

    def plainly(self, fate: Overwrite) -> bool:
        """Whether what was overwritten is handed out as it is now, as plain PyTorch would."""
        plain = self.as_plain
        return plain is not None and plain in (EVERYWHERE, fate.place) and fate.late < self.since

    def add(self, entries: Iterable[Entry]) -> None:
        """File what was kept otherwise than by a pack hook: by address, for it is nothing that its node saved."""
        for entry in entries:
            entry.address = address = address_of(entry.tensor)
            if address:
                self._by_address.setdefault(address, []).append(weakref.ref(entry))

    def at(self, address: int) -> list[Entry]:
        """The living entries whose tensor lies in the storage at `address`."""
        if self._new:
            self.file()
        refs = self._by_address.get(address)
        if not refs:
            return []
        living = [e for e in [r() for r in refs] if e is not None]
        if not living:
            del self._by_address[address]
        elif 2 * len(living) < len(refs):
            refs[:] = map(weakref.ref, living)
        return living

    def of_node(self, node: int) -> list[Entry]:
        """The living entries of `node` in the order of their saving."""
        if self._new:
            self.file()
        found = self._by_node.get(node)
        if type(found) is list:
            return [e for e in [r() for r in found] if e is not None]
        entry = found() if found is not None else None
        return [] if entry is None else [entry]

    def of_nodes(self, nodes: Iterable[int]) -> list[list[Entry]]:
        """Those of each of many."""
        if self._new:
            self.file()
        each: list[list[Entry]] = []
        for found in map(self._by_node.get, nodes):
            if found is None:
                each.append([])
                continue
            living = [r() for r in found] if type(found) is list else [found()]
            each.append([e for e in living if e is not None] if None in living else living)
        return each

    def file(self) -> None:
        """File the new entries by address and by node."""
        new, self._new = self._new, []
        by_address, by_node = self._by_address, self._by_node
        for reference in new:
            entry = reference()
            if entry is None:
                continue
            try:
                entry.address = address = storage_address(entry.tensor)
            except NO_STORAGE:
                entry.address = address = 0
            if address:
                held = by_address.get(address)
                if held is None:
                    by_address[address] = [reference]
                else:
                    held.append(reference)
            held = by_node.setdefault(entry.node, reference)
            if type(held) is list:
                held.append(reference)
            elif held is not reference:
                by_node[entry.node] = [held, reference]
        if len(by_node) + len(by_address) > self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        """Let go of what filed entries that are gone have left."""
        self._by_address = _living(self._by_address)
        nodes = {n: found if type(found) is list else [found] for n, found in self._by_node.items()}
        self._by_node = _living(nodes)
        self._sweep_at = max(20000, 2 * (len(self._by_node) + len(self._by_address)))

    def move(self, old: int, entries: list[Entry]) -> None:
        """`entries` were filed under `old` and their tensors have another storage now."""
        moved = {id(e) for e in entries}
        refs = self._by_address.pop(old, [])
        stay = [r for r in refs if r() is not None and id(r()) not in moved]
        if stay:
            self._by_address[old] = stay
        for entry in entries:
            entry.address = address = address_of(entry.tensor)
            if address:
                self._by_address.setdefault(address, []).append(weakref.ref(entry))


def number_of_maker(tensor: Any) -> int:
    """The number of the node that made `tensor`, NOBODY of a leaf, and of a view that may no longer be read."""
    try:
        maker = tensor.grad_fn
    except RuntimeError:
        return NOBODY
    return NOBODY if maker is None else int(maker._sequence_nr())


def fate_of(entry: Entry) -> Overwrite:
    """What happened to `entry` after its save, to be filled in."""
    if entry.fate is None:
        entry.fate = Overwrite()
    return entry.fate


def keep_value(entry: Entry, clones: dict[Any, Any] | None = None) -> int:
    """Clone what `entry` saved, now, once; entries of one call share clones of equal geometry through
    `clones`. Gives the bytes that the clone takes, 0 where none was made."""
    fate = fate_of(entry)
    tensor = entry.tensor
    if fate.value is not None or fate.time is not None or tensor is GONE:
        return 0
    key = None
    if clones is not None:
        key = (
            address_of(tensor),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
        )
        if key in clones:
            fate.value = clones[key]
            return 0
    fate.value = _copy(tensor)
    if clones is not None:
        clones[key] = fate.value
    return int(fate.value.nbytes)


def _copy(tensor: Any) -> Any:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return tensor.detach().clone()


def _living(files: dict[int, list[Any]]) -> dict[int, list[Any]]:
    kept = {k: [r for r in refs if r() is not None] for k, refs in files.items()}
    return {k: refs for k, refs in kept.items() if refs}
