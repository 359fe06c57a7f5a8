"""Whether a custom Function's backward is the derivative of its forward, and of which values: the text's answer.

A forward may overwrite what it has kept for its backward, and mean it; only the derivative tells. What is written in a
forward and a backward is mostly arithmetic that does the same to each element, so both are worked out for tensors of
one element, in Python's own numbers: finite differences of the forward, against what the backward makes of the values
as they were kept and as they are now (:mod:`gradfix.run.child.derivative` does the same with the tensors of a run).
What is not such arithmetic is not judged. Nothing of the program's is run: its statements are read.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import field
from itertools import combinations
from typing import Any

from gradfix.dataclass import dataclass

Slot = tuple[str, int]  # an attribute of ctx, or SAVED and the place in save_for_backward
SAVED = "save_for_backward"
ALONE = -1  # in place of a place: the attribute is the tensor
_POINTS, _FEWEST = 24, 4
_STEP, _RIGHT, _WRONG = 1e-5, 1e-4, 1e-3
_MOST = 3  # slots whose subsets are tried

_ALIASES = {
    "view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "expand_as", "t", "transpose", "permute",
    "contiguous", "detach", "requires_grad_", "to", "type_as", "float", "double",
}  # fmt: skip
_ONE: dict[str, Callable[[float], float]] = {  # functions of one number
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "sin": math.sin, "cos": math.cos, "tan": math.tan,
    "tanh": math.tanh, "abs": abs, "erf": math.erf, "expm1": math.expm1, "log1p": math.log1p, "atan": math.atan,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "relu": lambda x: max(x, 0.0), "neg": lambda x: -x,
    "sign": lambda x: float((x > 0) - (x < 0)), "square": lambda x: x * x, "reciprocal": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / math.sqrt(x), "logical_not": lambda x: float(not x), "round": lambda x: float(round(x)),
    "softplus": lambda x: math.log1p(math.exp(x)), "silu": lambda x: x / (1 + math.exp(-x)), "zero": lambda x: 0.0,
    "ones_like": lambda x: 1.0, "zeros_like": lambda x: 0.0, "floor": lambda x: float(math.floor(x)),
}  # fmt: skip
_SAME = {"clone", "sum", "mean", "bool", "sum_to_size"}  # of one element
_TWO: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "mm": lambda a, b: a * b, "matmul": lambda a, b: a * b, "bmm": lambda a, b: a * b, "pow": lambda a, b: a**b,
    "maximum": max, "minimum": min, "max": max, "min": min, "copy": lambda a, b: b, "fill": lambda a, b: b,
    "lt": lambda a, b: float(a < b), "le": lambda a, b: float(a <= b), "gt": lambda a, b: float(a > b),
    "ge": lambda a, b: float(a >= b), "eq": lambda a, b: float(a == b), "ne": lambda a, b: float(a != b),
    "logical_and": lambda a, b: float(bool(a and b)), "logical_or": lambda a, b: float(bool(a or b)),
}  # fmt: skip
_OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.MatMult: "mul", ast.Pow: "pow", ast.Lt: "lt",
    ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne", ast.BitAnd: "logical_and",
    ast.BitOr: "logical_or",
}  # fmt: skip


class NoIdea(Exception):
    """Something is written there that this does not work out."""


@dataclass(slots=True, eq=False)
class Element:
    """A tensor of one element."""

    value: float


@dataclass(slots=True, eq=False)
class _Context:
    needs: tuple[bool, ...]
    now: dict[Slot, Any] = field(default_factory=dict)  # what is on it
    kept: dict[Slot, float] = field(default_factory=dict)  # as it was put there
    plain: list[Element] = field(default_factory=list)
    written: dict[Slot, ast.stmt] = field(
        default_factory=dict
    )  # what first made something else of what was kept

    def look(self, statement: ast.stmt) -> None:
        """`statement` was run."""
        for slot, value in self.kept.items():
            if self.now[slot].value != value:
                self.written.setdefault(slot, statement)

    def keep(self, slot: Slot, value: Any) -> None:
        self.now[slot] = value
        if isinstance(value, Element):
            self.kept[slot] = value.value

    def handed(self, instead: dict[Slot, float]) -> _Context:
        """What a backward gets, with the values `instead` in their slots and all else as it is now."""
        made = _Context(self.needs)
        for slot, value in self.now.items():
            element = isinstance(value, Element)
            made.now[slot] = Element(instead.get(slot, value.value)) if element else value
        return made


@dataclass(frozen=True, slots=True)
class Code:
    """The functions of a custom Function: `setup` is its setup_context, where it has one."""

    forward: ast.FunctionDef
    backward: ast.FunctionDef
    setup: ast.FunctionDef | None = None


def needed(code: Code, args: Sequence[Any], needs: Sequence[bool]) -> tuple[dict[Slot, ast.stmt], bool]:
    """The slots that the forward overwrites after they were kept, and that the backward needs as they were kept, each
    with the statement that overwrites it; none where its gradient is right as it is, or nobody can tell. And whether
    that is so for most values. `args` are those of apply(), an Element where there is a tensor."""
    written: dict[Slot, ast.stmt] = {}
    try:
        found = list(filter(None, (_point(code, args, needs, seed, written) for seed in range(_POINTS))))
    except (NoIdea, RecursionError, LookupError, TypeError, AttributeError):
        return {}, False
    wrong = [offs for offs in found if offs[frozenset()] > _WRONG]
    if len(found) < _FEWEST or not wrong:
        return {}, False
    subsets = sorted({s for offs in found for s in offs}, key=lambda s: (len(s), sorted(s)))
    right = (s for s in subsets if s and all(_off(offs, s) <= _RIGHT for offs in found))
    return {slot: written[slot] for slot in sorted(next(right, ()))}, 2 * len(wrong) >= len(found)


def _off(offs: dict[frozenset[Slot], float], kept: frozenset[Slot]) -> float:
    """With the slots `kept`, of which some were not overwritten at that point."""
    return offs[max((s for s in offs if s <= kept), key=len)]


def instead(
    code: Code, args: Sequence[Any], needs: Sequence[bool], slots: Sequence[Slot]
) -> tuple[tuple[Slot, int] | None, bool]:
    """Which of `slots`, in which the forward keeps what it returns, the backward takes for which argument, by number;
    None where its gradient is right as it is, or nobody can tell. And whether that is so for most values."""
    ways = [(s, n) for s in slots for n, a in enumerate(args) if needs[n] and isinstance(a, Element)]
    found: list[tuple[float, list[float]]] = []
    try:
        for seed in range(_POINTS):
            point = _measured(code, args, needs, seed)
            try:
                if point is not None:
                    handed = [{s: point.values[n].value} for s, n in ways]
                    found.append((point.off(code, {}), [point.off(code, h) for h in handed]))
            except (ArithmeticError, ValueError):
                continue
    except (NoIdea, RecursionError, LookupError, TypeError, AttributeError):
        return None, False
    wrong = [as_it_is for as_it_is, _ in found if as_it_is > _WRONG]
    if len(found) < _FEWEST or not wrong:
        return None, False
    right = (way for k, way in enumerate(ways) if all(offs[k] <= _RIGHT for _, offs in found))
    return next(right, None), 2 * len(wrong) >= len(found)


@dataclass(frozen=True, slots=True)
class _Point:
    """A forward at one point, and the derivative there."""

    context: _Context
    values: list[Any]
    given: list[Element]
    leaning: list[int]
    true: list[float]

    def off(self, code: Code, handed: dict[Slot, float]) -> float:
        """How far off the gradient is where the backward gets the values `handed`."""
        gradients = _backward(code, self.context.handed(handed), self.given)
        along = [_number(gradients[n]) for n in self.leaning]
        return math.dist(along, self.true) / math.hypot(*self.true)


def _measured(code: Code, args: Sequence[Any], needs: Sequence[bool], seed: int) -> _Point | None:
    numbers = random.Random(seed)
    values = [Element(numbers.uniform(-2, 2)) if isinstance(a, Element) else a for a in args]
    weights = [numbers.uniform(0.5, 1.5) for _ in range(8)]
    leaning = [n for n, a in enumerate(values) if needs[n] and isinstance(a, Element)]
    try:
        context, outputs = _forward(code, values, needs)
        given = [
            Element(0.0 if any(o is p for p in context.plain) else w)
            for o, w in zip(outputs, weights, strict=False)
        ]
        true = [_slope(code, values, needs, n, given, _STEP) for n in leaning]
        other = [_slope(code, values, needs, n, given, _STEP / 4) for n in leaning]
    except (ArithmeticError, ValueError):
        return None  # no number there
    if not any(true) or math.dist(true, other) > _RIGHT * math.hypot(*true):
        return None  # at an edge
    return _Point(context, values, given, leaning, true)


def _point(
    code: Code, args: Sequence[Any], needs: Sequence[bool], seed: int, written: dict[Slot, ast.stmt]
) -> dict[frozenset[Slot], float] | None:
    """How far off the gradient is, at one point, for each set of slots that is handed out as it was kept."""
    point = _measured(code, args, needs, seed)
    if point is None:
        return None
    context = point.context
    changed = [s for s, v in context.now.items() if s in context.kept and v.value != context.kept[s]]
    if len(changed) > _MOST:
        raise NoIdea
    written.update(context.written)
    try:
        return {
            frozenset(kept): point.off(code, {slot: context.kept[slot] for slot in kept})
            for size in range(len(changed) + 1)
            for kept in combinations(changed, size)
        }
    except (ArithmeticError, ValueError):
        return None


def _slope(
    code: Code, values: Sequence[Any], needs: Sequence[bool], at: int, given: Sequence[Element], step: float
) -> float:
    ends = []
    for move in (step, -step):
        moved = [
            Element(v.value + move * (n == at)) if isinstance(v, Element) else v for n, v in enumerate(values)
        ]
        _, outputs = _forward(code, moved, needs)
        ends.append(sum(_number(o) * g.value for o, g in zip(outputs, given, strict=False)))
    return (ends[0] - ends[1]) / (2 * step)


def _forward(code: Code, args: Sequence[Any], needs: Sequence[bool]) -> tuple[_Context, tuple[Any, ...]]:
    context = _Context(tuple(needs))
    own = [Element(a.value) if isinstance(a, Element) else a for a in args]
    if code.setup is None:
        result = _run(code.forward, [context, *own])
    else:
        result = _run(code.forward, own)
        _run(code.setup, [context, tuple(own), result])
    return context, result if isinstance(result, tuple) else (result,)


def _backward(code: Code, context: _Context, given: Sequence[Element]) -> tuple[Any, ...]:
    result = _run(code.backward, [context, *(Element(g.value) for g in given)])
    return result if isinstance(result, tuple) else (result,)


# ---- statements


def _run(function: ast.FunctionDef, args: Sequence[Any]) -> Any:
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    if len(names) != len(args) or function.args.vararg or function.args.kwarg or function.args.kwonlyargs:
        raise NoIdea
    done = _block(function.body, dict(zip(names, args, strict=True)))
    return done[0] if done else None


def _block(body: Sequence[ast.stmt], names: dict[str, Any]) -> tuple[Any, ...]:
    """What is returned, in a tuple; an empty one where nothing is."""
    done: tuple[Any, ...] = ()
    for statement in body:
        if isinstance(statement, ast.Return):
            done = (_value(statement.value, names) if statement.value is not None else None,)
        elif isinstance(statement, ast.If):
            chosen = statement.body if _plain(_value(statement.test, names)) else statement.orelse
            done = _block(chosen, names)
        elif isinstance(statement, ast.Assign):
            value = _value(statement.value, names)
            for target in statement.targets:
                _set(target, value, names)
        elif isinstance(statement, ast.AugAssign):
            _change(statement, names)
        elif isinstance(statement, ast.Expr):
            if not isinstance(statement.value, ast.Constant):
                _value(statement.value, names)
        elif not isinstance(statement, ast.Pass):
            raise NoIdea
        for each in list(names.values()):
            if isinstance(each, _Context):
                each.look(statement)
        if done:
            break
    return done


def _set(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Tuple | ast.List):
        if not isinstance(value, tuple | list) or len(value) != len(target.elts):
            raise NoIdea
        for each, item in zip(target.elts, value, strict=True):
            _set(each, item, names)
    elif isinstance(target, ast.Attribute) and isinstance(owner := _value(target.value, names), _Context):
        owner.keep((target.attr, ALONE), value)
    elif isinstance(target, ast.Subscript):
        owner = _value(target.value, names)
        if not isinstance(owner, Element):
            raise NoIdea
        if _picked(target.slice, names):
            owner.value = _number(value)
    else:
        raise NoIdea


def _change(statement: ast.AugAssign, names: dict[str, Any]) -> None:
    target = statement.target
    owner = _value(target.value if isinstance(target, ast.Subscript) else target, names)
    value = _binary(statement.op, owner, _value(statement.value, names))
    if isinstance(owner, Element):
        if not isinstance(target, ast.Subscript) or _picked(target.slice, names):
            owner.value = _number(value)
    elif isinstance(target, ast.Name):
        names[target.id] = value
    else:
        raise NoIdea


def _picked(index: ast.expr, names: dict[str, Any]) -> bool:
    """Whether the one element is among those of the index."""
    if isinstance(index, ast.Slice) and index.lower is index.upper is index.step is None:
        return True
    value = _value(index, names) if not isinstance(index, ast.Slice) else None
    if value is Ellipsis:
        return True
    if isinstance(value, Element) and not isinstance(index, ast.Constant):
        return bool(value.value)
    raise NoIdea


# ---- expressions


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(e, names) for e in node.elts)
    if isinstance(node, ast.BinOp):
        return _binary(node.op, _value(node.left, names), _value(node.right, names))
    if isinstance(node, ast.UnaryOp):
        return _unary(node.op, _value(node.operand, names))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node, names)
    if isinstance(node, ast.IfExp):
        return _value(node.body if _plain(_value(node.test, names)) else node.orelse, names)
    if isinstance(node, ast.Attribute):
        return _attribute(_value(node.value, names), node.attr)
    if isinstance(node, ast.Subscript):
        owner, index = _value(node.value, names), node.slice
        if isinstance(owner, tuple) and isinstance(index, ast.Constant) and isinstance(index.value, int):
            return owner[index.value]
        if isinstance(owner, Element) and _value(index, names) in (None, Ellipsis):
            return owner
    if isinstance(node, ast.Call):
        return _called(node, names)
    raise NoIdea


def _attribute(owner: Any, name: str) -> Any:
    if isinstance(owner, Element) and name in ("T", "data", "mT"):
        return owner
    if isinstance(owner, _Context):
        if name == "needs_input_grad":
            return owner.needs
        if name == "saved_tensors":
            return tuple(v for (n, _), v in sorted(owner.now.items(), key=lambda i: i[0]) if n == SAVED)
        return owner.now[name, ALONE]
    raise NoIdea


def _compared(node: ast.Compare, names: dict[str, Any]) -> Any:
    left, right, how = _value(node.left, names), _value(node.comparators[0], names), node.ops[0]
    if isinstance(how, ast.Is | ast.IsNot):
        return (left is right) == isinstance(how, ast.Is)
    made = _applied(_OPERATORS.get(type(how), ""), [left, right])
    return made if isinstance(left, Element) or isinstance(right, Element) else bool(_number(made))


def _binary(how: ast.operator, left: Any, right: Any) -> Any:
    made = _applied(_OPERATORS.get(type(how), ""), [left, right])
    return made if isinstance(left, Element) or isinstance(right, Element) else made.value


def _unary(how: ast.unaryop, value: Any) -> Any:
    if isinstance(how, ast.Not):
        return not _plain(value)
    number = _number(value)
    made = (
        -number if isinstance(how, ast.USub) else float(not number) if isinstance(how, ast.Invert) else number
    )
    return Element(made) if isinstance(value, Element) else made


def _called(node: ast.Call, names: dict[str, Any]) -> Any:
    if not isinstance(node.func, ast.Attribute) or any(k.arg is None for k in node.keywords):
        raise NoIdea
    base, name = node.func.value, node.func.attr
    args = [_value(a, names) for a in node.args]
    options = {str(k.arg): _value(k.value, names) for k in node.keywords}
    owner = None if _is_library(base, names) else _value(base, names)
    if isinstance(owner, _Context):
        return _noted(owner, name, args)
    given = [owner, *args] if owner is not None else args
    if name.endswith("_") and not name.endswith("__") and name != "requires_grad_":
        if not given or not isinstance(given[0], Element):
            raise NoIdea
        given[0].value = _applied(name[:-1], given, options).value
        return given[0]
    if name in _ALIASES:
        return given[0]
    return _applied(name, given, options)


def _is_library(base: ast.expr, names: dict[str, Any]) -> bool:
    """``torch``, ``F``, ``torch.nn.functional``."""
    while isinstance(base, ast.Attribute):
        base = base.value
    return isinstance(base, ast.Name) and base.id not in names


def _noted(context: _Context, name: str, args: list[Any]) -> None:
    if name == SAVED:
        for number, value in enumerate(args):
            context.keep((SAVED, number), value)
    elif name == "mark_non_differentiable":
        context.plain += args
    elif name not in ("mark_dirty", "set_materialize_grads"):
        raise NoIdea


def _applied(name: str, given: list[Any], options: dict[str, Any] | None = None) -> Element:
    """An op that does the same to each element."""
    options = options or {}
    if name in _SAME and given:
        return Element(_number(given[0]))
    if name in ("clamp", "clip"):
        low, high = (given[n] if len(given) > n else options.get(k) for n, k in ((1, "min"), (2, "max")))
        value = _number(given[0])
        value = value if low is None else max(value, _number(low))
        return Element(value if high is None else min(value, _number(high)))
    if name == "where" and len(given) == 3:
        return Element(_number(given[1] if _number(given[0]) else given[2]))
    if name == "masked_fill" and len(given) == 3:
        return Element(_number(given[2] if _number(given[1]) else given[0]))
    if options.keys() - {"alpha"} or len(given) not in (1, 2):
        raise NoIdea
    if len(given) == 1 and name in _ONE:
        return Element(float(_ONE[name](_number(given[0]))))
    if len(given) == 2 and name in _TWO:
        result = _TWO[name](_number(given[0]), _number(given[1]) * _number(options.get("alpha", 1)))
        if isinstance(result, complex):
            raise ValueError("no number there")
        return Element(float(result))
    raise NoIdea


def _number(value: Any) -> float:
    if isinstance(value, Element):
        return value.value
    if isinstance(value, bool | int | float):
        return float(value)
    raise NoIdea


def _plain(value: Any) -> bool:
    """A condition that no tensor has a part in."""
    if value is None or isinstance(value, bool | int | float | str):
        return bool(value)
    raise NoIdea
