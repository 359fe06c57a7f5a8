"""What the person calls a tensor or an optimizer: looked up in the variables, as the recorder does."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from gradfix.read.frames import Frame, Machine
from gradfix.read.values import Class, Function, Instance, Later, Lib, ModuleValue, Tensor, Unknown, Value

_MOST_ITEMS = 64
_DEEPEST = 3
_LOOKS = 4
Held = tuple[str, ...]  # as Optimizer.attributes on the tape
Place = tuple[bool, int]  # whether a loop binds the variable; how many functions further out it is
_DULL = (ModuleValue, Class, Lib, Function, Later, Unknown, int, str)


def look(m: Machine, again: bool = False) -> None:
    """Name what the variables of the running functions hold; the first few times at one place, or `again`."""
    key = ("look", m.stack())
    looks = m.called[hash(key)] = m.called.get(hash(key), 0) + 1
    if looks > _LOOKS and not again:
        return
    depth = 0
    seen_frames: set[int] = set()
    for frame in reversed(m.frames):
        if id(frame.names) in seen_frames:
            continue
        seen_frames.add(id(frame.names))
        seen: set[int] = set()
        for name, value in _variables(frame):
            _visit(m, name, value, (name in frame.passing, depth), 0, seen)
        depth += 1


def local(m: Machine, tensor: Tensor) -> None:
    """Name a tensor after the variable of the running function that holds it, or a view of it."""
    if tensor.storage.name:
        return
    near = ""
    for name, value in _variables(m.frame):
        if isinstance(value, Tensor):
            if value is tensor:
                tensor.storage.name = name
                return
            if value.storage is tensor.storage and (not near or len(name) < len(near)):
                near = name
    tensor.storage.name = near


def variable(m: Machine, tensor: Tensor) -> str:
    """The variable of the running function that holds a tensor, or ""."""
    return next((name for name, value in _variables(m.frame) if value is tensor), "")


def bound(target: ast.expr) -> Iterator[str]:
    """The variables that a loop binds."""
    return (
        each.id for each in ast.walk(target) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    )


def owner(m: Machine, thing: Instance) -> str:
    """What the person calls a module or an optimizer."""
    return str(thing.extra.get("name", ""))


def unregistered(m: Machine, stepped: list[Tensor]) -> list[tuple[Held, Tensor]]:
    """What modules hold in plain lists, tuples and dictionaries, layer by layer, where all that is registered of a
    module around them is among `stepped`; each with how the module holds it. They are named."""
    from gradfix.read import layers

    own, found = {id(t) for t in stepped}, dict[int, tuple[Held, Tensor]]()
    if any("add_param_group" in unit.text for unit in m.project.units.values()):
        return []  # it may yet be given them
    for module in _whole(m):
        hiding = [(inner, some) for inner, child in layers.modules(module) if (some := list(_hidden(child)))]
        registered = [t for _, t in layers.parameters(module) if t.requires is not False] if hiding else []
        if registered and all(id(t) in own for t in registered) and not layers.vague(module):
            for inner, some in hiding:
                for held, tensor in some:
                    if tensor.requires is True and id(tensor) not in own and id(tensor) not in found:
                        tensor.storage.known, found[id(tensor)] = True, (held, tensor)
                        parts = (owner(m, module), inner, held[0] + held[1])
                        _offer(".".join(x for x in parts if x), tensor, (False, 0))
    return list(found.values())


def _whole(m: Machine) -> Iterator[Instance]:
    """The modules that variables hold, by way of containers and the attributes of plain objects, too."""
    from gradfix.read import layers

    seen: set[int] = set()
    pending = [(value, 0) for frame in reversed(m.frames) for _, value in _variables(frame)]
    while pending:
        value, depth = pending.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        inner: Iterable[Value] = ()
        if layers.is_module(value):
            assert isinstance(value, Instance)
            yield value
        elif isinstance(value, Instance):
            inner = value.attrs.values() if value.cls is not None else ()
        elif isinstance(value, dict):
            inner = value.values()
        elif isinstance(value, list | tuple):
            inner = value
        if depth < _DEEPEST:
            pending += [(item, depth + 1) for item in list(inner)[:_MOST_ITEMS]]


def _hidden(module: Instance) -> Iterator[tuple[Held, Tensor]]:
    """The leaves that attributes hold, and the parameters of layers that they hold as items. A list of a single network
    and one that is in evaluation mode are there so that they are not registered."""
    from gradfix.read import layers

    for key, value in list(module.attrs.items()):
        if (
            isinstance(value, Tensor)
            and not value.parameter
            and value.node is None
            and value.requires is True
        ):
            yield (key, ""), value
        items = list(_items(value))
        several = sum(layers.is_module(item) for _, _, item in items) > 1
        for at, types, item in items:
            if isinstance(item, Tensor) and item.parameter:
                yield (key, at, *types), item
            elif layers.is_module(item) and several and item.attrs.get("training") is not False:
                yield from (((key, f"{at}.{inner}", *types), t) for inner, t in layers.parameters(item))


def _items(value: Value, at: str = "", types: Held = ()) -> Iterator[tuple[str, Held, Any]]:
    """What a list, a tuple or a dictionary holds, and those that it holds: where, by way of which types, and what."""
    if not isinstance(value, list | tuple | dict) or len(value) > _MOST_ITEMS or len(types) >= _DEEPEST:
        return
    within = (*types, next(each.__name__ for each in (list, tuple, dict) if isinstance(value, each)))
    for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield f"{at}[{key!r}]", within, item
        yield from _items(item, f"{at}[{key!r}]", within)


def _variables(frame: Frame) -> Iterator[tuple[str, Value]]:
    for name, value in list(frame.names.items()):
        if not name.startswith("__") and not isinstance(value, _DULL):
            yield name, value


def _visit(m: Machine, name: str, value: Value, place: Place, depth: int, seen: set[int]) -> None:
    if isinstance(value, Tensor):
        _offer(name, value, place)
        return
    if isinstance(value, Instance) and value.kind.startswith("torch.optim."):
        if name != "self":  # in a method of its own class
            _own(name, value, place)
        return
    module = isinstance(value, Instance) and value.kind.startswith("torch.nn.")
    if id(value) in seen and not module:
        return
    seen.add(id(value))
    if isinstance(value, Instance):
        if module:
            _module(m, name, value, place)
        elif depth < _DEEPEST and (value.cls is not None or value.kind == "types.SimpleNamespace"):
            for key, item in list(value.attrs.items()):
                _visit(m, f"{name}.{key}", item, place, depth + 1, seen)
    elif depth >= _DEEPEST:
        return
    elif isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
        for i, item in enumerate(value):
            _visit(m, f"{name}[{i}]", item, place, depth + 1, seen)
    elif isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        for key, item in list(value.items()):
            if isinstance(key, str | int):
                _visit(m, f"{name}[{key!r}]", item, place, depth + 1, seen)


def _module(m: Machine, name: str, module: Instance, place: Place) -> None:
    from gradfix.read import layers

    for inner, child in layers.modules(module):
        _own(f"{name}.{inner}" if inner else name, child, place)
        prefix = f"{name}.{inner}" if inner else name
        for key, item in layers._own(child):
            _offer(f"{prefix}.{key}", item, place)


def _offer(name: str, tensor: Tensor, place: Place) -> None:
    storage = tensor.storage
    if not storage.known:
        return
    rank = _rank(name, place)
    if not storage.name or rank < storage.rank:
        storage.name, storage.rank = name, rank


def _own(name: str, thing: Instance, place: Place) -> None:
    rank = _rank(name, place)
    known = thing.extra.get("rank")
    if known is None or rank < known:
        thing.extra["rank"], thing.extra["name"] = rank, name


def _rank(name: str, place: Place) -> tuple[int, int, int]:
    """Outer names before ``self.x`` of a method and those before a loop's variable, names before items, short before
    long, near frames first."""
    passing, depth = place
    inner = 2 if passing else 1 if name.startswith(("self.", "self[", "_")) else 0
    return (inner, name.count("["), len(name) * 8 + depth)
