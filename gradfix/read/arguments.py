"""What a module's forward is given where nobody calls it: tensors, as far as its text says nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from gradfix.read import calls, ops
from gradfix.read.frames import Machine
from gradfix.read.values import GUESSED, Function, Truth, Value
from gradfix.read.variants import Variant

REAL = {"Tensor", "FloatTensor", "DoubleTensor", "HalfTensor", "Variable", "Parameter"}
WHOLE = {"LongTensor": "int64", "IntTensor": "int32", "ByteTensor": "uint8", "BoolTensor": "bool"}
MANY = {
    "list", "tuple", "dict", "set", "List", "Tuple", "Dict", "Set", "Sequence", "Iterable", "Mapping", "Collection",
    "Callable", "Iterator", "Type", "type", "Literal", "OrderedDict",
}  # fmt: skip
JOINING = ("cat", "concat", "stack")
_LOOKED = re.compile(r"\bif\b[^\n]*?\bself\.(\w+)")
# what is called so hardly ever requires grad
DATA = re.compile(
    r"mask|ind(?:ex|ices)|(?:^|_)(?:ids?|idx|gt|y|t)$|label|target|len(?:gth)?s?$|size|shape|pos|step|time"
)


def of_forward(m: Machine, forward: Function) -> list[Value]:
    """A value for every argument without a default."""
    arguments = forward.node.args
    named = [*arguments.posonlyargs, *arguments.args][1:]
    flowing = m.variant is not None and m.variant.kind == "activations"
    defaults = [...] * (len(named) - len(forward.defaults)) + list(forward.defaults)[
        -len(named) or len(named) :
    ]
    lists = _lists(forward.node) if named else frozenset()
    given: list[Value] = []
    for argument, default in zip(named, defaults, strict=True):
        if default is not ... and not (flowing and default is None and _dtype(argument.annotation)):
            break  # and all that follow have one
        if argument.annotation is None and argument.arg in lists:
            given.append(m.unknown("argument " + argument.arg))
        else:
            given.append(_given(m, argument, flowing))
    if arguments.vararg is not None and not named:
        given.append(calls.REST)
    return given


def _lists(forward: ast.AST) -> frozenset[str]:
    """The names that are joined before anything is bound to them: torch.cat and torch.stack take no tensor."""
    joined: dict[str, int] = {}
    bound: dict[str, int] = {}
    for node in ast.walk(forward):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound[node.id] = min(node.lineno, bound.get(node.id, node.lineno))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in JOINING
        ):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Name):
                    joined.setdefault(argument.id, node.lineno)
    return frozenset(name for name, line in joined.items() if line <= bound.get(name, line))


def _given(m: Machine, argument: ast.arg, flowing: bool) -> Value:
    dtype = _dtype(argument.annotation) if argument.annotation is not None else "float32"
    if not dtype:
        return m.unknown("argument " + argument.arg)
    known: Truth = None if dtype not in ops.INTEGERS else False
    made = ops.new(m, None, dtype, known)
    if argument.annotation is None:
        made.origin = GUESSED
    if flowing and dtype not in ops.INTEGERS and not DATA.search(argument.arg):
        made.requires, made.node = True, m.trace.node("AliasBackward0", "aten.alias", [])
    return made


def _dtype(annotation: ast.expr | None) -> str:
    """The dtype of a tensor that `annotation` speaks of; "" where it speaks of something else."""
    match annotation:
        case ast.Name(name) | ast.Attribute(attr=name):
            return "float32" if name in REAL else WHOLE.get(name, "")
        case ast.BinOp(left, ast.BitOr(), right):
            return _dtype(left) or _dtype(right)
        case ast.Constant(str(text)):
            try:
                return _dtype(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError):
                return ""
        case ast.Subscript(ast.Name(name) | ast.Attribute(attr=name), index) if name not in MANY:
            several = index.elts if isinstance(index, ast.Tuple) else [index]
            if name in ("Union", "Optional", "Annotated"):
                return next(filter(None, map(_dtype, several)), "")
            return _dtype(several[0]) or _dtype(annotation.value)  # Float[Tensor, "batch width"]
    return ""


# ---- otherwise


def otherwise(init: Value, forward: Function) -> Iterator[Variant]:
    """The readings beside the first: with what flows through a network, with each switch of the constructor that is
    looked at, and with a dropout where there is none unless somebody asks for it."""
    yield Variant("activations")
    if not isinstance(init, Function):
        return
    a = init.node.args
    last = [*a.posonlyargs, *a.args][-len(init.defaults) :] if init.defaults else []
    defaults = dict(zip((x.arg for x in last), init.defaults, strict=True)) | init.kw_defaults
    for name, default in defaults.items():
        if "drop" in name and not isinstance(default, bool) and default in (0, 0.0):
            yield Variant("switch", name, 0.5)
    switches = {name: default for name, default in defaults.items() if isinstance(default, bool)}
    looked = _looked(forward.unit.text) if switches else ()
    for name, default in switches.items():
        if name in looked:
            yield Variant("switch", name, not default)


@lru_cache(maxsize=8)
def _looked(text: str) -> frozenset[str]:
    """The attributes of self that a test of the file looks at; asked for each of its networks."""
    return frozenset(_LOOKED.findall(text))
