"""The standard library's dataclass, for the classes that a check loads, made in a quarter of the time.

Python 3.11 compiles up to seven functions for each dataclass, one by one, and a check of one script loads ninety of
them: that was more than half of all that it did before it opened the script. Here only ``__init__`` is compiled; what
compares, hashes, shows and refuses is the same few functions for every class. What a class does is what the standard
library's does (`tests/test_dataclass.py` holds the two side by side), but for one thing: a frozen dataclass of the
standard library's can't derive from one made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Callable[[type], type]:
        """A decorator, as ``dataclasses.dataclass``."""
        return lambda cls: _made(cls, frozen, slots, eq)


def _made(cls: type, frozen: bool, slots: bool, eq: bool) -> type:
    own = set(vars(cls))
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(made)
    methods: dict[str, Any] = {"__init__": _initialiser(made, fields, frozen), "__repr__": _shown}
    if eq:
        methods["__eq__"] = _equality(_values(f.name for f in fields if f.compare))
        hashed = _values(f.name for f in fields if (f.compare if f.hash is None else f.hash))
        methods["__hash__"] = (lambda self: hash(hashed(self))) if frozen else None
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            methods |= {"__getstate__": _state, "__setstate__": _restore}
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    whole: type = made
    return whole


def _initialiser(cls: type, fields: tuple[Field[Any], ...], frozen: bool) -> Callable[..., None]:
    names: dict[str, Any] = {"_put": object.__setattr__, "_missing": MISSING}
    words, lines = ["self"], ["pass"]
    for field in fields:
        name = value = field.name
        default = f"_default_{name}"
        if field.default is not MISSING:
            names[default] = field.default
            words.append(f"{name}={default}")
        elif field.default_factory is not MISSING:
            names[default] = field.default_factory
            words.append(f"{name}=_missing")
            value = f"{default}() if {name} is _missing else {name}"
        else:
            words.append(name)
        lines.append(f"_put(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    exec(f"def __init__({', '.join(words)}):\n " + "\n ".join(lines), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return made


def _values(names: Any) -> Callable[[Any], Any]:
    names = tuple(names)
    return attrgetter(*names) if len(names) > 1 else lambda self: tuple(getattr(self, n) for n in names)


def _equality(values: Callable[[Any], Any]) -> Callable[[Any, object], bool]:
    def equal(self: Any, other: object) -> bool:
        return bool(values(self) == values(other)) if other.__class__ is self.__class__ else NotImplemented

    return equal


@recursive_repr()
def _shown(self: Any) -> str:
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
