"""Whether a custom Function's backward is the derivative of its forward, and of which values.

A forward may overwrite what it has kept for its backward, and mean it: ``ctx.save_for_backward(out); out.exp_()``
keeps the result, for that is what the backward reads. Nobody but the derivative itself can tell this from a mistake,
so it is measured: finite differences of the forward, in double precision, against what the backward makes of the
values as they were kept and as they are now. So it is where a forward keeps its result: of exp() that is what the
backward needs, of others it is the input.
"""

from __future__ import annotations

import contextlib
import io
import random
import sys
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

Slot = tuple[str, int]  # an attribute of ctx and the place in it; SAVED for what save_for_backward was given

SAVED = "to_save"
_ALONE = -1  # in place of a place: the attribute is the tensor
_DIRECTIONS = 3
_STEP = 1e-6
_RIGHT = 1e-4  # relative difference up to which a gradient is the derivative
_WRONG = 1e-3  # ... and from which on it is not
_MOST = 4  # tensors whose subsets are tried


def kept_by(ctx: Any) -> Iterator[tuple[Slot, Any]]:
    """The tensors that `ctx` keeps for its backward, each with its place."""
    for number, tensor in enumerate(getattr(ctx, SAVED, None) or ()):
        if isinstance(tensor, torch.Tensor):
            yield (SAVED, number), tensor
    for name, value in vars(ctx).items():
        if isinstance(value, torch.Tensor):
            yield (name, _ALONE), value


def kept_right(cls: Any, args: tuple[Any, ...], needs: tuple[bool, ...], slots: list[Slot]) -> Any:
    """Which of `slots`, that the forward overwrites after they were kept, the backward of the Function `cls` needs as
    they were kept: a set, empty where its gradient is right as it is, None where nobody can tell. `args` are the
    forward's own, as they were given to it; `needs` says which of them need a gradient."""
    if len(slots) > _MOST:
        return None
    try:
        with _as_if_never(), torch.no_grad():
            return _compared(cls, tuple(_double(a) for a in args), needs, slots)
    except Exception:  # the user's code, with values of another precision than it was written for
        return None


def right_instead(cls: Any, args: tuple[Any, ...], needs: tuple[bool, ...], slots: list[Slot]) -> Any:
    """Which of `slots`, in which the forward of the Function `cls` keeps what it returns, its backward takes for which
    of the arguments: {slot: number}, empty where its gradient is right as it is, None where nobody can tell."""
    if len(slots) > _MOST:
        return None
    try:
        with _as_if_never(), torch.no_grad():
            own = tuple(_double(a) for a in args)
            return _exchanged(_Measured(cls, own, needs), own, slots)
    except Exception:
        return None


def _compared(cls: Any, args: tuple[Any, ...], needs: tuple[bool, ...], slots: list[Slot]) -> Any:
    measured = _Measured(cls, args, needs)
    as_it_is = measured.off({}) if measured.known else float("nan")
    if as_it_is <= _RIGHT:
        return frozenset()
    if not as_it_is > _WRONG:
        return None
    for size in range(1, len(slots) + 1):
        for kept in combinations(slots, size):
            if measured.off({slot: measured.context.kept[slot] for slot in kept}) <= _RIGHT:
                return frozenset(kept)
    return None


def _exchanged(measured: _Measured, args: tuple[Any, ...], slots: list[Slot]) -> Any:
    as_it_is = measured.off({}) if measured.known else float("nan")
    if as_it_is <= _RIGHT:
        return {}
    if not as_it_is > _WRONG:
        return None
    for slot in slots:
        shape = measured.context.kept[slot].shape
        alike = (n for n, a in enumerate(args) if _is_real(a) and a.shape == shape and measured.needs[n])
        for number in alike:
            if measured.off({slot: args[number]}) <= _RIGHT:
                return {slot: number}
    return None


class _Measured:
    """A Function's forward, called once, and its derivative in some directions; not `known` where that is none."""

    def __init__(self, cls: Any, args: tuple[Any, ...], needs: tuple[bool, ...]) -> None:
        self.cls, self.needs = cls, needs
        self.leaning = [n for n, a in enumerate(args) if needs[n] and isinstance(a, torch.Tensor)]
        self.context = _Context(needs)
        outputs = _forward(cls, self.context, args)
        random_numbers = torch.Generator().manual_seed(0)

        def drawn(like: Any) -> Any:
            return torch.randn(like.shape, generator=random_numbers, dtype=like.dtype).to(like.device)

        plain = getattr(self.context, "non_differentiable", ())
        self.given = tuple(
            torch.zeros_like(o) if any(o is p for p in plain) else drawn(o) if _is_real(o) else o
            for o in outputs
        )
        self.directions = [{n: drawn(args[n]) for n in self.leaning} for _ in range(_DIRECTIONS)]
        slopes = [_slope(cls, args, needs, d, self.given) for d in self.directions]
        self.true = torch.tensor(slopes, dtype=torch.float64)
        self.known = bool(torch.isfinite(self.true).all() and self.true.any())

    def off(self, handed: dict[Slot, Any]) -> float:
        """How far the backward is from the derivative when it gets the values `handed`."""
        gradients = self.context.backward(self.cls, self.given, handed)
        along = [sum(_dot(gradients[n], d[n]) for n in self.leaning) for d in self.directions]
        return float((torch.tensor(along, dtype=torch.float64) - self.true).norm() / self.true.norm())


def _slope(cls: Any, args: Any, needs: Any, direction: dict[int, Any], given: Any) -> float:
    """The derivative of the outputs, weighed with `given`, in a direction of the arguments."""
    ends = []
    for step in (_STEP, -_STEP):
        moved = tuple(a + step * direction[n] if n in direction else a for n, a in enumerate(args))
        outputs = _forward(cls, _Context(needs), moved)
        ends.append(sum(_dot(o, g) for o, g in zip(outputs, given) if _is_real(o)))  # noqa: B905 (Python 3.9)
    return float(ends[0] - ends[1]) / (2 * _STEP)


def _forward(cls: Any, context: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the forward returns of copies of `args`; `context` keeps what it keeps."""
    torch.default_generator.manual_seed(0)
    random.seed(0)
    own = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
    if cls.setup_context is torch.autograd.Function.setup_context:
        result = cls.forward(context, *own)
    else:
        result = cls.forward(*own)
        cls.setup_context(context, own, result)
    return result if isinstance(result, tuple) else (result,)


class _Context(FunctionCtx):
    """A ctx that remembers what was put on it as it was then."""

    kept: dict[Slot, Any]  # as it was put there
    handed: dict[Slot, Any]  # what a backward gets

    def __init__(self, needs: tuple[bool, ...]) -> None:
        object.__setattr__(self, "kept", {})
        self.needs_input_grad = needs

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        parts = enumerate(value) if name == SAVED else [(_ALONE, value)]
        self.kept.update({(name, n): t.clone() for n, t in parts if isinstance(t, torch.Tensor)})

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return tuple(self.handed.get((SAVED, n), t) for n, t in enumerate(getattr(self, SAVED, ())))

    def backward(self, cls: Any, given: tuple[Any, ...], instead: dict[Slot, Any]) -> tuple[Any, ...]:
        """The gradients of the arguments, with the values `instead` in their slots and all else as it is now."""
        before = dict(vars(self))
        now = {slot: tensor.clone() for slot, tensor in kept_by(self)}
        handed = now | {slot: value.clone() for slot, value in instead.items()}
        object.__setattr__(self, "handed", handed)
        for (name, at), tensor in handed.items():
            if at == _ALONE:
                object.__setattr__(self, name, tensor)
        own = tuple(g.clone() if isinstance(g, torch.Tensor) else g for g in given)
        try:
            result = cls.backward(self, *own)
        finally:
            vars(self).clear()
            vars(self).update(before)
        return result if isinstance(result, tuple) else (result,)


@contextlib.contextmanager
def _as_if_never() -> Iterator[None]:
    """What is called within prints nothing, and draws nothing of what the program draws."""
    numpy = sys.modules.get("numpy.random")
    states = torch.get_rng_state(), random.getstate(), numpy.get_state() if numpy is not None else None
    try:
        with torch._C.DisableTorchFunction(), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        if numpy is not None:
            numpy.set_state(states[2])


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.double() if _is_real(value) else value
    return value


def _dot(a: Any, b: Any) -> float:
    return float((a.double() * b.double()).sum()) if isinstance(a, torch.Tensor) else 0.0
