"""What each torch function means to the recorder: which arguments it writes to, and whether it leaves the
graph.

A function is looked up once by its name: PyTorch's in-place functions end in an underscore, take ``out=`` or
say ``inplace``; everything else only makes nodes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

Find = Callable[[tuple[Any, ...], dict[str, Any]], list[Any]]

_NO_WRITE = {
    "rename_",
    "share_memory_",
    "retain_grad",
    "detach_",
    "_backward_hooks",
    "coalesce_",
}
_CUTS = {
    "detach": "detach",
    "detach_": "detach",
    "item": "item",
    "tolist": "item",
    "__float__": "item",
    "__int__": "item",
    "__index__": "item",
    "numpy": "numpy",
    "__array__": "numpy",
    "__dlpack__": "numpy",
    "tensor": "tensor",
    "as_tensor": "tensor",
    "new_tensor": "tensor",
}
_RUNS_BACKWARD = {"backward", "grad"}
_ARITHMETIC = {
    **dict.fromkeys(("add", "__add__", "__radd__", "add_", "__iadd__"), "adds"),
    **dict.fromkeys(("sub", "__sub__", "__rsub__", "sub_", "__isub__"), "compares"),
    **dict.fromkeys(("mul", "__mul__", "__rmul__", "mul_", "__imul__"), "scales"),
    **dict.fromkeys(("div", "__truediv__", "__rdiv__", "__rtruediv__", "div_", "__itruediv__"), "compares"),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"), "compares"),
    **dict.fromkeys(("cosine_similarity", "pairwise_distance", "dist"), "compares"),
}

LEAF = (
    "a leaf Variable that requires grad is being used in an in-place operation",
    "a view of a leaf Variable that requires grad is being used in an in-place operation",
)
VIEW = (
    "is a view and is being modified inplace",
    "A view was created in no_grad mode and",
    "A view was created in inference mode and",
)
DETACHED = "Can't detach views in-place"
SHARED = "more than one element of the written-to tensor refers to a single memory location"


def is_refusal(message: str) -> bool:
    """Whether `message` is PyTorch refusing an in-place write to a leaf or to a view."""
    return any(words in message for words in (*LEAF, *VIEW, SHARED))


def is_view_refusal(message: str) -> bool:
    """Whether PyTorch refuses a write to a view with this message."""
    return any(words in message for words in VIEW)


def classify(func: Any) -> tuple[str, Any]:
    """(kind, detail): ``op`` nothing special (with its arithmetic); ``write`` with a function that finds the written
    tensors (``may-write``: if any); ``cut`` with its how; ``get-data``, ``set-data``, ``get-grad``, ``set-grad``;
    ``freeze`` what sets ``requires_grad``; ``full`` torch.full; ``run`` what runs a backward."""
    name = getattr(func, "__name__", "") or ""
    if name in ("__get__", "__set__", "__delete__"):
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "requires_grad" and name == "__set__":
            return "freeze", None
        if attribute in ("data", "grad"):
            return {"__get__": "get-", "__set__": "set-", "__delete__": "set-"}[name] + attribute, None
        return "op", None
    if name == "requires_grad_":
        return "freeze", None
    if name in _RUNS_BACKWARD and isinstance(func, FunctionType):
        return "run", None
    if name == "full":
        return "full", None
    if name in _CUTS:
        return "cut", _CUTS[name]
    if name in _NO_WRITE:
        return "op", None
    if name.startswith("_foreach_") or name.startswith("_fused_") or name.startswith("_amp_foreach"):
        return ("write", _first_list) if name.endswith("_") else ("op", None)
    if name.startswith("__") and name.endswith("__"):
        in_place = name.startswith("__i") and name[3:-2] in _IN_PLACE_OPERATORS
        return (
            ("write", _first)
            if in_place or name in ("__setitem__", "__delitem__")
            else ("op", _ARITHMETIC.get(name))
        )
    if name.endswith("_"):
        return "write", _first
    if isinstance(func, FunctionType):
        found = _python_function(func, name)
        if found is not None:
            return "may-write", found
    return "op", _ARITHMETIC.get(name)


_IN_PLACE_OPERATORS = {
    "add", "sub", "mul", "truediv", "div", "floordiv", "mod", "pow", "and", "or", "xor",
    "lshift", "rshift", "matmul",
}  # fmt: skip


def with_out(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors of ``out=``."""
    out = kwargs.get("out")
    return list(out) if isinstance(out, (tuple, list)) else [out]


def arithmetic(func: Any) -> str:
    """``adds`` where a function adds two things up, ``compares`` where it gives their difference, ratio or distance,
    ``scales`` where it is a product."""
    return _ARITHMETIC.get(getattr(func, "__name__", ""), "")


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if args:
        return [args[0]]
    return [kwargs[k] for k in ("tensor", "input", "self") if k in kwargs][:1]


def _first_list(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    first = args[0] if args else kwargs.get("self", ())
    return list(first) if isinstance(first, (tuple, list)) else [first]


def _python_function(func: FunctionType, name: str) -> Find | None:
    """torch.nn.functional's ``inplace=True`` and ``max_norm``: where these are in the signature."""
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return None
    for word, target in (("inplace", names[0] if names else ""), ("max_norm", "weight")):
        if word in names and target in names:
            return _when(names.index(word), word, names.index(target), target)
    return None


def _when(flag_at: int, flag: str, target_at: int, target: str) -> Find:
    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        on = args[flag_at] if len(args) > flag_at else kwargs.get(flag)
        if on is None or on is False:
            return []
        return [args[target_at] if len(args) > target_at else kwargs.get(target)]

    return find


def op_name(func: Any) -> str:
    """``aten.add_`` for Tensor.add_, Tensor.__iadd__ and their kin."""
    name = getattr(func, "__name__", "") or "op"
    if name == "__setitem__":
        return "aten.copy_"
    if name.startswith("__i") and name.endswith("__") and name[3:-2] in _IN_PLACE_OPERATORS:
        base = name[3:-2]
        return "aten." + {"truediv": "div"}.get(base, base) + "_"
    return "aten." + name.strip("_") + ("_" if name.endswith("_") and not name.startswith("__") else "")


_MODELS = (
    "Addmm",
    "Addmv",
    "Addbmm",
    "Baddbmm",
    "Mm",
    "Mv",
    "Bmm",
    "Dot",
    "Convolution",
    "Embedding",
    "Bilinear",
)
_FEW = 64  # nodes of a value that arithmetic made


def is_parameter(tensor: Any) -> bool:
    """Whether it is a parameter of a module's, or a view of one."""
    base = tensor if tensor.is_leaf or tensor._base is None else tensor._base
    return isinstance(base, torch.nn.Parameter)


def of_parameters(values: Any) -> bool:
    """Whether all that needs a gradient among call arguments is made of parameters by arithmetic alone: what they are
    averaged, scaled or initialised with, and not what a model computes."""
    todo = [v.grad_fn for v in values if isinstance(v, torch.Tensor) and v.grad_fn is not None]
    if not all(
        isinstance(v, torch.nn.Parameter) for v in values if isinstance(v, torch.Tensor) and _plain_leaf(v)
    ):
        return False
    seen: set[Any] = set()
    while todo and len(seen) < _FEW:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not isinstance(leaf, torch.nn.Parameter):
            return False
        if node.name().partition("Backward")[0] in _MODELS:
            return False
        todo += [n for n, _ in node.next_functions if n is not None]
    return not todo


def _plain_leaf(tensor: Any) -> bool:
    return bool(tensor.requires_grad and tensor.is_leaf)


def needs_grad(values: Any) -> bool:
    """Whether a tensor among call arguments requires grad."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.requires_grad:
                return True
        elif isinstance(value, (list, tuple)) and needs_grad(value):
            return True
    return False


def unseen(tensor: Any) -> bool:
    """Whether a write goes into what has a graph, under no_grad: the graph knows nothing of it."""
    if torch.is_grad_enabled():
        return False
    base = tensor._base if tensor._is_view() else tensor
    return base is not None and base.grad_fn is not None
