"""Functions of the language whose arguments may be the program's own objects."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable
from typing import Any

from gradfix.read import (
    calls,
    files,
    growing,
    iteration,
    layers,
    libraries,
    objects,
    python,
    strings,
    tensors,
)
from gradfix.read.frames import Machine, Raised
from gradfix.read.truth import truth
from gradfix.read.values import (
    Bound,
    Class,
    Deque,
    Function,
    Generator,
    Instance,
    Lazy,
    Lib,
    Native,
    Packed,
    Super,
    Taken,
    Tensor,
    Unknown,
    Value,
)

_DOTTED = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def call(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a builtin gives for these arguments."""
    special = TABLE.get(name)
    if special is not None:
        return special(m, args, kwargs)
    return python.call_builtin(m, name, args, kwargs)


def _super(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2 and isinstance(args[0], Class):
        return Super(args[1], args[0])
    frame: Any = m.frame
    while frame is not None and frame.cls is None:
        frame = frame.parent
    if frame is None or frame.here is None:
        return m.unknown("super()")
    return Super(frame.here, frame.cls)


def _range(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and all(isinstance(a, int) for a in args):
        try:
            return range(*args)
        except python.FAILS:
            return m.unknown("range")
    if len(args) == 2 and isinstance(args[0], Unknown) and isinstance(args[1], int):
        return range(args[1])  # begun, not resumed
    start = args[0] if len(args) > 1 and isinstance(args[0], int) else 0
    return Lazy(lambda count: list(range(start, start + count)))


def _len(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0] if args else None
    if isinstance(value, str | bytes | list | tuple | dict | set | frozenset | range):
        return growing.length(m, value)
    if isinstance(value, Tensor) and value.shape and value.shape[0] is not None:
        return value.shape[0]
    if isinstance(value, Lazy) and value.length is not None:
        return value.length
    if isinstance(value, Instance):
        if isinstance(value.extra.get("items"), list | dict):
            return growing.length(m, value.extra["items"])
        method = objects.method(m, value, "__len__")
        if method is not None:
            return calls.call(m, method, [], {})
    return m.unknown("len")


def _enumerate(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = args[1] if len(args) > 1 else kwargs.get("start", 0)
    start = start if isinstance(start, int) else 0
    source = args[0] if args else None
    length = iteration._length(source)

    def items(count: int) -> list[Value]:
        found = iteration.listed(m, source, count)
        if found is None:
            found = [m.unknown("item") for _ in range(count)]
        return [(start + i, v) for i, v in enumerate(found)]

    return Lazy(items, length)


def _zip(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if calls.REST in args:
        return m.unknown("zip")
    lengths = [iteration._length(a) for a in args]
    known = [n for n in lengths if n is not None]
    length = min(known) if known else None

    def items(count: int) -> list[Value]:
        columns = []
        for each in args:
            found = iteration.listed(m, each, count)
            columns.append(found if found is not None else [m.unknown("item") for _ in range(count)])
        return list(zip(*columns, strict=False))

    return Lazy(items, length)


def _map(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    columns = [iteration.listed(m, a, iteration.DRAWN) for a in args[1:]]
    if any(c is None for c in columns):
        return m.unknown("map")
    return [calls.call(m, args[0], list(row), {}) for row in zip(*columns, strict=False)]


def _filter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = iteration.listed(m, args[1], iteration.DRAWN)
    if items is None:
        return m.unknown("filter")
    kept = []
    for each in items:
        known = truth(m, each if args[0] is None else calls.call(m, args[0], [each], {}))
        if known is not False:
            kept.append(each)
    return kept


def _reversed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], range):
        return args[0][::-1]
    items = iteration.listed(m, args[0])
    return m.unknown("reversed") if items is None else items[::-1]


def _iter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = args[0]
    if isinstance(source, Generator | Unknown):
        return source
    items = iteration.listed(m, source, 64)
    return Instance(None, kind="iterator", extra={"left": items, "source": source})


def _next(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = args[0]
    if isinstance(source, Instance):
        method = objects.method(m, source, "__next__")
        if method is not None:
            return calls.call(m, method, [], {})
        left = source.extra.get("left")
        if left:
            return left.pop(0)
        if left is not None and isinstance(source.extra.get("source"), list | tuple | range | dict):
            if len(args) > 1:
                return args[1]
            raise Raised(Instance(None, kind="builtins.StopIteration"))
    if isinstance(source, Generator):
        found: list[Value] = []
        iteration.each_kept(m, source, found, 12)
        source.done = True
        return found[0] if found else m.unknown("next")
    if isinstance(source, list) and source:
        return source.pop(0)  # a generator expression
    return m.unknown("next")


def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, wanted = args[0], args[1] if len(args) > 1 else None
    results = [_is_a(m, value, w) for w in (wanted if isinstance(wanted, tuple) else (wanted,))]
    if True in results:
        return True
    return m.unknown("isinstance") if None in results else False


def _is_a(m: Machine, value: Value, wanted: Value) -> bool | None:
    if isinstance(value, Unknown) or isinstance(wanted, Unknown):
        return None
    if isinstance(wanted, Class):
        return isinstance(value, Instance) and value.cls is not None and wanted in value.cls.order
    if not isinstance(wanted, Lib):
        return None
    path = wanted.path
    if isinstance(value, Packed) and path.startswith("torch."):
        return path == "torch.nn.utils.rnn.PackedSequence"
    if isinstance(value, Deque) and path in ("builtins.list", "collections.deque"):
        return path == "collections.deque"
    if path.startswith("builtins."):
        if isinstance(value, Instance) and value.cls is not None and wanted in value.cls.order:
            return True
        kind = getattr(builtins, path[9:], None)
        if kind is object:
            return True
        plain = isinstance(
            value, int | float | str | bytes | list | tuple | dict | set | type(None) | complex | slice
        )
        return isinstance(value, kind) if isinstance(kind, type) and plain else False
    if path in ("torch.Tensor", "torch.FloatTensor", "torch.autograd.Variable"):
        return isinstance(value, Tensor)
    if path == "torch.nn.Parameter":
        return isinstance(value, Tensor) and value.parameter
    if isinstance(value, Instance) and path.startswith("torch."):
        if path == "torch.nn.Module":
            return value.kind.startswith("torch.nn.")
        if path == "torch.optim.Optimizer":
            return value.kind.startswith("torch.optim.")
        return value.kind == path or (value.cls is not None and wanted in value.cls.order)
    if path.startswith("torch.") and isinstance(
        value, int | float | str | list | tuple | dict | type(None) | Tensor | Function | Bound | Class
    ):
        return False
    return None


def _issubclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, wanted = [*args, None, None][:2]
    if not isinstance(cls, Class) or not isinstance(wanted, Class):
        return m.unknown("issubclass")
    known = wanted in cls.order
    return known or (m.unknown("issubclass") if any(isinstance(c, Unknown) for c in cls.order) else False)


def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 and isinstance(args[1], Unknown) and args[1].like and isinstance(args[0], Lib):
        found = layers.whichever(args[0].path, args[1].like)
        return objects.attribute(m, args[0], found) if found else m.unknown("getattr")
    if len(args) < 2 or not isinstance(args[1], str):
        return m.unknown("getattr")
    if len(args) > 2 and isinstance(args[0], Instance):
        value = objects.attribute(m, args[0], args[1])
        return args[2] if isinstance(value, Unknown) and args[1] not in args[0].attrs else value
    return objects.attribute(m, args[0], args[1])


def _eval(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``eval("Encoder" + name)``: a name, an attribute of one, or what is written out."""
    from gradfix.read.expressions import evaluate

    if len(args) != 1 or not isinstance(args[0], str) or len(args[0]) > strings.LONGEST:
        return m.unknown("eval")
    try:
        node = ast.parse(args[0].strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise Raised(Instance(None, kind="builtins.SyntaxError")) from None
    if isinstance(node, ast.Name) and not _bound(m, node.id):
        raise Raised(Instance(None, kind="builtins.NameError"))
    return (
        evaluate(m, node) if isinstance(node, _WRITTEN) or _DOTTED.fullmatch(args[0]) else m.unknown("eval")
    )


_WRITTEN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.BinOp)


def _bound(m: Machine, name: str) -> bool:
    frame: Any = m.frame
    while frame is not None:
        if name in frame.names:
            return True
        frame = frame.parent
    return name in m.frame.unit.names or name in python.BUILTINS


def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value, name = args[0], args[1] if len(args) > 1 else None
    if isinstance(value, Instance) and isinstance(name, str) and not value.extra.get("unknown"):
        if name in value.attrs:
            return True
        if value.cls is not None and objects.lookup(value.cls, name) is not objects.MISSING:
            return True
        if not value.kind:
            return False
        if value.kind.startswith("torch.nn."):
            if name == "reset_parameters" or (value.cls is None and name in layers.METHODS):
                return libraries.instance_attribute(m, value, name) is not objects.MISSING
            return m.unknown("hasattr") if value.cls is not None else False
    return m.unknown("hasattr")


def _setattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 3 and isinstance(args[1], str):
        objects.set_attribute(m, args[0], args[1], args[2])
    return None


def _type(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0] if args else None
    if len(args) == 1 and isinstance(value, Instance):
        return value.cls or Lib(value.kind)
    if isinstance(value, str):
        return Lib("builtins.str")
    if isinstance(value, int | float | list | tuple | dict | bool):
        return Lib("builtins." + type(value).__name__)
    return Lib("torch.Tensor") if isinstance(value, Tensor) else m.unknown("type")


def _callable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], Function | Class | Bound | Native | python.Method):
        return True
    return m.unknown("callable") if isinstance(args[0], Unknown | Instance | Lib) else False


def _number(name: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and isinstance(args[0], Tensor):
            if name in ("abs", "round"):
                return calls.call(m, tensors.attribute(m, args[0], name), [], {})
            return tensors.METHODS["item"](m, args[0], [], {})
        if name == "float" and args and isinstance(args[0], Taken):
            return args[0]
        if any(isinstance(a, Unknown) for a in args):
            return m.unknown(name)
        if args and isinstance(args[0], list | tuple | dict) and name in ("bool", "str", "repr"):
            return bool(args[0]) if name == "bool" else m.unknown(name)
        return python.call_builtin(m, name, args, kwargs)

    return run


def _vars(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0].attrs if args and isinstance(args[0], Instance) else m.unknown("vars")


def _globals(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return m.frame.unit.names


def _exit(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read.libraries import EXIT

    raise Raised(EXIT)


def _mark(name: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and isinstance(args[0], Function):
            args[0].kind = name
            return args[0]
        return m.unknown(name)

    return run


TABLE: dict[str, Callable[..., Value]] = {
    "super": _super,
    "range": _range,
    "len": _len,
    "enumerate": _enumerate,
    "zip": _zip,
    "map": _map,
    "filter": _filter,
    "reversed": _reversed,
    "iter": _iter,
    "next": _next,
    "isinstance": _isinstance,
    "issubclass": _issubclass,
    "getattr": _getattr,
    "hasattr": _hasattr,
    "eval": _eval,
    "open": files.opened,
    "setattr": _setattr,
    "type": _type,
    "callable": _callable,
    "vars": _vars,
    "globals": _globals,
    "exit": _exit,
    "quit": _exit,
    "object": lambda m, args, kwargs: Instance(None),
    "property": _mark("property"),
    "staticmethod": _mark("staticmethod"),
    "classmethod": _mark("classmethod"),
    **{n: _number(n) for n in ("float", "int", "bool", "abs", "round", "str", "repr", "complex")},
}
