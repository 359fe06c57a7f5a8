"""Strings made of values: ``f"conv{i}"``, ``"conv{}".format(i)`` and ``"conv%d" % i``.

Where a value is not known, the rest of the string still is: an Unknown that says what it is like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from string import Formatter

from gradfix.read import containers
from gradfix.read.frames import Machine
from gradfix.read.values import HOLE, Value

LONGEST = 1_000
_WIDE = re.compile(r"\d{4}")
_PERCENT = re.compile(r"%(?:\((\w+)\))?([#0\- +]*\d*(?:\.\d+)?)[hlL]?([diouxXeEfFgGcrsa%])")
_CONVERSIONS: dict[str | None, Callable[[object], object]] = {
    None: lambda value: value,
    "r": repr,
    "s": str,
    "a": ascii,
}
_KNOWN = str | int | float | None  # what looks the same whenever it is shown


def shown(value: Value, spec: str = "", conversion: str | None = None) -> str | None:
    """``format(value, spec)``, if that is known."""
    if not isinstance(value, _KNOWN) or _WIDE.search(spec) or "{" in spec:
        return None
    try:
        return format(_CONVERSIONS[conversion](value), spec)
    except (ValueError, TypeError, KeyError):
        return None


def joined(m: Machine, parts: Iterable[str | None]) -> Value:
    """The string of these parts, in which None is not known."""
    known = [HOLE if part is None else part for part in parts]
    text = "".join(known)
    if len(text) > LONGEST:
        return m.unknown("long string")
    return m.unknown("string", text) if HOLE in known else text


def formatted(m: Machine, text: str, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """``text.format(*args, **kwargs)``."""
    parts: list[str | None] = []
    try:
        fields = list(Formatter().parse(text))
    except ValueError:
        return m.unknown("string")
    given: dict[int | str, Value] = dict(enumerate(args))
    given.update(kwargs)
    for number, (before, name, spec, conversion) in enumerate(fields):
        parts.append(before)
        if name is None:
            continue
        place: int | str = int(name) if name.isdecimal() else name or number
        parts.append(shown(given[place], spec or "", conversion) if place in given else None)
    return joined(m, parts)


def percent(m: Machine, text: str, value: Value) -> Value:
    """``text % value``."""
    holder = containers.plain(value)
    named = holder if isinstance(holder, dict) else {}
    given = list(value) if isinstance(value, tuple) else [value]
    parts: list[str | None] = []
    end = 0
    for field in _PERCENT.finditer(text):
        parts.append(text[end : field.start()])
        end = field.end()
        name, flags, kind = field.groups()
        if kind == "%":
            parts.append("%")
        elif name is not None:
            parts.append(_percented(f"%{flags}{kind}", named[name]) if name in named else None)
        else:
            parts.append(_percented(f"%{flags}{kind}", given.pop(0)) if given else None)
    parts.append(text[end:])
    left = any("%" in part for part in parts[::2] if part is not None)
    return m.unknown("string") if left else joined(m, parts)


def _percented(field: str, value: Value) -> str | None:
    if not isinstance(value, _KNOWN) or _WIDE.search(field):
        return None
    try:
        return str(field % value)
    except (ValueError, TypeError, OverflowError):
        return None
