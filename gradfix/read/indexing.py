"""``tensor[index]``, read and written, and going through a tensor's rows."""

from __future__ import annotations

from typing import Any

from gradfix.read import effects, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Shape, Tensor, Unknown, Value


def _recorded(m: Machine, argument: Tensor, name: str) -> Value:
    """What an argument has under a name: it was taken for a tensor, and is a dictionary of some."""
    items = m.records.setdefault(argument, {})
    if name not in items:
        if not argument.guessed:
            return m.unknown("item of an argument")
        made = items[name] = ops.new(m, None, "float32", argument.requires)
        made.origin = argument.origin
        if argument.node is not None:
            made.node = m.trace.node("AliasBackward0", "aten.alias", [])
    return items[name]


def item(m: Machine, tensor: Tensor, index: Value) -> Value:
    """``tensor[index]``: views for numbers and slices, a copy for tensors and lists."""
    if isinstance(index, str):
        return _recorded(m, tensor, index)
    if tensor.guessed and isinstance(index, int | Unknown):
        return m.unknown("item of an argument")
    if isinstance(index, Unknown):
        known, node, _ = ops.graph(m, "aten.index", "IndexBackward0", [tensor])
        made = ops.aliased(m, tensor, known, node, "select")
        return made
    parts = index if isinstance(index, tuple) else (index,)
    if tensor.shape == () and any(isinstance(p, int) and not isinstance(p, bool) for p in parts):
        m.outdated(
            "IndexError", "invalid index of a 0-dim tensor. Use `tensor.item()` to convert it to a number"
        )
        return m.unknown("item()")
    if any(isinstance(p, Tensor | list | Unknown) for p in parts):
        return _gathered(m, tensor, parts)
    result = tensor
    at = 0
    width = sum(1 for p in parts if p is not None and p is not Ellipsis)
    for part in parts:
        if part is Ellipsis:
            at = max(0, len(result.shape) - (width - at)) if result.shape is not None else at
        elif part is None:
            result = _viewed(m, result, "unsqueeze", "UnsqueezeBackward0", _inserted(result.shape, at))
            at += 1
        elif isinstance(part, slice):
            if part != slice(None):
                result = _viewed(m, result, "slice", "SliceBackward0", _sliced(result.shape, at, part))
            at += 1
        else:
            result = _viewed(m, result, "select", "SelectBackward0", _dropped(result.shape, at))
    if result is tensor:
        result = _viewed(m, tensor, "alias", "AliasBackward0", tensor.shape)
    return result


def _viewed(m: Machine, tensor: Tensor, name: str, node_name: str, shape: Shape) -> Tensor:
    known, node, _ = ops.graph(m, "aten." + name, node_name, [tensor])
    made = ops.aliased(m, tensor, known, node, name)
    made.shape = shape
    return made


def _inserted(shape: Shape, at: int) -> Shape:
    return None if shape is None else (*shape[:at], 1, *shape[at:])


def _dropped(shape: Shape, at: int) -> Shape:
    return None if shape is None else tuple(n for i, n in enumerate(shape) if i != at)


def _sliced(shape: Shape, at: int, part: slice) -> Shape:
    if shape is None or at >= len(shape):
        return None
    n = shape[at]
    ends = (part.start, part.stop, part.step)
    length = None
    if n is not None and all(e is None or isinstance(e, int) for e in ends) and (part.step or 1) > 0:
        length = len(range(n)[part])
    return tuple(length if i == at else each for i, each in enumerate(shape))


def _gathered(m: Machine, tensor: Tensor, parts: tuple[Any, ...]) -> Tensor:
    known, node, _ = ops.graph(m, "aten.index", "IndexBackward0", [tensor])
    if node is not None:
        for part in parts:
            if isinstance(part, Tensor):
                m.trace.save(node, part)
    shape: Shape = None
    if (
        len(parts) == 1
        and isinstance(parts[0], Tensor)
        and parts[0].dtype != "bool"
        and tensor.shape is not None
    ):
        shape = None if parts[0].shape is None else (*parts[0].shape, *tensor.shape[1:])
    made = ops.new(m, shape, tensor.dtype, known, node)
    if node is not None:
        node.output = made
    return made


def set_item(m: Machine, tensor: Tensor, index: Value, value: Value) -> None:
    """``tensor[index] = value``: a copy into a view; with indices, index_put_."""
    if isinstance(index, str):
        m.records.setdefault(tensor, {})[index] = value
        return
    if tensor.guessed and isinstance(index, int | Unknown):
        return
    if isinstance(value, list | tuple) and ops.tensors_of(value):
        return  # no tensor takes a list of tensors: what was taken for one is a list
    parts = index if isinstance(index, tuple) else (index,)
    advanced = any(isinstance(p, Tensor | list) for p in parts)
    name, node_name = ("index_put", "IndexPutBackward0") if advanced else ("copy", "CopySlices")
    refused = ops.refusal(m, tensor, [value])
    if refused.startswith("a leaf") and not advanced:
        from gradfix.read.trace import LEAF_VIEW

        refused = LEAF_VIEW
    known = ops.joined([ops.requires(m, tensor), *(ops.requires(m, t) for t in ops.tensors_of(value))])
    node = None
    if m.grad and known and tensor.alias != "numpy" and not refused:
        _, node, _ = ops.graph(m, "aten." + name, node_name, [tensor, value])
        if node is not None and advanced:
            for part in parts:
                if isinstance(part, Tensor):
                    m.trace.save(node, part)
    if isinstance(value, Unknown) and m.grad and tensor.alias != "numpy" and known is False:
        known = None
    ops.write(m, tensor, f"aten.{name}_", known, node, refused)


def rows(m: Machine, tensor: Tensor, count: int) -> list[Value]:
    """The first rows of `tensor`, as going through it gives them: views made at once."""
    if tensor.shape == ():
        m.fail("TypeError", "iteration over a 0-d tensor")
    length = tensor.shape[0] if tensor.shape else None
    if length is None:
        length = min(count, m.budget.passes)
    overload = effects.overloads("unbind")[0]
    made: Any = ops.view(m, "unbind", overload, {"self": tensor, "dim": 0}, min(count, length))
    return list(made)
