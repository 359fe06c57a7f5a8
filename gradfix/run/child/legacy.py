"""What autograd's past had and today's PyTorch takes in another sense, or warns of: ``Variable``, ``torch.full`` of a
whole number, and names that have successors.

Standard library and torch only.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from typing import Any

import torch
from torch.autograd.variable import VariableMeta

from .storages import address_of

_WARNED = re.compile(r"\bis (now )?deprecated(\.| in favor of)")
_LIBRARY = ("torch", "warnings", "typing_extensions")


_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _outside(frame: Any, place: Any) -> Any:
    """(file, line) of the first frame around that called what this package wraps: where a plain run warns."""
    while frame is not None and frame.f_code.co_filename != place[0]:
        frame = frame.f_back
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return place if frame is None else (frame.f_code.co_filename, frame.f_lineno)


class Legacy:
    """Emits Legacy events, one for each place and sense. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder

    def install(self) -> None:
        meta: Any = VariableMeta
        meta.__call__ = self._wrapping(meta.__call__)
        meta.__eq__ = self._comparing(meta.__eq__)
        meta.__hash__ = type.__hash__
        function: Any = torch.autograd.Function
        function.__call__ = self._calling(function.__call__)
        warnings.showwarning = self._warning(warnings.showwarning)

    def filled(self, made: Any, dtype: Any, frame: Any) -> None:
        """``torch.full(size, 1)`` was of floats before PyTorch 1.7."""
        if dtype is None and made.dtype in (torch.int64, torch.bool):
            while frame is not None and frame.f_code.co_filename.startswith(_OURS):
                frame = frame.f_back  # of a mode between the script and the recorder's: on_cpu.py
            self._emit("filled", frame, made)

    def _wrapping(self, plain: Any) -> Any:
        def wrap(cls: Any, *args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("data")
            if isinstance(tensor, torch.Tensor):
                self._emit("Variable", sys._getframe(1), tensor, "volatile" if kwargs.get("volatile") else "")
            return plain(cls, *args, **kwargs)

        return wrap

    def _comparing(self, plain: Any) -> Any:
        """``type(h) == Variable`` held for what had a graph, and holds for nothing any more."""

        def equal(cls: Any, other: Any) -> Any:
            if other is torch.Tensor or other is torch.nn.Parameter:
                self._emit("type", sys._getframe(1))
            return plain(cls, other)

        return equal

    def _calling(self, plain: Any) -> Any:
        """A Function is called as the object that it was: what cures that is in the file of its class."""

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            code = getattr(type(function).forward, "__code__", None)
            if code is not None and self.r.sites.is_user(code):
                self.r.tape.source(code.co_filename)
            return plain(function, *args, **kwargs)

        return call

    def _warning(self, plain: Any) -> Any:
        def show(message: Any, *args: Any, **kwargs: Any) -> Any:
            said = str(message)
            if len(args) >= 3 and str(args[1]).startswith(_OURS):
                args = (args[0], *_outside(sys._getframe(1), args[1:3]), *args[3:])
            if _WARNED.search(said):
                frame: Any = sys._getframe(1)
                while frame is not None and frame.f_globals.get("__name__", "").startswith(_LIBRARY):
                    frame = frame.f_back
                self._emit("deprecated", frame, said=said)
            return plain(message, *args, **kwargs)

        return show

    def _emit(self, use: str, frame: Any, tensor: Any = None, said: str = "") -> None:
        r = self.r
        if r.off() or not r.sites.called_by_user(frame):
            return
        stack = r.sites.stack(frame)
        fields: dict[str, Any] = {"use": use}
        if tensor is not None and tensor.requires_grad:
            fields["attached"] = True
        if said:
            fields["said"] = said
        if r.seen((use, stack, "attached" in fields)) > 1:
            return
        if tensor is not None and address_of(tensor):
            storage = r.storages.of(tensor)
            fields["ref"] = r.tape.ref(storage, tensor)
        r.tape.event("Legacy", r.clock.tick(), stack, **fields)
