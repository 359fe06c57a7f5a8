"""``torch.func.functional_call``: a module run with other tensors in the places of its own."""

from __future__ import annotations

from gradfix.read import calls, containers, layers
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Value


def functional_call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The module's own tensors are back in their places when the call is over."""
    names = ("module", "parameter_and_buffer_dicts", "args", "kwargs")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    module, values = given.get("module"), given.get("parameter_and_buffer_dicts")
    inputs, named = given.get("args", ()), given.get("kwargs") or {}
    several = values if isinstance(values, list | tuple) else (values,)
    tables = [containers.plain(each) for each in several]
    if (
        not isinstance(module, Instance)
        or not layers.is_module(module)
        or not all(isinstance(t, dict) for t in tables)
        or not isinstance(named, dict)
    ):
        return m.unknown("functional_call")
    places = {
        f"{prefix}.{name}" if prefix else name: (held, name)
        for prefix, each in layers.modules(module)
        for held in (each.attrs, containers.plain(each))
        if isinstance(held, dict)
        for name in held
    }
    before = []
    try:
        for name, value in ((n, v) for table in tables for n, v in table.items()):
            if name in places:
                held, key = places[name]
                before.append((held, key, held[key]))
                held[key] = value
        return calls.call(m, module, list(inputs) if isinstance(inputs, list | tuple) else [inputs], named)
    finally:
        for held, key, value in reversed(before):
            held[key] = value
