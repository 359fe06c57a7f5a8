"""What is asked of a reading besides its tape: what kinds of values the names of certain lines have there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import field
from typing import TYPE_CHECKING

from gradfix.dataclass import dataclass
from gradfix.read.ops import INTEGERS
from gradfix.read.values import Class, Function, Instance, Number, Taken, Tensor, Value

if TYPE_CHECKING:
    from gradfix.read.frames import Machine

PLAIN: dict[type, str] = {tuple: "sequence", list: "sequence", dict: "dictionary", str: "text"}
LIBRARY = {"optim": "optimizer", "nn": "module"}
SHARED = "tensor that something else holds as well"
NOTHING = object()  # what a name has that is bound nowhere
MOST = 5_000  # values that are looked at for who holds a tensor
Kinds = dict[str, set[str]]
Place = tuple[str, int, int]  # of a statement: path, line and column


@dataclass(slots=True)
class Watch:
    """`lines` are those, by path, whose statements are watched. `kinds` are what the names that a statement reads had,
    in its order: ``tensor``, ``sequence``, ``number``, …; `dtypes` those of its tensors behind it, by path and name.
    `hooked` says whether something was hooked to a gradient, or makes it in a way of its own.

    What becomes of gradients is told `closely`: where a test is not known, it comes out the other way in every second
    pass of the loop around it, and clipping is a GradWrite (on no other tape: it is not the user's own code).
    """

    lines: Mapping[str, Set[int]] = field(default_factory=dict)
    closely: bool = False
    hooked: bool = False
    kinds: dict[Place, Kinds] = field(default_factory=dict)
    dtypes: dict[tuple[str, str], set[str]] = field(default_factory=dict)

    def run(
        self, m: Machine, run: Callable[[Machine, ast.stmt], str | None], statement: ast.stmt
    ) -> str | None:
        """What `run` makes of a statement, with a look at its names before and after."""
        path = m.frame.unit.path
        if self.lines.get(path, frozenset()).isdisjoint(spanned(statement)):
            return run(m, statement)
        names = {ast.unparse(name): name for name in _names(statement)}
        kinds = self.kinds.setdefault((path, statement.lineno, statement.col_offset), {})
        for said, name in names.items():
            if isinstance(name.ctx, ast.Load) or isinstance(statement, ast.AugAssign):
                kinds.setdefault(said, set()).add(_kind(_value(m, name)))
        written = _written(statement)
        value = _value(m, written) if written is not None else NOTHING
        if written is not None and isinstance(value, Tensor) and _shared(m, value):
            kinds.setdefault(ast.unparse(written), set()).add(SHARED)
        left = run(m, statement)
        for said, name in names.items():
            value = _value(m, name)
            if isinstance(value, Tensor):
                self.dtypes.setdefault((path, said), set()).add(value.dtype)
        return left


def spanned(statement: ast.stmt) -> range:
    """The lines of a statement; of a compound one, those of its head."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return range(statement.lineno, max(first.lineno, statement.lineno + 1))


def _names(statement: ast.stmt) -> Iterator[ast.Name | ast.Attribute]:
    """The names, and the attributes of names, that a statement evaluates itself."""
    parts = [n for n in ast.iter_child_nodes(statement) if not isinstance(n, ast.stmt | ast.excepthandler)]
    for part in parts:
        inner = [c.target for c in ast.walk(part) if isinstance(c, ast.comprehension)]
        own = {n.id for target in inner for n in ast.walk(target) if isinstance(n, ast.Name)}
        for node in ast.walk(part):
            base: ast.AST = node
            while isinstance(base, ast.Attribute):
                base = base.value
            if (
                isinstance(node, ast.Name | ast.Attribute)
                and isinstance(base, ast.Name)
                and base.id not in own
            ):
                yield node


def _value(m: Machine, node: ast.expr) -> Value:
    """What a name has now; nothing is run for it."""
    if isinstance(node, ast.Name):
        frame = m.frame
        while frame is not None:
            if node.id in frame.names:
                return frame.names[node.id]
            frame = frame.parent  # type: ignore[assignment]
        return m.frame.unit.names.get(node.id, NOTHING)
    owner = _value(m, node.value) if isinstance(node, ast.Attribute) else NOTHING
    return owner.attrs.get(node.attr, NOTHING) if isinstance(owner, Instance) else NOTHING  # type: ignore[attr-defined]


def _kind(value: Value) -> str:
    """A word for what `value` is; "" where that is not known, or tells nothing."""
    if isinstance(value, Tensor):
        return "" if value.guessed else "tensor of integers" if value.dtype in INTEGERS else "tensor"
    if isinstance(value, bool | int | float | Number | Taken):
        return "number"
    if isinstance(value, Instance):
        library = value.kind.rpartition(".")[0]
        return next((said for part, said in LIBRARY.items() if f".{part}" in library), "")
    return "None" if value is None else next((w for kind, w in PLAIN.items() if isinstance(value, kind)), "")


def _written(statement: ast.stmt) -> ast.expr | None:
    """What a statement writes into in place: ``x += y``, ``x.mul_(y)``, ``x.data.mul_(y)``; its data is its own."""
    target: ast.expr | None = None
    if isinstance(statement, ast.AugAssign):
        target = statement.target
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr.endswith("_"):
            target = function.value
    while isinstance(target, ast.Subscript) or (isinstance(target, ast.Attribute) and target.attr == "data"):
        target = target.value
    return target if isinstance(target, ast.Name | ast.Attribute) else None


def _shared(m: Machine, tensor: Tensor) -> bool:
    """Whether the same tensor, or another of its memory, is held under more names than one, or may be."""
    if m.overheard:
        return True
    scopes = [f.names for f in m.frames] + [u.names for u in m.project.units.values() if u.entered]
    pending: list[Value] = list({id(scope): scope for scope in scopes}.values())
    seen, found, left = set[int](), 0, MOST
    while pending and left and found < 2:
        left -= 1
        each = pending.pop()
        if isinstance(each, Tensor):
            found += each.storage is tensor.storage
        elif id(each) not in seen:
            seen.add(id(each))
            pending += _parts(each)
    return found > 1 or bool(pending)  # what has not been looked at may hold it


def _parts(value: Value) -> list[Value]:
    if isinstance(value, Instance):
        return [*value.attrs.values(), value.extra.get("items")]
    if isinstance(value, Function):
        return [*value.attrs.values(), *value.defaults, *value.kw_defaults.values()]
    if isinstance(value, Class):
        return list(value.attrs.values())
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
