"""``tensor[index]``, read and written, and going through a tensor's rows."""

from __future__ import annotations

from typing import Any

from gradfix.read import effects, ops, outgrown, strides
from gradfix.read.frames import Machine
from gradfix.read.values import Shape, Spread, Tensor, Unknown, Value


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
        made.view = tensor.view  # (a copy, maybe)
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
    for name, shape, spread in _steps(tensor, parts) or [("alias", tensor.shape, tensor.spread)]:
        known, node, _ = ops.graph(m, "aten." + name, name.capitalize() + "Backward0", [result])
        result = ops.aliased(m, result, known, node, name)
        result.shape, result.spread = shape, spread
    if tensor.guessed and isinstance(index, slice):
        result.origin = tensor.origin  # part of a list is a list
    return result


def _steps(tensor: Tensor, parts: tuple[Any, ...]) -> list[tuple[str, Shape, Spread]]:
    """The views that ``tensor[parts]`` makes one of another: the op, the shape and the strides of each."""
    found: list[tuple[str, Shape, Spread]] = []
    shape, spread, at = tensor.shape, tensor.spread, 0
    for n, part in enumerate(parts):
        if part is Ellipsis:
            rest = sum(1 for p in parts[n + 1 :] if p is not None)
            at = max(0, len(shape) - rest) if shape is not None else at
        elif part is None:
            shape = None if shape is None else (*shape[:at], 1, *shape[at:])
            spread = (*spread[:at], False, *spread[at:]) if spread else spread
            found.append(("unsqueeze", shape, spread))
            at += 1
        elif isinstance(part, slice):
            if part != slice(None):
                shape = _sliced(shape, at, part)
                if spread and (shape is None or shape[at] is None):
                    spread = None
                found.append(("slice", shape, spread))
            at += 1
        else:
            shape = None if shape is None else (*shape[:at], *shape[at + 1 :])
            spread = (*spread[:at], *spread[at + 1 :]) if spread else spread
            found.append(("select", shape, spread))
    return found


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
    for part in parts if isinstance(value, int | float) else ():
        outgrown.masked(m, "index_put", part)
    advanced = any(isinstance(p, Tensor | list) for p in parts)
    name, node_name = ("index_put", "IndexPutBackward0") if advanced else ("copy", "CopySlices")
    overlaps = False
    if not any(isinstance(p, Tensor | list | Unknown | bool) for p in parts):
        *_, (_, shape, spread) = [("", tensor.shape, tensor.spread), *_steps(tensor, parts)]
        overlaps = strides.overlap(shape, spread) is True
    refused = ops.refusal(m, tensor, [value], overlaps)
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
