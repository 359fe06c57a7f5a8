"""The way of a call of torch's to the Watch, shortened where torch's own is a detour."""

from __future__ import annotations

from typing import Any

import torch

from .watch import Watch


def shorten_the_way() -> None:
    """Let torch's functions that are written in Python find a Watch without the context manager, and the look at every
    argument's type, that they come to a mode by."""
    modules: tuple[Any, ...] = (torch.nn.functional, torch.functional)
    for module in modules:
        module.handle_torch_function = _straight(module.handle_torch_function)


def _straight(plain: Any) -> Any:
    enabled = torch._C._is_torch_function_mode_enabled
    pop, push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack

    def handle_torch_function(public_api: Any, relevant_args: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not enabled():
            return plain(public_api, relevant_args, *args, **kwargs)
        mode: Any = pop()
        if type(mode) is not Watch:
            push(mode)
            return plain(public_api, relevant_args, *args, **kwargs)
        try:
            return mode.__torch_function__(public_api, (), args, kwargs)
        finally:
            push(mode)

    return handle_torch_function
