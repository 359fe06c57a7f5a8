"""Optimizers that are cleared again and again, and that no call in the text may step: the names that hold one are
compared with those that something is called ``step`` of. Where what such a name is bound to does not show, it may be
any optimizer; and what is in a list may be stepped by whatever the list is used for but to be filled and cleared."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from gradfix.read import names
from gradfix.read.frames import Machine
from gradfix.read.project import Unit
from gradfix.read.values import Instance, Later, Value
from gradfix.run.child.words import asked_otherwise
from gradfix.tape import Step

DEEPEST = 4
ITEM = "[]"
_HIDDEN = re.compile(
    r"\b(?:setattr|__dict__|eval|exec|methodcaller|attrgetter)\b|[\"']step[\"']|class\s+\w+\([^)]*Optim"
)
_ASKED = re.compile(r"\bgetattr\s*\((?!\s*[\w.]+\s*,\s*[\"'])")
_BASES = {
    "Module",
    "Function",
    "Dataset",
    "IterableDataset",
    "Sampler",
    "object",
    "ABC",
    "Enum",
    "NamedTuple",
}


def cleared(m: Machine, optimizer: Instance) -> None:
    """Its zero_grad() is called: who holds it is known now, where it stands in a loop that goes round often enough."""
    if m.long and "stepped" not in optimizer.extra:
        names.look(m)
        m.trace.optimizer_names[optimizer.extra["number"]] = names.owner(m, optimizer)
        held: set[str] = optimizer.extra.setdefault("held", set())
        if len(held) < DEEPEST:
            held.update(name for frame in m.frames for name in _holding(frame.names, optimizer, DEEPEST))


def _holding(scope: dict[str, Value], optimizer: Instance, depth: int) -> Iterator[str]:
    """The last names under which `scope` holds it; for an item, that of what it is in, with brackets."""
    for name, value in list(scope.items()):
        if value is optimizer:
            yield name
        elif isinstance(value, Instance) and depth:
            yield from _holding(value.attrs, optimizer, depth - 1)
        elif isinstance(value, dict | list | tuple) and depth and _within(value, optimizer, depth - 1):
            yield name + ITEM


def _within(
    value: dict[Value, Value] | list[Value] | tuple[Value, ...], optimizer: Instance, depth: int
) -> bool:
    """Whether it is an item, or one of an item."""
    items = list(value.values() if isinstance(value, dict) else value)
    inner = [v for v in items if isinstance(v, dict | list | tuple)] if depth else ()
    return any(v is optimizer for v in items) or any(_within(v, optimizer, depth - 1) for v in inner)


def numbers(m: Machine) -> tuple[int, ...]:
    """Of those that never step, if the whole program was seen; where none does, and nobody else has one of them."""
    found = [o for o in m.optimizers if "held" in o.extra and not o.extra.get("escaped")]
    stepped = {e.optimizer for e in m.trace.events if isinstance(e, Step)}
    found = [o for o in found if o.extra["number"] not in stepped]
    alone = bool(stepped) or not any(o.extra.get("escaped") for o in m.optimizers)
    if not found or not alone or m.escaped:
        return ()
    units = list(m.project.units.values())
    if any(isinstance(v, Later) and v.statement is None for u in units for v in u.names.values()):
        return ()
    if not stepped and asked_otherwise(unit.text for unit in units):
        return ()  # times, memory or gradients may be all that is asked for
    texts = [_Text(unit) for unit in units]
    known = _BASES.union(*(text.classes for text in texts))
    if any(text.hidden or not text.bases <= known for text in texts):
        return ()
    return tuple(o.extra["number"] for o in found if not _may_step(o.extra["held"], texts))


def mentions(unit: Unit) -> tuple[str, ...]:
    """The lines that may speak of a step, whether anything comes to them or not."""
    lines = unit.text.split("\n")
    return tuple(lines[n - 1].strip() for n in unit.lines_with(r"\bstep\b"))


class _Text:
    """A file: what is asked for its ``step``, or given to one; what every name and attribute is bound to."""

    def __init__(self, unit: Unit) -> None:
        self.tree = unit.tree
        self.hidden = bool(_HIDDEN.search(unit.text) or _ASKED.search(unit.text))
        self.stepped: list[ast.expr] = []
        self.bound: dict[str, list[ast.AST | None]] = {}
        self.classes, self.bases = (
            set[str](),
            set[str](),
        )  # what a library's class does, the text doesn't show
        alone = {id(n.value) for n in ast.walk(unit.tree) if isinstance(n, ast.Expr)}  # without parentheses
        for node in ast.walk(unit.tree) if not self.hidden else ():
            if id(node) in alone:
                pass
            elif isinstance(node, ast.Attribute) and node.attr == "step" and isinstance(node.ctx, ast.Load):
                self.stepped.append(node.value)
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "step"
            ):
                named = [k.value for k in node.keywords]
                self.stepped += [a for a in (*node.args, *named) if isinstance(a, ast.Name | ast.Attribute)]
            elif isinstance(node, ast.ClassDef):
                self.classes.add(node.name)
                self.bases.update(_last(base) for base in node.bases)
            self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for one, value in _pairs(target, node.value):
                    self._add([one], value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._add([node.target], node.value)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            self._add([node.target], None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._add([node.optional_vars], None)
        elif isinstance(node, ast.arg):
            self.bound.setdefault(node.arg, []).append(None)
        elif isinstance(node, ast.alias):
            self.bound.setdefault((node.asname or node.name).partition(".")[0], []).append(None)

    def _add(self, targets: Iterable[ast.AST], value: ast.AST | None) -> None:
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name | ast.Attribute) and not isinstance(each.ctx, ast.Load):
                    self.bound.setdefault(_last(each), []).append(value)


def _pairs(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """What an assignment binds to what; ``a, b = x, y`` is two."""
    if not isinstance(target, ast.Tuple | ast.List):
        yield target, value
    elif isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, None


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _may_step(held: set[str], texts: list[_Text]) -> bool:
    lists = {name.removesuffix(ITEM) for name in held if name.endswith(ITEM)}
    if lists and not all(_only_filled(text.tree, lists) for text in texts):
        return True
    return any(_may_be(node, held, texts) for text in texts for node in text.stepped)


def _may_be(node: ast.expr, held: set[str], texts: list[_Text]) -> bool:
    """Whether an expression may be what `held` name: it is not where every object under its own name is made there."""
    name = _last(node)
    if name == "self":
        return False
    bound = [value for text in texts for value in text.bound.get(name, ())]
    return not name or name in held or not bound or not all(map(_makes, bound))


def _only_filled(tree: ast.AST, lists: set[str]) -> bool:
    """Whether what has one of these names is made, added to, and gone through to clear each item, and nothing else."""
    meant: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("append", "extend"):
                meant.add(id(node.func.value))
        elif (
            isinstance(node, ast.For) and isinstance(node.target, ast.Name) and _clears(node.target.id, node)
        ):
            meant.add(id(node.iter))
    reads = (n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.Attribute) and _last(n) in lists)
    return all(id(n) in meant for n in reads if isinstance(n.ctx, ast.Load))


def _clears(name: str, loop: ast.For) -> bool:
    """Whether the loop does nothing with its variable but call its zero_grad()."""
    inside = list(ast.walk(loop))
    calls = [n.func for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    clearing = {id(f.value) for f in calls if f.attr == "zero_grad"}
    reads = (n for n in inside if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load))
    return all(id(n) in clearing for n in reads)


def _makes(value: ast.AST | None) -> bool:
    """Whether an object is made by a class."""
    return isinstance(value, ast.Call) and _last(value.func)[:1].isupper()
