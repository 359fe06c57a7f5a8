"""Full backward hooks of modules: what flows in and out of such a module passes a custom Function of torch's, which
hands it on as a view of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradfix.read import ops
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Native, Tensor, Value

HANDLE = "torch.utils.hooks.RemovableHandle"


def register(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_full_backward_hook(hook)``."""
    m.hooked = True
    handle = Instance(None, kind=HANDLE)
    if m.sure():
        module.extra.setdefault("hooks", []).append(handle)
    handle.attrs["remove"] = Native("remove", lambda machine, args, kwargs: _remove(module, handle))
    return handle


def _remove(module: Instance, handle: Instance) -> None:
    if handle in module.extra.get("hooks", ()):
        module.extra["hooks"].remove(handle)


def called(
    m: Machine, call: Callable[..., Value], module: Instance, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a module that has such hooks."""
    result = call(m, module, _passed(m, args), kwargs)
    if isinstance(result, tuple):
        return tuple(_passed(m, result))
    return _passed(m, [result])[0]


def _passed(m: Machine, values: Sequence[Value]) -> list[Value]:
    """`values` as the Function hands them on."""
    flowing = [v for v in values if isinstance(v, Tensor) and m.grad and ops.requires(m, v)]
    return [_view(m, v, len(flowing) > 1) if v in flowing else v for v in values]


def _view(m: Machine, tensor: Tensor, several: bool) -> Tensor:
    node = m.trace.node("BackwardHookFunctionBackward", "BackwardHookFunction", [ops.edge(m, tensor)])
    made = ops.aliased(m, tensor, True, node, "view")
    made.shape, made.view = tensor.shape, "multi-view" if several else "custom"
    return made
