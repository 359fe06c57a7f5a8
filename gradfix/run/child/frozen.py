"""Who froze what: where the ``requires_grad`` of leaves was turned off is told where a loss or a step is left with
nothing."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .sites import Key

_FULL = 32  # of one place that are told


class _Freezing:
    __slots__ = ("stack", "told", "until", "weak")

    def __init__(self, weak: Any, stack: Key) -> None:
        self.weak = weak
        self.stack = stack
        self.told = False
        self.until: int | None = None  # when it was taken back


class Frozen:
    """Remembers the last such call of each leaf that required a gradient before. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._known: dict[int, _Freezing] = {}

    def set(self, func: Any, args: Any, kwargs: dict[str, Any], frame: Any) -> Any:
        """A call of ``requires_grad_``, or of what sets ``requires_grad``."""
        tensor = args[0]
        before = tensor.requires_grad
        result = func(*args, **kwargs)
        key = id(tensor)
        known = self._known.get(key)
        if tensor.requires_grad:
            if known is not None and known.until is None:
                known.until = self.r.clock.tick()
        elif before and not self.r.off():
            weak = weakref.ref(tensor, lambda _: self._known.pop(key, None))
            self._known[key] = _Freezing(weak, self.r.sites.stack(frame))
        return result

    def met(self, among: Iterable[Any] | None = None) -> None:
        """Tell, once, who froze the leaves `among` (all that are frozen still)."""
        found: dict[tuple[Key, int | None], list[Any]] = {}
        for key in list(self._known) if among is None else map(id, among):
            freezing = self._known.get(key)
            leaf = freezing.weak() if freezing is not None else None
            if freezing is None or leaf is None or freezing.told or (among is None and freezing.until):
                continue
            freezing.told = True
            found.setdefault((freezing.stack, freezing.until), []).append(leaf)
        r = self.r
        for (stack, until), leaves in found.items():
            if r.seen(("frozen", stack)) <= _FULL:
                more = {} if until is None else {"until": until}
                with torch._C.DisableTorchFunction():
                    r.tape.event("Frozen", r.clock.tick(), stack, refs=r.leaves.refs(leaves), **more)
