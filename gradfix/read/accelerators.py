"""Hugging Face's Accelerator: what it prepares stays what it was, and its backward is the loss's."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import backward, calls, forwards
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Lib, Value

KIND = "accelerate.Accelerator"
_PLAIN = (None, "no")  # what mixed precision is called where there is none


def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Accelerator(...)``"""
    made = Instance(None, kind=KIND)
    _init(m, made, args, kwargs)
    return made


def _init(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """One process, which steps in every pass: what is said of others holds of this one, too."""
    rest = kwargs.get("**")
    accelerator.extra["plain"] = kwargs.get("mixed_precision", rest) in _PLAIN
    accelerator.attrs.update(
        device=Lib("torch.device.cpu"),
        gradient_accumulation_steps=kwargs.get("gradient_accumulation_steps", 1 if rest is None else rest),
        is_local_main_process=True,
        is_main_process=True,
        num_processes=1,
        optimizer_step_was_skipped=False,
        process_index=0,
        sync_gradients=True,
    )
    return None


def _prepare(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The same objects. Where it may be asked for mixed precision, the networks among them run under autocast: nothing
    is taken from then on to be kept as it is."""
    if not accelerator.extra.get("plain", True):
        m.autocast = True
    if calls.REST in args:
        return m.unknown("prepare")
    return args[0] if len(args) == 1 else tuple(args)


def _backward(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return backward.backward(m, args[:1], kwargs) if args else None


def _clip(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return forwards.utility(m, "clip_grad_norm_", args, kwargs)


def _first(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0] if args else m.unknown("accelerator")


def _context(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Instance(None, kind="contextlib.nullcontext")


def _nothing(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


def _gathered(m: Machine, accelerator: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return m.unknown("gathered")


METHODS: dict[str, Callable[..., Value]] = {
    "__init__": _init,
    "prepare": _prepare,
    "backward": _backward,
    **dict.fromkeys(("clip_grad_norm_", "clip_grad_value_"), _clip),
    **dict.fromkeys(
        ("unwrap_model", "prepare_data_loader", "prepare_model", "prepare_optimizer", "prepare_scheduler"),
        _first,
    ),
    **dict.fromkeys(("accumulate", "autocast", "join_uneven_inputs", "no_sync"), _context),
    **dict.fromkeys(("gather", "gather_for_metrics", "pad_across_processes", "reduce"), _gathered),
    **dict.fromkeys(
        (
            "clear", "end_training", "free_memory", "init_trackers", "load_state", "log", "print",
            "register_for_checkpointing", "save", "save_model", "save_state", "wait_for_everyone",
        ),
        _nothing,
    ),
}  # fmt: skip
