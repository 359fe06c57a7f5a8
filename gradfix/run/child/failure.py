"""An exception as the user would see it: type, message, their traceback, their frames."""

from __future__ import annotations

import functools
import linecache
import os
import sysconfig
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def describe(exc: BaseException) -> dict[str, Any]:
    """The JSON form of a tape.Failure, with the frames of this package cut away."""
    kind = type(exc)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    try:
        message = str(exc)
    except Exception as problem:  # a user's __str__ may do anything
        message = f"<no message: {type(problem).__name__} in __str__>"
    return {
        "type": module + kind.__qualname__,
        "message": message,
        "traceback": text(exc),
        "stack": [site for frame in _frames(exc.__traceback__) if (site := _site(*frame)) is not None],
    }


def given(trace: TracebackType) -> tuple[Any, ...]:
    """What an op of torch's was called with that the frame of `trace` passed on, if it is the recorder's."""
    frame = trace.tb_frame
    if frame.f_code.co_name != "__torch_function__" or not frame.f_code.co_filename.startswith(HERE):
        return ()
    return (*(frame.f_locals.get("args") or ()), *(frame.f_locals.get("kwargs") or {}).values())


def text(exc: BaseException) -> str:
    """What the interpreter would have printed, frames of this package left out."""
    try:
        picture = traceback.TracebackException.from_exception(exc)
        cut(picture, set())
        return "".join(picture.format())
    except Exception as problem:
        return f"{type(exc).__name__} (its traceback can't be printed: {type(problem).__name__})\n"


def cut(picture: traceback.TracebackException | None, seen: set[int]) -> None:
    """Take this package's frames out of `picture` and out of its causes."""
    if picture is None or id(picture) in seen:
        return
    seen.add(id(picture))
    kept = [frame for frame in picture.stack if not frame.filename.startswith(HERE)]
    picture.stack = traceback.StackSummary.from_list(kept)
    cut(picture.__cause__, seen)
    cut(picture.__context__, seen)


def _frames(trace: TracebackType | None) -> Iterator[tuple[Any, int, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno, trace.tb_lasti
        trace = trace.tb_next


def is_user_file(filename: str) -> bool:
    """False for the interpreter's own files, installed packages, generated code and this package."""
    if filename.startswith("<") or filename.startswith(HERE) or not os.path.isabs(filename):
        return False
    if "site-packages" in filename or "dist-packages" in filename:
        return False
    return not any(filename.startswith(folder) for folder in _libraries())


@functools.cache
def _libraries() -> list[str]:
    return [os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")]


def _site(code: Any, line: int, at: int) -> list[Any] | None:
    """[file, line, column, end_line, end_column, function] , or None for a frame not of the user's."""
    if not is_user_file(code.co_filename):
        return None
    name = getattr(code, "co_qualname", code.co_name)
    span = (None, None, None, None)
    if hasattr(code, "co_positions"):
        positions = list(code.co_positions())
        span = positions[at // 2] if 0 <= at // 2 < len(positions) else span
    first, last, start, end = span
    if None in span or first != line:
        return [code.co_filename, line, 0, 0, 0, name]
    return [code.co_filename, line, _column(code.co_filename, line, start), last,
            _column(code.co_filename, last, end), name]  # fmt: skip


def _column(filename: str, line: int | None, offset: int | None) -> int:
    """Code points before the UTF-8 byte `offset` of a line."""
    source = linecache.getline(filename, line or 0)
    return len(source.encode("utf-8", "surrogatepass")[: offset or 0].decode("utf-8", "replace"))
