"""Copies of parameters that hand their gradients on to what they are copies of, and stay in the graph when they are
updated: an inner update as meta-learning means it.

Standard library and torch only; see impose.py.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .measure import quiet
from .pretend import lines, user_line


class Adapted(TorchFunctionMode):
    """In some lines of the user's an update of a module's parameter (``p.data = p.data - g``, ``p.data -= g``,
    ``p.sub_(g)``) puts the updated value in its place, with its graph. `origins` knows the copies."""

    def __init__(self, sites: Any, origins: Origins) -> None:
        super().__init__()
        self.sites = lines(sites)
        self.origins = origins
        self.stands: dict[int, tuple[Any, Any]] = {}  # id of what ``.data`` gave -> it, and whose it is

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not args or user_line() not in self.sites:
            return func(*args, **kwargs)
        name, owner = func.__name__, getattr(getattr(func, "__self__", None), "__name__", "")
        target = args[0]
        with torch.enable_grad():
            if name == "__get__" and owner == "data":
                return self._stand(target)
            if name == "__set__" and owner == "data":
                return self._put(target, args[1])
            if not _writes(name) or not isinstance(target, torch.Tensor):
                return func(*args, **kwargs)
            stood = self.stands.get(id(target))
            whose, value = (stood[1], target) if stood is not None else (target, target.clone())
            func(value, *args[1:], **kwargs)
            self._put(whose, value)
            return value

    def _stand(self, tensor: Any) -> Any:
        value = tensor.clone()
        self.stands[id(value)] = value, tensor
        return value

    def _put(self, tensor: Any, value: Any) -> None:
        """The value takes the tensor's place, wherever a module, a dictionary or a list has it."""
        self.origins.link(tensor)
        for held in gc.get_referrers(tensor):
            places = held.items() if isinstance(held, dict) else enumerate(held) if type(held) is list else ()
            for key in [k for k, v in places if v is tensor]:
                held[key] = value


def _writes(name: str) -> bool:
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or (name.startswith("__i") and name.endswith("__") and name != "__init__")


class Origins:
    """Which leaf is a copy of which parameter: by ``copy.deepcopy()``, or given its values by ``load_state_dict()``."""

    def __init__(self) -> None:
        self.of: dict[int, tuple[Any, Any]] = {}  # id of a copy -> it, and what it is a copy of
        self.linked: dict[int, Any] = {}

    def watch(self) -> None:
        deepcopy, load = torch.nn.Parameter.__deepcopy__, torch.nn.Module.load_state_dict
        state_dict = torch.nn.Module.state_dict
        told: dict[int, Any] = {}  # where the memory of a parameter is, of which a state_dict() told -> it

        def copied(this: Any, memo: Any) -> Any:
            copy = deepcopy(this, memo)  # type: ignore[no-untyped-call]
            self.of.setdefault(id(copy), (copy, this))
            return copy

        def state_of(this: Any, *args: Any, **kwargs: Any) -> Any:
            told.update((p.data_ptr(), p) for p in this.parameters())
            return state_dict(this, *args, **kwargs)

        def loaded(this: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
            result = load(this, state, *args, **kwargs)
            with quiet():
                for name, p in this.named_parameters():
                    given = state.get(name)
                    origin = told.get(given.data_ptr()) if isinstance(given, torch.Tensor) else None
                    if origin is not None and origin is not p:
                        self.of[id(p)] = p, origin
            return result

        torch.nn.Parameter.__deepcopy__ = copied  # type: ignore
        torch.nn.Module.state_dict = state_of  # type: ignore
        torch.nn.Module.load_state_dict = loaded  # type: ignore

    def link(self, copy: Any) -> None:
        """From here on the gradient that arrives at the copy is its origin's."""
        known = self.of.get(id(copy))
        if known is None or known[0] is not copy or id(copy) in self.linked:
            return
        origin = known[1]
        self.linked[id(copy)] = copy

        def hand_on(leaf: Any) -> None:
            with quiet():
                grad, leaf.grad = leaf.grad, None
                origin.grad = grad if origin.grad is None else origin.grad + grad

        if origin.is_leaf and origin.requires_grad:
            copy.register_post_accumulate_grad_hook(hand_on)
