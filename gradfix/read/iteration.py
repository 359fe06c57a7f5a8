"""Going through an iterable: short ones wholly, others two or three times."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gradfix.read import calls, growing, indexing, loading, objects, ops, steady
from gradfix.read.frames import Machine, Raised
from gradfix.read.values import Generator, Instance, Lazy, Tensor, Unknown, Value

SHORT = 12  # items of a container that are all gone through
DEEP = 12  # calls inside one another within which they are
PATIENT = 24  # passes of a loop in which no two backwards have come about yet
WIDE = 1_000  # items that are all gone through where each is for itself
DRAWN = 256  # items that a batch is made of, one by one
LONG = 10_000  # items that are ever listed
REMAINDERS = (2520, 840, 120, 60, 12, 6)  # multiples of the numbers that programs take remainders of

One = Callable[[Value], bool]  # what is done with an item; True stops


class Stopped(Exception):
    """The loop around a generator was left."""


def most(m: Machine, node: ast.AST, length: int | None) -> int:
    """How many passes of a loop are made: all of a short one; more than usual where tests hang on
    the pass."""
    passes = m.budget.passes
    if length is not None and length <= SHORT and len(m.frames) <= DEEP:
        return length
    if length is not None and length <= passes + 2:
        return length
    if _counts(m, node):
        passes = 6
    return passes if length is None else min(length, passes)


def _apart(m: Machine, source: Value, node: ast.AST) -> bool:
    """Whether what is done with an item rests on nothing that was done with the one before it, as far as names tell:
    so it is with all modules of a network, or all parameters."""
    if isinstance(source, range | str | bytes | Tensor) or not isinstance(node, ast.For):
        return False
    key = (id(node), "apart")
    found = m.called.get(key)
    if found is None:
        found = m.called[key] = _fresh(node.body)
    return bool(found)


def _fresh(body: Sequence[ast.stmt]) -> bool:
    """Whether every name that `body` binds is bound in it before it is used."""
    asked: set[str] = set()
    bound: set[str] = set()
    for statement in body:
        used = [x for x in ast.walk(statement) if isinstance(x, ast.Name)]
        stored = {x.id for x in used if isinstance(x.ctx, ast.Store)}
        asked |= {x.id for x in used if isinstance(x.ctx, ast.Load)} - bound
        if not isinstance(statement, ast.Assign) and not stored <= bound:
            return False  # in one case, or made of what it was
        bound |= stored
    return not asked & bound


def _counts(m: Machine, node: ast.AST) -> bool:
    """Whether a test in the body takes a remainder: ``if step % 4 == 0``."""
    found = m.called.get(id(node))
    if found is None:
        found = m.called[id(node)] = any(
            isinstance(x, ast.If) and any(isinstance(y, ast.Mod) for y in ast.walk(x.test))
            for x in ast.walk(node)
        )
    return bool(found)


def each(m: Machine, source: Value, one: One, node: ast.AST) -> bool:
    """Do `one` for the items of `source`, as many as are gone through; whether it came to the end."""
    if isinstance(source, Generator):
        return _generated(m, source, one, node)
    length = _length(source)
    usual = most(m, node, length)
    # a model of layers that are listed
    building = any(frame.qualname.endswith("__init__") for frame in reversed(m.frames))
    patient = (
        length is not None
        and length > usual
        and (m.loops == 0 or (m.loops == 1 and _counts(m, node)))  # (windows of a sequence, within epochs)
        and (building or "backward" in m.frame.unit.text)
    )
    whole = length is not None and usual < length <= WIDE and _apart(m, source, node)
    count = (4 * SHORT if building else PATIENT) if patient else usual
    if length is None:
        usual = count = m.budget.passes
    turns = length is None and m.loops <= 1 and _counts(m, node) and "backward" in m.frame.unit.text
    items = listed(m, source, WIDE if whole else PATIENT if turns else count)
    partial = items is None or length is None or len(items) < length
    with growing.around(m, partial, length) as outermost:
        spent = m.steps
        if items is None:
            some = [m.unknown(_origin(source)) for _ in range(PATIENT if turns else count)]
            left = not _first(m, some, one, (), usual, count)
        else:
            late = _late(source, len(items)) if m.loops == 0 and _waits(m, node) else ()
            with _inside(m):
                left = not _first(m, items, one, late, usual, count, steady.variable(m, source, node))
        if left:
            return False
        if outermost and m.awaited and m.steps - spent < (m.limit - m.steps) // 2:
            with growing.ripe(m):
                return not any(map(one, _further(m, source, items)))
    return True


def _further(m: Machine, source: Value, items: list[Value] | None) -> list[Value]:
    """More of what `source` gives, behind `items`."""
    found = None if items is None else listed(m, source, len(items) + growing.PASSES)
    if not found:
        return [m.unknown(_origin(source)) for _ in range(growing.PASSES)]
    return found[-growing.PASSES :]


def _origin(source: Value) -> str:
    return source.origin if isinstance(source, Unknown) else "item"


@contextmanager
def _inside(m: Machine) -> Iterator[None]:
    m.loops += 1
    try:
        yield
    finally:
        m.loops -= 1


def _first(
    m: Machine, items: list[Value], one: One, late: Sequence[Value], usual: int, count: int, idle: str = ""
) -> bool:
    """The first passes, and `late` ones; whether it came to the end of them. Where the variable is `idle`, the rest is
    left out behind a pass that has changed nothing."""
    before, state = m.backwards, None
    for i, item in enumerate(items):
        if i >= max(usual, 2 * m.turn) and m.backwards - before >= 2:
            break  # what waits for a certain pass has come about
        if i >= count and m.late > (m.limit - m.steps) // 4:
            break
        spent = m.steps
        if one(item):
            return False
        if i >= count:
            m.late += 1 + m.steps - spent
        if idle and steady.FIRST <= i + 1 <= min(steady.LAST, len(items) - 1):
            earlier, state = state, steady.state(m, idle)
            if state is not None and state == earlier:
                break
    m.doubts += 1
    try:
        return not any(map(one, late))
    finally:
        m.doubts -= 1


def _late(source: Value, done: int) -> Sequence[Value]:
    """Two passes near the end of a long range: those that a remainder of the pass takes for the next ones."""
    if not isinstance(source, range):
        return ()
    for step in REMAINDERS:
        if 10 * step < len(source) - done:  # near enough to its end
            at = done + step * ((len(source) - 2 - done) // step)
            return source[at : at + 2]
    return ()


def _waits(m: Machine, node: ast.AST) -> bool:
    """Whether a test in the body asks how far the loop has come: ``if step > 1000``."""
    key = -id(node)
    found = m.called.get(key)
    if found is None:
        target = getattr(node, "target", None)
        names = {x.id for x in ast.walk(target) if isinstance(x, ast.Name)} if target is not None else set()
        found = m.called[key] = bool(names) and any(
            isinstance(x, ast.Compare)
            and isinstance(x.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
            and not names.isdisjoint(y.id for y in ast.walk(x) if isinstance(y, ast.Name))
            for x in ast.walk(node)
        )
    return bool(found)


def _generated(m: Machine, source: Generator, one: One, node: ast.AST) -> bool:
    count = [0]

    def yielded(value: Value) -> None:
        count[0] += 1
        caller, within = m.frame, m.grad
        m.frame = outer
        if (
            source.function.wrappers
        ):  # @torch.no_grad() on a generator gives the grad mode back at every yield
            m.grad = grad
        try:
            stop = one(value)
        finally:
            m.frame = caller
            if source.function.wrappers:
                m.grad = within
        if stop or count[0] >= 4 * SHORT:
            raise Stopped

    outer, grad = m.frame, m.grad
    if source.done:
        return True
    source.done = True
    gathered = not isinstance(node, ast.For | ast.AsyncFor)  # by one of ours, which has what came before
    source.frame.yielding = yielded
    source.frame.prefix = outer.stack()
    source.frame.stacks.clear()
    m.gathering += gathered
    try:
        calls.run(m, source.function, source.frame)
    except Stopped:
        m.frame = outer
        return False
    finally:
        m.gathering -= gathered
    return True


def _length(source: Value) -> int | None:
    if isinstance(source, range):
        return max(0, -((source.start - source.stop) // source.step))  # len() refuses what is too long
    if isinstance(source, list | tuple | dict | set | frozenset | str | bytes):
        return len(source)
    if isinstance(source, Lazy):
        return source.length
    if isinstance(source, Tensor):
        return source.shape[0] if source.shape else None
    if isinstance(source, Instance) and isinstance(source.extra.get("items"), list | dict):
        return len(source.extra["items"])
    return None


def listed(m: Machine, source: Value, count: int = LONG) -> list[Value] | None:
    """The first `count` items of `source`, or None where they aren't known."""
    if isinstance(source, list | tuple | range | str | bytes):
        return list(source[:count])
    if isinstance(source, dict | set | frozenset):
        return list(source)[:count]
    if isinstance(source, Lazy):
        endless = source.length is None and count > PATIENT
        return source.items(m.budget.passes if endless else min(count, LONG))
    if isinstance(source, Tensor):
        return None if source.guessed else indexing.rows(m, source, count)
    if isinstance(source, Generator):
        found: list[Value] = []
        each_kept(m, source, found, count)
        return found
    if isinstance(source, Instance):
        if isinstance(items := source.extra.get("items"), list):
            return list(items[:count])
        if isinstance(items, dict):
            return list(items)[:count]
        if source.kind in loading.KINDS and source.cls is None:
            return loading.listed(m, source, count)
        return _protocol(m, source, count)
    return None


def lost(m: Machine, values: Iterable[Value], origin: str) -> Unknown:
    """A collection that isn't known, of `values` and others: who gets it, gets these (an optimizer, say)."""
    for value in values:
        for tensor in ops.tensors_of(value):
            tensor.storage.handed = True
    return m.unknown(origin)


def each_kept(m: Machine, source: Generator, found: list[Value], count: int) -> None:
    """Put what a generator yields into `found`, up to `count` values."""

    def one(value: Value) -> bool:
        found.append(value)
        return len(found) >= min(count, 4 * SHORT)

    _generated(m, source, one, ast.Pass())


def _protocol(m: Machine, source: Instance, count: int) -> list[Value] | None:
    """An object of the program's that can be gone through."""
    method = objects.method(m, source, "__iter__")
    if method is not None:
        made = calls.call(m, method, [], {})
        if made is not source:
            return listed(m, made, count)
        following = objects.method(m, source, "__next__")
        if following is None:
            return None
        found: list[Value] = []
        try:
            for _ in range(min(count, m.budget.passes)):
                found.append(calls.call(m, following, [], {}))
        except Raised:
            pass
        return found
    item = objects.method(m, source, "__getitem__")
    if item is None:
        return None
    length = objects.method(m, source, "__len__")
    size: Any = calls.call(m, length, [], {}) if length is not None else None
    size = size if isinstance(size, int) else m.budget.passes
    try:
        return [calls.call(m, item, [i], {}) for i in range(min(size, count, SHORT))]
    except Raised:
        return None
