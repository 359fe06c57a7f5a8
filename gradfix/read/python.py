"""Python's own values: computed as they are, within bounds."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.read import containers, drawn, growing, iteration, strings
from gradfix.read.frames import Machine
from gradfix.read.values import Array, Bound, Class, Deque, Function, Instance, Lib, Tensor, Unknown, Value
from gradfix.read.variants import Asked, Option

BUILTINS = frozenset(dir(builtins))
FAILS = (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError)
WIDEST = 256  # bits of a number that is computed
_RETURNED = {"values": 0, "indices": 1}  # of what max(), sort(), topk() give
_OLD_TYPE = Lib("torch.autograd.Variable")
_PLAIN = (int, float, complex, bool, str, bytes, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of one of Python's own values."""

    owner: Value
    name: str


def hashable(value: Value) -> bool:
    """Whether Python would take `value` as a key."""
    if isinstance(value, tuple):
        return all(hashable(v) for v in value)
    return not isinstance(value, list | dict | set | slice)


def hashed(m: Machine, kind: type, items: Value) -> Value:
    """A set or the like of `items`; Unknown where one can't be hashed."""
    if not isinstance(items, list) or not all(hashable(i) for i in items):
        return m.unknown("set")
    return kind(items)


def light(value: Value) -> bool:
    """Whether all that a container holds, what is in it more than once as often, can be gone through."""
    pending, left = [value], iteration.LONG
    while pending and left:
        left -= 1
        each = pending.pop()
        inner = each.values() if isinstance(each, dict) else each
        pending += [v for v in inner if isinstance(v, list | tuple | dict)]
    return not pending


def bounded(m: Machine, value: Value) -> Value:
    """`value`, unless it grows out of bounds."""
    if isinstance(value, str | bytes) and len(value) > strings.LONGEST:
        return m.unknown("long string")
    if isinstance(value, int) and value.bit_length() > WIDEST:
        return m.unknown("large number")
    if isinstance(value, list | tuple) and len(value) > iteration.LONG:
        return m.unknown("long list")
    return value


def binary(m: Machine, name: str, concrete: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """An operator on two of Python's values."""
    if name == "pow" and not (_small(left, 1 << 20) and _small(right, 64)):
        return m.unknown("power")
    if name == "remainder" and isinstance(left, str):
        return strings.percent(m, left, right)
    if name == "remainder" and isinstance(left, bytes):
        return m.unknown("formatted")
    if name == "bitwise_left_shift" and not _small(right, 128):
        return m.unknown("shift")
    if name == "mul" and (_sequence(left) or _sequence(right)):
        count, sequence = (right, left) if _sequence(left) else (left, right)
        if not isinstance(count, int) or count * max(1, len(sequence)) > iteration.LONG:
            return m.unknown("repetition")
    if isinstance(left, list | tuple) and name not in ("add", "mul"):
        return m.unknown("operator")
    sets = [side for side in (left, right) if isinstance(side, set | frozenset)]
    if name != "bitwise_or" and any(isinstance(each, Unknown) for side in sets for each in side):
        return m.unknown("set")
    try:
        return bounded(m, growing.counting(m, name, left, right, concrete(left, right)))
    except FAILS:
        return m.unknown("operator")


def _small(value: Value, most: int = 1 << 200) -> bool:
    return isinstance(value, int | float) and abs(value) <= most


def _sequence(value: Value) -> bool:
    return isinstance(value, str | bytes | list | tuple)


def compared(m: Machine, name: str, concrete: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """A comparison of values that are no tensors."""
    m.open.met(left, right)
    if name in ("eq", "ne") and _OLD_TYPE in (left, right) and Lib("torch.Tensor") in (left, right):
        m.trace.compared()
        return name == "ne"
    if name in ("eq", "ne") and isinstance(left, Lib) and isinstance(right, Lib) and _builtin(left, right):
        return (left == right) is (name == "eq")
    if name in ("eq", "ne") and (_vague(left) or _vague(right)):
        return name == "ne" if _no_version(left, right) or _no_version(right, left) else m.unknown("compare")
    try:
        result = concrete(left, right)
    except FAILS:
        return m.unknown("compare")
    return (
        growing.compared(m, name, left, right, result) if isinstance(result, bool) else m.unknown("compare")
    )


def _no_version(left: Value, right: Value) -> bool:
    """Whether the version of torch is compared with what is none: they begin with a number."""
    return left == Lib("torch.__version__") and isinstance(right, str) and not right[:1].isdigit()


def _builtin(*names: Lib) -> bool:
    """Whether a type of Python's own is among these, which has no second name."""
    return any(name.path.startswith("builtins.") for name in names)


def _vague(value: Value) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return any(_vague(v) for v in value)
    return isinstance(value, Unknown | Tensor | Lib)


def contains(m: Machine, container: Value, value: Value) -> Value:
    """Whether `container` holds `value`."""
    if isinstance(container, list | tuple) and isinstance(value, Option | Asked):
        m.open.met(value, *container)
    if _vague(value) and not isinstance(value, Lib):
        return m.unknown("in")
    if isinstance(container, str):
        return value in container if isinstance(value, str) else m.unknown("in")
    if isinstance(container, Instance):
        items = container.extra.get("items")
        container = items if items is not None else container.attrs.get("__items__")
    if isinstance(container, list | tuple | set | frozenset | dict | range):
        if any(isinstance(i, Unknown) for i in list(container)[:100]):
            return m.unknown("in")
        try:
            return value in container
        except FAILS:
            return m.unknown("in")
    return m.unknown("in")


def attribute(m: Machine, value: Value, name: str) -> Value:
    """``value.name`` of a value of Python's own."""
    if isinstance(value, _PLAIN) and name in ("real", "imag"):
        return value
    if isinstance(value, Deque) and name == "maxlen":
        return value.most
    if (
        not isinstance(value, Function | Class | Bound)
        and hasattr(type(value), name)
        and not name.startswith("__")
    ):
        return Method(value, name)
    if isinstance(value, tuple) and name in _RETURNED and all(isinstance(v, Tensor) for v in value):
        return value[_RETURNED[name]] if len(value) > _RETURNED[name] else m.unknown("attribute " + name)
    if name == "__class__":
        return Lib("builtins." + type(value).__name__)
    return m.unknown("attribute " + name)


def item(m: Machine, owner: Value, index: Value) -> Value:
    """``owner[index]`` of a value of Python's own."""
    if isinstance(owner, dict):
        if isinstance(index, Option | Asked):
            m.open.met(index, *owner)
        if not hashable(index) or isinstance(index, Unknown):
            return m.unknown("key")
        return owner[index] if index in owner or type(owner) is not dict else m.unknown("missing key")
    if isinstance(owner, list | tuple | str | bytes | range):
        if isinstance(index, slice) and _vague([index.start, index.stop, index.step]):
            return m.unknown("slice")
        try:
            return owner[index]
        except FAILS:
            if isinstance(index, Unknown | Tensor) and isinstance(owner, list | tuple) and owner:
                return drawn.item(m, owner)
            return m.unknown("index")
    return m.unknown("item")


def set_item(owner: Value, index: Value, value: Value) -> None:
    """``owner[index] = value``, where it works."""
    if isinstance(owner, dict):
        if hashable(index):
            owner[index] = value
    elif isinstance(owner, list):
        try:
            owner[index] = value
        except FAILS:
            pass


def delete_item(owner: Value, index: Value) -> None:
    """``del owner[index]``, where it works."""
    try:
        del owner[index]
    except FAILS:
        pass


MUTATORS = {"append", "add", "insert", "appendleft", "extend", "extendleft", "update", "setdefault"}
_KEEPING = {
    "append",
    "add",
    "insert",
    "appendleft",
    "remove",
    "discard",
    "index",
    "count",
}  # take an item as it is
_STRINGS = {
    "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "join", "lower",
    "lstrip", "partition", "replace", "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "title", "upper", "removeprefix", "removesuffix", "swapcase", "islower", "isupper", "isnumeric",
}  # fmt: skip


def call_method(m: Machine, method: Method, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a string, a list, a dictionary, ..."""
    owner, name = method.owner, method.name
    if name in MUTATORS:
        growing.grew(m, owner)
    if isinstance(owner, str) and name == "format":
        return strings.formatted(m, owner, args, kwargs)
    if isinstance(owner, str | bytes) and (name not in _STRINGS or any(_vague(a) for a in args)):
        return m.unknown("string")
    if isinstance(owner, dict):
        return _of_dict(m, owner, name, args, kwargs)
    if isinstance(owner, list) and name == "sort":
        return None
    if isinstance(owner, list) and name in ("extend", "extendleft"):
        items = iteration.listed(m, args[0], iteration.LONG) if args else None
        if items is not None and len(owner) + len(items) < iteration.LONG:
            getattr(owner, name)(items)
        return None
    if name in ("index", "count", "remove") and isinstance(owner, list | tuple):
        vague = any(map(_vague, owner)) or any(map(_vague, args))
        if vague:
            return None if name == "remove" else m.unknown(name)
    if isinstance(owner, set) and (name == "add" and not all(hashable(a) for a in args)):
        return None
    if isinstance(owner, int | float) and name not in ("is_integer", "bit_length", "conjugate"):
        return m.unknown("number")
    plain = args if name in _KEEPING else [containers.plain(a) for a in args]
    try:
        return bounded(m, getattr(owner, name)(*plain, **kwargs))
    except FAILS:
        return m.unknown(f"{type(owner).__name__}.{name}")


def _of_dict(
    m: Machine, owner: dict[Value, Value], name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    if name in ("keys", "values", "items"):
        return list(getattr(owner, name)())
    if name == "get":
        if not args or isinstance(args[0], Unknown) or not hashable(args[0]):
            return m.unknown("key")
        return owner.get(args[0], args[1] if len(args) > 1 else kwargs.get("default"))
    if name == "update":
        for each in args:
            if isinstance(more := containers.plain(each), dict):
                owner.update(more)
        owner.update({k: v for k, v in kwargs.items() if k != "**"})
        return None
    if name == "setdefault" and args and hashable(args[0]):
        return owner.setdefault(args[0], args[1] if len(args) > 1 else None)
    if name == "pop" and args and hashable(args[0]):
        return owner.pop(args[0], args[1] if len(args) > 1 else m.unknown("missing key"))
    if name == "copy":
        return dict(owner)
    if name == "clear":
        owner.clear()
        return None
    return m.unknown("dict." + name)


def call_builtin(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of the language."""
    special = SPECIAL.get(name)
    if special is not None:
        return special(m, args, kwargs)
    if name in _PURE and all(isinstance(a, _PLAIN) for a in args) and not kwargs:
        try:
            return bounded(m, getattr(builtins, name)(*args))
        except FAILS:
            return m.unknown(name)
    if name.endswith(("Error", "Exception", "Interrupt", "Exit", "StopIteration", "Warning")):
        return Instance(None, kind="builtins." + name)
    return m.unknown(name)


_PURE = {
    "abs", "bin", "bool", "chr", "complex", "divmod", "float", "hash", "hex", "int", "oct", "ord", "repr", "round",
    "str", "bytes", "ascii",
}  # fmt: skip


def _list(kind: Callable[[Any], Any]) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args:
            made = kind([])
            return made | {k: v for k, v in kwargs.items() if k != "**"} if isinstance(made, dict) else made
        source = containers.plain(args[0]) if kind is dict else args[0]
        if kind is dict and isinstance(source, dict):
            return {**source, **{k: v for k, v in kwargs.items() if k != "**"}}
        items = iteration.listed(m, source)
        if items is None:
            known = isinstance(source, Array) or not isinstance(source, Unknown)
            return m.unknown("list") if known else source
        if kind in (set, frozenset):
            return hashed(m, kind, items)
        if kind is dict:
            pairs = [iteration.listed(m, i) for i in items]
            return {p[0]: p[1] for p in pairs if p is not None and len(p) == 2 and hashable(p[0])} | kwargs
        return kind(items)

    return run


def _fold(pick: Callable[[Any], Any]) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = args if len(args) > 1 else iteration.listed(m, args[0]) if args else None
        if items and "key" not in kwargs and all(isinstance(i, int | float) for i in items):
            return pick(items)
        return (
            _bounded(m, items) if items and len(items) == 2 and "key" not in kwargs else m.unknown("min/max")
        )

    return run


def _bounded(m: Machine, items: list[Value]) -> Value:
    """Of a number and a tensor with a graph: which, the values decide, and it is the tensor now and then."""
    tensors = [i for i in items if isinstance(i, Tensor)]
    numbers = [i for i in items if isinstance(i, int | float)]
    if not tensors or not numbers or not tensors[0].requires or tensors[0].leaf:
        return m.unknown("min/max")
    m.doubts += 1  # for all that this function does from now on
    return tensors[0]


def _sum(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read import ops

    items = iteration.listed(m, args[0]) if args else None
    if items is None:
        return m.unknown("sum")
    total = args[1] if len(args) > 1 else kwargs.get("start", 0)
    for each in items:
        if isinstance(total, Tensor) or isinstance(each, Tensor):
            total = ops.operator_(m, "add", total, each)
        elif isinstance(total, Unknown) or isinstance(each, Unknown):
            return m.unknown("sum")
        else:
            total = binary(m, "add", operator.add, total, each)
    return total


def _quantified(wanted: bool) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        from gradfix.read.truth import truth

        items = iteration.listed(m, args[0]) if args else None
        known = [truth(m, i) for i in items] if items is not None else [None]
        if wanted in known:
            return wanted
        return m.unknown("any/all") if None in known else not wanted

    return run


def _none(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


SPECIAL: dict[str, Callable[..., Value]] = {
    "list": _list(list),
    "tuple": _list(tuple),
    "set": _list(set),
    "frozenset": _list(frozenset),
    "dict": _list(dict),
    "sorted": _list(list),
    "min": _fold(min),
    "max": _fold(max),
    "sum": _sum,
    "any": _quantified(True),
    "all": _quantified(False),
    "print": _none,
}
