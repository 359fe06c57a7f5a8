"""A program's text as plain PyTorch runs it, with every parameter's gradient after each backward and at each step."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

Grads = dict[str, torch.Tensor | None]

# PyTorch's words -> the kind of fault they tell of
WORDS = (
    ("modified by an inplace operation", "stale-saved-tensor"),
    ("Trying to backward through the graph a second time", "freed-graph"),
    ("a leaf Variable that requires grad", "leaf-write"),
    ("is a view and is being modified inplace", "forbidden-view-write"),
    ("is a view and its base", "forbidden-view-write"),
    ("more than one element of the written-to tensor", "forbidden-view-write"),
    ("A view was created in no_grad mode", "forbidden-view-write"),
)


@dataclass
class Ran:
    """What a run came to. `error` is the exception that ended it."""

    after_backward: list[Grads] = field(default_factory=list)
    at_step: list[Grads] = field(default_factory=list)  # of the parameters that the optimizer holds
    grads: Grads = field(default_factory=dict)  # at the end
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    random: torch.Tensor = field(default_factory=torch.get_rng_state)  # the generator's state at the end

    @property
    def kind(self) -> str:
        """Which fault PyTorch tells of: ``""`` without an error, ``other`` where it is none of these."""
        if self.error is None:
            return ""
        said = str(self.error)
        if "a view of a leaf Variable that requires grad" in said:
            return "leaf-write"
        of_view = said.startswith("A view was created") or "is a view and its base" in said
        if of_view and _in_backward(self.error):
            return (
                "stale-saved-tensor"  # PyTorch gets no further with its sentence on a saved output of unbind
            )
        return next((kind for words, kind in WORDS if words in said), "other")


def _in_backward(error: Exception) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == "backward" for frame in frames)


def run(text: str, parameters: Sequence[str]) -> Ran:
    """Execute `text` here and watch `parameters` (as the text calls them)."""
    ran = Ran()
    space: dict[str, Any] = {"__name__": "__main__"}

    def grads(optimizer: torch.optim.Optimizer | None = None) -> Grads:
        held = optimizer and {id(p) for group in optimizer.param_groups for p in group["params"]}
        found = {}
        for name in parameters:
            parameter = _find(space, name)
            if held is None or id(parameter) in held:
                found[name] = None if parameter.grad is None else parameter.grad.clone()
        return found

    with _watched(lambda: ran.after_backward.append(grads()), lambda o: ran.at_step.append(grads(o))):
        try:
            exec(compile(text, "program.py", "exec"), space)
        except RuntimeError as error:
            ran.error = error
    if ran.error is None:
        ran.grads = grads()
        ran.values = {name: _find(space, name).detach().clone() for name in parameters}
        ran.random = torch.get_rng_state()
    return ran


def _find(space: dict[str, Any], name: str) -> Any:
    first, *rest = name.split(".")
    found = space[first]
    for attribute in rest:
        found = getattr(found, attribute)
    return found


@contextmanager
def _watched(after_backward: Any, at_step: Any) -> Iterator[None]:
    was = torch.Tensor.backward

    def backward(self: torch.Tensor, *args: Any, **options: Any) -> None:
        was(self, *args, **options)
        after_backward()

    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: at_step(optimizer))
    torch.Tensor.backward = backward  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.backward = was  # type: ignore[method-assign]
        hook.remove()
