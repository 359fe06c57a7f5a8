"""Hooks of tensors (``h.register_hook``) that write into the gradient they are given: it may be that of others, too, as
both terms of a sum are handed one.

The recorded run gives such a hook's gradient back as it was, and goes on with what the hook made of it; how far off
plain PyTorch is, the engine measures (see custom.py).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .custom import HOOK
from .functions import Given, Known
from .saves import EVERYWHERE
from .storages import address_of


class TensorHooks:
    """Wraps the user's own hooks. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder

    def install(self) -> None:
        """Hand torch a hook that looks on."""
        plain: Any = torch.Tensor.register_hook

        @functools.wraps(plain)
        def register_hook(tensor: Any, hook: Any) -> Any:
            return plain(tensor, self._watching(tensor, hook))

        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]

    def _watching(self, tensor: Any, hook: Any) -> Any:
        code = _code(hook)
        if self.r.off() or self.r.quiet or code is None or not self.r.sites.is_user(code):
            return hook  # (this one's own among them: torch calls it once more from within a mode)
        node = tensor.grad_fn
        if node is None:
            return hook
        with torch._C.DisableTorchFunction():
            known = self.r.custom.nodes.get(node._sequence_nr()) or self.r.custom.keep(node, Known())

        def watching(grad: Any) -> Any:
            return self._run(hook, grad, known)

        return watching

    def _run(self, hook: Any, grad: Any, known: Known) -> Any:
        r = self.r
        if r.off() or r.forked() or not isinstance(grad, torch.Tensor) or grad.requires_grad:
            return hook(grad)
        if not r.engine.watched:  # measured: what it was seen to write into is its own, or not
            if known.what != HOOK or r.saves.as_plain in (EVERYWHERE, known.place):
                return hook(grad)
            own = grad.clone()
            result = hook(own)
            return own if result is None else result
        running = Given((grad,))
        r.custom.running.append(running)
        try:
            result = hook(grad)
        finally:
            r.custom.running.remove(running)
        return self._apart(running, grad if result is None else result, known) if running.before else result

    def _apart(self, running: Given, made: Any, known: Known) -> Any:
        """What the hook `made`, in memory of its own, with the gradient it was given as it was."""
        r, grad = self.r, running.grads[0]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if isinstance(made, torch.Tensor) and address_of(made) == address_of(grad):
                made = made.clone()
            alias, content = running.before[0]
            alias.untyped_storage().copy_(content)
            if address_of(grad) != address_of(alias):
                grad.data = alias  # the write was let through into memory of its own
            if not known.place:
                known.what, known.stack = HOOK, running.stack
                known.place = (HOOK, *running.stack[:2])
                known.time = r.clock.tick()
                known.ref = r.tape.ref(r.storages.of(grad), grad)
        return made


def _code(hook: Any) -> Any:
    """What runs when a hook is called: a function, a method, a partial of one, or an object that can be called."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return code if code is not None else getattr(type(hook).__call__, "__code__", None)
