"""Unified diffs: of the texts, for people, and of the files' bytes, for ``patch -p1`` and ``git apply``.

Notebooks are shown by cell in both, as ruff shows them: nobody reads a diff of their JSON, and what shall be applied
elsewhere is made with ``--output-patch``.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping

from gradfix.notebook import by_cell
from gradfix.report.places import Paths
from gradfix.source import Source, SourceError


def unified(files: Mapping[str, tuple[str, str]], paths: Paths) -> Iterator[str]:
    """The lines of a unified diff of (old, new) texts by path, without their line ends."""
    for path, (old, new) in sorted(files.items()):
        name = _name(path, paths)
        if path.endswith(".ipynb"):
            yield from _cells(name, old, new)
        else:
            yield from (f"--- a/{name}", f"+++ b/{name}", *_hunks(old, new))


def patch(
    files: Mapping[str, tuple[str, str]], paths: Paths, raw: Mapping[str, bytes] | None = None
) -> Iterator[bytes]:
    """The same of the files as they lie on the disk (or as `raw` has them, by path) and as they would be written:
    encoding, line ends and all."""
    for path, (old, new) in sorted(files.items()):
        name = _name(path, paths)
        if path.endswith(".ipynb"):
            yield from (line.encode("utf-8", "surrogatepass") for line in _cells(name, old, new))
            continue
        yield from (b"--- " + _quoted(f"a/{name}"), b"+++ " + _quoted(f"b/{name}"))
        before, after = _bytes(path, old, new, (raw or {}).get(path))
        for line in _hunks(before.decode("latin-1"), after.decode("latin-1")):  # any bytes there and back
            yield line.encode("latin-1")


def _cells(name: str, old: str, new: str) -> Iterator[str]:
    """The diffs of a notebook's cells that differ, lines counted in each."""
    before, after = by_cell(old), by_cell(new)
    for number in sorted({*before, *after}):
        text, cured = before.get(number, ""), after.get(number, "")
        if text != cured:
            yield from (f"--- a/{name}:cell {number}", f"+++ b/{name}:cell {number}", *_hunks(text, cured))


def _quoted(name: str) -> bytes:
    """A file's name as git writes it: as a string of C's where anything in it is not plain ASCII."""
    raw = os.fsencode(name)
    if name.isascii() and name.isprintable() and not {'"', "\\"} & {*name}:
        return raw + (b"\t" if " " in name else b"")  # else patch takes what follows a blank for a date
    plain = {ord(c): f"\\{short}" for c, short in zip('\a\b\t\n\v\f\r"\\', 'abtnvfr"\\', strict=True)}
    said = (plain.get(b) or (chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in raw)
    return f'"{"".join(said)}"'.encode("ascii")


def _hunks(old: str, new: str) -> Iterator[str]:
    lines = difflib.unified_diff(_lines(old), _lines(new), lineterm="")
    for line in [*lines][2:]:
        if line.endswith("\0"):
            yield from (line[:-1], "\\ No newline at end of file")  # as git says it
        else:
            yield line


def _lines(text: str) -> list[str]:
    """The lines of a text; the last one, where no newline ends it, marked with a null so that it differs from
    an ended one."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], lines[-1] + "\0"]


def _bytes(path: str, old: str, new: str, raw: bytes | None) -> tuple[bytes, bytes]:
    """The file as it is and as it would be written; in UTF-8 where the text is not a file's (any more)."""
    try:
        source = Source.read(path) if raw is None else Source.decode(path, raw)
        if source.text == old:
            return source.raw, source.encode(new)
    except SourceError:
        pass
    return old.encode("utf-8", "surrogatepass"), new.encode("utf-8", "surrogatepass")


def _name(path: str, paths: Paths) -> str:
    """The file as a patch names it: from the working directory, else from the root (``patch -d / -p1``)."""
    name = os.path.normpath(paths.show(path))
    return os.path.realpath(paths.cwd / path).lstrip("/") if name.startswith((os.sep, os.pardir)) else name
