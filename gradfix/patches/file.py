"""The file: written whole or not at all, and read from whoever sends it (docs/patches.md)."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import types
import unicodedata
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Literal, Union, get_args, get_origin, get_type_hints

from gradfix.patches.values import FilePatch, Fix, Flow, Patch
from gradfix.report.json import plain
from gradfix.source import NEWLINE

FORMAT, VERSION = "gradfix-patch", 3
LARGEST = 32 << 20  # bytes of a file that is read
AROUND = 2_000  # lines around a change
TABLE = 5_000  # entries of a table of values
LONGEST = 4_096  # characters of a path
SUFFIXES = (".py", ".ipynb")


class PatchError(Exception):
    """A file that is no patch, or none that may be applied; the message completes ``FILE: ``."""


def dumps(patch: Patch) -> str:
    """The file's text."""
    value = {"format": FORMAT, "version": VERSION, **_plain(patch)}
    # ASCII: a path or a line may hold what is no text anywhere else
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def save(patch: Patch, path: Path) -> None:
    """Write the file. Raises OSError, and then what was there is as it was."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as out:
            out.write(dumps(patch))
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def load(path: Path) -> Patch:
    """The patch in a file. Raises PatchError and OSError."""
    with path.open("rb") as stream:
        return read(stream)


def read(stream: BinaryIO) -> Patch:
    """The patch that comes from `stream`. Raises PatchError and OSError."""
    raw = stream.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise PatchError(f"it is larger than {LARGEST >> 20} MiB: no patch of gradfix's is")
    return loads(raw)


def may_write(path: Path) -> None:
    """Raises PatchError where a patch written to `path` would destroy something else, and OSError where it can't be
    written at all."""
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        path.lstat()
    except FileNotFoundError:
        return
    if not path.is_file():  # a folder, a device, a link to nowhere
        raise PatchError("it is not a regular file")
    with path.open("rb") as stream:
        raw = stream.read(LARGEST + 1)
    try:
        if len(raw) <= LARGEST:
            _parsed(raw)
            return
    except PatchError:
        pass
    raise PatchError("it is there already, and is no patch of gradfix's")


def loads(raw: bytes) -> Patch:
    """The patch that `raw` is. Raises PatchError."""
    value = _parsed(raw)
    version = value.pop("version", None)
    if isinstance(version, bool) or version != VERSION:
        raise PatchError(f"it is of another version than {VERSION}, the one this gradfix reads")
    del value["format"]
    patch: Patch = _value(Patch, value, "")
    for fix in patch.fixes:
        allowed(fix)
    return patch


def _parsed(raw: bytes) -> dict[str, Any]:
    """The JSON of a patch of any version. Raises PatchError."""
    try:
        value = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise PatchError(f"this is no JSON ({str(problem) or 'nested too deeply'})") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise PatchError("this is no patch of gradfix's (gradfix fix --output-patch makes one)")
    return value


def _no_number(said: str) -> float:
    raise ValueError(f"{said} is no number")


def _umask() -> int:
    now = os.umask(0o077)
    os.umask(now)
    return now


# ---- values to JSON and back


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else plain(value)


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(hint: Any, given: Any, where: str) -> Any:
    """`given` as `hint` wants it. Raises PatchError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return given
    if is_dataclass(hint):
        return _dataclass(hint, given, where)
    if origin is Literal:
        fits = isinstance(given, str) and given in arguments
    elif origin in (Union, types.UnionType):  # X | None
        return None if given is None else _value(arguments[0], given, where)
    elif origin is tuple:
        many = arguments[-1] is ...
        if isinstance(given, list) and (many or len(given) == len(arguments)):
            inner = [arguments[0]] * len(given) if many else arguments
            return tuple(
                _value(h, x, f"{where}[{n}]") for n, (h, x) in enumerate(zip(inner, given, strict=True))
            )
        fits = False
    elif origin is Mapping:
        if isinstance(given, dict):
            return {k: _value(arguments[1], v, f"{where}.{k[:40]}") for k, v in given.items()}
        fits = False
    elif hint is float:
        fits = isinstance(given, int | float) and not isinstance(given, bool)
    else:
        fits = isinstance(given, hint) and not (hint is int and isinstance(given, bool))
    if not fits:
        raise PatchError(f"{where or 'it'} is not what the format has there")
    return given


def _dataclass(kind: Any, given: Any, where: str) -> Any:
    hints = _hints(kind)
    if not isinstance(given, dict) or given.keys() - hints.keys() or hints.keys() - given.keys():
        raise PatchError(f"{where or 'it'} lacks fields that the format has there, or has others")
    values = {name: _value(hints[name], given[name], f"{where}.{name}".lstrip(".")) for name in hints}
    return kind(**values)


# ---- what no patch of gradfix's says


def allowed(fix: Fix) -> None:
    """Raises PatchError where a fix names files that are nobody's source, or lines that are none: it is not read, and
    not written."""
    if any(len(some) > TABLE for some in fix.callers.values()):
        raise PatchError("one of its fixes has more callers than gradfix writes")
    for path in (fix.entry, *(c.path for c in fix.cures), *(f.path for f in fix.files)):
        inside(path)
    if len({f.path for f in fix.files}) != len(fix.files):
        raise PatchError("one of its fixes names a file twice")
    if not fix.files or not all(file.hunks for file in fix.files):
        raise PatchError("one of its fixes changes nothing")
    if fix.verdict == "rejected" or any(cure.verdict == "rejected" for cure in fix.cures):
        raise PatchError("one of its fixes was rejected where it was made; no patch holds such")
    for file in fix.files:
        if any(len(x) > TABLE for flow in _flows(file) for x in (flow.order, flow.origins, flow.readers)):
            raise PatchError(f"{file.path}: what it says of its lines is longer than gradfix writes it")
        for hunk in file.hunks:
            lines = (*hunk.before, *hunk.old, *hunk.new, *hunk.after)
            if len(hunk.before) + len(hunk.after) > AROUND:
                raise PatchError(
                    f"{file.path}: one of its hunks has more lines around it than gradfix writes"
                )
            if hunk.line < 1 or any(NEWLINE.search(x) or "\0" in x for x in lines):
                raise PatchError(f"{file.path}: one of its hunks holds lines that are none")
            if not 0 <= hunk.alike <= 1 or hunk.old == hunk.new:
                raise PatchError(f"{file.path}: one of its hunks changes nothing, or fits impossibly well")


def _flows(file: FilePatch) -> tuple[Flow, ...]:
    return (file.flow.before, file.flow.after) if file.flow is not None else ()


def inside(path: str) -> PurePosixPath:
    """`path` as a patch may name one: a source, below the root it is applied to. Raises PatchError."""
    pure = PurePosixPath(path)
    strange = "\\" in path or ":" in path or any(unicodedata.category(c) == "Cc" for c in path)
    if (
        strange
        or not pure.name
        or pure.is_absolute()
        or len(path) > LONGEST
        or str(pure) != path
        or any(p in ("..", ".git") for p in pure.parts)
    ):
        raise PatchError(f"it names {path[:200]!r}, which is no path below the root that it is applied to")
    script = "." not in pure.name  # whether it is one is asked where it is placed
    if pure.suffix not in SUFFIXES and not script:
        raise PatchError(f"it names {path[:200]!r}, which is neither a Python file nor a notebook")
    return pure
