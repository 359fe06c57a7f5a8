"""Who turned gradients off for good: ``torch.set_grad_enabled(False)`` as a statement, which no with-block ends."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .sites import Key


class GradMode:
    """Remembers the last such call. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._off: Key = ()

    def install(self) -> None:
        r, me = self.r, self
        kind: Any = torch.autograd.grad_mode.set_grad_enabled
        begin, leave, decorate = kind.__init__, kind.__exit__, kind.__call__

        def __init__(self: Any, mode: Any) -> None:
            before = torch.is_grad_enabled()
            begin(self, mode)
            if not r.off() and before != bool(mode):
                me._off = () if mode else r.sites.stack(sys._getframe(1))

        def __exit__(self: Any, *problem: Any) -> None:
            leave(self, *problem)
            me._on_again()

        def __call__(self: Any, function: Any) -> Any:
            decorated = decorate(self, function)
            me._on_again()
            return decorated

        kind.__init__, kind.__exit__, kind.__call__ = __init__, __exit__, __call__

    def _on_again(self) -> None:
        if torch.is_grad_enabled() and not self.r.off():
            self._off = ()

    def met(self) -> None:
        """A backward is refused that has no graph."""
        if self._off and not torch.is_grad_enabled():
            self.r.tape.event("Off", self.r.clock.tick(), self._off)
