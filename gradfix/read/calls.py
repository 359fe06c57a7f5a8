"""Calls of the program's functions: inlined, with what is known of their arguments."""

from __future__ import annotations

import ast
from bisect import bisect_left
from typing import Any

from gradfix.read import libraries, objects, python
from gradfix.read.frames import Deep, Frame, Machine, Raised, Unit
from gradfix.read.values import (
    Bound,
    Class,
    Function,
    Generator,
    Instance,
    Lib,
    Native,
    Tensor,
    Unknown,
    Value,
)

__all__ = ["REST", "Deep", "Frame", "call", "define", "run", "store"]

REST = Unknown("star-arguments")  # positional arguments whose number isn't known
MODES = {
    "torch.no_grad": "no_grad",
    "torch.enable_grad": "enable_grad",
    "torch.inference_mode": "no_grad",
    "torch.autograd.no_grad": "no_grad",
    "torch.autograd.grad_mode.no_grad": "no_grad",
}
NOTHING: tuple[Value, ...] = (None, "", (), [], {})  # what a function gives that found nothing
TRANSPARENT = ("functools.wraps", "functools.lru_cache", "functools.cache", "torch.jit", "torch.compile")


def store(m: Machine, name: str, value: Value) -> None:
    """Bind a name in the running function."""
    declared = m.frame.declared.get(name) if m.frame.declared else None
    if declared == "global":
        m.frame.unit.names[name] = value
        return
    if declared == "nonlocal":
        frame = m.frame.parent
        while frame is not None and name not in frame.names:
            frame = frame.parent
        if frame is not None:
            frame.names[name] = value
        return
    m.frame.names[name] = value


def define(m: Machine, node: Any) -> Value:
    """The function that a def or a lambda makes, decorated."""
    from gradfix.read.expressions import evaluate

    arguments: ast.arguments = node.args
    frame = m.frame
    name = getattr(node, "name", "<lambda>")
    in_class = frame.cls is not None and frame.function is None
    qualname = (
        name if frame.qualname == "<module>" else f"{frame.qualname}.{'' if in_class else '<locals>.'}{name}"
    )
    scope = None if frame.names is frame.unit.names else frame.parent if in_class else frame
    if scope is not None:
        m.project.frames.append(scope)
    function = Function(
        node,
        frame.unit,
        scope,
        qualname,
        tuple(evaluate(m, d) for d in arguments.defaults),
        {
            a.arg: evaluate(m, d)
            for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if d is not None
        },
        owner=frame.cls if in_class else None,
    )
    value: Value = function
    for decorator in reversed(getattr(node, "decorator_list", [])):
        value = _decorated(m, decorator, value)
    return value


def _decorated(m: Machine, decorator: ast.expr, value: Value) -> Value:
    from gradfix.read.expressions import evaluate

    if isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter"):
        return evaluate(m, decorator.value)  # the property, whose getter is what is read
    made = evaluate(m, decorator)
    called = (isinstance(made, Instance) and made.kind) or (made.path if isinstance(made, Lib) else "")
    if isinstance(value, Function):
        if called in (
            "builtins.staticmethod",
            "builtins.classmethod",
            "builtins.property",
            "functools.cached_property",
        ):
            value.kind = called.rpartition(".")[2].replace("cached_", "")
            return value
        if called in MODES:
            value.wrappers = (*value.wrappers, MODES[called])
            return value
        if called.endswith(("abstractmethod", "overload", "override", "final")) or called.startswith(
            TRANSPARENT
        ):
            return value
        if called.endswith("contextmanager"):
            value.kind = "context"
            return value
    if isinstance(made, Unknown | Lib) or (isinstance(made, Instance) and made.cls is None):
        return value  # a decorator that isn't known: most only add to what the function does
    m.frame.node = decorator
    return call(m, made, [value], {})


def call(m: Machine, called: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What calling `called` gives; the frame's node is the call."""
    if isinstance(called, Function):
        return _function(m, called, args, kwargs)
    if isinstance(called, Bound):
        return call(m, called.function, [called.receiver, *args], kwargs)
    if isinstance(called, Native):
        return called.call(m, args, kwargs)
    if isinstance(called, Lib):
        return libraries.call(m, called.path, args, kwargs)
    if isinstance(called, Class):
        return objects.instantiate(m, called, args, kwargs)
    if isinstance(called, Instance):
        return objects.called(m, called, args, kwargs)
    if isinstance(called, python.Method):
        return python.call_method(m, called, args, kwargs)
    m.blurs += 1
    libraries.escape(m, [*args, *kwargs.values()])
    if isinstance(called, Unknown):
        return called
    return m.unknown("call")


def _function(m: Machine, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = bind(m, function, args, kwargs)
    if names is None:
        return m.unknown("arguments of " + function.qualname)
    frame = Frame(function.unit, function.qualname, m.frame.stack() if m.frame else (), names, function.scope)
    frame.function, frame.cls = function, function.owner
    frame.here = args[0] if args else None
    if function.generator is None:
        function.generator = _yields(function.node, function.unit)
    if function.generator:
        return Generator(function, frame)
    inside = [f for f in m.frames if f.function is not None and f.function.node is function.node]
    if inside:
        frame.given = tuple(names.values())
        if len(inside) > 1 and _as_before(inside[-1].given, frame.given):
            return m.unknown("recursion")
    return run(m, function, frame)


def _as_before(earlier: tuple[Value, ...], now: tuple[Value, ...]) -> bool:
    """Whether a function that calls itself is given nothing else than before, something unknown among it: what it goes
    down into is not known, nor where that ends."""
    return any(map(_unknown, now)) and all(_alike(a, b) for a, b in zip(earlier, now, strict=True))


def _unknown(value: Value) -> bool:
    return isinstance(value, Unknown) or (isinstance(value, tuple) and any(map(_unknown, value)))


def _alike(a: Value, b: Value) -> bool:
    """Whether two arguments are the same to a function that goes down into one that is not known."""
    if isinstance(a, Instance) and isinstance(b, Instance):
        return a is b or (a.cls is b.cls is not None and not b.attrs)  # an object that is being made
    if isinstance(a, str) and isinstance(b, str):
        return b.startswith(a) or b.endswith(a)  # the same, indented or with what leads to it
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[k], b[k]) for k in a)
    if isinstance(a, Unknown) and isinstance(b, Unknown):
        return True
    return a is b or (isinstance(a, bool | int | float) and type(a) is type(b) and a == b)


def run(m: Machine, function: Function, frame: Frame) -> Value:
    """Run a function's body in `frame`."""
    from gradfix.read.expressions import evaluate
    from gradfix.read.statements import block

    m.spend()
    m.entered.add(id(function.node))
    grad = m.grad
    for wrapper in function.wrappers:
        m.grad = wrapper == "enable_grad"
    frame.doubts = m.doubts
    try:
        with m.inside(frame):
            if isinstance(function.node, ast.Lambda):
                return evaluate(m, function.node.body)
            block(m, function.node.body)
            if frame.passed_over and frame.result in NOTHING:
                return m.unknown("returned otherwise")
            return frame.result
    except Deep:
        return m.unknown("depth")
    finally:
        if function.wrappers:
            m.grad = grad
        m.doubts = frame.doubts


def bind(
    m: Machine, function: Function, args: list[Value], kwargs: dict[str, Value]
) -> dict[str, Value] | None:
    """The arguments by name; None where they don't fit."""
    a = function.node.args
    positional = [x.arg for x in (*a.posonlyargs, *a.args)]
    names: dict[str, Value] = {}
    rest = REST in args
    if rest:
        args = args[: args.index(REST)]
    if len(args) > len(positional) and a.vararg is None:
        return None
    names.update(zip(positional, args, strict=False))
    if a.vararg is not None:
        names[a.vararg.arg] = m.unknown("*args") if rest else tuple(args[len(positional) :])
    keywords = {x.arg for x in a.kwonlyargs} | set(positional)
    extra: dict[str, Value] = {}
    for key, value in kwargs.items():
        if key in keywords:
            names[key] = value
        else:
            extra[key] = value
    unknown = extra.pop("**", None)
    if a.kwarg is not None:
        names[a.kwarg.arg] = extra if unknown is None else m.unknown("**kwargs")
    elif extra:
        return None
    for name, default in zip(
        positional[len(positional) - len(function.defaults) :], function.defaults, strict=True
    ):
        if name not in names:
            names[name] = default
    for name, default in function.kw_defaults.items():
        names.setdefault(name, default)
    for name in keywords:
        if name not in names:
            names[name] = m.unknown("argument " + name)
    return names


def _yields(node: ast.AST, unit: Unit) -> bool:
    lines = unit.lines_with("yield")
    at = bisect_left(lines, getattr(node, "lineno", 0))
    if at == len(lines) or lines[at] > (getattr(node, "end_lineno", None) or 1 << 60):
        return False
    todo: list[ast.AST] = list(getattr(node, "body", [])) if not isinstance(node, ast.Lambda) else []
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(each)
    return False


def quietly(m: Machine, called: Value, args: list[Value]) -> Value:
    """Call, and take what the program raises as a value that isn't known."""
    try:
        return call(m, called, args, {})
    except Raised:
        return m.unknown("raised")


__all__ += ["Tensor", "bind", "quietly"]
