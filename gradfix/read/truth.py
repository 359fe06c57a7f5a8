"""Whether a value counts as true, as far as that is known."""

from __future__ import annotations

from gradfix.read.frames import Machine
from gradfix.read.values import Generator, Instance, Lazy, Lib, Tensor, Truth, Unknown, Value


def truth(m: Machine, value: Value) -> Truth:
    """True, False, or None where the text doesn't tell."""
    if isinstance(value, Unknown | Tensor | Lib):
        return None
    if isinstance(value, Lazy):
        return None if value.length is None else value.length > 0
    if isinstance(value, Instance):
        if value.extra.get("items") is not None:
            return bool(value.extra["items"])
        found = value.cls is not None and any(
            "__bool__" in c.attrs or "__len__" in c.attrs for c in value.cls.order if hasattr(c, "attrs")
        )
        return None if found else True
    if isinstance(value, Generator):
        return True
    return bool(value)
