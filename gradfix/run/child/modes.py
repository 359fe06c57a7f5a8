"""What is done to whole modules before they are used: put into evaluation mode, or given the values of another."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .gradients import FULL


class Modes:
    """Emits Mode. `r` is the recorder."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._deep = 0

    def install(self) -> None:
        me, module = self, torch.nn.Module
        plain_train, plain_load = module.train, module.load_state_dict

        def train(self: Any, mode: bool = True) -> Any:
            me._deep += 1
            try:
                result = plain_train(self, mode)
            finally:
                me._deep -= 1
            if not me._deep:
                frame = sys._getframe(1)
                within = frame.f_back if frame.f_code is module.eval.__code__ else frame
                me._put(self, bool(mode), within)
            return result

        def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not me.r.off():
                for each in self.parameters():  # what is written is told of what is known
                    if each.requires_grad:
                        me.r.leaves.of(each)
            return plain_load(self, *args, **kwargs)

        both: tuple[tuple[Any, Any], ...] = ((train, plain_train), (load_state_dict, plain_load))
        for ours, theirs in both:
            ours.__wrapped__ = theirs
            ours.__doc__ = theirs.__doc__
            ours.__qualname__ = theirs.__qualname__
        module.train = train  # type: ignore[method-assign]
        module.load_state_dict = load_state_dict  # type: ignore[method-assign]

    def _put(self, module: Any, training: bool, frame: Any) -> None:
        r = self.r
        if r.off():
            return
        stack = r.sites.stack(frame)
        if r.seen(("mode", stack)) > FULL:
            return
        with torch._C.DisableTorchFunction():
            params = [p for p in module.parameters() if p.requires_grad]
            if params:
                fields = {"training": True} if training else {}
                r.tape.event("Mode", r.clock.tick(), stack, refs=r.leaves.refs(params), **fields)
