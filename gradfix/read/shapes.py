"""Sizes and types of results, where they follow from the arguments; None where they don't."""

from __future__ import annotations

import re
from typing import Any

from gradfix.read.effects import reshaping
from gradfix.read.values import Lib, Number, Shape, Tensor, Unknown, Value

REDUCTIONS = {
    "sum", "mean", "prod", "max", "min", "amax", "amin", "norm", "std", "var", "argmax", "argmin",
    "logsumexp", "median",
    "all", "any", "nansum", "nanmean", "linalg_vector_norm",
}  # fmt: skip
TO_SCALAR = {"dot", "trace", "dist", "vdot"}
_EACH = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "kl_div", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "poisson_nll_loss", "hinge_embedding_loss",
}  # fmt: skip
SAME = {
    "copy",
    "clone",
    "detach",
    "contiguous",
    "to",
    "batch_norm",
    "native_batch_norm",
    "instance_norm",
    "prelu",
    "put",
    "diagonal_scatter",
    "index_fill",
    "scatter",
    "index_copy",
    "index_add",
}
DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "long": "int64", "int": "int32",
    "short": "int16",
    "bool": "bool", "cfloat": "complex64", "char": "int8", "byte": "uint8", "uint8": "uint8",
}  # fmt: skip
_TYPED = re.compile(r"torch\.(?:cuda\.)?(Float|Double|Half|BFloat16|Long|Int|Short|Bool|Char|Byte)?Tensor")
_COMPARING = {
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "isnan",
    "isinf",
    "isfinite",
    "logical_and",
    "logical_or",
    "logical_not",
}
REAL = ("float", "bfloat", "complex")
WIDER = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip
_INDICES = {"argmax", "argmin", "argsort", "nonzero", "multinomial", "bincount", "searchsorted"}
_BY_NUMBER = {
    "add", "sub", "mul", "div", "pow", "clamp", "clamp_min", "clamp_max", "softmax", "log_softmax", "cumsum",
    "cumprod",
    "rsub", "remainder", "floor_divide", "leaky_relu", "elu", "dropout", "hardtanh", "celu", "flip",
    "maximum", "minimum",
    "nn.softmax", "eq", "ne", "lt", "le", "gt", "ge", "softplus", "rand_like", "masked_fill", "fill",
    "atan2", "lerp",
}  # fmt: skip
MOST_PIECES = 64


def dtype_name(value: Value) -> str:
    """``float32`` of ``torch.float``, ``torch.float32``, ``torch.FloatTensor`` or ``"torch.FloatTensor"``."""
    if isinstance(value, Lib):
        last = value.path.rpartition(".")[2]
        return typed(value.path) or DTYPES.get(last, last)
    return typed(value) if isinstance(value, str) else ""


def typed(path: str) -> str:
    """``int64`` of ``torch.cuda.LongTensor``; "" of what names no class of tensors."""
    found = _TYPED.fullmatch(path)
    if found is None:
        return ""
    kind = (found[1] or "float").lower()
    return DTYPES.get(kind, kind)


def asked(given: dict[str, Value], default: str) -> str:
    """The type that a call's arguments ask for, or the `default` where they ask for none. One that is not known may
    well have gradients."""
    dtype = given.get("dtype")
    return dtype_name(dtype) or ("float32" if isinstance(dtype, Unknown) else default)


def dtype_of(name: str, bound: dict[str, Value]) -> str:
    """The result's type; integers have no gradient."""
    given = asked(bound, "")
    if given:
        return given
    if name in _COMPARING:
        return "bool"
    if name in _INDICES:
        return "int64"
    tensors = _tensors(bound)
    # one without dimensions is taken for a number
    found = [v.dtype for v in tensors if v.shape != ()] or [v.dtype for v in tensors]
    if not found:
        return "float32"
    for some in (found, [v.dtype for v in tensors]):
        real = [d for d in some if d.startswith(REAL)]
        if real:
            return _promoted(real)
    if name in ("div", "true_divide", "exp", "log", "sqrt", "sigmoid", "tanh", "sin", "cos", "embedding"):
        return "float32"
    if any(isinstance(v, float | Unknown) for v in bound.values()):
        return (
            "float32"  # indices and targets are integers: what is not known beside them may have a gradient
        )
    return _promoted(found)


def _promoted(dtypes: list[str]) -> str:
    """The type of an op on tensors of these: https://pytorch.org/docs/stable/tensor_attributes.html"""
    if {"float16", "bfloat16"} <= {*dtypes}:
        dtypes = [*dtypes, "float32"]
    return max(dtypes, key=lambda d: WIDER.index(d) if d in WIDER else -1)


def _tensors(bound: dict[str, Value]) -> list[Tensor]:
    found = []
    for value in bound.values():
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [v for v in value if isinstance(v, Tensor)]
    return found


def sizes(values: Any) -> Shape:
    """A shape from what was given as sizes."""
    if isinstance(values, int):
        return (values,)
    if isinstance(values, list | tuple):
        if len(values) == 1 and isinstance(values[0], list | tuple):
            values = values[0]
        elif len(values) == 1 and isinstance(values[0], Unknown) and not isinstance(values[0], Number):
            return None  # it may be all of them
        return tuple(v if isinstance(v, int) else None for v in values)
    return None


def broadcast(shapes: list[Shape]) -> Shape:
    """The shape that these come to together; None where one isn't known."""
    if any(s is None for s in shapes) or not shapes:
        return None
    known = [s for s in shapes if s is not None]
    width = max(map(len, known))
    result: list[int | None] = []
    for i in range(width):
        dims = [s[i - width] for s in known if len(s) >= width - i]
        larger = [d for d in dims if d != 1]
        result.append(1 if not larger else larger[0])
    return tuple(result)


def result_of(name: str, bound: dict[str, Value]) -> Shape:
    """The shape of the first result."""
    tensors = _tensors(bound)
    first = tensors[0].shape if tensors else None
    name = name.rstrip("_")
    if name in TO_SCALAR:
        return ()
    if name.endswith("loss") or name in _EACH | {"cross_entropy"}:
        if bound.get("reduction", "mean") in ("mean", "sum", "batchmean", None, 1, 2):
            return ()
        return broadcast([t.shape for t in tensors]) if name in _EACH else None
    if name in REDUCTIONS:
        if isinstance(bound.get("other"), Tensor):
            return broadcast([t.shape for t in tensors])
        return _reduced(first, bound.get("dim"), bound.get("keepdim", False))
    special = SHAPES.get(name)
    if special is not None:
        found: Shape = special(bound, first)
        return found
    if name == "linear" and first is not None and len(tensors) > 1 and tensors[1].shape:
        return (*first[:-1], tensors[1].shape[0])
    if (
        name in ("matmul", "mm", "bmm")
        and first is not None
        and len(tensors) > 1
        and tensors[1].shape is not None
    ):
        other = tensors[1].shape
        if len(first) < 2 or len(other) < 2:
            return None
        return (*(broadcast([first[:-2], other[:-2]]) or ()), first[-2], other[-1])
    if name in SAME or len(tensors) == 1:
        return first if name in SAME or _elementwise(name, bound) else None
    if _elementwise(name, bound):
        return broadcast([t.shape for t in tensors])
    return None


def _elementwise(name: str, bound: dict[str, Value]) -> bool:
    whole = (
        any(isinstance(v, int) and not isinstance(v, bool) for v in bound.values()) and name not in _BY_NUMBER
    )
    return (
        name.removeprefix("nn.") not in reshaping()
        and not whole
        and not any(isinstance(v, list | tuple) for v in bound.values())
        and "weight" not in bound
    )


def _reduced(shape: Shape, dim: Any, keep: Any) -> Shape:
    if dim is None:
        return () if keep is False else None
    if shape is None or isinstance(dim, Unknown) or isinstance(keep, Unknown):
        return None
    dims = {
        d % len(shape)
        for d in (dim if isinstance(dim, list | tuple) else [dim])
        if isinstance(d, int) and shape
    }
    if keep:
        return tuple(1 if i in dims else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in dims)


def _viewed(bound: dict[str, Value], first: Shape) -> Shape:
    wanted = sizes(next((v for k, v in bound.items() if k in ("size", "shape")), None))
    if wanted is None:
        return None
    if -1 not in wanted:
        return wanted
    rest = 1
    for n in wanted:
        rest *= 1 if n in (-1, None) else abs(n or 1)
    total: int | None = 1
    for m in first if first is not None else (None,):
        total = None if total is None or m is None else total * m
    missing = total // rest if total is not None and None not in wanted and rest else None
    return tuple(missing if n == -1 else n for n in wanted)


def _expanded(bound: dict[str, Value], first: Shape) -> Shape:
    wanted = sizes(bound.get("size"))
    if wanted is None or first is None:
        return wanted if wanted is not None and -1 not in wanted else None
    return tuple(
        first[i - len(wanted)] if n == -1 and len(first) >= len(wanted) - i else n
        for i, n in enumerate(wanted)
    )


def _unsqueezed(bound: dict[str, Value], first: Shape) -> Shape:
    dim = bound.get("dim")
    if first is None or not isinstance(dim, int):
        return None
    at = dim % (len(first) + 1)
    return (*first[:at], 1, *first[at:])


def _squeezed(bound: dict[str, Value], first: Shape) -> Shape:
    dim = bound.get("dim")
    if first is None:
        return None
    if dim is None:
        return None if None in first else tuple(n for n in first if n != 1)
    if not isinstance(dim, int) or not first:
        return None
    at = dim % len(first)
    if first[at] is None:
        return None  # it goes if it is 1
    return tuple(n for i, n in enumerate(first) if i != at) if first[at] == 1 else first


def _transposed(bound: dict[str, Value], first: Shape) -> Shape:
    a, b = bound.get("dim0"), bound.get("dim1")
    if first is None or not isinstance(a, int) or not isinstance(b, int) or not first:
        return None
    order = list(first)
    a, b = a % len(first), b % len(first)
    order[a], order[b] = order[b], order[a]
    return tuple(order)


def _t(bound: dict[str, Value], first: Shape) -> Shape:
    return None if first is None else first[::-1]


def _flattened(bound: dict[str, Value], first: Shape) -> Shape:
    start, end = bound.get("start_dim", 0), bound.get("end_dim", -1)
    if first is None or not isinstance(start, int) or not isinstance(end, int) or not first:
        return None
    start, end = start % len(first), end % len(first)
    total: int | None = 1
    for n in first[start : end + 1]:
        total = None if n is None or total is None else total * n
    return (*first[:start], total, *first[end + 1 :])


def _selected(bound: dict[str, Value], first: Shape) -> Shape:
    dim = bound.get("dim", 0)
    if first is None or not isinstance(dim, int) or not first:
        return None
    return tuple(n for i, n in enumerate(first) if i != dim % len(first))


def _joined(bound: dict[str, Value], first: Shape) -> Shape:
    dim, given = bound.get("dim", 0), bound.get("tensors")
    shapes = (
        [t.shape if isinstance(t, Tensor) else None for t in given] if isinstance(given, list | tuple) else []
    )
    shapes = [s for s in shapes if s != (0,)] or shapes  # an empty one goes with any
    first = next((s for s in shapes if s is not None), None)
    if not isinstance(dim, int) or not first:
        return None
    at = dim % len(first)
    lengths = [s[at] if s is not None and len(s) > at else None for s in shapes]
    total = None if None in lengths else sum(n for n in lengths if n is not None)
    return tuple(total if i == at else n for i, n in enumerate(first))


def _stacked(bound: dict[str, Value], first: Shape) -> Shape:
    dim = bound.get("dim", 0)
    if first is None or not isinstance(dim, int):
        return None
    at = dim % (len(first) + 1)
    return (*first[:at], len(_tensors(bound)), *first[at:])


def _embedded(bound: dict[str, Value], first: Shape) -> Shape:
    weight, index = bound.get("weight"), bound.get("indices", bound.get("input"))
    if isinstance(weight, Tensor) and isinstance(index, Tensor) and weight.shape and index.shape is not None:
        return (*index.shape, weight.shape[-1])
    return None


def _like_index(bound: dict[str, Value], first: Shape) -> Shape:
    index = bound.get("index")
    return index.shape if isinstance(index, Tensor) else None


def _other(bound: dict[str, Value]) -> Shape:
    other = bound.get("other")
    return other.shape if isinstance(other, Tensor) else None


SHAPES: dict[str, Any] = {
    "view": _viewed,
    "reshape": _viewed,
    "expand": _expanded,
    "unsqueeze": _unsqueezed,
    "squeeze": _squeezed,
    "transpose": _transposed,
    "t": _t,
    "T": _t,
    "expand_as": lambda bound, _: _other(bound),
    "view_as": lambda bound, _: _other(bound),
    "reshape_as": lambda bound, _: _other(bound),
    "nonzero": lambda bound, first: None if first is None else (None, len(first)),
    "flatten": _flattened,
    "select": _selected,
    "cat": _joined,
    "concat": _joined,
    "stack": _stacked,
    "embedding": _embedded,
    "gather": _like_index,
    "permute": lambda bound, first: None if first is None else tuple(None for _ in first),
    "conv2d": lambda bound, first: None if first is None else tuple(None for _ in first),
    "conv1d": lambda bound, first: None if first is None else tuple(None for _ in first),
}


def pieces(name: str, bound: dict[str, Value]) -> int:
    """How many views a multi-view op gives: as many as follow from the sizes, else two."""
    source = next(iter(bound.values()))
    dim = bound.get("dim", 0)
    length = None
    if (
        isinstance(source, Tensor)
        and source.shape
        and isinstance(dim, int)
        and -len(source.shape) <= dim < len(source.shape)
    ):
        length = source.shape[dim]
    count: int | None = 2
    if name == "unbind":
        count = length
    elif name in ("chunk", "tensor_split"):
        given = bound.get("chunks", bound.get("sections"))
        count = given if isinstance(given, int) else None
    elif name == "split":
        size = bound.get("split_size")
        if isinstance(size, list | tuple):
            count = len(size)
        elif isinstance(size, int) and size > 0 and length is not None:
            count = -(-length // size)
        else:
            count = None
    return min(count if count is not None else 2, MOST_PIECES)


def piece_of(name: str, bound: dict[str, Value], number: int) -> Shape:
    """The shape of a piece that `name` cuts from its first argument into `number`."""
    source = next(iter(bound.values()))
    dim = bound.get("dim", 0)
    if not isinstance(source, Tensor) or not source.shape or not isinstance(dim, int):
        return None
    at = dim % len(source.shape)
    if name == "unbind":
        return tuple(n for i, n in enumerate(source.shape) if i != at)
    return tuple(
        (None if n is None or number == 0 else n // number) if i == at else n
        for i, n in enumerate(source.shape)
    )
