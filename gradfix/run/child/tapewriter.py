"""The tape's lines: interned sites, stacks and names, then the events (the format is documented in
docs/tape.md)."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Callable, Iterator
from time import monotonic  # bound here: the script may patch the module
from typing import Any

import torch

from .recent import Recent
from .sites import Key, Sites
from .storages import Storage, Storages
from .told import Records, Refs

VERSION = 2
_MOST = 20_000  # events that are held
_SECONDS = 0.5
_WAKES = 64  # times that passes like before are written for the sake of a neighbour


class Clock:
    """The tape's time: a counter."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now


class TapeWriter:
    """Turns events into the lines that `emit` sends."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], sites: Sites, storages: Storages) -> None:
        self._emit = emit
        self._held: list[Any] = []  # lines, and Records, which are formatted when they are sent
        self._size = 0
        self._recent = Recent()
        self._awake = 0  # dull events that are written all the same
        self._wakes = _WAKES
        self._sent = monotonic()
        self._sites = sites
        self._storages = storages
        self._site_numbers: dict[Any, int] = {}
        self._stack_numbers: dict[Key, int] = {}
        self._stack_keys: dict[Any, int] = {}
        self._sources: dict[str, bool] = {}

    def header(self, script: str) -> None:
        self._emit(
            {
                "format": "gradfix-tape",
                "version": VERSION,
                "script": script,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
                "sources": {},
            }
        )

    def event(self, kind: str, at: int, stack: Key, /, **fields: Any) -> None:
        """One event; `fields` as the tape writes them, those with their default value left out by the
        caller."""
        self._sharp()
        self._hold(self._line(kind, at, stack, fields))

    def common(self, kind: str, at: int, stack: Key, dull: bool, /, **fields: Any) -> None:
        """An event like some before it. A `dull` one, like many, is written only as the neighbour of one that
        is not."""
        line = self._line(kind, at, stack, fields)
        if not dull and not len(self._recent):
            self._hold(line)
        else:
            self._dull(line, 1)

    def end(self, at: int, /, **fields: Any) -> None:
        if not self._recent.cut:  # else the last passes were like those before
            self._sharp()
        self._hold(self._line("End", at, (), fields))

    def records(self, records: Records, dull: bool = False) -> None:
        """The Record events of a walk."""
        if not records.nodes:
            return
        if dull:
            self._dull(records, len(records))
        else:
            self._sharp()
            self._hold(records)
            self._size += len(records)

    def _line(self, kind: str, at: int, stack: Key, fields: dict[str, Any]) -> dict[str, Any]:
        line = {"e": kind, "t": at, "s": self.stack(stack)}
        line.update(fields)
        return line

    def _sharp(self) -> None:
        """Something happens that is not like before: write what came before, and what comes next."""
        if len(self._recent) and self._wakes:
            self._wakes -= 1
            self._awake = len(self._recent) + 8
            for line in self._recent.take():
                self._hold(line)

    def _dull(self, line: Any, size: int) -> None:
        if self._awake:
            self._awake -= 1
            self._hold(line)
        else:
            self._recent.add(line, size)

    def flush(self) -> None:
        """Send what is held. The format costs more than the knowledge, and is left for the end of a run, or
        for when there is much of it or it has waited long."""
        held, self._held, self._size = self._held, [], 0
        for line in held:
            if type(line) is dict:
                self._emit(self._spelled(line))
            else:
                for record in self._records(line):
                    self._emit(record)
        self._sent = monotonic()

    def _hold(self, line: Any) -> None:
        self._held.append(line)
        self._size += 1
        if self._size > _MOST or (self._size & 63 == 0 and monotonic() - self._sent > _SECONDS):
            self.flush()

    def _records(self, records: Records) -> Iterator[dict[str, Any]]:
        for at, stack, node, name, parents, saves, output in records:
            line = {
                "e": "Record",
                "t": at,
                "s": self.stack(stack),
                "node": node,
                "op": _op(name),
                "name": name,
            }
            line["parents"] = parents
            if saves:
                line["saves"] = [self._saved(*each) for each in saves]
            if held := records.held.get(node):
                line["held"] = [self._saved(*each) for each in held]
                if node in records.hidden:
                    line["checkpoint"] = True
            if output is not None:
                line["output"] = self._saved(*output)
            yield line

    def _spelled(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line with its Refs told one by one."""
        for key, value in line.items():
            if type(value) is Refs:
                for storage in value.storages:
                    self.rename(storage)
                line[key] = list(value)
        return line

    def _saved(
        self, storage: Storage, at: int, shape: Any, dtype: Any, counter: int | None = None
    ) -> list[Any]:
        self.rename(storage)
        ref = [storage.number, storage.version(at), list(shape), _dtype(dtype)]
        return ref if counter is None else [*ref, counter]

    def ref(self, storage: Storage, tensor: Any) -> list[Any]:
        self.rename(storage)
        return [storage.number, len(storage.writes), list(tensor.shape), _dtype(tensor.dtype)]

    def name_optimizer(self, number: int, name: str) -> None:
        self._emit({"optimizer": number, "v": name})

    def rename(self, storage: Storage) -> None:
        """Say the storage's name, if it is not what was said last."""
        if storage.name != storage.known_name:
            storage.known_name = storage.name
            self._emit({"name": storage.number, "v": storage.name})

    def stack(self, key: Key) -> int:
        number = self._stack_numbers.get(key)
        if number is None:
            sites = tuple(self._site(values) for values in self._sites.resolve(key))
            number = self._stack_keys.get(sites)
            if number is None:  # two instructions may have one span
                number = self._stack_keys[sites] = len(self._stack_keys)
                self._emit({"stack": number, "v": list(sites)})
            self._stack_numbers[key] = number
        return number

    def _site(self, values: Any) -> int:
        number = self._site_numbers.get(values)
        if number is None:
            number = self._site_numbers[values] = len(self._site_numbers)
            self.source(values[0])
            self._emit({"site": number, "v": list(values)})
        return number

    def source(self, file: str) -> None:
        """The digest of the bytes that ran, the first time a file is spoken of."""
        if file not in self._sources:
            self._sources[file] = True
            self._emit({"source": file, "v": hashlib.sha256(self._sites.bytes(file)).hexdigest()})


@functools.cache
def _op(name: str) -> str:
    """``aten.add`` of ``AddBackward0``; the class's name of a custom Function's ``MyOpBackward``."""
    base, found, digits = name.rpartition("Backward")
    if not found or not digits.isdigit():
        return base or name
    letters = []
    for i, c in enumerate(base):
        if c.isupper() and i and not (base[i - 1].isupper() or base[i - 1] == "_"):
            letters.append("_")
        letters.append(c.lower())
    return "aten." + "".join(letters)


@functools.cache
def _dtype(dtype: Any) -> str:
    return str(dtype)[6:]
