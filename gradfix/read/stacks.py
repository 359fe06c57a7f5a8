"""``contextlib.ExitStack``: what is to be done when a block is left, told one by one while it runs."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import calls
from gradfix.read.frames import Machine
from gradfix.read.objects import method
from gradfix.read.values import Bound, Function, Generator, Instance, Value

KIND = "contextlib.ExitStack"
Leave = Callable[[], object]


def made(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A stack with nothing on it."""
    return Instance(None, kind=KIND, extra={"leaves": []})


def left(stack: Instance) -> None:
    """What was put last is done first, and each once."""
    leaves: list[Leave] = stack.extra["leaves"]
    while leaves:
        leaves.pop()()


def _callback(m: Machine, stack: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return m.unknown("callback")
    called, rest = args[0], args[1:]
    stack.extra["leaves"].append(lambda: calls.call(m, called, rest, kwargs))
    return called


def _enter_context(m: Machine, stack: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read import libraries

    manager = args[0] if args else m.unknown("manager")
    entered, leave = libraries.enter(m, manager)
    stack.extra["leaves"].append(leave)
    if isinstance(manager, Generator):
        m.blurs += 1  # what follows its yield is not gone into: there may be a backward
    return entered


def _push(m: Machine, stack: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return m.unknown("exit")
    given = args[0]
    leave = method(m, given, "__exit__") if isinstance(given, Instance) and given.cls is not None else None
    if leave is None and isinstance(given, Function | Bound):
        leave = given
    if leave is not None:
        stack.extra["leaves"].append(lambda: calls.call(m, leave, [None, None, None], {}))
    return given


def _close(m: Machine, stack: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    left(stack)
    return None


def _pop_all(m: Machine, stack: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    moved = Instance(None, kind=KIND, extra={"leaves": [*stack.extra["leaves"]]})
    stack.extra["leaves"].clear()
    return moved


METHODS: dict[str, Callable[..., Value]] = {
    "callback": _callback,
    "enter_context": _enter_context,
    "push": _push,
    "close": _close,
    "pop_all": _pop_all,
}
