"""Work of the recorder's own during which Python's garbage collector waits: what is made for a moment, by the thousand,
would have it look through everything that is young, again and again, and find nothing."""

from __future__ import annotations

import gc
from typing import Any

_enabled, _disable, _enable = (
    gc.isenabled,
    gc.disable,
    gc.enable,
)  # bound here: the script may patch the module


class Pause:
    """``with Pause():`` around what runs no code of the script's. A collector that is off stays off."""

    __slots__ = ("_was_on",)

    def __enter__(self) -> None:
        self._was_on = _enabled()
        _disable()

    def __exit__(self, *_: Any) -> None:
        if self._was_on:
            _enable()
