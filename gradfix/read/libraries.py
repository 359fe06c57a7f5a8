"""Names of libraries: what their attributes are, and what calling them does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gradfix.read import (
    accelerators,
    arrays,
    builtin,
    computed,
    containers,
    distributions,
    forwards,
    initial,
    layers,
    lent,
    lightning,
    loading,
    networks,
    ops,
    optimizers,
    python,
    stacks,
    started,
    stdlib,
    torchlib,
)
from gradfix.read.frames import Machine
from gradfix.read.objects import FUNCTION, MISSING, method
from gradfix.read.values import (
    Bound,
    Function,
    Generator,
    Instance,
    Lib,
    Native,
    Tensor,
    Unknown,
    Value,
)

_LONG, _LONGEST = {"math.factorial", "math.comb", "math.perm"}, 1000  # what takes long of larger numbers
EXIT = Instance(None, kind="builtins.SystemExit")
CONSTANTS: dict[str, Value] = {
    "math.pi": math.pi,
    "math.e": math.e,
    "math.inf": math.inf,
    "math.nan": math.nan,
    "sys.argv": ["script.py"],
    "sys.platform": "linux",
    "sys.path": [],
    "sys.modules": {},
    "os.sep": "/",
    "os.name": "posix",
    "os.environ": {},
    "torch.inf": math.inf,
    "torch.pi": math.pi,
    "torch.nan": math.nan,
    "numpy.pi": math.pi,
    "numpy.inf": math.inf,
    "torch.backends.cudnn.enabled": False,
    "torch.version.cuda": None,
    "typing.TYPE_CHECKING": False,
    "__debug__": True,
}
RENAMED = {
    "torch.autograd.Variable": "torch.autograd.Variable",
    "torch.nn.parameter.Parameter": "torch.nn.Parameter",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.nn.modules.Module": "torch.nn.Module",
    "torch.nn.modules": "torch.nn",
    "torch.functional": "torch",
    "torch.nn.utils.stateless.functional_call": "torch.func.functional_call",
    "torch.nn.init": "torch.nn.init",
    "torch.cuda.amp.GradScaler": "torch.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler": "torch.amp.GradScaler",
    "torch.cuda.amp.autocast": "torch.autocast",
    "torch.amp.autocast": "torch.autocast",
    "torch.amp.autocast_mode.autocast": "torch.autocast",
    "torch.autograd.no_grad": "torch.no_grad",
    "torch.autograd.grad_mode.no_grad": "torch.no_grad",
    "torch.autograd.enable_grad": "torch.enable_grad",
    "torch.autograd.set_grad_enabled": "torch.set_grad_enabled",
    "torch.autograd.function.Function": "torch.autograd.Function",
    "torch.autograd.function.InplaceFunction": "torch.autograd.Function",
    "accelerate.accelerator.Accelerator": accelerators.KIND,
    **started.RENAMED,
    # modules, and more that nothing here depends on
    **dict.fromkeys(
        (
            "pytorch_lightning.LightningModule",
            "pytorch_lightning.core.LightningModule",
            "pytorch_lightning.core.lightning.LightningModule",
            "lightning.LightningModule",
            "lightning.pytorch.LightningModule",
            "lightning.pytorch.core.module.LightningModule",
            "transformers.PreTrainedModel",
            "transformers.modeling_utils.PreTrainedModel",
            "diffusers.ModelMixin",
            "diffusers.models.modeling_utils.ModelMixin",
        ),
        "torch.nn.Module",
    ),
}
_ACTIVATIONS = "torch.nn.modules."


def canonical(path: str) -> str:
    """One name for what has several: ``torch.nn.Linear`` of ``torch.nn.modules.linear.Linear``."""
    found = RENAMED.get(path)
    if found is not None:
        return found
    if path.startswith(_ACTIVATIONS):
        return "torch.nn." + path.rpartition(".")[2]
    if path.startswith("torch.optim."):
        last = path.rpartition(".")[2]
        return "torch.optim." + last if last[:1].isupper() and "lr_scheduler" not in path else path
    return path


def attribute(m: Machine, lib: Lib, name: str) -> Value:
    """A name of a library's below `lib`: a constant, or another name."""
    path = canonical(f"{lib.path}.{name}")
    if path in CONSTANTS:
        value = CONSTANTS[path]
        return value.copy() if isinstance(value, list | dict) else value
    if lib.path.startswith("torch.") and name == "__name__":
        return lib.path.rpartition(".")[2]
    return Lib(path)


def call(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calling a library's name."""
    path = canonical(path)
    top = path.partition(".")[0]
    if top == "builtins":
        if path.count(".") == 2 and args:
            return containers.unbound(m, path, args, kwargs)
        return builtin.call(m, path[9:], args, kwargs)
    if top == "torch":
        return torchlib.call(m, path, args, kwargs)
    found = stdlib.FUNCTIONS.get(path)
    if found is not None:
        return found(m, args, kwargs)
    if networks.makes(path):
        return networks.make(m, args, kwargs)
    if top == "torchvision":
        return loading.pictured(m, path, args, kwargs)
    if path == accelerators.KIND:
        return accelerators.make(m, args, kwargs)
    if top == "math" and all(isinstance(a, int | float) for a in args) and not kwargs:
        function = getattr(math, path[5:], None)
        if callable(function) and not (path in _LONG and any(abs(a) > _LONGEST for a in args)):
            try:
                return python.bounded(m, function(*args))
            except python.FAILS:
                return m.unknown(path)
    if top in ("numpy", "math") and (made := computed.call(m, path, args, kwargs)) is not None:
        return made
    if top == "numpy" and (array := arrays.call(m, path, args, kwargs)) is not None:
        return array
    if path in ("sys.exit", "os._exit"):
        from gradfix.read.frames import Raised

        raise Raised(EXIT)
    if top not in stdlib.HARMLESS:
        m.blurs += 1
        escape(m, [*args, *kwargs.values()])
        computed.meant(m, [*args, *kwargs.values()])
    return m.unknown("call " + path)


def escape(m: Machine, values: list[Value]) -> None:
    """Something unknown gets these: what it does with an optimizer among them can't be known, nor whether it clears
    what a network keeps from one pass to the next, or has a tensor require grad."""
    for value in values:
        if isinstance(value, Function | Bound):
            m.escaped = True
            lent.lend(m, value)
        elif isinstance(value, Instance):
            m.escaped = True
            if value.extra.get("parameters") is not None and value.kind.startswith("torch.optim."):
                value.extra["escaped"] = True
            for _, each in layers.modules(value):
                for name, kept in each.attrs.items():
                    if any(t.requires and not t.leaf for t in ops.tensors_of(kept)):
                        each.attrs[name] = m.unknown("changed elsewhere")
        elif isinstance(value, Tensor):
            value.storage.handed = True
        elif isinstance(value, list | tuple):
            escape(m, [v for v in value if isinstance(v, Instance | Tensor)])
    lent.run(m)


# ---- objects of a library's classes


def instance_attribute(m: Machine, value: Instance, name: str) -> Value:
    """An attribute that the library class of `value` gives, or MISSING."""
    kind = value.kind
    table: dict[str, Callable[..., Value]]
    if kind == networks.KIND:
        return networks.attribute(m, value, name)
    if kind.startswith("torch.nn."):
        table = (
            lightning.METHODS if name in lightning.METHODS and lightning.trained(value) else layers.METHODS
        )
        if name == "_modules":
            return dict(layers.children(value))
        if name == "reset_parameters":
            return initial.resetting(m, value) or MISSING
        if name == "_parameters":
            return {k: v for k, v in value.attrs.items() if isinstance(v, Tensor) and v.parameter}
    elif kind.startswith("torch.optim.") and "lr_scheduler" not in kind:
        table = optimizers.METHODS
        if name == "param_groups":
            return optimizers.groups(m, value)
        if name == "state":
            return optimizers.state(value)
        if name == "toggle_model":
            return Native(name, lambda machine, args, kwargs: lightning.toggled(machine, value, args, kwargs))
    elif kind == "torch.amp.GradScaler":
        table = optimizers.SCALER
    elif kind == "iterator" and name == "next":
        return loading.next_of(m, value) or MISSING
    elif kind == accelerators.KIND:
        table = accelerators.METHODS
    elif kind.startswith("torch.autograd.") and ("FunctionCtx" in kind or name == "apply"):
        return _of_function(m, value, name)
    elif kind.startswith(distributions.PREFIX):
        return distributions.attribute(m, value, name)
    elif kind in torchlib.MODES and name in ("__enter__", "__exit__"):
        return torchlib.entering(value, name)
    else:
        table = stdlib.METHODS.get(kind, {})
        items = value.extra.get("items")
        if name == "__init__" and items is not None and kind in containers.KINDS:
            return Native(name, lambda machine, args, kwargs: containers.fill(machine, value, args, kwargs))
        if kind == "typing.NamedTuple" and name == "_replace":
            return Native(name, lambda machine, args, kwargs: stdlib.replaced(machine, [value], kwargs))
        if not table and items is not None and hasattr(type(items), name):
            return python.Method(items, name)
    found = table.get(name)
    if found is None:
        return MISSING
    return Native(name, lambda machine, args, kwargs: found(machine, value, args, kwargs))


def _of_function(m: Machine, value: Instance, name: str) -> Value:
    """An attribute of the ctx of a custom Function, or ``apply`` of an object of one."""
    from gradfix.read import custom

    if value.cls is None:
        return custom.of_ctx(m, value, name)
    return custom.applying(value.cls)


def instance_item(m: Machine, value: Instance, index: Value) -> Value:
    """``value[index]`` of an object of a library's class."""
    items = value.extra.get("items")
    if value.kind == networks.KIND:
        whole = value.extra.get("whole", value)
        return Instance(None, {}, networks.KIND, {"unknown": True, "whole": whole})
    if items is not None:
        if isinstance(index, slice) and isinstance(items, list) and value.kind.startswith("torch.nn."):
            return layers.container(m, value.kind, python.item(m, items, index))
        if isinstance(items, list) and value.kind in ("torch.nn.ModuleDict", "torch.nn.ParameterDict"):
            return m.unknown("item")
        if isinstance(index, Unknown) and isinstance(items, list) and _alike(items):
            return items[0]  # whichever it is
        return python.item(m, items, index)
    if value.kind == loading.TENSORS and isinstance(index, int | Unknown):
        return loading.item(m, value)
    if value.kind == "types.SimpleNamespace" and isinstance(index, str):
        return value.attrs.get(index, m.unknown("item"))
    default = value.extra.get("factory")
    if default is not None:
        return m.unknown("default")
    return m.unknown("item of " + (value.kind or "object"))


def _alike(items: list[Value]) -> bool:
    """Layers of one class, such as those of an encoder."""
    first = items[0] if items else None
    return isinstance(first, Instance) and all(
        isinstance(v, Instance) and (v.cls, v.kind) == (first.cls, first.kind) for v in items
    )


def call_instance(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``value(...)`` of an object of a library's class."""
    kind = value.kind
    if kind == networks.KIND:
        return networks.call(m, value, args, kwargs)
    if kind.startswith("torch.nn."):
        return forwards.call(m, value, args, kwargs)
    if (
        kind
        in (
            "torch.no_grad",
            "torch.enable_grad",
            "torch.inference_mode",
            "torch.set_grad_enabled",
            "torch.autocast",
        )
        and args
        and isinstance(args[0], Function)
    ):
        args[0].wrappers = (
            *args[0].wrappers,
            "enable_grad" if kind == "torch.enable_grad" else "no_grad",
        )
        return args[0]
    if kind == FUNCTION and value.cls is not None:
        from gradfix.read import custom

        return custom.called(m)
    if kind == "functools.partial":
        function, first, named = value.extra["call"]
        from gradfix.read import calls

        return calls.call(m, function, [*first, *args], {**named, **kwargs})
    return m.unknown("call of " + (kind or "object"))


def initialise(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    """``Base.__init__`` of a library class, for an object of a class of the program without one."""
    init = instance_attribute(m, value, "__init__")
    if isinstance(init, Native):
        init.call(m, args, kwargs)


# ---- with


def enter(m: Machine, value: Value) -> tuple[Value, Callable[[], None]]:
    """What ``with value as x`` binds, and how it is left."""

    def nothing() -> None:
        return None

    if isinstance(value, Instance):
        if value.kind in torchlib.MODES:
            return value, torchlib.enter_mode(m, value)
        if value.kind == stacks.KIND:
            return value, lambda: stacks.left(value)
        if value.cls is not None:
            begin, end = method(m, value, "__enter__"), method(m, value, "__exit__")
            from gradfix.read import calls

            entered = calls.call(m, begin, [], {}) if begin is not None else value

            def leave() -> None:
                if end is not None:
                    calls.call(m, end, [None, None, None], {})

            return entered, leave
    if isinstance(value, Generator):
        return _context(m, value)
    if isinstance(value, Unknown | Lib | Tensor | Bound):
        return m.unknown("with"), nothing
    return value, nothing


def _context(m: Machine, value: Generator) -> tuple[Value, Callable[[], None]]:
    """A generator as a context manager: read up to its yield; what follows is left out."""
    from gradfix.read import calls, iteration

    found: list[Any] = []
    grad = m.grad

    def yielded(item: Value) -> None:
        found.append((item, m.grad))
        raise iteration.Stopped

    value.frame.yielding = yielded
    frame = m.frame
    try:
        calls.run(m, value.function, value.frame)
    except iteration.Stopped:
        m.frame = frame
    if found:
        m.grad = found[0][1]

    def leave() -> None:
        m.grad = grad

    return (found[0][0] if found else m.unknown("context")), leave
