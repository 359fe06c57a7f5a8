"""What can't be watched, or must not be: torch.func, compiled code, processes forked by the user, what module hooks
make."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch


class Regions:
    """Patches the entries to such regions; each is noted on the tape."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder

    def install(self) -> None:
        self._hooks()
        self._functorch()
        self._compile()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _hooks(self) -> None:
        """What a module with a full backward hook returns is a view that a custom Function made."""
        r = self.r
        hook: Any = torch.utils.hooks.BackwardHook
        plain = hook.setup_output_hook

        def setup_output_hook(self: Any, args: Any) -> Any:
            result = plain(self, args)
            return result if r.off() else r.watch.views.hooked(result)

        hook.setup_output_hook = setup_output_hook

    def _functorch(self) -> None:
        """torch.func's transforms refuse to start under saved-tensor hooks."""
        r = self.r
        graph = torch.autograd.graph
        plain = graph.disable_saved_tensors_hooks

        @contextlib.contextmanager
        def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
            top = torch._C._autograd._top_saved_tensors_default_hooks(True)
            ours = top is not None and top[0] == r.saves.pack
            if ours:
                torch._C._autograd._pop_saved_tensors_default_hooks()
                r.note_once("Inside torch.func transforms nothing is recorded.", sys._getframe(2))
            try:
                with plain(error_message):
                    yield
            finally:
                if ours:
                    torch._C._autograd._push_saved_tensors_default_hooks(r.saves.pack, r.saves.unpack)

        graph.disable_saved_tensors_hooks = disable_saved_tensors_hooks

    def _compile(self) -> None:
        """Compiled code runs eagerly while it is recorded: the values are the same, the graph is the
        user's."""
        r = self.r
        os.environ["TORCHDYNAMO_DISABLE"] = "1"

        def compile(model: Any = None, **options: Any) -> Any:
            r.note_once(
                "torch.compile is off in the recorded run: the code runs as written.", sys._getframe(1)
            )
            return (lambda f: f) if model is None else model

        torch.compile = compile

    def _forked(self) -> None:
        """In a child of the user's (a DataLoader worker) nothing is recorded."""
        r = self.r
        r.quiet = True
        r.saves.off = 1
