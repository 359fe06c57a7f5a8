"""Numbers and containers that grow while a loop goes round: a replay memory, a count of steps.

Of a loop whose end is far only the first passes are read. What a test says of such a number in them (the memory is not
full, the warm-up not over) does not hold for ever: where one was asked, further passes are read in which it has grown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.read.frames import Machine, Raised
from gradfix.read.values import Deque, Unknown, Value

PASSES = 2  # that are read of what has grown
SEVERAL = 4  # passes that show what a program does again and again
LONGEST = 8  # passes after which something comes again, for which two turns are read
_RISING = {"gt": 1, "ge": 1, "lt": -1, "le": -1}


class Count(int):
    """A number that has become larger in a loop that goes on."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown(Unknown):
    """What a test comes to when a number has grown: `then`, and the contrary of it before."""

    then: bool = True


def grew(m: Machine, container: Value) -> None:
    """Something was put into `container`."""
    if m.partial:
        m.grown[id(container)] = container


def length(m: Machine, container: Any) -> int:
    """``len(container)``."""
    full = isinstance(container, Deque) and len(container) == container.most
    return Count(len(container)) if id(container) in m.grown and not full else len(container)


def counted(m: Machine, before: Value, value: Value) -> Value:
    """What a variable is bound to that was `before`."""
    if m.partial and type(value) is int and type(before) in (int, Count) and value > before:
        return Count(value)
    return value


def compared(m: Machine, name: str, left: Value, right: Value, now: bool) -> bool | Grown:
    """What a comparison comes to that is `now` so."""
    rising = _RISING.get(name, 0) * (isinstance(left, Count) - isinstance(right, Count))
    if not rising or now is (rising > 0):
        return now
    m.awaited = True
    return Grown("grown", then=not now) if m.ripe else now


def counting(m: Machine, name: str, left: Value, right: Value, value: Value) -> Value:
    """`value`, which an operator makes of `left` and `right`."""
    if isinstance(left, Count) and type(right) is int:
        if name == "remainder" and right <= LONGEST:
            m.turn = max(m.turn, right)
        if name == "add" and right >= 0:
            return Count(value)
    return value


@contextmanager
def around(m: Machine, partial: bool, passes: int | None = None) -> Iterator[bool]:
    """The passes of a loop, so many if that is known, `partial` where there are more than are read. Gives whether it is
    the outermost such."""
    outermost = partial and not m.partial
    long = passes is None or passes >= SEVERAL
    m.partial += partial
    m.long += long
    if outermost:
        m.awaited, m.turn = False, 0
    try:
        yield outermost
    finally:
        m.partial -= partial
        m.long -= long


@contextmanager
def ripe(m: Machine) -> Iterator[None]:
    """Passes in which everything has grown. That the program ends in one ends the loop alone: what comes behind it has
    been come to before."""
    frame, before, m.ripe = m.frame, m.ripe, True
    m.loops += 1
    try:
        yield
    except Raised:
        m.frame = frame
    finally:
        m.ripe = before
        m.loops -= 1
