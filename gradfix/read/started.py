"""Threads and processes that the program starts: what they do is read where the first of a kind is started, as if that
were waited for. Each of the others does the same.
"""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import calls, iteration
from gradfix.read.frames import Machine, Raised
from gradfix.read.values import Bound, Function, Instance, Lib, Native, Tensor, Unknown, Value

THREAD, PROCESS = "threading.Thread", "multiprocessing.Process"
_NAMES = ("group", "target", "name", "args", "kwargs")
_SPAWN = ("fn", "args", "nprocs", "join", "daemon", "start_method")
RENAMED = {
    "multiprocessing.context.Process": PROCESS,
    "multiprocessing.process.BaseProcess": PROCESS,
    "torch.multiprocessing.Process": PROCESS,
    "torch.multiprocessing.spawn": "multiprocessing.spawn",
    "torch.multiprocessing.spawn.spawn": "multiprocessing.spawn",
    "torch.multiprocessing.start_processes": "multiprocessing.spawn",
    "torch.multiprocessing.get_context": "multiprocessing.get_context",
}


def _made(kind: str) -> Callable[..., Value]:
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return _fill(m, Instance(None, kind=kind), args, kwargs)

    return make


def _fill(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Instance:
    value.extra["call"] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    return value


def _filled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Thread.__init__(self, …)``."""
    if args and isinstance(args[0], Instance):
        _fill(m, args[0], args[1:], kwargs)


def _run(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What one does that has no run() of its own."""
    given = value.extra.get("call", {})
    target, args_, named = given.get("target"), given.get("args", ()), given.get("kwargs", {})
    items = iteration.listed(m, args_)
    if target is not None and items is not None and isinstance(named, dict):
        calls.call(m, target, list(items), dict(named))


def _start(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read import objects

    _first(m, objects.attribute(m, value, "run"), value)


def _spawn(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``multiprocessing.spawn(function, args, nprocs)``: the function has its number before these."""
    given = {**dict(zip(_SPAWN, args, strict=False)), **kwargs}
    items = iteration.listed(m, given.get("args", ()))
    call = {"target": given.get("fn"), "args": None if items is None else (0, *items)}
    value = _fill(m, Instance(None, kind=PROCESS), [], call)
    _first(m, Native("run", lambda machine, args, kwargs: _run(machine, value, args, kwargs)), value)


def _first(m: Machine, run: Value, value: Instance) -> None:
    """`run` it, if nothing like it has been: in a process, or a thread, of its own."""
    call = value.extra.get("call", {})
    target = call.get("target") if isinstance(run, Native) else run
    function = target.function if isinstance(target, Bound) else target
    given = iteration.listed(m, call.get("args", ())) or []
    key = (id(getattr(function, "node", None)), *(v for v in given if isinstance(v, str)))
    if isinstance(function, Function) and key not in m.started:
        m.started.add(key)
        _alone(m, run, value.kind)
    else:
        m.blurs += 1
    _escape(m, [target, *given, *value.attrs.values()])


def _alone(m: Machine, run: Value, kind: str) -> None:
    modes = m.grad, m.inference, m.autocast, m.turned_off
    if kind == THREAD:
        m.grad, m.inference, m.autocast, m.turned_off = True, False, False, ()
    try:
        calls.call(m, run, [], {})
    except iteration.Stopped:
        pass
    except Raised as raised:  # that one ends, and nobody else
        if raised.failure is not None:
            m.trace.events.append(raised.failure)
    m.grad, m.inference, m.autocast, m.turned_off = modes
    if kind == PROCESS:
        _apart(m)


def _escape(m: Machine, values: list[Value]) -> None:
    """Others like it do more with these than was read."""
    from gradfix.read import libraries

    libraries.escape(m, values)


def _apart(m: Machine) -> None:
    """The gradients of another process are its own."""
    from gradfix.read import optimizers

    filled = [t for o in m.optimizers for t in optimizers.owned(o) if isinstance(t.grad, Tensor)]
    if filled:
        m.trace.grad_write(*filled, assigned=True)


def _nothing(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


def _asked(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Unknown:
    return m.unknown("is_alive()")


_METHODS: dict[str, Callable[..., Value]] = {
    "__init__": _fill,
    "start": _start,
    "run": _run,
    "is_alive": _asked,
    **dict.fromkeys(("join", "terminate", "kill", "close", "setDaemon", "setName"), _nothing),
}
METHODS: dict[str, dict[str, Callable[..., Value]]] = {THREAD: _METHODS, PROCESS: _METHODS}
FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{kind: _made(kind) for kind in METHODS},
    **{f"{kind}.__init__": _filled for kind in METHODS},
    "multiprocessing.spawn": _spawn,
    "multiprocessing.get_context": lambda m, args, kwargs: Lib("multiprocessing"),
}
