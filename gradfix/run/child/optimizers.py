"""Optimizers: their making, their steps, and the clearing of gradients.

torch.optim's own step() runs unwatched (it is nearly all of a step's calls): what it wrote to is its
parameters.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as module

from . import uncalled, unstepped
from .saves import GONE, Entry, fate_of
from .storages import address_of, addresses_of

_FULL = 32  # steps at one place that are written whatever they are
_LOOKS = 3  # steps without a gradient at which the text is looked at


class _Known:
    __slots__ = ("filled", "name", "named", "number", "seen", "steps", "weak")

    def __init__(self, number: int, optimizer: Any, forget: Any) -> None:
        self.number = number
        self.steps = 0
        self.filled = False  # whether any step had a gradient
        self.seen: dict[Any, int] = {}  # steps by their stack
        self.name = ""
        self.named = False  # whether its frames were looked at twice
        self.weak = weakref.ref(optimizer, forget)


class _Running:
    """A step that has begun: what its optimizer holds, which of these `had` a gradient. Of a step of torch.optim's own,
    which runs with torch functions off until `guard` is left, also the leaves it will write, their versions and what
    was saved of them. `outer` is the optimizer whose step this one is within."""

    __slots__ = ("entries", "guard", "had", "optimizer", "outer", "params", "versions", "written")

    def __init__(self, optimizer: Any, outer: int | None) -> None:
        self.optimizer = optimizer
        self.outer = outer
        self.params = [p for g in optimizer.param_groups for p in g["params"]]
        self.had = [p.grad is not None for p in self.params]
        self.written: list[Any] = []
        self.versions: list[int] = []
        self.entries: list[list[Entry]] = []
        self.guard: Any = None


class Optimizers:
    """Numbers optimizers and emits Optimizer, Step and Zero."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._known: dict[int, _Known] = {}
        self._next = 0
        self._making = 0
        self._running: list[_Running] = []
        self._never: list[_Known] = []

    def install(self) -> None:
        me, r = self, self.r
        make, add, zero = Optimizer.__init__, Optimizer.add_param_group, Optimizer.zero_grad
        module_zero = torch.nn.Module.zero_grad

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            me._making += 1
            try:
                make(self, *args, **kwargs)
            finally:
                me._making -= 1
            if not me._making:
                me._made(self, sys._getframe(1))

        def add_param_group(self: Any, param_group: Any) -> None:
            try:
                add(self, param_group)
            except ValueError:
                me._not_leaves(self, param_group, sys._getframe(1))
                raise
            if not me._making:
                me._made(self, sys._getframe(1))

        def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                zero(self, *args, **kwargs)
            params = [p for g in self.param_groups for p in g["params"]]
            r.gradients.cleared(params, me.number(self), sys._getframe(1))

        def module_zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
            with torch._C.DisableTorchFunction():
                module_zero(self, *args, **kwargs)
            r.gradients.cleared(list(self.parameters()), None, sys._getframe(1))

        for ours, theirs in (
            (__init__, make),
            (add_param_group, add),
            (zero_grad, zero),
            (module_zero_grad, module_zero),
        ):
            ours.__wrapped__ = theirs  # type: ignore[attr-defined]
            ours.__doc__ = theirs.__doc__
            ours.__qualname__ = theirs.__qualname__
        Optimizer.__init__ = __init__  # type: ignore[method-assign]
        Optimizer.add_param_group = add_param_group  # type: ignore[method-assign]
        Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
        torch.nn.Module.zero_grad = module_zero_grad  # type: ignore[method-assign]
        module.register_optimizer_step_pre_hook(self._pre)
        module.register_optimizer_step_post_hook(self._post)

    def number(self, optimizer: Any) -> int:
        return self._of(optimizer).number

    def fewer_than_two(self) -> bool:
        """Whether there are not several to hold what a backward reaches."""
        return len(self._known) < 2

    def steps(self) -> int:
        """How many were made so far, by all that are still there."""
        return sum(known.steps for known in list(self._known.values()))

    def owners(self, leaves: Any) -> dict[int, int]:
        """storage -> the optimizer that holds the leaf in it, for those of `leaves` that one holds."""
        owned: dict[int, int] = {}
        for known in list(self._known.values()):
            optimizer = known.weak()
            for group in optimizer.param_groups if optimizer is not None else ():
                owned.update((id(p), known.number) for p in group["params"])
        return {self.r.leaves.of(t).number: owned[id(t)] for t in leaves if id(t) in owned}

    def _of(self, optimizer: Any) -> _Known:
        key = id(optimizer)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(self._next, optimizer, lambda _: self._known.pop(key, None))
            self._next += 1
        return known

    # ---- made

    def _made(self, optimizer: Any, frame: Any) -> None:
        params = [p for g in getattr(optimizer, "param_groups", ()) for p in g["params"]]
        self._emit(optimizer, params, frame)

    def _not_leaves(self, optimizer: Any, group: Any, frame: Any) -> None:
        """The group PyTorch refused ("can't optimize a non-leaf Tensor")."""
        params = group.get("params", ()) if isinstance(group, dict) else ()
        tensors = (
            [params]
            if isinstance(params, torch.Tensor)
            else [p for p in params if isinstance(p, torch.Tensor)]
        )
        if any(not p.is_leaf for p in tensors):
            self._emit(optimizer, tensors, frame)

    def _emit(self, optimizer: Any, params: list[Any], frame: Any) -> None:
        r = self.r
        if r.off():
            return
        for p in params:
            r.leaves.of(p) if p.is_leaf else r.storages.of(p)
        r.names.look(frame, again=True)
        fields: dict[str, Any] = {"optimizer": self.number(optimizer), "kind": type(optimizer).__name__}
        name = r.names.owner(optimizer)
        if name:
            fields["name"] = name
            known = self._of(optimizer)
            known.name, known.named = name, True
        hidden = r.names.unregistered(params)
        asked = {held: unstepped.gives_later(held) for held in {held[0] for _, held, _ in hidden}}
        hidden = [each for each in hidden if not asked[each[1][0]]]
        for name, _, p in hidden:
            r.leaves.of(p)
            r.names.call(p, name)
        if hidden and not unstepped.adds_groups():
            fields["unregistered"] = [r.tape.ref(r.storages.of(p), p) for _, _, p in hidden]
            fields["attributes"] = [held for _, held, _ in hidden]
        r.tape.event(
            "Optimizer",
            r.clock.tick(),
            r.sites.stack(frame),
            refs=[r.tape.ref(r.storages.of(p), p) for p in params],
            **fields,
        )

    # ---- steps

    def never(self, optimizer: Any) -> None:
        """Nothing in the text may step it. (Its name is not known by a step, either.)"""
        known = self._of(optimizer)
        self._never.append(known)
        self._name(sys._getframe(1))

    def unstepped(self) -> list[int]:
        """Those, unless they were stepped after all."""
        return sorted({known.number for known in self._never if not known.steps})

    def untrained(self) -> bool:
        """Whether one steps and has never had a gradient."""
        return any(known.steps and not known.filled for known in self._known.values())

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        r = self.r
        if r.off():
            return None
        guard: Any = torch._C.DisableTorchFunction()  # until the post hook, or from within for a closure
        guard.__enter__()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        quiet = closure is None and type(optimizer).__module__.startswith("torch.optim.")
        step = _Running(optimizer, r.stepping)
        early = r.keep_freed()
        if quiet:
            step.guard = guard
            step.written = [p for p, has in zip(step.params, step.had) if has]  # noqa: B905 (Python 3.9)
            step.versions = [p._version for p in step.written]
            step.entries = list(map(r.saves.at, addresses_of(step.written)))
            clones: dict[Any, Any] = {}
            for entries in step.entries:
                for entry in entries:
                    if early or entry.freed is None:
                        r.keep(entry, clones, early)
        else:
            guard.__exit__(None, None, None)
        self._running.append(step)
        r.stepping = self.number(optimizer)
        if closure is None:
            return None
        wrapped = self._outside(closure)
        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, dict(kwargs, closure=wrapped)

    def _outside(self, closure: Any) -> Any:
        """The user's closure, which is not the optimizer's doing."""
        r = self.r

        def run() -> Any:
            stepping, r.stepping = r.stepping, None
            try:
                return closure()
            finally:
                r.stepping = stepping

        return run

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        r = self.r
        while self._running and self._running[-1].optimizer is not optimizer:
            self._leave(self._running.pop())  # steps that an exception left
        if r.off() or not self._running:
            return
        step = self._running.pop()
        with torch._C.DisableTorchFunction():
            self._stepped(step, sys._getframe(2))
        self._leave(step)
        self.r.gradients.settle()

    def abandon(self) -> None:
        """A backward outside any closure: steps that have not ended were left by an exception."""
        while self._running and self._running[-1].guard is not None:
            self._leave(self._running.pop())

    def _leave(self, step: _Running) -> None:
        self.r.stepping = step.outer
        if step.guard is not None:
            step.guard.__exit__(None, None, None)

    def _name(self, frame: Any) -> None:
        """Say what they are called that `frame` and those around it know. (What named one of them may turn out to be a
        helper's variable.)"""
        self.r.names.look(frame)
        for known in list(self._known.values()):
            optimizer = known.weak()
            name = self.r.names.owner(optimizer) if optimizer is not None else ""
            if name and name != known.name:
                known.name = name
                self.r.tape.name_optimizer(known.number, name)

    def _stepped(self, step: _Running, frame: Any) -> None:
        r, optimizer, params, had = self.r, step.optimizer, step.params, step.had
        known = self._of(optimizer)
        known.steps += 1
        stack = r.sites.stack(frame)
        seen = known.seen[stack] = known.seen.get(stack, 0) + 1
        full = seen <= _FULL
        if not known.named:  # when it was made it had no name yet
            known.named = known.steps > 1
            self._name(frame)
        op = f"{type(optimizer).__name__}.step"
        clock, storages = r.clock, r.leaves.storages(step.written)
        views = r.watch.views
        split = (
            views.places()
        )  # where autograd knows several views of one op, which such a write leaves behind
        rows = zip(step.written, storages, step.versions, step.entries)  # noqa: B905 (Python 3.9)
        for p, storage, version, entries in rows:
            time = clock.tick()
            counted = p._version != version
            place = address_of(p) if split and counted else 0
            outdates = place in split and views.written(time, place)
            if not (entries or outdates):
                storage.written(time)  # the Step tells of it
                continue
            threatens = outdates
            for entry in entries:
                if entry.tensor is GONE:
                    continue
                fate = entry.fate or fate_of(entry)
                if fate.time is None:
                    fate.time, fate.place, fate.counted = time, stack, entry.moved()
                    fate.late = time if r.engine.had(entry) else 0
                threatens = threatens or entry.freed is None
            if counted and not threatens:
                storage.written(time)
                continue
            r.mutated(
                time,
                stack,
                op,
                p,
                counted=counted,
                threatens=threatens,
                optimizer=known.number,
                quietly=not full,
            )
        if step.guard is None:  # a closure, or an optimizer of the user's: its step() may make gradients
            had = [h or p.grad is not None for h, p in zip(had, params)]  # noqa: B905 (Python 3.9)
        known.filled = known.filled or any(had)
        if not known.filled and known.steps <= _LOOKS:
            uncalled.tell(r, frame)
        fields: dict[str, Any] = {"optimizer": known.number}
        if all(had):
            fields["refs"] = r.leaves.refs(params)
        else:
            without = [p for h, p in zip(had, params) if not h]  # noqa: B905 (Python 3.9)
            r.frozen.met(without)
            fields["without"] = r.leaves.refs(without)
            fields["refs"] = r.leaves.refs(p for h, p in zip(had, params) if h)  # noqa: B905 (Python 3.9)
        r.kept.stepped = r.clock.now
        if full:
            r.tape.event("Step", r.clock.tick(), stack, **fields)
        else:
            r.flood()
            r.tape.common("Step", r.clock.tick(), stack, True, **fields)
