"""Objects of the program's own subclasses of Python's lists and dictionaries: what they hold is their ``items``."""

from __future__ import annotations

from typing import Any

from gradfix.read import python
from gradfix.read.frames import Machine
from gradfix.read.values import Class, Instance, Value

KINDS: dict[str, type[list[Any]] | type[dict[Any, Any]]] = {
    "builtins.list": list,
    "typing.List": list,
    "collections.UserList": list,
    "collections.deque": list,
    "builtins.dict": dict,
    "typing.Dict": dict,
    "collections.OrderedDict": dict,
    "collections.UserDict": dict,
}
# where one of these is the program's, what is in the object is what the program makes of it
OWN = {"__iter__", "__len__", "__getitem__", "__setitem__", "__contains__", "__setattr__", "__new__"}


def prepare(instance: Instance) -> None:
    """An object of such a class begins empty."""
    kind = KINDS.get(instance.kind)
    if kind is None or instance.cls is None:
        return
    classes = [c for c in instance.cls.order if isinstance(c, Class)]
    if not any(name in c.attrs for c in classes for name in OWN):
        instance.extra["items"] = kind()


def fill(m: Machine, instance: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``list.__init__``, ``dict.__init__``: what is not known leaves the object's items unknown."""
    items = instance.extra.get("items")
    made = python.call_builtin(m, type(items).__name__, args[:1], kwargs)
    if isinstance(made, list) and isinstance(items, list):
        items[:] = made
    elif isinstance(made, dict) and isinstance(items, dict):
        items.update(made)
    else:
        instance.extra.pop("items", None)
    return None


def plain(value: Value) -> Value:
    """The items of an object that holds some; any other value is itself."""
    items = value.extra.get("items") if isinstance(value, Instance) else None
    return value if items is None else items


def shallow(instance: Instance) -> Instance:
    """``copy.copy``: the items of a list or dictionary are no longer shared."""
    extra = dict(instance.extra)
    if instance.kind in KINDS and extra.get("items") is not None:
        extra["items"] = extra["items"].copy()
    return Instance(instance.cls, dict(instance.attrs), instance.kind, extra)


def unbound(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``list.append(x, item)``, ``dict.__setitem__(x, key, item)``: of an object, what it holds is lost where the
    method is not known."""
    owner, name = args[0], path.rpartition(".")[2]
    items = plain(owner)
    if isinstance(items, list | dict) and not name.startswith("__"):
        return python.call_method(m, python.Method(items, name), args[1:], kwargs)
    if isinstance(owner, Instance) and owner.kind in KINDS:
        owner.extra.pop("items", None)
    return m.unknown("call " + path)
