"""torch.nn: modules with their parameters, containers, and what calling each one does to the graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from gradfix.read import calls, hooks, iteration, recurrent, tensors
from gradfix.read.frames import Machine
from gradfix.read.values import HOLE, Class, Function, Instance, Lib, Shape, Tensor, Unknown, Value

LISTS = {"torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ParameterList"}
DICTS = {"torch.nn.ModuleDict", "torch.nn.ParameterDict"}


# what there is of these for one, two and three dimensions does the same to the graph
_ALIKE = (
    "Conv", "ConvTranspose", "LazyConv", "BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool",
    "AdaptiveMaxPool", "Dropout", "ReflectionPad", "ReplicationPad", "ConstantPad",
)  # fmt: skip
_FUNCTIONS = (
    "conv",
    "conv_transpose",
    "max_pool",
    "avg_pool",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "dropout",
)


def whichever(path: str, like: str) -> str:
    """The name below `path` that `like` may stand for, if all those do the same to the graph; else ""."""
    names = {"torch.nn": _ALIKE, "torch.nn.functional": _FUNCTIONS}.get(path, ())
    wanted = re.compile("[123]".join(map(re.escape, like.split(HOLE))))
    found = {name for name in names for n in "123" if wanted.fullmatch(f"{name}{n}d")}
    return f"{found.pop()}2d" if len(found) == 1 else ""


def prepare(instance: Instance) -> None:
    """An object of a class of the program that derives from a container has items."""
    if instance.kind in LISTS:
        instance.extra["items"] = []
    elif instance.kind in DICTS:
        instance.extra["items"] = {}


# ---- making


def parameter(m: Machine, shape: Shape, requires: Any = True) -> Tensor:
    """A new parameter of that shape."""
    made = tensors.fresh(m, shape, "float32", requires)
    made.parameter = True
    return made


def _parameter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    data = args[0] if args else kwargs.get("data")
    wants = kwargs.get("requires_grad", args[1] if len(args) > 1 else True)
    requires = None if isinstance(wants, Unknown) else bool(wants)
    if isinstance(data, Tensor):
        return Tensor(data.storage, requires, None, data.shape, data.dtype, parameter=True)
    return parameter(m, None, requires)


def make(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``nn.Linear(…)``."""
    name = path.removeprefix("torch.nn.")
    if name == "Parameter":
        return _parameter(m, args, kwargs)
    if path in LISTS or path in DICTS:
        return container(m, path, args[0] if args and path != "torch.nn.Sequential" else args)
    if name in ("DataParallel", "DistributedDataParallel"):
        wrapped = args[0] if args else kwargs.get("module")
        return Instance(None, {"module": wrapped}, path) if isinstance(wrapped, Instance) else m.unknown(name)
    instance = Instance(None, kind=path, extra={"args": args, "kwargs": kwargs})
    fill(m, instance, args, kwargs)
    return instance


def container(m: Machine, path: str, content: Value) -> Value:
    """A Sequential, ModuleList, ModuleDict, ... of what is given."""
    instance = Instance(None, kind=path)
    prepare(instance)
    fill(m, instance, [content], {})
    return instance


def fill(m: Machine, instance: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    """Give a module of torch.nn its parameters and buffers."""
    path, name = instance.kind, instance.kind.removeprefix("torch.nn.")
    if path in LISTS:
        content = args[0] if args else []
        if isinstance(content, list | tuple) and len(content) == 1 and isinstance(content[0], dict | list):
            content = list(content[0].values()) if isinstance(content[0], dict) else content[0]
        items = iteration.listed(m, content, 512)
        if items is None:
            instance.extra["unknown"] = True
            items = [m.unknown("items of " + name)]
        instance.extra["items"] = items
        return
    if path in DICTS:
        content = args[0] if args else {}
        instance.extra["items"] = dict(content) if isinstance(content, dict) else {}
        return
    n = [a if isinstance(a, int) else None for a in args[:3]] + [None, None]
    attrs = instance.attrs
    attrs["training"] = True
    bias = kwargs.get("bias", True) is not False
    if name == "Linear":
        n_in, n_out = number(args, kwargs, 0, "in_features"), number(args, kwargs, 1, "out_features")
        bias = number(args, kwargs, 2, "bias") is not False
        attrs["weight"] = parameter(m, (n_out, n_in))
        attrs["bias"] = parameter(m, (n_out,)) if bias else None
        attrs["in_features"], attrs["out_features"] = n_in, n_out
    elif name.startswith(("Conv", "LazyConv")):
        width = 1 + int(name[-2]) if name[-2:-1].isdigit() else 3
        n_in, n_out = number(args, kwargs, 0, "in_channels"), number(args, kwargs, 1, "out_channels")
        attrs["weight"] = parameter(m, (n_out, n_in, *(None,) * (width - 1)))
        attrs["bias"] = parameter(m, (n_out,)) if bias else None
        attrs["out_channels"] = n_out
    elif name.startswith(("Embedding",)):
        attrs["weight"] = parameter(
            m, (n[0], n[1] if n[1] is not None else _known(kwargs.get("embedding_dim")))
        )
        instance.extra["max_norm"] = kwargs.get("max_norm", args[3] if len(args) > 3 else None)
    elif "Norm" in name:
        affine = kwargs.get("affine", kwargs.get("elementwise_affine", not name.startswith("InstanceNorm")))
        if affine is not False:
            attrs["weight"], attrs["bias"] = parameter(m, (n[0],)), parameter(m, (n[0],))
        if name.startswith(("BatchNorm", "SyncBatchNorm")):
            for each in ("running_mean", "running_var"):
                attrs[each] = tensors.fresh(m, (n[0],))
            instance.extra["buffers"] = {"running_mean", "running_var"}
    elif name == "PReLU":
        attrs["weight"] = parameter(m, (1,))
    elif name in recurrent.KINDS:
        recurrent.fill(m, instance, args, kwargs)
    elif name == "Bilinear":
        attrs["weight"], attrs["bias"] = parameter(m, None), parameter(m, None)
    elif name in ("MultiheadAttention",):
        for each in ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias"):
            attrs[each] = parameter(m, None)
    elif name.startswith("Transformer"):
        for i in range(4):
            attrs[f"weight{i}"] = parameter(m, None)
    instance.extra.setdefault("args", args)
    instance.extra.setdefault("kwargs", kwargs)


def number(args: list[Value], kwargs: dict[str, Value], at: int, name: str) -> Any:
    """A whole number among the arguments, by place or name; None where it isn't known."""
    value = args[at] if len(args) > at else kwargs.get(name)
    return value if isinstance(value, int) else None


def _known(value: Value) -> int | None:
    return value if isinstance(value, int) else None


# ---- what a module holds


def children(module: Instance) -> list[tuple[str, Instance]]:
    """named_children()."""
    found = [(k, v) for k, v in module.attrs.items() if is_module(v)]
    items = module.extra.get("items")
    if isinstance(items, list):
        return [*((str(i), v) for i, v in enumerate(items) if is_module(v)), *found]
    if isinstance(items, dict):
        return [*((str(k), v) for k, v in items.items() if is_module(v)), *found]
    return found


def is_module(value: Value) -> bool:
    """Whether `value` is a module of torch.nn's, or derives from one."""
    return isinstance(value, Instance) and value.kind.startswith("torch.nn.")


def modules(module: Instance) -> Iterator[tuple[str, Instance]]:
    """named_modules()."""
    seen: set[int] = set()
    left = [("", module)]
    while left:
        prefix, each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield prefix, each
        inner = [(f"{prefix}.{name}" if prefix else name, child) for name, child in children(each)]
        left += reversed(inner)


def parameters(module: Instance) -> Iterator[tuple[str, Tensor]]:
    """named_parameters()."""
    seen: set[int] = set()
    for prefix, each in modules(module):
        for name, value in _own(each):
            if value.parameter and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}.{name}" if prefix else name, value


def _own(module: Instance) -> list[tuple[str, Tensor]]:
    found = [(k, v) for k, v in module.attrs.items() if isinstance(v, Tensor)]
    items = module.extra.get("items")
    if isinstance(items, list):
        found += [(str(i), v) for i, v in enumerate(items) if isinstance(v, Tensor)]
    elif isinstance(items, dict):
        found += [(str(k), v) for k, v in items.items() if isinstance(v, Tensor)]
    return found


def vague(module: Instance) -> bool:
    """Whether a part of the module isn't known."""
    return any(
        m.extra.get("unknown") or any(isinstance(v, Unknown) for v in m.extra.get("items") or ())
        for _, m in modules(module)
    )


def buffers(module: Instance) -> Iterator[tuple[str, Tensor]]:
    """named_buffers()."""
    for prefix, each in modules(module):
        for name in each.extra.get("buffers", ()):
            value = each.attrs.get(name)
            if isinstance(value, Tensor):
                yield f"{prefix}.{name}" if prefix else name, value


# ---- methods of every module


def _parameters(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return [t for _, t in parameters(module)]


def _named_parameters(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return list(parameters(module))


def _train(mode: bool) -> Callable[..., Value]:
    def run(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
        wanted = (args[0] if args else kwargs.get("mode", True)) if mode else False
        for _, each in modules(module):
            each.attrs["training"] = wanted
        if isinstance(wanted, bool):
            m.trace.mode((t for _, t in parameters(module)), wanted)
        return module

    return run


def _requires_grad_(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    wanted = args[0] if args else kwargs.get("requires_grad", True)
    for _, each in parameters(module):
        tensors.set_requires(m, each, wanted)
    return module


def _zero_grad(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read.optimizers import clear, known_again

    found = [t for _, t in parameters(module)]
    clear(m, found, args[0] if args else kwargs.get("set_to_none", True))
    m.trace.zero(found)
    known_again(m, found)
    return None


def _apply(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for _, each in reversed(list(modules(module))):
        calls.call(m, args[0], [each], {})
    return module


def _register_buffer(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args and isinstance(args[0], str):
        module.attrs[args[0]] = args[1] if len(args) > 1 else kwargs.get("tensor")
        module.extra.setdefault("buffers", set()).add(args[0])
    return None


def _register(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 and isinstance(args[0], str):
        items = module.extra.get("items")
        if isinstance(items, list):
            items.append(args[1])
        else:
            module.attrs[args[0]] = args[1]
    return None


def _append(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = module.extra.get("items")
    if isinstance(items, list):
        items.append(args[0])
    return module


def _extend(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items, more = module.extra.get("items"), iteration.listed(m, args[0])
    if isinstance(items, list) and more is not None:
        items += more
    return module


def _insert(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = module.extra.get("items")
    if isinstance(items, list) and len(args) == 2 and isinstance(args[0], int):
        items.insert(args[0], args[1])
    return module


def _view_of(kind: str) -> Callable[..., Value]:
    def run(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = module.extra.get("items")
        if isinstance(items, dict):
            return list(getattr(items, kind)())
        return m.unknown(kind)

    return run


def _init(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    module.attrs.setdefault("training", True)
    if module.kind not in ("torch.nn.Module", "") and not module.extra.get("made"):
        module.extra["made"] = True
        fill(m, module, args if module.kind != "torch.nn.Sequential" else [args], kwargs)
        onward = behind(module)
        if onward is not None:
            calls.call(m, onward, [module], {})
    return None


def is_layer(base: Lib) -> bool:
    """Whether a library's class is a module of torch.nn with an ``__init__`` and a ``forward`` of its own."""
    from gradfix.read import libraries

    name = libraries.canonical(base.path)
    return name.startswith("torch.nn.") and name != "torch.nn.Module"


def behind(module: Instance) -> Value:
    """The program's own ``__init__`` that torch.nn's calls: Mine's in ``class Dense(nn.Linear, Mine)``; or None."""
    order = module.cls.order if module.cls is not None else ()
    layer = next((n for n, base in enumerate(order) if isinstance(base, Lib)), len(order))
    later = (base.attrs.get("__init__") for base in order[layer:] if isinstance(base, Class))
    return next((found for found in later if isinstance(found, Function)), None)


def _itself(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return module


def _state_dict(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return {k: tensors._alias(t, "detach") for k, t in [*parameters(module), *buffers(module)]}


def _load(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Writes into every parameter, under no_grad."""
    for _, each in parameters(module):
        each.storage.known = True
        m.trace.wrote("aten.copy_", each)
    return m.unknown("load_state_dict")


def _forward(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read import forwards

    return forwards.call(m, module, args, kwargs)


def _plainly(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module.forward(x)``: past the hooks."""
    from gradfix.read import forwards

    return forwards.base(m, module, args, kwargs)


METHODS: dict[str, Callable[..., Value]] = {
    "__init__": _init,
    "__call__": _forward,
    "forward": _plainly,
    "parameters": _parameters,
    "named_parameters": _named_parameters,
    "modules": lambda m, module, args, kwargs: [x for _, x in modules(module)],
    "named_modules": lambda m, module, args, kwargs: list(modules(module)),
    "children": lambda m, module, args, kwargs: [x for _, x in children(module)],
    "named_children": lambda m, module, args, kwargs: list(children(module)),
    "buffers": lambda m, module, args, kwargs: [x for _, x in buffers(module)],
    "named_buffers": lambda m, module, args, kwargs: list(buffers(module)),
    "train": _train(True),
    "eval": _train(False),
    "requires_grad_": _requires_grad_,
    "zero_grad": _zero_grad,
    "apply": _apply,
    "register_buffer": _register_buffer,
    "register_parameter": _register,
    "add_module": _register,
    "register_module": _register,
    "append": _append,
    "extend": _extend,
    "insert": _insert,
    "keys": _view_of("keys"),
    "values": _view_of("values"),
    "items": _view_of("items"),
    "state_dict": _state_dict,
    "load_state_dict": _load,
    "register_forward_hook": hooks.listen,
    "register_forward_pre_hook": hooks.precede,
    "register_full_backward_hook": hooks.register,
    "register_full_backward_pre_hook": hooks.register,
    **dict.fromkeys(
        ("to", "cuda", "cpu", "float", "double", "half", "bfloat16", "type", "share_memory", "compile"),
        _itself,
    ),
}
