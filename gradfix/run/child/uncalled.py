"""Losses that a statement names the `backward` of and does not call: ``loss.backward``.

Nothing happens then, and no hook tells of it: it is read from the text of the functions that step an optimizer which
has never had a gradient, and what the name holds there is looked up.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from typing import Any

import torch

from . import failure
from .sites import parsed


def losses(frame: Any) -> Iterator[tuple[Any, int, Any]]:
    """(frame, the instruction that reads the method, the tensor) of each, in `frame` and those that called it."""
    while frame is not None:
        if failure.is_user_file(frame.f_code.co_filename):
            for name, instruction in _named(frame.f_code):
                value = _value(frame, name)
                if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                    yield frame, instruction, value
        frame = frame.f_back


def tell(recorder: Any, frame: Any) -> None:
    """An optimizer steps in `frame` without a gradient: write an event for each."""
    for around, instruction, loss in losses(frame):
        code, _, *outwards = recorder.sites.stack(around)
        fields = {
            "node": loss.grad_fn._sequence_nr(),
            "ref": recorder.tape.ref(recorder.storages.of(loss), loss),
        }
        recorder.tape.event("Uncalled", recorder.clock.tick(), (code, instruction, *outwards), **fields)


@functools.cache
def _named(code: Any) -> tuple[tuple[str, int], ...]:
    """What the function's own statements name the method of, each with the place of the instruction that reads it."""
    if sys.version_info < (3, 11):  # noqa: UP036 (the user's interpreter)
        return ()
    found = _statements(code.co_filename)
    if not found:
        return ()
    read: dict[tuple[Any, ...], int] = {}
    for at, (line, end_line, column, end_column) in enumerate(code.co_positions()):
        read.setdefault((line, column, end_line, end_column), 2 * at)
    return tuple((name, read[span]) for span, name in found.items() if span in read)


@functools.cache
def _statements(file: str) -> dict[tuple[Any, ...], str]:
    found = {}
    for node in ast.walk(parsed("".join(linecache.getlines(file))) or ast.Module([], [])):
        named = node.value if isinstance(node, ast.Expr) else None
        if isinstance(named, ast.Attribute) and named.attr == "backward":
            span = (named.lineno, named.col_offset, named.end_lineno, named.end_col_offset)
            found[span] = ast.unparse(named.value)
    return found


def _value(frame: Any, name: str) -> Any:
    """What a name, or an attribute of one, holds there; no property is asked."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in rest:
        value = getattr(value, "__dict__", {}).get(attribute)
    return value
