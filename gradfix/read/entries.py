"""The ways into a program: its main part, and functions that nothing reached."""

from __future__ import annotations

import ast
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.read import calls, objects, ops, tensors
from gradfix.read.expressions import settled
from gradfix.read.frames import Frame, Machine, Raised
from gradfix.read.iteration import Stopped, listed
from gradfix.read.outline import Wanted
from gradfix.read.project import Project, Unit, Unreadable, parsed
from gradfix.read.statements import block, later
from gradfix.read.trace import Exhausted
from gradfix.read.values import Bound, Class, Function, Generator, Instance, Tensor, Value
from gradfix.tape import End, Site, Tape

if TYPE_CHECKING:
    from gradfix.read import Budget

__all__ = ["Unreadable", "Walk", "backward_sites", "parsed", "walk"]

BACKWARDS = {"backward", "grad"}
NEAR = r"backward|grad\s*\("
CALLS = re.compile(r"(\w+)\s*\(")
CALLERS = 2  # levels of callers that are entered instead of a function itself

RECURSION = 12_000  # Python frames: a call of the program's takes some fifteen


@dataclass(frozen=True, slots=True)
class Walk:
    """One entry that was read to its end, or as far as it went."""

    entry: str
    tape: Tape
    likely: frozenset[int]
    reached: frozenset[Site]
    unknowns: tuple[tuple[str, int], ...]


@contextmanager
def deep() -> Iterator[None]:
    """Room for programs that call deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def walk(path: Path, unit: Unit, project: Project, wanted: Wanted, budget: Budget) -> Iterator[Walk]:
    """Every entry of `unit` that is wanted: its main part, then what that did not reach."""
    project.units[str(path)] = unit
    m = Machine(project, budget)
    if wanted.main != "far":
        m.limit = budget.entry
    unit.entered = True
    unit.names["__name__"] = "__main__"
    unit.names["__file__"] = unit.path
    frame = Frame(unit, "<module>", (), unit.names, None)
    yield _entered(m, "__main__", frame, lambda: block(m, _body(m, frame, wanted)))
    left = budget.entries
    for name, run in unreached(m, unit, wanted):
        left -= 1
        if left < 0 or m.steps >= budget.steps:
            return
        m.begin()
        frame = Frame(unit, "<module>", (), unit.names, None)
        yield _entered(m, name, frame, run)


def _body(m: Machine, frame: Frame, wanted: Wanted) -> list[ast.stmt]:
    """What to run of the file itself: all of it, or what its functions need."""
    if wanted.main:
        return frame.unit.tree.body
    return [s for s in later(m, frame) if not isinstance(s, ast.Expr | ast.For | ast.While)]


def _entered(m: Machine, name: str, frame: Frame, run: Callable[[], object]) -> Walk:
    how = _guarded(m, frame, run)
    events = m.trace.finished()
    last = max((e.time for e in events), default=0) + 1
    sources = {u.path: u.digest() for u in m.project.units.values() if u.entered}
    script = frame.unit.path
    return Walk(
        name,
        Tape((*events, End(last, (), how)), script, sources=sources),
        frozenset(m.trace.likely),
        frozenset(m.reached),
        tuple(m.asked.items()),
    )


def _guarded(m: Machine, frame: Frame, run: Callable[[], object]) -> str:
    with deep():
        try:
            with m.inside(frame):
                run()
        except Raised as raised:
            if raised.failure is not None:
                m.trace.events.append(raised.failure)
            return "failed"
        except (Exhausted, RecursionError):
            m.frames.clear()
            return "steps"
        except (Stopped, calls.Deep):
            return "finished"
    return "finished"


# ---- functions that nothing reached


def unreached(m: Machine, unit: Unit, wanted: Wanted) -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, what enters it) of the functions with a backward and of the forwards, callers first; what an entry
    before reached is left out."""
    found = list(_functions(unit.tree.body, ""))
    leading = _leading(unit, found)
    for path, node, owner in leading:
        if id(node) in m.entered:
            continue
        if owner is None:
            yield path, lambda name=node.name: _enter_function(m, _named(unit, name))  # type: ignore[misc]
        else:
            yield path, lambda name=node.name, cls=owner: _enter_method(m, _named(unit, cls), name)  # type: ignore[misc]
    for path, node, owner in found:
        if owner is None or owner in wanted.harmless or node.name != "forward" or id(node) in m.entered:
            continue
        yield path, lambda cls=owner: _enter_forward(m, _named(unit, cls))  # type: ignore[misc]


def _named(unit: Unit, name: str) -> Value:
    return settled(unit.names, name) if name in unit.names else None


Found = tuple[str, ast.FunctionDef, str | None]  # path, function, name of its class


def _functions(body: list[ast.stmt], owner: str) -> Iterator[Found]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield (f"{owner}.{node.name}" if owner else node.name, node, owner or None)
        elif isinstance(node, ast.ClassDef) and not owner:
            yield from _functions(node.body, node.name)
        elif isinstance(node, ast.If | ast.Try) and not owner:
            yield from _functions(node.body, "")


def _leading(unit: Unit, found: list[Found]) -> list[Found]:
    """Those that hold a backward, and those that call these, the outermost callers first."""
    near = unit.lines_with(NEAR)
    if not near:
        return []
    lines = unit.text.split("\n")
    calling = {id(node): _calls(lines, node) for _, node, _ in found if _spans(node, near)}
    level = {key: 0 for key, names in calling.items() if names & BACKWARDS}
    if not level:
        return []
    calling = {id(node): calling.get(id(node)) or _calls(lines, node) for _, node, _ in found}
    names = {node.name for _, node, _ in found if id(node) in level}
    for depth in range(1, CALLERS + 1):
        more = [node for _, node, _ in found if calling[id(node)] & names and node.name != "forward"]
        for node in more:
            if node.name not in calling[id(node)]:
                level[id(node)] = max(level.get(id(node), 0), depth)
        names = {node.name for node in more}
    chosen = [f for f in found if id(f[1]) in level]
    return sorted(chosen, key=lambda f: -level[id(f[1])])


def _calls(lines: list[str], node: ast.FunctionDef) -> set[str]:
    return set(CALLS.findall("\n".join(lines[node.lineno : node.end_lineno])))


def _spans(node: ast.AST, lines: Sequence[int]) -> bool:
    """Whether one of `lines` (in order) belongs to `node`."""
    at = bisect_left(lines, getattr(node, "lineno", 0))
    return at < len(lines) and lines[at] <= (getattr(node, "end_lineno", None) or 1 << 60)


def _enter_function(m: Machine, function: Value) -> None:
    if isinstance(function, Function):
        _finish(m, calls.call(m, function, _unknowns(m, function, 0), {}))


def _finish(m: Machine, value: Value) -> None:
    """A generator function does nothing until it is gone through."""
    if isinstance(value, Generator):
        for _ in listed(m, value, 3) or []:
            pass


def _unknowns(m: Machine, function: Function, given: int) -> list[Value]:
    """Values that are not known for the arguments without a default."""
    arguments = function.node.args
    count = len(arguments.posonlyargs) + len(arguments.args) - len(function.defaults) - given
    return [m.unknown("argument of " + function.qualname) for _ in range(max(count, 0))]


def _made(m: Machine, cls: Class) -> Value:
    """An object of `cls`, made with arguments that are not known."""
    known = next((v for v in cls.unit.names.values() if isinstance(v, Instance) and v.cls is cls), None)
    if known is not None:
        return known
    init = objects.lookup(cls, "__init__")
    arguments = _unknowns(m, init, 1) if isinstance(init, Function) else []
    return calls.call(m, cls, arguments, {})


def _enter_method(m: Machine, cls: Value, name: str) -> None:
    if not isinstance(cls, Class):
        return
    function = objects.lookup(cls, name)
    if not isinstance(function, Function) or objects.kind_of(cls) == "torch.autograd.Function":
        return
    receiver = cls if function.kind == "classmethod" else _made(m, cls)
    if function.kind == "staticmethod":
        _enter_function(m, function)
    elif isinstance(receiver, Instance | Class):
        bound = Bound(function, receiver)
        _finish(m, calls.call(m, bound, _unknowns(m, function, 1), {}))


def _enter_forward(m: Machine, cls: Value) -> None:
    """A module's forward by itself, and a backward from all that it returns."""
    if not isinstance(cls, Class) or not objects.kind_of(cls).startswith("torch.nn."):
        return
    forward, module = objects.lookup(cls, "forward"), _made(m, cls)
    if not isinstance(forward, Function) or not isinstance(module, Instance):
        return
    inputs = [tensors.fresh(m, None) for _ in _unknowns(m, forward, 1)]
    for each in inputs:
        each.requires = None
    result = calls.call(m, module, list(inputs), {})
    roots = [ops.edge(m, t) for t in _tensors(result, 3) if ops.requires(m, t)]
    if roots:
        m.frame.node = None
        m.trace.backward(roots, None, True, False, False)


def _tensors(value: Value, depth: int) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if depth and isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return [t for v in items for t in _tensors(v, depth - 1)]
    return []


def backward_sites(unit: Unit) -> frozenset[Site]:
    """The places at which the file calls a backward."""
    found = set()
    near = unit.lines_with("backward")

    def visit(body: list[ast.stmt], qualname: str, within: ast.AST | None = None) -> None:
        todo: list[ast.AST] = list(body)
        while todo:
            node = todo.pop()
            if isinstance(node, ast.stmt) and not _spans(node, near):
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
                if qualname != "<module>":
                    name = f"{qualname}{'.' if isinstance(within, ast.ClassDef) else '.<locals>.'}{name}"
                visit(node.body, name, node)
                continue
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "backward"
            ):
                found.add(unit.site(node, qualname))
            todo += ast.iter_child_nodes(node)

    visit(unit.tree.body, "<module>")
    return frozenset(found)
