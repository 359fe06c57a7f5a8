"""Hooks of modules. With a full backward hook, what flows in and out of a module passes a custom Function of torch's,
which hands it on as a view of its own; a forward hook is called with what the module gives, a forward pre-hook with
what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradfix.read import calls, lent, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Bound, Function, Instance, Native, Tensor, Unknown, Value

HANDLE = "torch.utils.hooks.RemovableHandle"
HOOKED = "hooked"  # what a module is marked with that has any
_BACKWARD, _FORWARD, _PRE = "hooks", "listening", "preceding"


def register(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_full_backward_hook(hook)``."""
    m.hooked = True
    handle = _handle(module)
    if m.sure():
        _kept(module, _BACKWARD).append((handle, None, False))
    return handle


def listen(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_forward_hook(hook)``."""
    return _listening(m, module, _FORWARD, args, kwargs)


def precede(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.register_forward_pre_hook(hook)``."""
    return _listening(m, module, _PRE, args, kwargs)


def _listening(m: Machine, module: Instance, kind: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.overheard = True
    hook = args[0] if args else kwargs.get("hook")
    named, first = kwargs.get("with_kwargs", False), kwargs.get("prepend", False)
    known = (
        isinstance(named, bool) and isinstance(first, bool) and isinstance(hook, Function | Bound | Instance)
    )
    if not m.sure() or not known:
        if isinstance(hook, Function | Bound):
            lent.lend(m, hook)
        return m.unknown("hook")
    handle, kept = _handle(module), _kept(module, kind)
    kept.insert(0 if first else len(kept), (handle, hook, named))
    return handle


def _handle(module: Instance) -> Instance:
    handle = Instance(None, kind=HANDLE)
    handle.attrs["remove"] = Native("remove", lambda machine, args, kwargs: _remove(module, handle))
    return handle


def _kept(module: Instance, kind: str) -> list[tuple[Instance, Value, Value]]:
    """The module's hooks of one kind: the handle of each, what is called, whether it is given keyword arguments."""
    module.extra[HOOKED] = True
    found: list[tuple[Instance, Value, Value]] = module.extra.setdefault(kind, [])
    return found


def _remove(module: Instance, handle: Instance) -> None:
    for kind in (_BACKWARD, _FORWARD, _PRE):
        kept = module.extra.get(kind, [])
        kept[:] = [each for each in kept if each[0] is not handle]


def called(
    m: Machine, call: Callable[..., Value], module: Instance, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """Call a module that has hooks, in the order of ``torch.nn.Module._call_impl``."""
    args, kwargs = _preceded(m, module, args, kwargs)
    flowing = bool(module.extra.get(_BACKWARD))
    if flowing:
        args = _passed(m, args)
    result = _heard(m, module, args, kwargs, call(m, module, args, kwargs))
    if not flowing:
        return result
    return tuple(_passed(m, result)) if isinstance(result, tuple) else _passed(m, [result])[0]


def _preceded(
    m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """What a module is called with when its forward pre-hooks have seen it."""
    node = m.frame.node
    for _, hook, named in tuple(module.extra.get(_PRE, ())):
        m.frame.node = node
        given = calls.call(m, hook, [module, tuple(args), *([dict(kwargs)] if named else [])], {})
        if named and isinstance(given, tuple) and len(given) == 2:
            given, kwargs = given[0], given[1] if isinstance(given[1], dict) else {"**": given[1]}
        if isinstance(given, Unknown):
            args = [given for _ in args]
        elif given is not None:
            args = list(given) if isinstance(given, tuple) or (named and isinstance(given, list)) else [given]
    m.frame.node = node
    return args, kwargs


def _heard(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value], result: Value) -> Value:
    """What a module gives, when its forward hooks have seen it."""
    node = m.frame.node
    for _, hook, named in tuple(module.extra.get(_FORWARD, ())):
        m.frame.node = node
        given = calls.call(m, hook, [module, tuple(args), *([dict(kwargs)] if named else []), result], {})
        result = result if given is None else given
    m.frame.node = node
    return result


def _passed(m: Machine, values: Sequence[Value]) -> list[Value]:
    """`values` as the Function hands them on."""
    flowing = [v for v in values if isinstance(v, Tensor) and m.grad and ops.requires(m, v)]
    return [_view(m, v, len(flowing) > 1) if v in flowing else v for v in values]


def _view(m: Machine, tensor: Tensor, several: bool) -> Tensor:
    node = m.trace.node("BackwardHookFunctionBackward", "BackwardHookFunction", [ops.edge(m, tensor)])
    made = ops.aliased(m, tensor, True, node, "view")
    made.shape, made.view = tensor.shape, "multi-view" if several else "custom"
    return made
