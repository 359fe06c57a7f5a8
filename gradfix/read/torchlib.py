"""Functions of torch that the effect table doesn't describe, and those that make tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gradfix.read import (
    arrays,
    backward,
    checkpoints,
    constants,
    effects,
    forwards,
    initial,
    iteration,
    layers,
    loading,
    ops,
    optimizers,
    packed,
    shapes,
    stateless,
    tensors,
)
from gradfix.read.frames import Machine
from gradfix.read.values import Array, Instance, Lib, Native, Number, Shape, Taken, Tensor, Unknown, Value

FLOATS = {  # losses that take no target of whole numbers, and what they say
    "binary_cross_entropy": "Found dtype Long but expected Float",
    "binary_cross_entropy_with_logits": "result type Float can't be cast to the desired output type Long",
}
MAKERS = {"zeros", "ones", "empty", "rand", "randn", "full"}
FILLED = {"zeros": 0, "ones": 1}
LIKE = {"zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "randint_like"}
FALSE = {
    "torch.cuda.is_available", "torch.distributed.is_available", "torch.distributed.is_initialized",
    "torch.is_inference",
    "torch.backends.mps.is_available", "torch.cuda.is_bf16_supported", "torch.is_autocast_enabled",
    "torch.backends.cudnn.is_available", "torch.jit.is_scripting", "torch.jit.is_tracing",
    "torch.xpu.is_available",
}  # fmt: skip
NOTHING = (
    "torch.manual_seed",
    "torch.cuda.",
    "torch.set_",
    "torch.use_",
    "torch.random.",
    "torch.save",
    "torch.backends",
)
MODES = {
    "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.set_grad_enabled", "torch.autocast",
    "torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly", "contextlib.nullcontext",
}  # fmt: skip


def call(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calling ``torch.…``."""
    function = FUNCTIONS.get(path)
    if function is not None:
        return function(m, args, kwargs)
    if typed := shapes.typed(path):
        return _typed(m, typed, args)
    if path in FALSE:
        return False
    if path in MODES:
        return _mode(m, path, args, kwargs)
    if path.startswith("torch.nn."):
        return _of_nn(m, path, args, kwargs)
    if path.startswith("torch.optim.") and path[12:13].isupper():
        return optimizers.make(m, path, args, kwargs)
    if path.startswith("torch.optim.lr_scheduler."):
        return Instance(None, kind=path)
    if path.startswith(NOTHING):
        return None
    if path.startswith("torch.distributions."):
        return _distribution(m, path, args, kwargs)
    name = (
        path.removeprefix("torch.")
        .replace("special.", "special_")
        .replace("linalg.", "linalg_")
        .replace("fft.", "fft_")
    )
    if path.startswith("torch.Tensor."):
        name = path[13:]
        if args and isinstance(args[0], Tensor):
            method = tensors.attribute(m, args[0], name)
            return method.call(m, args[1:], kwargs) if isinstance(method, Native) else method
    if name.startswith("_foreach_") and args:
        return _foreach(m, name[9:], args, kwargs)
    if name in MAKERS:
        return _maker(m, name, args, kwargs)
    if name in LIKE:
        return _like(m, name, args, kwargs)
    if "." not in name and (effects.overloads(name) or name in tensors.METHODS):
        if name in tensors.METHODS and args and isinstance(args[0], Tensor):
            return tensors.METHODS[name](m, args[0], args[1:], kwargs)
        return ops.apply(m, name, args, kwargs)
    from gradfix.read.libraries import escape

    escape(m, [*args, *kwargs.values()])
    return m.unknown("call " + path)


def _of_nn(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if path.startswith("torch.nn.functional."):
        return functional(m, path[20:], args, kwargs)
    if path.startswith("torch.nn.init."):
        return initial.call(m, path[14:], args, kwargs)
    if path.startswith("torch.nn.utils.rnn."):
        return packed.call(m, path[19:], args, kwargs)
    if path.startswith("torch.nn.utils."):
        return forwards.utility(m, path[15:], args, kwargs)
    if path.startswith("torch.nn.parallel."):
        return layers.make(m, "torch.nn." + path.rpartition(".")[2], args, kwargs)
    if path[9].islower() and "." not in path[9:]:
        return m.unknown(path)  # torch.nn.factory_kwargs
    return layers.make(m, path, args, kwargs)


def functional(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value], module: str = "") -> Value:
    """``torch.nn.functional.name``."""
    if kwargs.get("inplace") is True and not name.endswith("_"):
        plain = {k: v for k, v in kwargs.items() if k != "inplace"}
        if effects.overloads(name + "_") and "dropout" not in name:
            return ops.apply(m, name + "_", args, plain, module)
        return forwards.in_place(m, name, args, plain, module)
    kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
    special = forwards.FUNCTIONAL.get(name)
    if special is not None:
        if not args and "input" in kwargs:
            args, kwargs = [kwargs["input"]], {k: v for k, v in kwargs.items() if k != "input"}
        if not args:
            return m.unknown("functional " + name)
        made = special(m, args, kwargs)
        if m.constants:
            constants.follow(m, name, [*args, *kwargs.values()], made)
        return made
    if effects.overloads("nn." + name):
        if m.whole and name in FLOATS:
            target = args[1] if len(args) > 1 else kwargs.get("target")
            if isinstance(target, Tensor) and target.storage.whole:
                m.outdated("RuntimeError", FLOATS[name])
        return ops.apply(m, "nn." + name, args, _reduced(kwargs))
    return m.unknown("functional " + name)


def _reduced(kwargs: dict[str, Value]) -> dict[str, Value]:
    """Arguments with `reduction` for what said it before 0.4.1."""
    if "size_average" not in kwargs and "reduce" not in kwargs:
        return kwargs
    rest = {k: v for k, v in kwargs.items() if k not in ("size_average", "reduce")}
    how = (
        "none" if kwargs.get("reduce") is False else "sum" if kwargs.get("size_average") is False else "mean"
    )
    return {"reduction": how, **rest}


def _foreach(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch._foreach_mul_(tensors, …)``: the op on each."""
    tensors_ = iteration.listed(m, args[0])
    if tensors_ is None:
        return m.unknown("foreach")
    others = [iteration.listed(m, a) if isinstance(a, list | tuple) else None for a in args[1:]]
    made = []
    for i, each in enumerate(tensors_):
        row = [
            a if o is None else o[i] for a, o in zip(args[1:], others, strict=True) if o is None or i < len(o)
        ]
        made.append(ops.apply(m, name, [each, *row], dict(kwargs)))
    return None if name.endswith("_") else made


# ---- tensors that are made


def _maker(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given: Any = kwargs.get("size", args)
    if name == "full":
        given = args[:1] or kwargs.get("size")
    value = args[1] if len(args) > 1 else kwargs.get("fill_value")
    whole = name == "full" and kwargs.get("dtype") is None and isinstance(value, int)
    usual = "bool" if isinstance(value, bool) else "int64"
    dtype = shapes.asked(kwargs, usual if whole else "float32")
    made = tensors.fresh(m, shapes.sizes(given), dtype, _wants(kwargs))
    ops.fill(made, FILLED.get(name, value if name == "full" else None))
    if whole:
        made.storage.whole = m.whole = True
        m.trace.filled(made)
    return made


def _wants(kwargs: dict[str, Value]) -> Any:
    wants = kwargs.get("requires_grad", kwargs.get("**", False))
    return bool(wants) if isinstance(wants, bool | int) else None


def _like(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = args[0] if args else kwargs.get("input")
    if not isinstance(source, Tensor):
        return tensors.fresh(m, None, "float32", _wants(kwargs))
    dtype = shapes.asked(kwargs, source.dtype)
    made = tensors.fresh(m, source.shape, dtype, _wants(kwargs))
    value = args[1] if len(args) > 1 else kwargs.get("fill_value")
    ops.fill(made, FILLED.get(name[:-5], value if name == "full_like" else None))
    return made


def _tensor(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data = args[0] if args else kwargs.get("data")
    shape, dtype = _contents(data)
    made = tensors.fresh(m, shape, shapes.asked(kwargs, dtype), _wants(kwargs))
    _leave(m, made, data)
    ops.fill(made, data)
    numbers = [d for d in (data if isinstance(data, list) else [data]) if isinstance(d, Taken)]
    made.cut = made.cut.union(*(d.cut for d in numbers))
    return made


def _leave(m: Machine, made: Tensor, data: Value) -> None:
    """`made` has the values that are in `data`, and no graph."""
    within = list(_within(data))
    for each in within:
        if each.requires:
            made.left |= {m.trace.cut("tensor", each, each.node, leaf=made if made.requires else None)}
            m.constants = True
        elif each.alias == "numpy":
            made.left |= each.left
    if made.requires is not False:
        made.left = frozenset()
    first = next((t for t in within if t.requires and t.node is not None), within[0] if within else None)
    if first is not None:
        constants.constant(m, made, first)


def _within(data: Value) -> Iterator[Tensor]:
    """The tensors in a list, and in its lists."""
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, list | tuple):
        for each in data:
            yield from _within(each)


def _contents(data: Value) -> tuple[Shape, str]:
    if isinstance(data, bool):
        return (), "bool"
    if isinstance(data, int):
        return (), "int64"
    if isinstance(data, float):
        return (), "float32"
    if isinstance(data, Tensor):
        return data.shape, data.dtype
    if isinstance(data, list | tuple):
        if not data:
            return (0,), "float32"
        kinds = [_contents(d) for d in data]
        real = any(k[1].startswith("float") for k in kinds)
        shape = kinds[0][0]
        return (None if shape is None else (len(data), *shape)), "float32" if real else kinds[0][1]
    return None, "float32"


def _as_tensor(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data = args[0] if args else kwargs.get("data")
    if isinstance(data, Array) and len(args) < 2 and not kwargs:
        return arrays.shared(m, data)
    if isinstance(data, Tensor) and data.alias:
        shared = Tensor(data.storage, False, None, data.shape, data.dtype, alias="numpy", cut=data.cut)
        shared.left = data.left
        return shared
    return data if isinstance(data, Tensor) else _tensor(m, args, kwargs)


def _maybe_itself(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What torch.as_tensor() is given may be a tensor with a graph, which it gives back as it is."""
    data, made = args[0] if args else kwargs.get("data"), _as_tensor(m, args, kwargs)
    if isinstance(data, Unknown) and isinstance(made, Tensor) and not isinstance(data, Number):
        made.requires = None
    return made


def _typed(m: Machine, dtype: str, args: list[Value]) -> Value:
    if len(args) == 1 and isinstance(args[0], Unknown):
        return tensors.fresh(m, None, dtype)  # a size, or an array
    if args and all(isinstance(a, int | Unknown) for a in args):
        return tensors.fresh(m, shapes.sizes(args), dtype)
    data = args[0] if args else []
    if isinstance(data, Tensor):
        return data
    made = tensors.fresh(m, _contents(data)[0], dtype)
    _leave(m, made, data)
    return made


def _arange(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shape: Shape = (None,)
    if args and all(isinstance(a, int) for a in args) and len(args) < 4:
        try:
            shape = (len(range(*args)),)
        except ValueError:
            shape = None
    real = any(isinstance(a, float) for a in args)
    dtype = shapes.asked(kwargs, "float32" if real else "int64")
    return tensors.fresh(m, shape, dtype, _wants(kwargs))


def _linspace(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    steps = args[2] if len(args) > 2 else kwargs.get("steps")
    return tensors.fresh(m, (steps if isinstance(steps, int) else None,), "float32", _wants(kwargs))


def _randint(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    size = kwargs.get("size", next((a for a in args if isinstance(a, tuple | list)), None))
    dtype = shapes.asked(kwargs, "int64")
    return tensors.fresh(m, shapes.sizes(size), dtype)


def _eye(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    n = [a if isinstance(a, int) else None for a in args[:2]] or [None]
    return tensors.fresh(m, (n[0], n[-1]), "float32", _wants(kwargs))


def _normal(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    size = kwargs.get("size", args[2] if len(args) > 2 else None)
    if size is None and args and isinstance(args[0], Tensor):
        return tensors.fresh(m, args[0].shape)
    return tensors.fresh(m, shapes.sizes(size))


def _randperm(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    many = args[0] if args else kwargs.get("n")
    return tensors.fresh(m, (many if isinstance(many, int) else None,), "int64")


def _variable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Variable(x)``: today ``x.detach()``, a leaf of its own where that is asked for."""
    data = args[0] if args else kwargs.get("data")
    if not isinstance(data, Tensor):
        return data
    wants = kwargs.get("requires_grad", args[1] if len(args) > 1 else False)
    m.trace.wrapped(data, kwargs.get("volatile") is True)
    if data.node is None and not data.requires and not wants:
        return data
    return Tensor(data.storage, bool(wants), None, data.shape, data.dtype)


# ---- modes


def _mode(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = Instance(None, kind=path, extra={"args": args, "kwargs": kwargs})
    if path == "torch.set_grad_enabled":
        value.extra["before"] = m.grad, m.turned_off
        wanted = args[0] if args else kwargs.get("mode")
        before, m.grad = (
            m.grad,
            wanted if isinstance(wanted, bool) else True,
        )  # nothing rests on their being off, then
        if m.grad != before:
            m.turned_off = () if m.grad else m.stack()
    return value


def enter_mode(m: Machine, value: Instance) -> Callable[[], None]:
    """Enter ``with torch.no_grad():`` and the like; how it is left."""
    grad, autocast, inference = m.grad, m.autocast, m.inference
    kind = value.kind
    given = value.extra.get("args", [])
    if kind == "torch.no_grad":
        m.grad = False
    elif kind == "torch.inference_mode":
        m.grad = not (not given or given[0] is not False)
        m.inference = True
    elif kind == "torch.enable_grad":
        m.grad = True
    elif kind == "torch.set_grad_enabled":
        grad, m.turned_off = value.extra["before"]
        m.grad = given[0] if given and isinstance(given[0], bool) else grad
    elif kind == "torch.autocast":
        enabled = value.extra["kwargs"].get("enabled", True)
        m.autocast = enabled is not False

    def leave() -> None:
        m.grad, m.autocast, m.inference = grad, autocast, inference

    return leave


def entering(value: Instance, name: str) -> Native:
    """``__enter__`` and ``__exit__`` of a mode, for those who call them: a context manager of the program's."""

    def enter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value.extra.setdefault("entered", []).append(enter_mode(m, value))
        return value

    def leave(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if value.extra.get("entered"):
            value.extra["entered"].pop()()
        return None

    return Native(name, enter if name == "__enter__" else leave)


# ---- the rest


def _grad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return backward.grad(m, args, kwargs)


def _backward(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    roots = args[0] if args else kwargs.get("tensors")
    listed = [roots] if isinstance(roots, Tensor) else iteration.listed(m, roots) or []
    names = ("tensors", "gradient", "retain_graph", "create_graph")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return backward.backward(m, listed, given)


def _device(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Lib("torch.device.cpu")


def _where(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 3 and isinstance(args[0], Tensor):
        branches = args[1:]
        known, node, _ = ops.graph(m, "aten.where", "WhereBackward0", branches)
        if node is not None:
            m.trace.save(node, args[0])
        shape = shapes.broadcast([a.shape if isinstance(a, Tensor) else () for a in args])
        made = ops.new(
            m, shape, shapes.dtype_of("where", {str(i): a for i, a in enumerate(branches)}), known, node
        )
        if node is not None:
            node.output = made
        return made
    return ops.apply(m, "where", args, kwargs)


def _einsum(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
    known, node, needing = ops.graph(m, "aten.bmm", "BmmBackward0", operands)
    if node is not None:
        for tensor in needing:
            for other in ops.tensors_of(operands):
                if other is not tensor:
                    m.trace.save(node, other)
    made = ops.new(m, None, "float32", known, node)
    if node is not None:
        node.output = made
    return made


def _is(name: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "is_tensor" and args and not isinstance(args[0], Unknown):
            return isinstance(args[0], Tensor)
        if name == "is_grad_enabled":
            return m.grad
        return m.unknown(name)

    return run


def _compile(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return args[0] if args else Native("compile", lambda machine, given, named: given[0])


def _distribution(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read import distributions

    return distributions.make(m, path, args, kwargs)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "torch.tensor": _tensor,
    "torch.as_tensor": _maybe_itself,
    "torch.from_numpy": _as_tensor,
    "torch.arange": _arange,
    "torch.range": _arange,
    "torch.linspace": _linspace,
    "torch.logspace": _linspace,
    "torch.randint": _randint,
    "torch.eye": _eye,
    "torch.normal": _normal,
    "torch.randperm": _randperm,
    "torch.autograd.Variable": _variable,
    "torch.autograd.grad": _grad,
    "torch.autograd.backward": _backward,
    **checkpoints.FUNCTIONS,
    "torch.func.functional_call": stateless.functional_call,
    "torch.device": _device,
    "torch.where": _where,
    "torch.einsum": _einsum,
    "torch.is_tensor": _is("is_tensor"),
    "torch.is_grad_enabled": _is("is_grad_enabled"),
    "torch.compile": _compile,
    "torch.jit.script": _compile,
    **dict.fromkeys(("torch.amp.custom_fwd", "torch.amp.custom_bwd"), _compile),
    **dict.fromkeys(("torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd"), _compile),
    "torch.autograd.function.once_differentiable": _compile,
    "torch.jit._unwrap_optional": lambda m, args, kwargs: args[0] if args else m.unknown("optional"),
    **loading.FUNCTIONS,
    "torch.amp.GradScaler": optimizers.scaler,
    "torch.load": lambda m, args, kwargs: m.unknown("torch.load"),
    "torch.Size": lambda m, args, kwargs: (
        tuple(args[0]) if args and isinstance(args[0], list | tuple) else m.unknown("Size")
    ),
}
