"""The tape as a file, documented in ``docs/tape.md``: JSON lines, a header, then one object an event.

Sites, stacks and refs repeat endlessly in a training loop, so they are interned: a line ``{"site": 3, ...}`` or
``{"stack": 7, ...}`` defines an index that later events use. Standard library only, so that a tape can be read
anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from gradfix.tape import EVENTS, End, Event, Optimizer, Ref, Site, Stack, Tape

FORMAT = "gradfix-tape"
VERSION = 2


class TapeError(ValueError):
    """The file is not a tape, or of a version this gradfix does not read. The message is a sentence for the
    user."""


def read_tape(path: Path | str) -> Tape:
    """Read a tape file.

    Raises TapeError where the file is no tape or of a newer version; a file that breaks off (the run was
    killed) is read as far as it goes, with ``complete=False``.
    """
    with open(path, encoding="utf-8", errors="strict") as lines:
        try:
            return parse_tape(lines)
        except UnicodeDecodeError:
            raise TapeError(f"{path} is not a gradfix tape.") from None
        except TapeError as problem:
            raise TapeError(f"{path}: {problem}") from None


def parse_tape(lines: Iterable[str]) -> Tape:
    """The tape that `lines` (of a tape file, or as they come from a recorder) describe. Raises TapeError."""
    reader = _Reader()
    for text in lines:
        if not text.endswith("\n"):
            break  # cut off in the middle of a line: the run was killed
        try:
            reader.line(json.loads(text))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
            if isinstance(problem, TapeError):
                raise
            if reader.header is None:
                raise TapeError("not a gradfix tape.") from None
            raise TapeError(f"damaged after {len(reader.events)} events.") from None
    if reader.header is None:
        raise TapeError("not a gradfix tape.")
    return reader.tape()


def write_tape(tape: Tape, path: Path | str) -> None:
    """Write `tape` so that read_tape gives an equal one."""
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for line in format_tape(tape):
            out.write(line)


def format_tape(tape: Tape) -> Iterator[str]:
    """The lines of the tape's file."""
    header = {"format": FORMAT, "version": VERSION, "script": tape.script, "torch": tape.torch}
    yield _line(header | {"python": tape.python, "sources": tape.sources})
    sites: dict[Site, int] = {}
    stacks: dict[Stack, int] = {}
    names: dict[int, str] = {}
    for event in tape.events:
        for site in event.stack:
            if site not in sites:
                sites[site] = len(sites)
                yield _line({"site": sites[site], "v": [getattr(site, f.name) for f in fields(Site)]})
        if event.stack not in stacks:
            stacks[event.stack] = len(stacks)
            yield _line({"stack": stacks[event.stack], "v": [sites[s] for s in event.stack]})
        for ref in _refs(event):
            if ref.name and names.get(ref.storage) != ref.name:
                names[ref.storage] = ref.name
                yield _line({"name": ref.storage, "v": ref.name})
        line: dict[str, Any] = {"e": type(event).__name__, "t": event.time, "s": stacks[event.stack]}
        for f in fields(event):
            value = getattr(event, f.name)
            if f.name not in ("time", "stack") and value != f.default:
                line[f.name] = _plain(value)
        yield _line(line)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _refs(event: Event) -> Iterator[Ref]:
    for f in fields(event):
        value = getattr(event, f.name)
        if isinstance(value, Ref):
            yield value
        elif isinstance(value, tuple):
            yield from (v for v in value if isinstance(v, Ref))


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        found = [value.storage, value.version, list(value.shape), value.dtype]
        return found if value.counter is None else [*found, value.counter]
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


_REFS = {"saves", "held", "refs", "without", "accumulates", "unregistered"}
_REF = {"ref", "output"}


class _Reader:
    """Interned tables and events of a tape as its lines come in."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.sites: dict[int, Site] = {}
        self.stacks: dict[int, Stack] = {}
        self.names: dict[int, str] = {}
        self.sources: dict[str, str] = {}
        self.optimizers: dict[int, str] = {}
        self.events: list[tuple[type[Event], dict[str, Any]]] = []

    def line(self, value: dict[str, Any]) -> None:
        if self.header is None:
            if value.get("format") != FORMAT:
                raise TapeError("not a gradfix tape.")
            if value.get("version") != VERSION:
                theirs = value.get("version")
                raise TapeError(f"a tape of version {theirs}; this gradfix reads version {VERSION}.")
            self.header = value
        elif "site" in value:
            self.sites[value["site"]] = Site(*value["v"])
        elif "stack" in value:
            self.stacks[value["stack"]] = tuple(self.sites[s] for s in value["v"])
        elif "source" in value:
            self.sources[value["source"]] = value["v"]
        elif "optimizer" in value and "e" not in value:
            self.optimizers[value["optimizer"]] = value["v"]
        elif "name" in value and "e" not in value:
            self.names[value["name"]] = value["v"]
        elif "source" in value and "e" not in value:
            self.sources[value["source"]] = value["v"]
        else:
            kind = EVENTS[value.pop("e")]
            value["time"], value["stack"] = int(value.pop("t")), self.stacks[value.pop("s")]
            self.events.append((kind, value))

    def tape(self) -> Tape:
        assert self.header is not None
        try:
            events = tuple(sorted((self._event(k, v) for k, v in self.events), key=lambda e: e.time))
        except (TypeError, ValueError, KeyError, IndexError):
            raise TapeError("its events are not of this version.") from None
        return Tape(
            events,  # type: ignore[arg-type]
            script=str(self.header.get("script", "")),
            torch=str(self.header.get("torch", "")),
            python=str(self.header.get("python", "")),
            sources=dict(self.header.get("sources", {})) | self.sources,
            complete=any(k is End for k, _ in self.events),
        )

    def _event(self, kind: type[Event], value: dict[str, Any]) -> Event:
        fixed: dict[str, Any] = {}
        for key, v in value.items():
            if key in _REF:
                fixed[key] = self._ref(v) if v is not None else None
            elif key in _REFS:
                fixed[key] = tuple(self._ref(r) for r in v)
            elif isinstance(v, list):
                fixed[key] = tuple(tuple(x) if isinstance(x, list) else x for x in v)
            else:
                fixed[key] = v
        if kind is Optimizer and not fixed.get("name"):
            fixed["name"] = self.optimizers.get(fixed["optimizer"], "")
        return kind(**fixed)

    def _ref(self, value: list[Any]) -> Ref:
        storage, version, shape, dtype, *counter = value
        return Ref(storage, version, self.names.get(storage, ""), tuple(shape), dtype, *counter)
