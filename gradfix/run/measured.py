"""The shape of what a run says it measured, looked at before anybody reckons with it: a script that shares a process
with the instruments can say anything in their name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_SIZES = {"f4": 4, "f8": 8, "cs": 4}  # bytes of an element


def is_measurement(line: Mapping[str, Any]) -> bool:
    """Whether gradfix.prove.measured can read this line (see gradfix/run/child/measure.py for what it says)."""
    shape = _LINES.get(str(line.get("m")))
    return shape is not None and all(
        check(line[name.rstrip("?")]) if name.rstrip("?") in line else name.endswith("?")
        for name, check in shape.items()
    )


def _number(value: Any) -> bool:
    return isinstance(value, float) or _whole(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 1 << 64


def _count(value: Any) -> bool:
    return _whole(value) and value >= 0


def _each(check: Check, size: int | None = None) -> Check:
    return lambda value: isinstance(value, list) and size in (None, len(value)) and all(map(check, value))


def _named(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _vector(value: Any) -> bool:
    """[norm, sum, kind, base64], or None."""
    if value is None:
        return True
    if not (isinstance(value, list) and len(value) == 4 and _number(value[0]) and _number(value[1])):
        return False
    kind, data = value[2], value[3]
    if not isinstance(kind, str) or kind not in _SIZES or not isinstance(data, str):
        return False
    size = len(data) // 4 * 3 - data[-2:].count("=")
    return len(data) % 4 == 0 and size % _SIZES[kind] == 0 and _BASE64.fullmatch(data) is not None


# By the letter of the line; what ends in ? may be missing.
_LINES: Mapping[str, Mapping[str, Check]] = {
    "b": {"v": _each(_each(_number, 3)), "a": _whole, "r?": _each(_each(_count, 2)), "g?": _each(_vector)},
    "z": {"o": _count},
    "s": {"o": _count, "g": _each(_vector), "c": _each(_count), "rng": _each(_whole)},
    "u": {
        "o": _count,
        "u": _each(_each(_number, 3)),
        "b": _each(_each(_number, 3)),
        "st": _named(_each(_number)),
    },
    "l": {"leaves?": _named(_vector), "retained?": _named(_vector), "how?": lambda how: isinstance(how, str)},
    "d": {"draws": _named(_each(_count)), "writes": _named(_count)},
}
