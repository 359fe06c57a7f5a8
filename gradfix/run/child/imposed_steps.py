"""What is done to a run around its optimizers' steps: updates undone or put off, gradients cleared.

Standard library and torch only; see impose.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .imposed_lists import empty_lists
from .imposed_ops import Place
from .measure import parameters, quiet
from .pretend import DATA, lines, user_line
from .uncalled import losses

if TYPE_CHECKING:
    from .impose import Imposer


class Rounds:
    """Counts steps into rounds of so many steps as `lengths` says, the last for all that come; each step is a round
    where there are none."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths or [1]
        self.steps = 0
        self.number = 0
        self.start = 0  # the first sequence number of this round
        self._end = self.lengths[0]  # in steps

    def stepped(self) -> bool:
        """Count one step; whether it ended a round."""
        self.steps += 1
        if self.steps < self._end:
            return False
        self.number += 1
        self._end += self.lengths[min(self.number, len(self.lengths) - 1)]
        self.start = torch._C._autograd._get_sequence_nr()
        return True


class Steps:
    """What happens around optimizer steps: updates undone or put off, gradients cleared."""

    def __init__(self, imposer: Imposer) -> None:
        self.imposer = imposer
        self.null = imposer.request.get("null")
        self.before: dict[int, tuple[list[Any], Any]] = {}
        self.due: dict[
            int, tuple[Any, Any]
        ] = {}  # id of a parameter -> (it, its value from the round's end on)
        self.late: dict[int, Any] = {}  # id of a parameter that is cleared behind its step -> it
        self.begun: dict[int, Any] = {}  # id of a parameter whose gradients were cleared since its step -> it

        self.called: dict[int, Any] = {}  # id of a loss whose backward nobody else calls -> it

    def install(self) -> None:
        from torch.optim import optimizer as hooks

        hooks.register_optimizer_step_pre_hook(self._pre)
        hooks.register_optimizer_step_post_hook(self._post)
        for when, clears in (("gather", self._behind), ("once", self._once)):
            if when in self.imposer.request:
                self._gather(lines(self.imposer.request[when]), clears)

        if "step" in self.imposer.request:
            self._step_behind([(k, Place(place)) for k, place in self.imposer.request["step"]])

    def _step_behind(self, due: list[tuple[int, Place]]) -> None:
        """The optimizer of a number steps behind the backward, or the clipping of gradients, that is called there."""
        living = self.imposer.optimizers.live

        def stepping(call: Callable[..., Any]) -> Callable[..., Any]:
            def behind(*args: Any, **kwargs: Any) -> Any:
                result = call(*args, **kwargs)
                for number in [number for number, place in due if place.here() and number < len(living)]:
                    optimizer = living[number]()
                    if optimizer is not None:
                        optimizer.step()
                return result

            return behind

        torch.autograd.backward = stepping(torch.autograd.backward)
        for name in [n for n in vars(torch.nn.utils) if n.startswith("clip_grad") and n.endswith("_")]:
            clipping = stepping(getattr(torch.nn.utils, name))
            setattr(torch.nn.utils, name, clipping)
            setattr(torch.nn.utils.clip_grad, name, clipping)

    def _behind(self, held: Iterable[Any]) -> None:
        """Gradients are cleared behind the next step that uses them."""
        self.late.update((id(p), p) for p in held)

    def _once(self, held: Iterable[Any]) -> None:
        """Gradients are cleared by the first call of those before a step."""
        for p in held:
            if id(p) not in self.begun:
                self.begun[id(p)] = p
                p.grad = None

    def _gather(self, sites: set[tuple[str, int]], clears: Callable[[Iterable[Any]], None]) -> None:
        """What clears gradients at `sites` does so as `clears` does."""

        def put_off(clear: Any, held: Callable[[Any], Any]) -> Any:
            def zero_grad(this: Any, *args: Any, **kwargs: Any) -> None:
                if user_line() in sites:
                    clears(held(this))
                else:
                    clear(this, *args, **kwargs)

            return zero_grad

        torch.optim.Optimizer.zero_grad = put_off(torch.optim.Optimizer.zero_grad, parameters)  # type: ignore
        torch.nn.Module.zero_grad = put_off(torch.nn.Module.zero_grad, torch.nn.Module.parameters)  # type: ignore

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self.imposer.request.get("uncalled"):
            for _, _, loss in list(losses(sys._getframe(1))):
                if id(loss) not in self.called:
                    self.called[id(loss)] = loss
                    loss.backward()
        self.imposer.depth += 1  # a closure's backward and the writes of a step are not the script's own
        if self.null:
            with quiet():
                state = None
                if self.null == "steps":
                    state = {p: {k: _copy(v) for k, v in s.items()} for p, s in optimizer.state.items()}
                self.before[id(optimizer)] = ([p.detach().clone() for p in parameters(optimizer)], state)
        if self.null or self._clears(optimizer):
            return _closed(args, kwargs, lambda closure: self._still(optimizer, closure))
        return None

    def _clears(self, optimizer: Any) -> bool:
        """Whether its gradients are cleared behind each step of it."""
        clear = self.imposer.request.get("clear")
        return clear is True or (
            isinstance(clear, list) and self.imposer.optimizers.number(optimizer) in clear
        )

    def _still(self, optimizer: Any, closure: Any) -> Any:
        """A closure that finds the parameters as they were when the step began, however often it is called, or
        gradients that are cleared."""
        old, _ = self.before.get(id(optimizer), (None, None))

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._clears(optimizer):
                for p in parameters(optimizer):
                    p.grad = None
            if old is None:
                return closure(*args, **kwargs)
            with quiet():
                now = [p.detach().clone() for p in parameters(optimizer)]
                _put(optimizer, old)
            try:
                return closure(*args, **kwargs)
            finally:
                with quiet():
                    _put(optimizer, now)

        return call

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.imposer.depth -= 1
        with quiet():
            if self.null and id(optimizer) in self.before:
                old, state = self.before.pop(id(optimizer))
                for p, value in zip(parameters(optimizer), old):  # noqa: B905  (Python 3.9)
                    if self.null == "rounds":
                        self.due[id(p)] = (p, p.detach().clone())
                    DATA.__get__(p).copy_(value)  # through .data: no version counter moves
                if state is not None:
                    optimizer.state.clear()
                    optimizer.state.update(state)
            clears = self._clears(optimizer) and _closed(args, kwargs, lambda closure: closure) is None
            for p in parameters(optimizer):
                self.begun.pop(id(p), None)
                if clears or id(p) in self.late:
                    p.grad = None
            if self.imposer.rounds.stepped():
                for p, value in self.due.values():
                    DATA.__get__(p).copy_(value)
                self.due.clear()
                if self.imposer.request.get("emptied"):
                    empty_lists()


def _closed(args: Any, kwargs: Any, wrap: Callable[[Any], Any]) -> Any:
    """The arguments of a step (the optimizer first), its closure wrapped; None where it has none."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def _put(optimizer: Any, values: Any) -> None:
    for p, value in zip(parameters(optimizer), values):  # noqa: B905  (Python 3.9)
        DATA.__get__(p).copy_(value)  # through .data: no version counter moves


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
