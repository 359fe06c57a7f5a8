"""Attributes and items of everything; classes of the program and their objects."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from gradfix.read import (
    arrays,
    calls,
    containers,
    forwards,
    indexing,
    layers,
    libraries,
    optimizers,
    packed,
    python,
    tensors,
)
from gradfix.read.frames import Frame, Machine
from gradfix.read.project import Unit
from gradfix.read.values import (
    Array,
    Bound,
    Class,
    Function,
    Instance,
    Lib,
    ModuleValue,
    Native,
    Number,
    Packed,
    Super,
    Tensor,
    Unknown,
    Value,
)

__all__ = [
    "Unit",
    "attribute",
    "called",
    "define",
    "instantiate",
    "item",
    "method",
    "set_attribute",
    "set_item",
]


def attribute(m: Machine, value: Value, name: str) -> Value:
    """``value.name``."""
    if isinstance(value, Unknown):
        return arrays.attribute(m, value, name) if isinstance(value, Array) else value
    if isinstance(value, Tensor):
        return tensors.attribute(m, value, name)
    if isinstance(value, Instance):
        return _of_instance(m, value, name)
    if isinstance(value, Lib):
        return libraries.attribute(m, value, name)
    if isinstance(value, ModuleValue):
        if name in value.unit.names:
            from gradfix.read.expressions import settled

            return settled(value.unit.names, name)
        if name == "__dict__":
            from gradfix.read.expressions import settled

            return {each: settled(value.unit.names, each) for each in list(value.unit.names)}
        inner = m.project.find(name, value.unit, 1)
        if inner is not None:
            from gradfix.read.modules import load

            return ModuleValue(load(m, inner))
        return m.unknown("attribute of module " + name)
    if isinstance(value, Class):
        if name in ("__name__", "__qualname__"):
            return value.name
        if name == "__mro__":
            return value.order
        found = lookup(value, name)
        if isinstance(found, Function) and found.kind == "classmethod":
            return Bound(found, value)
        return found if found is not MISSING else _inherited(m, value, name)
    if isinstance(value, Super):
        return _of_super(m, value, name)
    if isinstance(value, Function):
        if name == "__name__":
            return value.qualname.rpartition(".")[2]
        return value.attrs.get(name, m.unknown("attribute of function"))
    if isinstance(value, Packed):
        return packed.attribute(m, value, name)
    if isinstance(value, Bound):
        return value.receiver if name == "__self__" else m.unknown("attribute of method")
    return python.attribute(m, value, name)


def _inherited(m: Machine, cls: Class, name: str) -> Value:
    """What a class of the program's has of a library's."""
    if name == "apply" and kind_of(cls) == FUNCTION:
        from gradfix.read import custom

        return custom.applying(cls)
    return m.unknown("attribute of class " + name)


MISSING = object()
FUNCTION = "torch.autograd.Function"
CTX = "torch.autograd.function.FunctionCtx"


def lookup(cls: Class, name: str, after: Class | None = None) -> Value:
    """The attribute in the class or its bases; MISSING where the program's text doesn't set it."""
    order = cls.order
    if after is not None:
        order = order[order.index(after) + 1 :] if after in order else ()
    for each in order:
        if isinstance(each, Class) and name in each.attrs:
            return each.attrs[name]
        if isinstance(each, Unknown):
            return each
        if name in ("__init__", "forward") and isinstance(each, Lib) and layers.is_layer(each):
            return MISSING
    return MISSING


def method(m: Machine, value: Instance, name: str) -> Value:
    """A method of the program's, with its object; or None."""
    if value.cls is None:
        return None
    found = lookup(value.cls, name)
    return Bound(found, value) if isinstance(found, Function) else None


def _of_instance(m: Machine, value: Instance, name: str) -> Value:
    if name in value.attrs:
        return value.attrs[name]
    if name == "__class__" and (value.cls is not None or value.kind):
        return value.cls or Lib(value.kind)
    if name == "__dict__":
        return value.attrs
    if value.cls is not None:
        found = lookup(value.cls, name)
        if isinstance(found, Function):
            if found.kind == "property":
                return calls.call(m, found, [value], {})
            if found.kind == "staticmethod":
                return found
            if name == "step" and value.kind.startswith("torch.optim."):
                return Native(
                    name, lambda m, args, kwargs: optimizers.own_step(m, value, found, args, kwargs)
                )
            return Bound(found, value.cls if found.kind == "classmethod" else value)
        if found is not MISSING and not isinstance(found, Unknown):
            return found
    found = libraries.instance_attribute(m, value, name)
    if found is not MISSING:
        return found
    if value.cls is not None:
        getter = lookup(value.cls, "__getattr__")
        if isinstance(getter, Function):
            return calls.call(m, getter, [value, name], {})
    return m.unknown(f"attribute {name}")


def _of_super(m: Machine, value: Super, name: str) -> Value:
    receiver = value.receiver
    cls = receiver.cls if isinstance(receiver, Instance) else receiver
    found = lookup(cls, name, value.after) if isinstance(cls, Class) else MISSING
    if isinstance(found, Function):
        return found if found.kind == "staticmethod" else Bound(found, receiver)
    if isinstance(found, Unknown):
        return found
    if isinstance(receiver, Instance):
        if name in ("forward", "__call__") and receiver.kind.startswith("torch.nn."):
            return Native(name, lambda m, args, kwargs: forwards.base(m, receiver, args, kwargs))
        base = libraries.instance_attribute(m, receiver, name)
        if base is not MISSING:
            return base
    if name in ("__init__", "__init_subclass__", "__setattr__", "__enter__", "__exit__"):
        return Native(name, lambda machine, args, kwargs: None)
    if name == "apply" and isinstance(receiver, Class):
        return _inherited(m, receiver, name)
    return m.unknown("super()." + name)


def set_attribute(m: Machine, owner: Value, name: str, value: Value) -> None:
    """``owner.name = value``."""
    if isinstance(owner, Tensor):
        tensors.set_attribute(m, owner, name, value)
    elif isinstance(owner, Instance):
        if owner.cls is not None:
            setter = lookup(owner.cls, name)
            if isinstance(setter, Function) and setter.kind == "property":
                return
            if isinstance(setter, Function) and m.doubts:
                value = m.unknown("method that may have been replaced")
        items = owner.extra.get("items")
        if isinstance(items, dict) and name in items:
            items[name] = value
        elif isinstance(items, list) and name.isdecimal() and int(name) < len(items):
            items[int(name)] = value  # a child that named_children() gave the name
        else:
            owner.attrs.pop(name, None) if isinstance(value, Tensor) and value.parameter else None
            owner.attrs[name] = value
            if isinstance(value, Tensor) and owner.kind == CTX:
                value.storage.known = True  # what is written into it from here on is told
    elif isinstance(owner, Class | Function):
        owner.attrs[name] = value
    elif isinstance(owner, ModuleValue):
        owner.unit.names[name] = value


def item(m: Machine, owner: Value, index: Value) -> Value:
    """``owner[index]``."""
    if isinstance(owner, Unknown):
        if isinstance(owner, Number):
            m.outdated("TypeError", "'float' object is not subscriptable")
        return arrays.item(m, owner, index) if isinstance(owner, Array) else owner
    if isinstance(owner, Tensor):
        return indexing.item(m, owner, index)
    if isinstance(owner, Instance):
        getter = method(m, owner, "__getitem__")
        if getter is not None:
            return calls.call(m, getter, [index], {})
        return libraries.instance_item(m, owner, index)
    if isinstance(owner, Lib | Class):
        return owner  # a type with arguments
    return python.item(m, owner, index)


def set_item(m: Machine, owner: Value, index: Value, value: Value) -> None:
    """``owner[index] = value``."""
    if isinstance(owner, Tensor):
        indexing.set_item(m, owner, index, value)
    elif isinstance(owner, Instance):
        setter = method(m, owner, "__setitem__")
        if setter is not None:
            calls.call(m, setter, [index, value], {})
        elif owner.extra.get("items") is not None:
            python.set_item(owner.extra["items"], index, value)
    elif isinstance(owner, Array):
        arrays.write(m, owner)
    else:
        python.set_item(owner, index, value)


# ---- classes


def define(m: Machine, node: ast.ClassDef, block: Callable[..., Any]) -> Class:
    """Run a class's body."""
    from gradfix.read.expressions import evaluate

    bases = tuple(evaluate(m, b) for b in node.bases if not isinstance(b, ast.Starred))
    frame = m.frame
    in_class = frame.cls is not None and frame.function is None
    path = (
        node.name
        if frame.qualname == "<module>"
        else f"{frame.qualname}.{'' if in_class else '<locals>.'}{node.name}"
    )
    cls = Class(node.name, path, bases, {}, frame.unit)
    cls.order = _order(cls)
    m.project.classes.append(cls)
    inner = Frame(
        frame.unit, path, frame.stack(), cls.attrs, frame if frame.names is not frame.unit.names else None
    )
    inner.cls = cls
    with m.inside(inner):
        block(m, node.body)
    _dataclass_fields(node, cls)
    return cls


def _order(cls: Class) -> tuple[Value, ...]:
    """Depth first, a base that comes again later only there: Python's order for all but odd diamonds."""
    found: list[Value] = [cls]
    for base in cls.bases:
        found += base.order if isinstance(base, Class) else (base,)
    return tuple(x for i, x in enumerate(found) if x not in found[i + 1 :])


def _dataclass_fields(node: ast.ClassDef, cls: Class) -> None:
    named = [s for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
    cls.attrs["__fields__"] = [(s.target.id, s.value is not None) for s in named]  # type: ignore[union-attr]


def decorated(m: Machine, decorator: Value, value: Value) -> Value:
    """A class behind a decorator: a dataclass, or as it was."""
    if isinstance(value, Class):
        path = (
            decorator.path
            if isinstance(decorator, Lib)
            else decorator.kind
            if isinstance(decorator, Instance)
            else ""
        )
        if path.endswith("dataclass"):
            value.attrs["__dataclass__"] = True
        elif isinstance(decorator, Function):
            made = calls.call(m, decorator, [value], {})
            return made if isinstance(made, Class) else value
    return value


def kind_of(cls: Class) -> str:
    """The library class that a class of the program derives from: the first that is known."""
    for base in cls.order:
        if isinstance(base, Lib) and base.path not in ("builtins.object", "abc.ABC"):
            path = libraries.canonical(base.path)
            return "torch.nn.Module" if _modular(cls, path) else path
    return ""


def _modular(cls: Class, path: str) -> bool:
    """Whether a class of some library's is a torch.nn.Module, as far as that shows: a program of PyTorch's gives it a
    forward."""
    if path.partition(".")[0] in _NO_MODULES or not path.endswith(_MODULES):
        return False
    return isinstance(lookup(cls, "forward"), Function) and "import torch" in cls.unit.text


_NO_MODULES = {
    "builtins",
    "torch",
    "abc",
    "typing",
    "collections",
    "paddle",
    "mxnet",
    "chainer",
    "keras",
    "tensorflow",
}
_MODULES = (
    "Model", "Module", "Network", "Net", "Layer", "Block", "Backbone", "Head", "Encoder", "Decoder", "Detector",
    "Segmentor", "Classifier", "MessagePassing", "Conv",
)  # fmt: skip


def instantiate(m: Machine, cls: Class, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An object of the program's class."""
    kind = kind_of(cls)
    if kind.startswith("enum."):
        return args[0] if args else m.unknown("enum")
    instance = Instance(cls, kind=kind)
    layers.prepare(instance)
    containers.prepare(instance)
    init = lookup(cls, "__init__")
    if isinstance(init, Function):
        calls.call(m, init, [instance, *args], kwargs)
    elif isinstance(init, Unknown):
        instance.extra["unknown"] = True
        libraries.escape(m, [*args, *kwargs.values()])
    elif lookup(cls, "__dataclass__") is True or kind.endswith("NamedTuple"):
        _fill_fields(m, instance, args, kwargs)
    else:
        libraries.initialise(m, instance, args, kwargs)
    return instance


def _fill_fields(m: Machine, instance: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    assert instance.cls is not None
    fields = [
        f for c in reversed(instance.cls.order) if isinstance(c, Class) for f in c.attrs.get("__fields__", ())
    ]
    for i, (name, has_default) in enumerate(fields):
        if i < len(args):
            instance.attrs[name] = args[i]
        elif name in kwargs:
            instance.attrs[name] = kwargs[name]
        elif has_default:
            value = lookup(instance.cls, name)
            if isinstance(value, Instance) and value.kind == "dataclasses.field":
                factory = value.extra.get("factory")
                value = calls.call(m, factory, [], {}) if factory is not None else value.extra.get("default")
            instance.attrs[name] = value
        else:
            instance.attrs[name] = m.unknown("field " + name)
    if instance.kind.endswith("NamedTuple"):
        instance.extra["items"] = list(instance.attrs.values())
    after = method(m, instance, "__post_init__")
    if after is not None:
        calls.call(m, after, [], {})


def called(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``value(...)``."""
    if value.cls is not None:
        found = lookup(value.cls, "__call__")
        if isinstance(found, Function):
            return calls.call(m, found, [value, *args], kwargs)
    return libraries.call_instance(m, value, args, kwargs)
