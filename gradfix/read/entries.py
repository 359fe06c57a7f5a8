"""The ways into a program: its main part, and functions that nothing reached."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.read import calls, objects, tensors
from gradfix.read.frames import Frame, Machine, Raised
from gradfix.read.iteration import Stopped
from gradfix.read.project import Project, Unit, Unreadable, parsed
from gradfix.read.statements import block
from gradfix.read.trace import Exhausted
from gradfix.read.values import Bound, Class, Function, Instance, Lib, Tensor, Unknown, Value
from gradfix.tape import End, Site, Tape

if TYPE_CHECKING:
    from gradfix.read import Budget

__all__ = ["Tensor", "Unreadable", "Walk", "parsed", "walk"]

RECURSION = 12_000  # Python frames: a call of the program's takes some fifteen


class Walk:
    """One entry that was read to its end, or as far as it went."""

    def __init__(self, entry: str, m: Machine, how: str) -> None:
        self.entry, self.m, self.how = entry, m, how

    def tape(self, script: str) -> Tape:
        events = self.m.trace.finished()
        last = max((e.time for e in events), default=0) + 1
        sources = {u.path: u.digest() for u in self.m.project.units.values() if u.entered}
        return Tape((*events, End(last, (), self.how)), script, sources=sources)


@contextmanager
def deep() -> Iterator[None]:
    """Room for programs that call deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def walk(path: Path, unit: Unit, root: Path | None, budget: Budget) -> Iterator[Walk]:
    """Every entry of `unit`."""
    project = Project(root or path.parent, path.parent)
    project.units[str(path)] = unit
    m = Machine(project, budget)
    how = _main(m, unit)
    yield Walk("__main__", m, how)


def _main(m: Machine, unit: Unit) -> str:
    unit.entered = True
    unit.names["__name__"] = "__main__"
    unit.names["__file__"] = unit.path
    frame = Frame(unit, "<module>", (), unit.names, None)
    return _guarded(m, frame, lambda: block(m, unit.tree.body))


def _guarded(m: Machine, frame: Frame, run: object) -> str:
    with deep():
        try:
            with m.inside(frame):
                run()  # type: ignore[operator]
        except Raised as raised:
            if raised.failure is not None:
                m.trace.add(raised.failure)
            return "failed"
        except (Exhausted, RecursionError):
            return "steps"
        except (Stopped, calls.Deep):
            return "finished"
    return "finished"


def backward_sites(unit: Unit) -> frozenset[Site]:
    """The places at which the file calls a backward."""
    found = set()
    for node in ast.walk(unit.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "backward"
        ):
            found.add(unit.site(node, ""))
    return frozenset(found)


_ = (Bound, Class, Function, Instance, Lib, Unknown, Value, objects, tensors)
