"""Augmented assignments that PyTorch refuses because their name stands for a leaf that has another: ``fast = w`` and
``fast -= lr * g``, where ``g`` was made with ``create_graph=True``. Such an update is to be differentiated, and ``w``
to stay what the optimizer steps: it is the name that gets a new value."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from .writes import needs_grad, op_name

_sequence = torch._C._autograd._get_sequence_nr
_ITEM = "[]"  # in place of a name: an item of a container is bound
_FEW = 6  # instructions behind the operator until its result is stored


def given_anew(r: Any, func: Any, args: Any, refused: str, frame: FrameType) -> Any:
    """What the augmented assignment `func` of `frame`, refused for its leaf, gives out of place; None where it is none,
    where its name is the leaf's only one, or where nothing of the update is to be differentiated. `r` is the
    recorder, which tells of the write."""
    name, tensor = getattr(func, "__name__", ""), args[0] if args else None
    wanted = r.engine.second_order and torch.is_grad_enabled() and needs_grad(args[1:])
    if not wanted or not isinstance(tensor, torch.Tensor) or not tensor.is_leaf:
        return None
    bound = _bound(frame.f_code, frame.f_lasti)
    if not bound or bound in r.names.loop_variables(
        frame.f_code
    ):  # (what a `for` binds is gone with its pass)
        return None
    if not any((f, n) != (frame, bound) for f, n in _holders(frame, tensor)):
        return None
    before = _sequence()
    result = getattr(torch.Tensor, f"__{name[3:]}" if name.startswith("__i") else name[:-1])(*args)
    stack = r.sites.stack(frame)
    r.calls.add(before, _sequence(), stack)
    told = {"counted": False, "how": "alias", "refused": refused, "frame": frame}
    r.mutated(r.clock.tick(), stack, op_name(func), tensor, **told)
    return result


def _bound(code: CodeType, at: int) -> str:
    """The name that the result of the instruction `at` is bound to; "" where that is no augmented assignment's."""
    left = _FEW
    for step in dis.get_instructions(code):
        if step.offset == at and not _augments(step):
            break
        if step.offset <= at or step.opname in ("CACHE", "EXTENDED_ARG"):
            continue
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
