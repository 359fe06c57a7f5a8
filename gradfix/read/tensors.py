"""What a tensor's attributes and methods do."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

from gradfix.read import backward, computed, constants, effects, ops, shapes, strides, taken
from gradfix.read.frames import Machine
from gradfix.read.values import Lib, Native, Node, Number, Shape, Tensor, Unknown, Value

CASTS = {
    "float",
    "double",
    "half",
    "bfloat16",
    "long",
    "int",
    "short",
    "bool",
    "char",
    "byte",
    "cfloat",
    "cdouble",
}
# views whose elements do not lie in order
STRIDED = {
    "t",
    "T",
    "mT",
    "transpose",
    "permute",
    "movedim",
    "moveaxis",
    "swapaxes",
    "swapdims",
    "expand",
    "expand_as",
}
STRIDED |= {"broadcast_to", "adjoint", "unfold"}
DETACHED = "Can't detach views in-place. Use detach() instead."
# ops that give a view of whatever they are given
CERTAIN_VIEWS = {
    *(
        "select",
        "slice",
        "narrow",
        "unsqueeze",
        "squeeze",
        "view",
        "view_as",
        "transpose",
        "t",
        "permute",
        "chunk",
    ),
    *("split", "unbind", "expand", "expand_as", "diagonal", "unfold"),
}
SELF = {"cuda", "cpu", "pin_memory", "share_memory_", "contiguous", "rename", "refine_names", "to_dense"}
FRESH = {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "new"}
GRADS = {"grad", "_grad"}  # one attribute: what is assigned to either is what a step uses
NOT_TENSORS = {
    "stride",
    "storage_offset",
    "data_ptr",
    "get_device",
    "is_contiguous",
    "is_floating_point",
    "is_complex",
}


def fresh(m: Machine, shape: Shape, dtype: str = "float32", requires: bool = False) -> Tensor:
    """A new leaf."""
    return Tensor(m.trace.storage(), requires, None, shape, dtype)


# ---- attributes


def attribute(m: Machine, tensor: Tensor, name: str) -> Value:
    """``tensor.name``."""
    special = ATTRIBUTES.get(name)
    if special is not None:
        return special(m, tensor)
    method = METHODS.get(name)
    if method is None and (name in CASTS or effects.overloads(name)):
        return Native(name, lambda machine, args, kwargs: _op(machine, tensor, name, args, kwargs))
    if method is not None:
        return Native(name, lambda machine, args, kwargs: method(machine, tensor, args, kwargs))
    if name in SELF:
        return Native(name, lambda machine, args, kwargs: tensor)
    return m.unknown("tensor attribute " + name)


def _op(m: Machine, tensor: Tensor, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name in CASTS:
        return _cast(m, tensor, shapes.DTYPES.get(name, name))
    return ops.apply(m, name, [tensor, *args], kwargs)


def _contiguous(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Tensor:
    """The tensor itself, or a copy of one whose elements lie otherwise."""
    if strides.overlap(tensor.shape, tensor.spread) is not False or (
        tensor.base is not None and tensor.origin in STRIDED
    ):
        made = ops.apply(m, "clone", [tensor], {})
        return made if isinstance(made, Tensor) else tensor
    return tensor


def _cast(m: Machine, tensor: Tensor, dtype: str) -> Tensor:
    return tensor if dtype == tensor.dtype else _copied(m, tensor, dtype)


def _copied(m: Machine, tensor: Tensor, dtype: str) -> Tensor:
    known, node, _ = ops.graph(m, "aten._to_copy", "ToCopyBackward0", [tensor])
    if dtype in ops.INTEGERS:
        ops.discrete(m, [tensor])
        known, node = False, None
    made = ops.new(m, tensor.shape, dtype, known, node)
    if node is not None:
        node.output = made
    else:
        made.left = tensor.left
    return made


def _size(m: Machine, tensor: Tensor) -> Value:
    if tensor.shape is None:
        return m.unknown("shape")
    return tuple(m.unknown("size") if n is None else n for n in tensor.shape)


def _data(m: Machine, tensor: Tensor) -> Value:
    from gradfix.read import names

    names.local(m, tensor)
    time = m.trace.cut("data", tensor, tensor.node) if tensor.requires else None
    return constants.left(m, _off(m, tensor, "data"), tensor, time)


def _alias(tensor: Tensor, how: str) -> Tensor:
    alias = how if how == "numpy" else tensor.alias or how  # (no counter sees what NumPy writes)
    memory = tensor.memory if tensor.alias else tensor.storage.replaced
    return Tensor(tensor.storage, False, None, tensor.shape, tensor.dtype, alias=alias, memory=memory)


def _off(m: Machine, tensor: Tensor, how: str) -> Tensor:
    """The value of `tensor` off its graph: a constant where it is a loss; one of several values is a target, or so."""
    made = _alias(tensor, how)
    return constants.constant(m, made, tensor) if tensor.shape == () else made


def _grad(m: Machine, tensor: Tensor) -> Value:
    node = ops.edge(m, tensor)
    if tensor.requires and not isinstance(node, Tensor) and not tensor.retains and tensor.grad is None:
        if m.assigned:
            return m.unknown("grad")
        from gradfix.read import names

        if not m.clearing:
            names.local(m, tensor)
            m.trace.grad_read(tensor, node)
            m.gone = m.frame.node, None
        return None
    if tensor.grad is None and (tensor.requires is None or m.blurs):
        return m.unknown("grad")
    if isinstance(tensor.grad, Tensor):
        if tensor.storage.handed:
            # (an optimizer that isn't known may have cleared it, and fills none of it)
            m.trace.grad_write(tensor)
        m.trace.grad_used(tensor)
    elif tensor.grad is None and tensor.requires:
        m.gone = m.frame.node, tensor
    return tensor.grad


def _transposed(m: Machine, tensor: Tensor) -> Value:
    return ops.apply(m, "t", [tensor], {})


ATTRIBUTES: dict[str, Callable[[Machine, Tensor], Value]] = {
    "data": _data,
    "grad": _grad,
    "_grad": _grad,
    "shape": _size,
    "T": _transposed,
    "mT": _transposed,
    "H": _transposed,
    "requires_grad": lambda m, t: m.unknown("requires_grad") if ops.requires(m, t) is None else t.requires,
    "is_leaf": lambda m, t: not isinstance(ops.edge(m, t), object) or t.node is None,
    "grad_fn": lambda m, t: None if t.node is None and t.requires is False else m.unknown("grad_fn"),
    "dtype": lambda m, t: Lib("torch." + t.dtype),
    "device": lambda m, t: Lib("torch.device.cpu"),
    "is_cuda": lambda m, t: False,
    "ndim": lambda m, t: m.unknown("ndim") if t.shape is None else len(t.shape),
    "real": lambda m, t: t,
    "layout": lambda m, t: Lib("torch.strided"),
    "_version": lambda m, t: m.unknown("_version"),
}


# ---- methods that the table doesn't describe


def _item(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _leave(m, tensor, "item")
    return taken.take(m, tensor)


def _leave(m: Machine, tensor: Tensor, how: str) -> int | None:
    from gradfix.read import names

    if not ops.requires(m, tensor):
        return None
    names.local(m, tensor)
    return m.trace.cut(how, tensor, tensor.node)


def _detach(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    time = _leave(m, tensor, "detach")
    return constants.left(m, _off(m, tensor, "detach"), tensor, time)


def _detach_(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tensor.base is not None and not tensor.alias and tensor.origin in CERTAIN_VIEWS:
        m.trace.wrote("aten.detach_", tensor, False, "", DETACHED)
    time = _leave(m, tensor, "detach")
    tensor.node, tensor.requires = None, False
    return constants.left(m, tensor, tensor, time)


def _numpy(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _leave(m, tensor, "numpy")
    return (
        computed.array(m, _alias(tensor, "numpy"), tensor)
        if not tensor.requires
        else m.unknown("numpy of a tensor that requires grad")
    )


def _requires_grad_(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = args[0] if args else kwargs.get("requires_grad", True)
    set_requires(m, tensor, value)
    return tensor


def set_requires(m: Machine, tensor: Tensor, value: Value) -> None:
    """``tensor.requires_grad = value``."""
    before = tensor.requires
    if isinstance(value, Unknown) or (m.doubts and tensor.parameter and value is False):
        tensor.requires = None  # that it was frozen is not known
    elif tensor.node is None:
        tensor.requires = bool(value)
    m.trace.set_requires(tensor, before)


def _retain(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    tensor.retains = True
    return None


def _sizes(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shape = _size(m, tensor)
    dim = args[0] if args else kwargs.get("dim")
    if dim is None or not isinstance(shape, tuple):
        return shape
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return m.unknown("size")
    return shape[dim]


def _count(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if tensor.shape is None or None in tensor.shape:
        return m.unknown("numel")
    total = 1
    for n in tensor.shape:
        total *= n or 0
    return total


def _dims(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return m.unknown("dim") if tensor.shape is None else len(tensor.shape)


def _to(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    wanted = [*args, *kwargs.values()]
    for each in wanted:
        if isinstance(each, Tensor):
            return _cast(m, tensor, each.dtype)
        if isinstance(each, Lib) and each.path.startswith("torch.") and "device" not in each.path:
            return _cast(m, tensor, shapes.dtype_name(each))
        if isinstance(each, str) and shapes.typed(each):
            return _cast(m, tensor, shapes.typed(each))
    if isinstance(kwargs.get("dtype"), Unknown):
        return _cast(m, tensor, "float32")
    if any(isinstance(each, str) and each.partition(":")[0] == "cuda" for each in wanted):
        return _to_gpu(m, tensor, [], {})
    return _moved(m, tensor, [], {})


def _to_gpu(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """On a GPU, whatever machine that is: of a leaf that means a copy, which is none."""
    if tensor.requires and tensor.node is None and not tensor.storage.exported:
        return _copied(m, tensor, tensor.dtype)
    return _moved(m, tensor, args, kwargs)


def _moved(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """On another device, or where it was: data that is asked for gradients there may not be asked for them here."""
    if tensor.storage.exported:
        return fresh(m, tensor.shape, tensor.dtype)  # (a copy, where that is a GPU)
    if tensor.node is None and not tensor.requires:
        return copy(tensor)
    return tensor


def _backward(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return backward.backward(m, [tensor], given)


def _new(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Tensor:
    dtype = shapes.asked(kwargs, tensor.dtype)
    given = kwargs.get(
        "size", args if len(args) > 1 and all(isinstance(a, int | Unknown) for a in args) else args[:1]
    )
    requires = kwargs.get("requires_grad") is True
    return fresh(m, shapes.sizes(given), dtype, requires)


def _filled(number: int | None) -> Callable[..., Value]:
    """``x.new_ones(size)``; ``x.new_full(size, number)``."""

    def run(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = _new(m, tensor, args if number is not None else args[:1], kwargs)
        ops.fill(
            made, kwargs.get("fill_value", args[1] if len(args) > 1 else None) if number is None else number
        )
        return made

    return run


def _hook(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.hooked = True
    node = ops.edge(m, tensor)
    if isinstance(node, Node):
        node.hooks.append(args[0] if args and m.sure() else None)
    return m.unknown("hook")


def _type(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args and not kwargs:
        return m.unknown("type()")
    return _to(m, tensor, args, kwargs)


def _listed(m: Machine, tensor: Tensor, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _leave(m, tensor, "item")
    return Number("tolist()") if tensor.shape == () else m.unknown("tolist()")


METHODS: dict[str, Callable[..., Value]] = {
    "item": _item,
    "tolist": _listed,
    "__float__": _item,
    "detach": _detach,
    "detach_": _detach_,
    "numpy": _numpy,
    "astype": computed.astype,
    "requires_grad_": _requires_grad_,
    "retain_grad": _retain,
    "size": _sizes,
    "numel": _count,
    "nelement": _count,
    "dim": _dims,
    "ndimension": _dims,
    "to": _to,
    "type": _type,
    "type_as": _to,
    "backward": _backward,
    "register_hook": _hook,
    "register_post_accumulate_grad_hook": _hook,
    **dict.fromkeys(SELF, lambda m, t, args, kwargs: t),
    "cuda": _to_gpu,
    "cpu": _moved,
    "contiguous": _contiguous,
    **dict.fromkeys(FRESH, _new),
    **{f"new_{name}": _filled(number) for name, number in (("zeros", 0), ("ones", 1), ("full", None))},
    **dict.fromkeys(NOT_TENSORS, lambda m, t, args, kwargs: m.unknown("tensor property")),
}


# ---- assignment


def set_attribute(m: Machine, tensor: Tensor, name: str, value: Value) -> None:
    """``tensor.name = value``."""
    if name == "requires_grad":
        set_requires(m, tensor, value)
    elif name in GRADS:
        tensor.grad = value
        m.trace.assigned = True
        if tensor.leaf and tensor.requires:
            if value is None:
                m.trace.zero([tensor])
            else:
                m.trace.grad_write(tensor, assigned=True)
        if isinstance(value, Tensor):
            value.storage.grad_of = tensor
    elif name == "data" and isinstance(value, Tensor | Unknown):
        from gradfix.read import names

        names.local(m, tensor)
        replaced = tensor.storage.replaced
        same = value if isinstance(value, Tensor) and value.storage is tensor.storage else None
        own = same is not None and (not same.alias or same.memory == replaced)
        if tensor.storage.known or tensor.storage.saved:
            if own:
                m.trace.wrote("aten.set_", tensor, False, "set_data")  # (`x.data *= 2`: the memory it has)
            else:
                m.trace.rebound(tensor)
        tensor.storage.replaced += not own
