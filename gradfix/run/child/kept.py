"""Graphs that pile up though no backward will walk them: a sum of losses over optimizer steps, a list of losses.

A sum is never a root, so its nodes are told where it grows; the tape's reader sees the rest: an addition whose operand
was made at the same place before a step. What keeps losses shows at the end, by those that live on.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import Any

from .sites import Key

_DEEP = 2  # nodes behind the addition: ``ema = 0.9 * ema + 0.1 * loss`` scales what it had
_LOSSES = 4  # of the newest passes; a loop may well hold the one before
_FEWEST = 3
_WINDOW = 256  # of the newest losses that a deque may hold without being taken for a leak


class Kept:
    """`stepped` is the time of the last optimizer step; before the first one nothing is looked at."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.stepped = 0
        self._told: set[Key] = set()
        self._losses: dict[Key, list[Any]] = {}

    def added(self, result: Any, stack: Key, operands: Any, frame: Any) -> None:
        """A call at `stack` added `operands` up to `result`, and a step lies behind."""
        if stack in self._told or result.numel() != 1 or not self._grown(result.grad_fn, stack):
            return
        self._told.add(stack)
        r = self.r
        storage = r.storages.of(result)
        storage.name = storage.name or next(
            (name for t in operands if hasattr(t, "grad_fn") and (name := r.names.local(frame, t))), ""
        )
        r.engine.tell(result)

    def _grown(self, node: Any, stack: Key) -> bool:
        """Whether `node` takes, by way of at most one scaling, what the same call made before the last step."""
        nodes = [node]
        for _ in range(_DEEP):
            nodes = [n for each in nodes for n, _ in each.next_functions if n is not None]
            for each in nodes:
                number = each._sequence_nr()
                call = self.r.calls.of(number)
                if call is not None and call[0] == stack and call[1] < self.stepped:
                    return True
        return False

    def freed(self, roots: Any, stack: Key) -> None:
        """A backward at `stack` has freed the graph of `roots`."""
        if len(roots) == 1 and roots[0].grad_fn is not None:
            losses = self._losses.setdefault(stack, [])
            losses.append((weakref.ref(roots[0]), roots[0].grad_fn._sequence_nr(), self.stepped))
            del losses[:-_LOSSES]

    def finish(self) -> None:
        """Tell of losses of different steps that have outlived their backwards."""
        for collected in (False, True):
            if not any(map(_alive, self._losses.values())):
                return
            if not collected:
                gc.collect()
        r = self.r
        for stack, losses in self._losses.items():
            if _alive(losses) and not _passing(losses):
                r.tape.event("Kept", r.clock.tick(), stack, nodes=[number for _, number, _ in losses])


def _alive(losses: list[Any]) -> bool:
    """Whether there are enough, with a step between any two."""
    steps = {step for _, _, step in losses}
    return len(steps) == len(losses) >= _FEWEST and all(loss() is not None for loss, _, _ in losses)


def _passing(losses: list[Any]) -> bool:
    """Whether what holds one of them lets go of it again: a deque that keeps so many of the newest."""
    held = [loss for ref, _, _ in losses if (loss := ref()) is not None]
    holders = gc.get_referrers(*held)
    # (an entry may be a tuple or a dictionary of several losses)
    inside = [h for h in holders if isinstance(h, (tuple, dict))]
    holders += gc.get_referrers(*inside) if inside else []
    return any(isinstance(h, deque) and h.maxlen is not None and h.maxlen <= _WINDOW for h in holders)
