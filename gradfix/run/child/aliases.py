"""Memory that NumPy shares with a tensor: writes to it pass no torch call, and are noticed by what they left.

From the moment an array is handed out, or taken in, what is saved of its storage is kept as a clone; as long as
somebody holds the array, the saved tensors of that storage are compared with their clones at every torch call,
so that a write is dated between the calls that it happened between.
"""

from __future__ import annotations

import ast
import dis
import sys
import weakref
from typing import Any

import torch

from .saves import GONE, Entry, fate_of, keep_value
from .sites import Key, parsed
from .storages import address_of

_MOST = 256  # arrays watched at a time
_BYTES = 64 << 20  # compared at calls before the next backward, which always compares


class _Export:
    __slots__ = ("array", "held", "stack")

    def __init__(self, array: Any, held: int, stack: Key) -> None:
        self.array = array  # weak, or None for what has no weak references (a DLPack capsule)
        self.held = held  # references to it that are the tensor's own
        self.stack = stack

    def alive(self) -> bool:
        """Whether anybody but the tensor itself can still write through the array."""
        if self.array is None:
            return True
        array = self.array()
        return array is not None and sys.getrefcount(array) - 2 > self.held


class Aliases:
    """Watches the storages in `saves.exposed` (address -> export); `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.exposed: dict[int, _Export] = recorder.saves.exposed
        self._left = _BYTES

    def install(self) -> None:
        """torch.from_numpy and torch.frombuffer are no torch functions."""
        for name in ("from_numpy", "frombuffer"):
            self._wrap(name, getattr(torch, name))

    def _wrap(self, name: str, plain: Any) -> None:
        def wrapper(source: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = plain(source, *args, **kwargs)
            if not self.r.off():
                self.take_in(tensor, source, sys._getframe(1))
                if self.r.computed.living:
                    self.r.computed.filled(tensor, self.r.sites.stack(sys._getframe(1)))
            return tensor

        wrapper.__name__, wrapper.__doc__, wrapper.__wrapped__ = name, plain.__doc__, plain  # type: ignore[attr-defined]
        setattr(torch, name, wrapper)

    def hand_out(self, tensor: Any, array: Any, frame: Any) -> None:
        """`array` was made of `tensor`; a copy of it is no alias."""
        interface = getattr(array, "__array_interface__", None)
        if interface is not None and interface["data"][0] != tensor.data_ptr():
            return
        self._add(tensor, array, 0, frame)

    def take_in(self, tensor: Any, source: Any, frame: Any) -> None:
        """`tensor` was made of `source`, and holds it."""
        interface = getattr(source, "__array_interface__", None)
        if interface is not None and interface["data"][0] != tensor.data_ptr():
            return
        while getattr(source, "base", None) is not None:
            source = source.base
        self._add(tensor, source, 1, frame)

    def _add(self, tensor: Any, array: Any, held: int, frame: Any) -> None:
        address = address_of(tensor)
        if not address or tensor.device.type != "cpu":
            return
        try:
            weak = weakref.ref(array)
        except TypeError:
            weak = None
        if len(self.exposed) >= _MOST:
            self._forget_dead()
        if len(self.exposed) >= _MOST:
            self.exposed.clear()
        self.exposed[address] = _Export(weak, held, self.r.sites.stack(frame))
        entries = [e for e in self.r.saves.at(address) if _open(e)]
        clones: dict[Any, Any] = {}
        for entry in entries:
            keep_value(entry, clones)
        if entries:
            self.r.cut("numpy", tensor, frame)

    def _forget_dead(self) -> None:
        for address in [a for a, export in self.exposed.items() if not export.alive()]:
            del self.exposed[address]

    def check(self, frame: Any, always: bool = False) -> None:
        """Emit the writes since the last call. `frame` is where the program is now."""
        if always:
            self._left = _BYTES
        if self._left <= 0:
            return
        for address, export in list(self.exposed.items()):
            changed = []
            for entry in self.r.saves.at(address):
                if _open(entry) and entry.fate is not None and entry.fate.value is not None:
                    self._left -= int(entry.tensor.nbytes)
                    if not _equal(entry.tensor, entry.fate.value):
                        changed.append(entry)
            if changed:
                self._written(address, export, changed, frame)
            if not export.alive():
                del self.exposed[address]

    def _written(self, address: int, export: _Export, changed: list[Entry], frame: Any) -> None:
        r, time = self.r, self.r.clock.tick()
        stack = self.writer(address, frame) or self.r.sites.item_write(export.stack)
        for entry in changed:
            fate = fate_of(entry)
            fate.time, fate.place, fate.counted = time, stack, False
            fate.late = time if r.engine.had(entry) else 0
        r.mutated(time, stack, "numpy", changed[0].tensor, counted=False, how="numpy", threatens=True)

    def writer(self, address: int, frame: Any) -> Key:
        """The one statement of the running functions that writes to an array in the storage at `address`, if
        there is just one: the program passed it on its way here."""
        if address not in self.exposed:
            return ()
        while frame is not None:
            if self.r.sites.is_user(frame.f_code):
                names = {n for n, v in frame.f_locals.items() if self._shares(v, address)}
                found = (
                    _stores(frame.f_code, self.r.sites.text(frame.f_code.co_filename), names) if names else []
                )
                if len(found) == 1:
                    return (id(frame.f_code), found[0], *self.r.sites.stack(frame.f_back))
                if found:
                    return ()
            frame = frame.f_back
        return ()

    def _shares(self, value: Any, address: int) -> bool:
        if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__"):
            return False
        root = value
        while getattr(root, "base", None) is not None and not isinstance(root.base, torch.Tensor):
            root = root.base
        export = self.exposed[address]
        return export.array is not None and export.array() is root


def _open(entry: Entry) -> bool:
    """Whether a backward may still need what was saved, and nothing is known to have overwritten it."""
    fate = entry.fate
    if entry.tensor is GONE or entry.freed is not None or (fate is not None and fate.time is not None):
        return False
    return not entry.moved()


def _equal(a: Any, b: Any) -> bool:
    if a.dtype.is_floating_point or a.dtype.is_complex:
        return bool(torch.equal(a, b)) or bool(torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True))
    return bool(torch.equal(a, b))


def _stores(code: Any, text: str, names: set[str]) -> list[int]:
    """The instructions of `code` that do ``a[…] = …``, ``a[…] += …`` or ``a += …`` for an `a` of `names`."""
    lines = set()
    for node in ast.walk(parsed(text) or ast.Module([], [])):
        if isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif isinstance(node, ast.Assign):
            targets = [t for t in node.targets if isinstance(t, ast.Subscript)]
        else:
            continue
        for target in targets:
            base: Any = target
            while isinstance(base, (ast.Subscript, ast.Attribute)):
                base = base.value
            if isinstance(base, ast.Name) and base.id in names:
                lines.add(target.lineno)
    found: dict[int, int] = {}
    line = None
    for instruction in dis.get_instructions(code):
        if isinstance(instruction.starts_line, int) and not isinstance(instruction.starts_line, bool):
            line = instruction.starts_line
        if line in lines and (
            instruction.opname in ("STORE_SUBSCR", "STORE_SLICE")
            or (instruction.opname.startswith("STORE_") and instruction.argval in names)
        ):
            found.setdefault(line, instruction.offset)
    return list(found.values())
