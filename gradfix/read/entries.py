"""The ways into a program: its main part, and functions that nothing reached."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradfix.dataclass import dataclass
from gradfix.read import arguments, calls, lightning, objects, standing, unstepped
from gradfix.read.apart import Margin, calls_only
from gradfix.read.expressions import settled
from gradfix.read.frames import Frame, Machine, Raised
from gradfix.read.iteration import Stopped, listed
from gradfix.read.modules import later
from gradfix.read.outline import Wanted
from gradfix.read.project import Project, Unit, Unreadable, parsed
from gradfix.read.sites import spans
from gradfix.read.statements import block
from gradfix.read.trace import Exhausted
from gradfix.read.values import Bound, Class, Function, Generator, Instance, Tensor, Value
from gradfix.read.variants import MOST, Variant
from gradfix.tape import Cut, End, Site, Tape

if TYPE_CHECKING:
    from gradfix.read import Budget
    from gradfix.read.kept import Kept
    from gradfix.read.watched import Watch

__all__ = ["Unreadable", "Walk", "parsed", "walk"]

BACKWARDS = {"backward", "grad", lightning.BACKWARD}
NEAR = (r"backward", r"grad\s*\(")
CALLS = re.compile(r"\(\s*(\w+)")  # read backwards, where a parenthesis is what to look for
CALLERS = 2  # levels of callers that are entered instead of a function itself
Modes = tuple[bool, bool, bool]  # gradients on, inference, autocast
PLAIN: Modes = (True, False, False)
RECURSION = 12_000  # Python frames: a call of the program's takes some fifteen


@dataclass(frozen=True, slots=True)
class Walk:
    """One entry that was read to its end, or as far as it went. `entered` are functions of the file that ran, by the
    identity of their nodes; `said` is what was made of the tape, where that is kept in its place."""

    entry: str
    tape: Tape
    likely: frozenset[int]
    reached: frozenset[Site]
    unknowns: tuple[tuple[str, int], ...]
    how: str
    steps: int
    entered: frozenset[int]
    modes: Modes
    said: Any = None


@contextmanager
def deep() -> Iterator[None]:
    """Room for programs that call deeply."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def walk(
    path: Path, unit: Unit, project: Project, wanted: Wanted, budget: Budget, kept: Kept | None = None,
    watch: Watch | None = None,
) -> Iterator[Walk]:  # fmt: skip
    """Every entry of `unit` that is wanted: its main part, then what that did not reach."""
    with deep():
        margin = Margin(unit)
        ways = list(_ways(unit, wanted))
        apart = [margin.alone(way.root) for way in ways]
        if margin.calls and None in apart:
            margin.join()
            apart = [margin.alone(way.root) for way in ways]
    joined = [way for way, needed in zip(ways, apart, strict=True) if needed is None]
    separate = margin.calls
    program = _Program(path, unit, project, budget, frozenset(id(way.node) for way in ways), watch)
    keeper = _Keeper(unit, kept)

    stepping = unstepped.mentions(unit) if kept is not None else ()
    key = (wanted.main, tuple(way.key for way in joined), bool(separate), stepping)
    together = margin.together([way.root for way in joined]) if kept is not None else frozenset()
    main = None
    for each in keeper.of(key, together, lambda: program.main(wanted, joined, bool(separate))):
        main = main or each
        yield each
    for call in separate:
        if main is None or main.how != "finished":
            break
        run = partial(program.called, call, margin.needed(call), main.modes, wanted, keeper.steps)
        for each in keeper.of(("__main__", main.modes, stepping), margin.needed(call), run, call):
            main = each
            yield each
    left = budget.entries - len(joined)
    for way, needed in zip(ways, apart, strict=True):
        if needed is None or id(way.node) in keeper.entered:
            continue
        left -= 1
        if left < 0 or keeper.steps >= budget.steps:
            return
        yield from keeper.of(way.key, needed, partial(program.alone, way, needed))


@dataclass(slots=True)
class _Keeper:
    """What is read now, or was read before; how much that was."""

    unit: Unit
    kept: Kept | None
    steps: int = 0
    entered: set[int] = field(default_factory=set)

    def of(
        self, key: Hashable, needed: Set[int], run: Callable[[], Iterator[Walk]], *more: ast.stmt
    ) -> Iterator[Walk]:
        statements = [*(self.unit.tree.body[n] for n in sorted(needed)), *more]
        walks = run() if self.kept is None else self.kept.of(key, self.unit.path, statements, run)
        for walk in walks:
            self.steps += walk.steps
            self.entered.update(walk.entered)
            yield walk


@dataclass(frozen=True, slots=True)
class _Program:
    """One file as a program."""

    path: Path
    unit: Unit
    project: Project
    budget: Budget
    nodes: frozenset[int]  # of the functions that may be entered, by identity
    watch: Watch | None = None

    def main(self, wanted: Wanted, joined: list[_Way], rest: bool) -> Iterator[Walk]:
        """The main part, and `joined`, the ways that are connected with it; only the `rest` of it where its calls are
        ways of their own."""
        m, frame = self._machine(self.unit, self.project)
        if wanted.main != "far":
            m.limit = self.budget.entry
        yield self._walked(m, "__main__", frame, lambda: block(m, _body(m, frame, wanted, rest)), 0)
        if wanted.main == "far":
            yield from self._otherwise(m, lambda m, frame: _body(m, frame, wanted, rest))
        left = self.budget.entries
        for way in joined:
            if id(way.node) in m.entered:
                continue
            left -= 1
            if left < 0 or m.steps >= self.budget.steps:
                return
            yield from self._all(m, frame, way, self.unit)

    def called(
        self, call: ast.Expr, needed: frozenset[int], modes: Modes, wanted: Wanted, spent: int
    ) -> Iterator[Walk]:
        """A statement of the main part that is a way of its own."""
        unit, project = self.unit.again(), self.project.again()
        m, frame = self._machine(unit, project)
        m.grad, m.inference, m.autocast = modes
        m.limit = self.budget.steps - spent if wanted.main == "far" else self.budget.entry
        yield self._walked(m, "__main__", frame, lambda: block(m, [*_needed(m, frame, needed), call]), 0)
        if wanted.main == "far":
            yield from self._otherwise(m, lambda m, frame: [*_needed(m, frame, needed), call])
        project.release()

    def alone(self, way: _Way, needed: frozenset[int]) -> Iterator[Walk]:
        unit, project = self.unit.again(), self.project.again()
        m, frame = self._machine(unit, project)
        _guarded(m, frame, lambda: block(m, _needed(m, frame, needed)))
        yield from self._all(m, frame, way, unit)
        project.release()

    def _all(self, m: Machine, frame: Frame, way: _Way, unit: Unit) -> Iterator[Walk]:
        """The readings of a way: as it is, and otherwise."""
        variants: list[Variant | None] = [None]
        for variant in variants:
            m.begin(variant)
            before, entered = m.steps, set(m.entered)
            yield self._walked(m, way.name, frame, partial(way.run, m, unit), before)
            if m.outlived:
                m.entered = entered  # what else is outdated in a function shows when it is entered by itself
            if variant is None:
                variants += m.open.variants()

    def _otherwise(self, first: Machine, body: Callable[[Machine, Frame], list[ast.stmt]]) -> Iterator[Walk]:
        """The main part as it is where somebody asks for something else, if that may come to a backward that was not
        reached; and past what ends it only today."""
        if first.variant is not None:
            return
        spent = first.steps
        variants = list(first.open.variants() if _missed(first) else first.open.others)
        for variant in variants:
            unit, project = self.unit.again(), self.project.again()
            m, frame = self._machine(unit, project)
            m.variant = variant
            m.limit = self.budget.steps - spent
            yield self._walked(m, "__main__", frame, partial(_run, m, frame, body), 0)
            spent += m.steps
            variants += [v for v in m.open.variants() if v not in variants][: MOST - len(variants)]
            project.release()

    def _machine(self, unit: Unit, project: Project) -> tuple[Machine, Frame]:
        project.units[str(self.path)] = unit
        m = Machine(project, self.budget, self.watch)
        unit.entered = True
        unit.names["__name__"] = "__main__"
        unit.names["__file__"] = unit.path
        return m, Frame(unit, "<module>", (), unit.names, None)

    def _walked(self, m: Machine, name: str, frame: Frame, run: Callable[[], object], before: int) -> Walk:
        how = _guarded(m, frame, run)
        if self.watch is not None:
            self.watch.hooked |= m.hooked or m.customized
        events = m.trace.finished()
        last = max((e.time for e in events), default=0) + 1
        never = unstepped.numbers(m) if (name, how) == ("__main__", "finished") else ()
        units = [u for u in m.project.units.values() if u.entered]
        end = End(last, (), how, unstepped=never, phases=_phases(units, events))
        return Walk(
            name,
            Tape((*events, end), frame.unit.path, sources={u.path: u.digest() for u in units}),
            frozenset(m.trace.likely),
            frozenset(m.reached),
            tuple(m.asked.items()),
            how,
            m.steps - before,
            frozenset() if m.outlived else self.nodes & m.entered,
            (m.grad, m.inference, m.autocast),
        )


def _run(m: Machine, frame: Frame, body: Callable[[Machine, Frame], list[ast.stmt]]) -> None:
    block(m, body(m, frame))


def _missed(m: Machine) -> bool:
    """Whether a function of the program that holds a backward was not entered."""
    for unit in m.project.units.values():
        near = unit.lines_with(*NEAR) if unit.entered else []
        for _, node, _ in _functions(unit.tree.body, "") if near else ():
            if id(node) not in m.entered and spans(node, near):
                return True
    return False


def _body(m: Machine, frame: Frame, wanted: Wanted, rest: bool) -> list[ast.stmt]:
    """What to run of the file itself: all of it, or what its functions need."""
    body = frame.unit.tree.body
    if not wanted.main:
        body = [s for s in later(m, frame) if not isinstance(s, ast.Expr | ast.For | ast.While)]
    return [s for s in body if not (rest and calls_only(s))]


def _needed(m: Machine, frame: Frame, needed: frozenset[int]) -> list[ast.stmt]:
    """What has to run before a way that needs these statements: the others are there when somebody asks."""
    kinds = {id(frame.unit.tree.body[n]) for n in needed}
    return [s for s in later(m, frame) if id(s) in kinds]


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


@dataclass(frozen=True, slots=True)
class _Way:
    """A function that may be entered; `root` is what stands for it at the margin."""

    name: str
    root: str
    node: ast.FunctionDef
    run: Callable[[Machine, Unit], object]
    forward: bool = False  # by itself, with a backward of its own

    @property
    def key(self) -> Hashable:
        return self.name, self.forward


def _ways(unit: Unit, wanted: Wanted) -> Iterator[_Way]:
    """The functions with a backward, callers first, and the forwards."""
    found = list(_functions(unit.tree.body, ""))
    leading = _leading(unit, found)
    for path, node, owner in leading:
        if owner is None:
            yield _Way(path, node.name, node, partial(_function_of, node.name))
        else:
            yield _Way(path, owner, node, partial(_method_of, owner, node.name))
    for path, node, owner in found:
        if node.name == lightning.STEP and owner is not None and (path, node, owner) not in leading:
            yield _Way(path, owner, node, partial(_trained_of, owner))
    named = {path for path, _, _ in found}
    for path, node, owner in found:
        if owner is None or owner in wanted.harmless:
            continue
        if node.name == "forward" or (node.name == "__call__" and f"{owner}.forward" not in named):
            yield _Way(path, owner, node, partial(_forward_of, owner), True)


def _function_of(name: str, m: Machine, unit: Unit) -> None:
    _enter_function(m, _named(unit, name))


def _method_of(owner: str, name: str, m: Machine, unit: Unit) -> None:
    _enter_method(m, _named(unit, owner), name)


def _trained_of(owner: str, m: Machine, unit: Unit) -> None:
    cls = _named(unit, owner)
    if isinstance(cls, Class) and objects.kind_of(cls).startswith("torch.nn."):
        _enter_method(m, cls, lightning.STEP)


def _forward_of(owner: str, m: Machine, unit: Unit) -> None:
    _enter_forward(m, _named(unit, owner))


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
    near = unit.lines_with(*NEAR)
    if not near:
        return []
    lines = unit.text.split("\n")
    calling = {id(node): _calls(lines, node) for _, node, _ in found if spans(node, near)}
    level = {
        id(node): 0
        for _, node, _ in found
        if calling.get(id(node), set()) & BACKWARDS and not BACKWARDS.isdisjoint(_called(node))
    }
    if not level:
        return []
    calling = {id(node): calling.get(id(node)) or _calls(lines, node) for _, node, _ in found}
    names = {node.name for _, node, _ in found if id(node) in level}
    for depth in range(1, CALLERS + 1):
        more = [node for _, node, _ in found if calling[id(node)] & names and node.name != "forward"]
        for node in more:
            if node.name not in calling[id(node)] or not _recurs(lines, node):
                level[id(node)] = max(level.get(id(node), 0), depth)
        names = {node.name for node in more}
    chosen = [f for f in found if id(f[1]) in level]
    return sorted(chosen, key=lambda f: -level[id(f[1])])


def _calls(lines: list[str], node: ast.FunctionDef) -> set[str]:
    text = "\n".join(lines[node.lineno : node.end_lineno])
    return {name[::-1] for name in set(CALLS.findall(text[::-1]))}


def _called(node: ast.FunctionDef) -> Iterator[str]:
    """The names of what a function calls, without those that a comment or a string speaks of."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            yield each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")


def _recurs(lines: list[str], node: ast.FunctionDef) -> bool:
    """Whether a function calls itself, and not only what is called like it: ``self.model.train()`` in a train()."""
    own = re.compile(rf"(?:(?<![\w.])|(?<![\w.])self\.){re.escape(node.name)}\s*\(")
    return any(map(own.search, lines[node.lineno : node.end_lineno]))


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
    declared = function.node.args
    named = [a.arg for a in (*declared.posonlyargs, *declared.args)]
    # (a command's have them by name)
    count = next(
        (n for n, a in enumerate(named) if a in function.kw_defaults), len(named) - len(function.defaults)
    )
    count -= given
    return [m.unknown("argument of " + function.qualname) for _ in range(max(count, 0))]


def _made(m: Machine, cls: Class) -> Value:
    """An object of `cls`, made with arguments that are not known."""
    switched = {m.variant.name: m.variant.value} if m.variant and m.variant.kind == "switch" else {}
    known = next((v for v in cls.unit.names.values() if isinstance(v, Instance) and v.cls is cls), None)
    if known is not None and not switched:
        return known
    init = objects.lookup(cls, "__init__")
    given = _unknowns(m, init, 1) if isinstance(init, Function) else []
    return calls.call(m, cls, given, switched)


def _enter_method(m: Machine, cls: Value, name: str) -> None:
    if not isinstance(cls, Class):
        return
    function = objects.lookup(cls, name)
    if not isinstance(function, Function) or objects.kind_of(cls) == "torch.autograd.Function":
        return
    receiver = cls if function.kind == "classmethod" else _made(m, cls)
    if function.kind == "staticmethod":
        _enter_function(m, function)
    elif name == lightning.STEP and isinstance(receiver, Instance) and lightning.trained(receiver):
        lightning.fit(m, receiver)
    elif isinstance(receiver, Instance | Class):
        bound = Bound(function, receiver)
        if isinstance(receiver, Instance):
            m.initial = [v for v in receiver.attrs.values() if isinstance(v, Tensor)]
        _finish(m, calls.call(m, bound, _unknowns(m, function, 1), {}))


def _enter_forward(m: Machine, cls: Value) -> None:
    """A module's forward by itself, and a backward from all that it returns."""
    if not isinstance(cls, Class) or not objects.kind_of(cls).startswith("torch.nn."):
        return
    forward = objects.lookup(cls, "forward")
    if not isinstance(forward, Function):
        forward = objects.lookup(cls, "__call__")
    module = _made(m, cls)
    if not isinstance(forward, Function) or not isinstance(module, Instance):
        return
    standing.differentiated(m, module, arguments.of_forward(m, forward))
    if m.variant is None:
        for variant in arguments.otherwise(objects.lookup(cls, "__init__"), forward):
            m.open.add(variant)


def _phases(units: list[Unit], events: Iterable[object]) -> tuple[tuple[str, int, int, bool], ...]:
    """Where the program says when it leaves the graph, if it does."""
    if not any(isinstance(e, Cut) for e in events):
        return ()
    from gradfix.run.child.phases import phases

    return tuple(
        (file, first, last, said) for file, first, last, said in phases({u.path: u.tree for u in units})
    )
