"""Augmented assignments that PyTorch refuses because their name stands for a leaf that has another: ``fast = w`` and
``fast -= lr * g``, where ``g`` was made with ``create_graph=True``. Such an update is to be differentiated, and ``w``
to stay what the optimizer steps: it is the name that gets a new value. So is an element of ``fast = list(ws)``, of
which a loop is made (``for p, g in zip(fast, gs): p.sub_(lr * g)``): it is the list that gets it."""

from __future__ import annotations

import dis
import gc
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from .writes import needs_grad, op_name

_sequence = torch._C._autograd._get_sequence_nr
_ITEM = "[]"  # in place of a name: an item of a container is bound
_NOWHERE = "_"
_LIST_ITERATOR: Any = type(iter([]))
_FEW = 6  # instructions behind the operator until its result is stored


class Anew:
    """The updates that give a new tensor. `r` is the recorder, which tells of the first write at each place."""

    def __init__(self, r: Any) -> None:
        self.r = r
        self.places: dict[
            tuple[CodeType, int], bool
        ] = {}  # -> whether it is an element of a list that is new

    def refused(self, func: Any, args: Any, kwargs: Any, said: str, frame: FrameType) -> Any:
        """What the update `func` of `frame`, refused for its leaf, gives out of place; None where it is no such update,
        where its name is the leaf's only one, or where nothing of it is to be differentiated."""
        r, tensor = self.r, args[0] if args else None
        wanted = (
            r.engine.second_order and torch.is_grad_enabled() and needs_grad((*args[1:], *kwargs.values()))
        )
        if not wanted or not isinstance(tensor, torch.Tensor) or not tensor.is_leaf:
            return None
        bound = _bound(frame.f_code, frame.f_lasti)
        element = bound in (_NOWHERE, *r.names.loop_variables(frame.f_code))
        if element:
            if not r.optimizers.owners([tensor]) or _listed(frame, tensor) is None:
                return None  # (what a `for` binds is gone with its pass)
        elif not bound or not any((f, n) != (frame, bound) for f, n in _holders(frame, tensor)):
            return None
        self.places[frame.f_code, frame.f_lasti] = element
        result = self.again(func, args, kwargs, frame)
        told = {"counted": False, "how": "alias", "refused": said, "frame": frame}
        r.mutated(r.clock.tick(), r.sites.stack(frame), op_name(func), tensor, **told)
        return result

    def again(self, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """What the update gives where it stands at a place of one that was refused; else None."""
        element = self.places.get((frame.f_code, frame.f_lasti))
        if element is None:
            return None
        name, before = getattr(func, "__name__", ""), _sequence()
        result = getattr(torch.Tensor, f"__{name[3:]}" if name.startswith("__i") else name[:-1])(
            *args, **kwargs
        )
        self.r.calls.add(before, _sequence(), self.r.sites.stack(frame))
        if element and (place := _listed(frame, args[0])) is not None:
            held, index = place
            held[index] = result
        return result


def _listed(frame: FrameType, tensor: Any) -> tuple[list[Any], int] | None:
    """The list of `frame` that a loop takes `tensor` from, where nobody else has that list, and its place there."""
    names: list[dict[str, Any]] = []
    around: FrameType | None = frame
    while around is not None:
        names.append(around.f_locals)
        around = around.f_back
    lists = [v for v in names[0].values() if type(v) is list and any(x is tensor for x in v)]
    for held in lists:
        holders = gc.get_referrers(held)
        if not any(isinstance(h, _LIST_ITERATOR) for h in holders):
            continue
        if sum(v is held for some in names for v in some.values()) > 1:
            return None
        for holder in holders:
            known = any(holder is some for some in (*names, lists))
            if not known and (isinstance(holder, (dict, list, tuple, set)) or hasattr(holder, "__dict__")):
                return None
        return held, next(n for n, x in enumerate(held) if x is tensor)
    return None


def _bound(code: CodeType, at: int) -> str:
    """The name that the result of the instruction `at` is bound to; _NOWHERE for a call that is a whole statement, and
    "" where that is neither one nor an augmented assignment."""
    left, augments = _FEW, False
    for step in dis.get_instructions(code):
        if step.offset == at:
            augments = _augments(step)
        if step.offset <= at or step.opname in ("CACHE", "EXTENDED_ARG"):
            continue
        if not augments:
            return _NOWHERE if step.opname == "POP_TOP" else ""
        left -= 1
        if step.opname == "STORE_SUBSCR":
            return _ITEM
        if step.opname in ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
            return str(step.argval)
        if not left or step.opname.startswith("STORE_"):
            break
    return ""


def _augments(step: dis.Instruction) -> bool:
    return step.opname.startswith("INPLACE_") or (step.opname == "BINARY_OP" and step.argrepr.endswith("="))


def _holders(frame: FrameType | None, tensor: Any) -> Iterator[tuple[FrameType, str]]:
    """Every name of the running functions that holds `tensor`, or a module with that parameter."""
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if value is tensor:
                yield frame, name
            elif isinstance(value, torch.nn.Module) and any(p is tensor for p in value.parameters()):
                yield frame, f"{name}."
        frame = frame.f_back
