"""The program's own modules: whose bodies run when somebody asks for a name, and in what order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from gradfix.read import calls, objects
from gradfix.read.expressions import settled
from gradfix.read.frames import Machine, Raised
from gradfix.read.libraries import EXIT
from gradfix.read.trace import Exhausted
from gradfix.read.values import Later, ModuleValue, Value

_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BINDS = (*_DEFINES, ast.Assign, ast.AnnAssign)
SHARE = 3  # of an entry's budget, for one statement of a module
_QUIET = (*_BINDS, ast.Import, ast.ImportFrom, ast.If, ast.Try, ast.Pass)


_KNOWN = {
    "torch", "functools", "dataclass", "dataclasses", "contextlib", "contextmanager", "typing", "abc", "overload",
    "wraps", "lru_cache", "cache", "total_ordering", "final", "runtime_checkable",
}  # fmt: skip


def module(m: Machine, name: str, importer: objects.Unit, level: int) -> Value:
    """``import name``."""
    unit = m.project.find(name, importer, level)
    return ModuleValue(load(m, unit)) if unit is not None else m.unknown("import " + name)


def member(m: Machine, module: str, name: str, importer: objects.Unit, level: int) -> Value:
    """``from module import name``: something of the module's, or a module below it."""
    unit = m.project.find(module, importer, level)
    asked = unit.path if unit is not None else "", name
    if unit is not None and asked not in m.importing and name in load(m, unit).names:
        m.importing.add(asked)  # a package that imports one of its modules by its own name is asked once
        try:
            return settled(unit.names, name)
        finally:
            m.importing.discard(asked)
    inner = m.project.find(f"{module}.{name}" if module else name, importer, level)
    if inner is not None:
        return ModuleValue(load(m, inner))
    return m.unknown(f"import {module}.{name}")


def load(m: Machine, unit: objects.Unit) -> objects.Unit:
    """Run a module's body, once."""
    from gradfix.read.statements import block

    if unit.entered:
        return unit
    unit.entered = True
    unit.names["__name__"] = unit.name
    frame = calls.Frame(unit, "<module>", m.frame.stack() if m.frame else (), unit.names, None)
    grad, m.grad = m.grad, True
    try:
        with _bounded(m), m.inside(frame):
            block(m, unit.tree.body if _acts(unit) else later(m, frame, _DEFINES))
    except calls.Deep:
        pass
    finally:
        m.grad = grad
    return unit


@contextmanager
def _bounded(m: Machine, asked: bool = False) -> Iterator[None]:
    """What a module does when it is loaded (it parses its settings, say) must leave enough for the way that asks for
    it: past a share of what there is, the rest of that is not known. Nor is it where that raises, and nobody takes it:
    the program was loaded. Not so in the file that was `asked` for."""
    limit, guarded = m.limit, m.guards > 0
    if not asked:
        m.limit = min(limit, m.steps + m.budget.entry // SHARE)
    try:
        yield
    except Exhausted:
        if m.steps <= m.limit or m.limit == limit:
            raise
    except Raised as raised:
        if asked or guarded or raised.failure is not None or raised.value is EXIT:
            raise
    finally:
        m.limit = limit


def _acts(unit: objects.Unit) -> bool:
    """Whether a module does more than define, so that the order in which it does so counts."""
    for statement in unit.tree.body:
        if not isinstance(statement, _QUIET):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                return True
        elif isinstance(statement, _DEFINES) and any(registers(d) for d in statement.decorator_list):
            return True
    return False


def registers(decorator: ast.expr) -> bool:
    """Whether a decorator may keep what it is given: those of libraries that are known do not."""
    while isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute):
        while isinstance(decorator, ast.Attribute):
            decorator = decorator.value
        return not (isinstance(decorator, ast.Name) and decorator.id in _KNOWN)
    return not (isinstance(decorator, ast.Name) and decorator.id in _KNOWN)


def later(m: Machine, frame: calls.Frame, kinds: tuple[type[ast.stmt], ...] = _BINDS) -> list[ast.stmt]:
    """What has to be run of a module's body now: statements of `kinds` wait until somebody asks for what they bind."""
    unit = frame.unit
    found = [bound(statement) for statement in unit.tree.body]
    counts: dict[str, int] = {}
    for name in (name for several in found for name in several):
        counts[name] = counts.get(name, 0) + 1
    now = []
    for statement, names_ in zip(unit.tree.body, found, strict=True):
        if not isinstance(statement, kinds) or not names_ or any(counts[name] > 1 for name in names_):
            now.append(statement)
            continue
        for name in names_:
            unit.names[name] = _waiting(m, frame, statement, name)
    return now


def bound(statement: ast.stmt) -> list[str]:
    """The names that a definition or an assignment binds, where it binds names and no more."""
    if isinstance(statement, _DEFINES):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        named = [t.id for t in statement.targets if isinstance(t, ast.Name)]
        return named if len(named) == len(statement.targets) else []
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return [statement.target.id] if statement.value is not None else []
    return []


def _waiting(m: Machine, frame: calls.Frame, statement: ast.stmt, name: str) -> Later:
    from gradfix.read.statements import block

    names = frame.names

    def find() -> Value:
        if getattr(names.get(name), "statement", None) is not statement:
            return settled(names, name) if name in names else m.unknown("name " + name)
        del names[name]
        before = m.grad, m.inference, m.autocast, m.doubts, m.loops
        m.grad, m.inference, m.autocast, m.doubts, m.loops = True, False, False, 0, 0
        try:
            with _bounded(m, frame.unit.name == "__main__"), m.inside(frame):
                block(m, [statement])
        except calls.Deep:
            pass
        finally:
            m.grad, m.inference, m.autocast, m.doubts, m.loops = before
        return names[name] if name in names else m.unknown("name " + name)

    return Later(find, statement)
