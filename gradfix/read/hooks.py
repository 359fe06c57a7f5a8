"""Hooks of modules. With a full backward hook, what flows in and out of a module passes a custom Function of torch's,
which hands it on as a view of its own; a forward hook is called with what the module gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradfix.read import calls, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Bound, Function, Instance, Native, Tensor, Value

HANDLE = "torch.utils.hooks.RemovableHandle"


def register(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_full_backward_hook(hook)``."""
    m.hooked = True
    handle = Instance(None, kind=HANDLE)
    if m.sure():
        module.extra.setdefault("hooks", []).append(handle)
    handle.attrs["remove"] = Native("remove", lambda machine, args, kwargs: _remove(module, handle))
    return handle


def listen(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_forward_hook(hook)``."""
    m.overheard = True
    hook = args[0] if args else kwargs.get("hook")
    if (
        not m.sure()
        or not isinstance(hook, Function | Bound)
        or kwargs.get("with_kwargs", False) is not False
    ):
        return m.unknown("hook")
    handle = Instance(None, kind=HANDLE)
    module.extra.setdefault("listening", []).append((handle, hook))
    handle.attrs["remove"] = Native("remove", lambda machine, args, kwargs: _remove(module, handle))
    return handle


def heard(m: Machine, module: Instance, args: list[Value], result: Value) -> Value:
    """What a module gives, when its forward hooks have seen it."""
    node = m.frame.node
    for _, hook in tuple(module.extra.get("listening", ())):
        m.frame.node = node
        given = calls.call(m, hook, [module, tuple(args), result], {})
        result = result if given is None else given
    m.frame.node = node
    return result


def _remove(module: Instance, handle: Instance) -> None:
    if handle in module.extra.get("hooks", ()):
        module.extra["hooks"].remove(handle)
    kept = module.extra.get("listening", [])
    kept[:] = [(each, hook) for each, hook in kept if each is not handle]


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
