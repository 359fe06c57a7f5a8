"""When a run has seen enough: every optimizer has stepped so many times."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from . import failure, unstepped
from .sites import parsed

_REWRITTEN = 2  # times that parameters change without a step before nobody waits for one
_LOOKED_AT = 4  # parameters of an optimizer, and numbers of each, that tell whether they changed
_NUMBERS = 16
_REFILLED = 4  # times that gradients are new without a step before the text is asked whether one may come
_LATER = 4  # times as many before it is asked again: more of it may have been loaded
_PATIENCE = 32  # steps of one optimizer after which the loop that makes it anew is waited for no longer
_BY_HAND = 50  # backwards of one line after which a program without optimizers has shown what it does
Line = tuple[str, int]  # file and line of the user's where optimizers are made


class Bound:
    """Calls `done` when every optimizer that exists has stepped `steps` times, or all together `calls` times.

    An optimizer that has not stepped yet keeps the run going: one real script fails at its 101st step, after
    a hundred of pre-training with another optimizer. One that is made anew in every iteration inherits the
    count of the dead one that was made on the same line. Where it is made in a loop, that loop has to go round
    twice (Reptile's steps on one task, MAML's): the optimizer of the second round steps as often, or gives way
    to a third. One whose parameters the script itself writes again and again is a target network's, made by the
    class of what it follows: it never steps, and nobody waits for it. Nor for one that gets gradients in one pass
    after the other, where no call is left in the text that may step it; `never` is told of it. (Where that holds for
    all of them, so many backwards are enough; more of them where the program knows of no optimizer.) A run that is
    compared with another waits for optimizers that are made later in it: until they were made in `making` places.
    """

    def __init__(
        self,
        steps: int,
        done: Callable[[], None],
        calls: int | None = None,
        never: Callable[[Any], None] = lambda _: None,
        making: int = 0,
    ) -> None:
        self.steps, self.done, self.calls, self.never, self.making = steps, done, calls, never, making
        self.called = 0
        self.walks: dict[Line, int] = {}  # line of a backward -> how many went through before any step
        # by optimizer, those that have not stepped since the first of all did
        self.idle: dict[int, _Idle] = {}
        self.pid = os.getpid()
        self.counts: dict[int, int] = {}
        self.living: dict[int, Any] = {}
        self.heirs: dict[Line, int] = {}  # line -> the youngest that was made there
        self.inherited: dict[Line, int] = {}  # line -> steps of a dead one that has no heir yet
        self.rounds: dict[Line, list[int]] = {}  # line in a loop -> steps of each optimizer made there
        self.places: dict[int, tuple[list[int], int]] = {}  # optimizer -> where it is counted in `rounds`

    def install(self) -> None:
        from torch.optim import optimizer as module

        make, bound = module.Optimizer.__init__, self

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            bound.born(self, _user_frame())

        __init__.__wrapped__ = make  # type: ignore[attr-defined]
        module.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        # Global post hooks run in the order of their registration: instruments see the last step first.
        module.register_optimizer_step_post_hook(self._stepped)
        autograd: Any = torch.autograd
        walk = autograd._engine_run_backward

        def run(*args: Any, **kwargs: Any) -> Any:
            result = walk(*args, **kwargs)
            if not bound.called and kwargs.get("accumulate_grad"):
                bound._walked(_user_frame())
            return result

        autograd._engine_run_backward = run

    def _walked(self, frame: Any) -> None:
        """Look whether any step may come, after more and more backwards of one line."""
        waiting = [o for ref in self.living.values() if (o := ref()) is not None]
        if not unstepped.calls(frame, "backward") or os.getpid() != self.pid:
            return
        line = frame.f_code.co_filename, frame.f_lineno
        count = self.walks[line] = self.walks.get(line, 0) + 1
        if not waiting:
            if (
                count == max(self.steps, _BY_HAND)
                and not self.inherited
                and not unstepped.speaks_of_optimizers()
            ):
                self.done()
            return
        first = max(self.steps, _REFILLED)
        due = (first * _LATER**n for n in range(count))
        if count != next(n for n in due if n >= count) or any(unstepped.may_step(o, frame) for o in waiting):
            return
        for optimizer in () if unstepped.asks_otherwise() else waiting:
            self.never(optimizer)
        self.done()

    def born(self, optimizer: Any, frame: Any) -> None:
        key = id(optimizer)
        if key in self.living:
            return
        line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)
        self.living[key] = weakref.ref(optimizer, lambda _: self._died(key, line))
        self.counts[key] = self.inherited.pop(line, 0)
        self.heirs[line] = key
        if line in self.rounds or _in_loop(frame):
            steps = self.rounds.setdefault(line, [])
            self.places[key] = steps, len(steps)
            steps.append(0)

    def _died(self, key: int, line: Line) -> None:
        """Its successor is alive already (``optimizer = Adam(…)`` makes the new one first) or yet to come."""
        count, heir = self.counts.pop(key), self.heirs.get(line)
        del self.living[key]
        self.places.pop(key, None)
        self.idle.pop(key, None)
        if heir in self.counts:
            self.counts[heir] += count
        else:
            self.inherited[line] = count

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.born(optimizer, None)  # one that was copied or unpickled was never made
        self.counts[id(optimizer)] += 1
        self.called += 1
        if id(optimizer) in self.places:
            steps, number = self.places[id(optimizer)]
            steps[number] += 1
        self.idle.pop(id(optimizer), None)
        self._watch_idle()
        counted = all(
            c >= self.steps or self._follows(k) or self._is_forgotten(k) for k, c in self.counts.items()
        )
        enough = counted and all(map(self._went_round, self.rounds.values()))
        made = sum(bool(file) for file, _ in self.heirs) >= self.making
        due = self.calls is not None and self.called >= self.calls
        if made and (enough or due) and os.getpid() == self.pid:
            self.done()

    def _went_round(self, steps: list[int]) -> bool:
        second = len(steps) == 2 and steps[1] >= min(self.steps, steps[0])
        return second or len(steps) > 2 or sum(steps) >= max(self.steps, _PATIENCE)

    def _watch_idle(self) -> None:
        """Look once more at the parameters of those that have not stepped."""
        waiting = [
            (key, one) for key, c in self.counts.items() if not c and (one := self.living[key]()) is not None
        ]
        if not waiting:
            return
        others = (ref() for key, ref in self.living.items() if self.counts[key])
        stepped = {id(p) for other in others if other is not None for p in _parameters(other)}
        with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
            for key, optimizer in waiting:
                own = _parameters(optimizer)
                if stepped.isdisjoint(map(id, own)):
                    self.idle.setdefault(key, _Idle()).look([p for p in own if _has_numbers(p)][:_LOOKED_AT])

    def _follows(self, key: int) -> bool:
        return key in self.idle and self.idle[key].rewritten >= _REWRITTEN

    def _is_forgotten(self, key: int) -> bool:
        idle, optimizer = self.idle.get(key), self.living[key]()
        if idle is None or optimizer is None or idle.refilled < idle.patience:
            return idle is not None and idle.forgotten
        idle.patience *= _LATER
        frame = _user_frame()
        idle.forgotten = unstepped.calls(frame, "step") and not unstepped.may_step(optimizer, frame)
        if idle.forgotten:
            self.never(optimizer)
        return idle.forgotten


class _Idle:
    """What the parameters of an optimizer that has not stepped hold, and how often that has changed; and how often
    their gradients were others. After so many times, its `patience`, the text is asked whether it is `forgotten`."""

    __slots__ = ("forgotten", "gradients", "held", "patience", "refilled", "rewritten")

    def __init__(self) -> None:
        self.held: list[list[float]] | None = None
        self.gradients: list[list[float]] = []
        self.rewritten = self.refilled = 0
        self.patience = _REFILLED
        self.forgotten = False

    def look(self, parameters: list[Any]) -> None:
        now = _first_numbers(parameters)
        self.rewritten += self.held is not None and now != self.held
        self.held = now
        given = _first_numbers([p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse])
        if given != self.gradients:
            self.refilled += any(map(any, given))
            self.gradients = given


def _first_numbers(tensors: list[Any]) -> list[list[float]]:
    return [t.detach().reshape(-1)[:_NUMBERS].tolist() for t in tensors]


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_numbers(parameter: Any) -> bool:
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter)  # a lazy one has no shape yet
    return plain and parameter.layout is torch.strided and not parameter.is_meta


def _user_frame() -> Any:
    """The nearest frame of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if failure.is_user_file(frame.f_code.co_filename):
            return frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _in_loop(frame: Any) -> bool:
    """Whether `frame` or one that it was called from stands in a loop of its own function's."""
    while frame is not None:
        code = frame.f_code
        if failure.is_user_file(code.co_filename):
            loops = _loops(code.co_filename)
            if any(first <= frame.f_lineno <= last and first >= code.co_firstlineno for first, last in loops):
                return True
        frame = frame.f_back
    return False


@functools.cache
def _loops(file: str) -> list[tuple[int, int]]:
    """First and last line of every loop in `file`'s text."""
    tree = parsed("".join(linecache.getlines(file))) or ast.Module([], [])
    loops = [n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.AsyncFor, ast.While))]
    return [(n.lineno, n.end_lineno or n.lineno) for n in loops]
