"""Lists emptied at the end of a round: those that hold what was made in some places of the program, and those beside
them that hold as many entries, which were stored along with it.

Standard library and torch only; see impose.py.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

STORED = "gradfix made to be stored"


def empty_lists() -> None:
    """Empty them."""
    held = [x for x in gc.get_objects() if type(x) in (list, deque) and any(map(_marked, _ends(x)))]
    for each in [*held, *(other for x in held for other in _beside(x))]:
        each.clear()


def _ends(held: Any) -> list[Any]:
    """The first and the last entry, and what these hold."""
    ends = [held[0], held[-1]] if held else []
    return [*ends, *(x for end in ends if isinstance(end, (tuple, list)) for x in end)]


def _marked(value: Any) -> bool:
    node: Any = value.grad_fn if isinstance(value, torch.Tensor) else None
    return node is not None and STORED in node.metadata


def _beside(held: Any) -> Iterator[Any]:
    """Lists of the same length among the attributes or variables where this one is found."""
    for names in _spaces(held):
        values = list(names.values())
        if any(x is held for x in values):
            yield from (
                x for x in values if type(x) in (list, deque) and x is not held and len(x) == len(held)
            )


def _spaces(held: Any) -> Iterator[dict[str, Any]]:
    for holder in gc.get_referrers(held):
        space = holder if type(holder) is dict else getattr(holder, "__dict__", None)
        if type(space) is dict:
            yield space
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield dict(frame.f_locals)
        frame = frame.f_back
