"""When a run has seen enough: every optimizer has stepped so many times."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from . import failure


class Bound:
    """Calls `done` when every optimizer that exists has stepped `steps` times.

    An optimizer that has not stepped yet keeps the run going: one real script fails at its 101st step, after
    a hundred of pre-training with another optimizer. One that is made anew in every iteration inherits the
    count of the dead one that was made on the same line.
    """

    def __init__(self, steps: int, done: Callable[[], None]) -> None:
        self.steps, self.done = steps, done
        self.pid = os.getpid()
        self.counts: dict[int, int] = {}
        self.living: dict[int, Any] = {}
        self.heirs: dict[Any, int] = {}  # line -> the youngest that was made there
        self.inherited: dict[Any, int] = {}  # line -> steps of a dead one that has no heir yet

    def install(self) -> None:
        from torch.optim import optimizer as module

        make, bound = module.Optimizer.__init__, self

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            bound.born(self, _caller())

        __init__.__wrapped__ = make  # type: ignore[attr-defined]
        module.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        # Global post hooks run in the order of their registration: instruments see the last step first.
        module.register_optimizer_step_post_hook(self._stepped)

    def born(self, optimizer: Any, line: Any) -> None:
        key = id(optimizer)
        if key not in self.living:
            self.living[key] = weakref.ref(optimizer, lambda _: self._died(key, line))
            self.counts[key] = self.inherited.pop(line, 0)
            self.heirs[line] = key

    def _died(self, key: int, line: Any) -> None:
        """Its successor is alive already (``optimizer = Adam(…)`` makes the new one first) or yet to come."""
        count, heir = self.counts.pop(key), self.heirs.get(line)
        del self.living[key]
        if heir in self.counts:
            self.counts[heir] += count
        else:
            self.inherited[line] = count

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.born(optimizer, None)  # one that was copied or unpickled was never made
        self.counts[id(optimizer)] += 1
        if min(self.counts.values()) >= self.steps and os.getpid() == self.pid:
            self.done()


def _caller() -> Any:
    """File and line of the nearest frame of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if failure.is_user_file(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
