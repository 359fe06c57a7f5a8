"""What the user does to `.grad`: clears it, writes into it or sets it by hand, reads it, or one that is not there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .storages import address_of

FULL = 32  # events of one kind at one place that are written
_MANY = 1024  # where each pass has many of them: one for each parameter
_CLEARS = ("zero_", "_foreach_zero_")
_CLIPPING = os.path.join("torch", "nn", "utils", "clip_grad.py")
_UNSCALES = "_amp_foreach_non_finite_check_and_unscale_"  # what GradScaler does before a step


class Gradients:
    """Emits Zero, GradWrite, Clip, GradRead and GradUse, and Legacy where a gradient is None. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._next = 0
        self._numbers: dict[
            int, tuple[int, weakref.ref[Any]]
        ] = {}  # of leaves whose gradient was read, by id
        self._leaves: dict[int, weakref.ref[Any]] | None = None  # by the address of their gradient
        self._held: list[
            tuple[str, Any, list[Any], dict[str, Any]]
        ] = []  # done within a step, behind its use

    def moved(self) -> None:
        """A backward has run, or a gradient was set: they may be elsewhere now."""
        self._leaves = None

    def cleared(self, params: Iterable[Any], optimizer: int | None, frame: Any) -> None:
        """``zero_grad()``, ``p.grad = None``."""
        r = self.r
        if r.off():
            return
        params = [p for p in params if isinstance(p, torch.Tensor)]
        fields = {} if optimizer is None else {"optimizer": optimizer}
        with torch._C.DisableTorchFunction():
            self._emit("Zero", r.sites.stack(frame), params, **fields)

    def assigned(self, leaf: Any, value: Any, frame: Any) -> None:
        """``p.grad = value``; None clears it."""
        if not (leaf.is_leaf and leaf.requires_grad):
            return
        self.moved()
        if value is None:
            self.cleared((leaf,), None, frame)
        elif self.r.sites.called_by_user(frame):
            with torch._C.DisableTorchFunction():
                self._emit("GradWrite", self.r.sites.stack(frame), [leaf], assigned=True)

    def written(self, func: Any, targets: list[Any], frame: Any) -> None:
        """``p.grad.zero_()``, ``p.grad.mul_(0.9)``, ``torch._foreach_zero_([p.grad, …])``: of which parameters were
        these the gradients? What a library writes is no more than part of the step, but for clipping."""
        if not targets or not isinstance(targets[0], torch.Tensor) or targets[0].requires_grad:
            return  # (its grad_fn may not be asked for: of a view that no_grad made that raises once it is written)
        clears, unscales = func.__name__ in _CLEARS, func.__name__ == _UNSCALES
        clips = not (clears or unscales) and frame.f_code.co_filename.endswith(_CLIPPING)
        if not (clears or unscales or clips or self.r.sites.called_by_user(frame)):
            return
        with torch._C.DisableTorchFunction():
            leaves = [leaf for t in targets if (leaf := self._leaf_of(t)) is not None]
            stack = self.r.sites.stack(frame) if leaves else None
            if (
                leaves and unscales
            ):  # what the step leaves of them weighs nothing beside the next, scaled ones
                self._held.append(("GradWrite", stack, leaves, {}))
            elif leaves:
                self._emit("Zero" if clears else "Clip" if clips else "GradWrite", stack, leaves)

    def _leaf_of(self, gradient: Any) -> Any:
        address = address_of(gradient)
        if not address:
            return None
        if self._leaves is None:
            held = [leaf for leaf in self.r.leaves.living() if leaf.grad is not None]
            self._leaves = {address_of(leaf.grad): weakref.ref(leaf) for leaf in held}
        found = self._leaves.get(address)
        leaf = found() if found is not None else None
        same = leaf is not None and leaf.grad is not None and address_of(leaf.grad) == address
        return leaf if same else None

    def _emit(self, kind: str, stack: Any, leaves: list[Any], **fields: Any) -> None:
        """A step that clears its gradients itself (a hook on it, an optimizer of the user's) has used them before."""
        if self.r.stepping is not None:
            self._held.append((kind, stack, leaves, fields))
        else:
            self._tell(kind, stack, leaves, fields)

    def settle(self) -> None:
        """The step has ended, or a backward begins within it."""
        held, self._held = self._held, []
        for each in held:
            self._tell(*each)

    def _tell(self, kind: str, stack: Any, leaves: list[Any], fields: dict[str, Any]) -> None:
        r = self.r
        refs = r.leaves.refs(leaves)
        seen = r.seen((kind, stack))
        if seen <= FULL:
            r.tape.event(kind, r.clock.tick(), stack, refs=refs, **fields)
        else:
            dull = seen > (_MANY if len(refs) == 1 else FULL)
            r.tape.common(kind, r.clock.tick(), stack, dull, refs=refs, **fields)

    def read(self, tensor: Any, frame: Any) -> None:
        """``.grad`` of a non-leaf that keeps none."""
        r = self.r
        stack = r.sites.stack(frame)
        if r.seen(("grad", stack)) > FULL or frame.f_lineno in r.sites.clearing(frame.f_code.co_filename):
            return
        storage = r.storages.of(tensor)
        if not storage.name:
            storage.name = r.names.local(frame, tensor)
        node = tensor.grad_fn
        fields = {} if node is None else {"node": node._sequence_nr()}
        r.tape.event("GradRead", r.clock.tick(), stack, ref=r.tape.ref(storage, tensor), **fields)

    def used(self, leaf: Any, frame: Any) -> None:
        """``.grad`` of a leaf that has one."""
        r = self.r
        if not r.sites.called_by_user(frame) or r.off():
            return
        stack = r.sites.stack(frame)
        if r.seen(("use", stack)) <= _MANY:
            storage = r.leaves.of(leaf)
            storage.name = storage.name or r.names.local(frame, leaf)
            ref, number = r.tape.ref(storage, leaf), self._number(leaf)
            r.tape.event("GradUse", r.clock.tick(), stack, ref=ref, leaf=number)

    def _number(self, leaf: Any) -> int:
        key, numbers = id(leaf), self._numbers
        if key not in numbers:
            self._next += 1
            numbers[key] = self._next, weakref.ref(leaf, lambda _: numbers.pop(key, None))
        return numbers[key][0]

    def none(self, leaf: Any, frame: Any) -> None:
        """``.grad`` of a leaf that has none, maybe since ``zero_grad()``: before PyTorch 2.0 it was a tensor of zeros
        then."""
        r = self.r
        if r.off() or not r.sites.called_by_user(frame):
            return
        stack = r.sites.stack(frame)
        if r.seen(("none", stack)) > 1:
            return
        with torch._C.DisableTorchFunction():
            r.tape.event(
                "Legacy", r.clock.tick(), stack, use="cleared", ref=r.tape.ref(r.leaves.of(leaf), leaf)
            )
