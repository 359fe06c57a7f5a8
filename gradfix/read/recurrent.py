"""Recurrent modules: what they keep of their weights depends on what comes in."""

from __future__ import annotations

from typing import Any

from gradfix.read import ops
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Packed, Shape, Tensor, Unknown, Value

KINDS = {"RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"}
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}


def fill(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> None:
    """The weights of each layer and direction."""
    from gradfix.read.layers import parameter

    name = module.kind.removeprefix("torch.nn.")
    given = {**dict(zip(("input_size", "hidden_size", "num_layers"), args, strict=False)), **kwargs}
    n_in, hidden = (
        given.get(k) if isinstance(given.get(k), int) else None for k in ("input_size", "hidden_size")
    )
    layers = given.get("num_layers", 1)
    gates = GATES[name.removesuffix("Cell")]
    wide = hidden * gates if hidden is not None else None
    suffixes = (
        [""]
        if name.endswith("Cell")
        else [f"_l{i}" for i in range(layers if isinstance(layers, int) and layers < 16 else 1)]
    )
    for suffix in suffixes:
        module.attrs["weight_ih" + suffix] = parameter(m, (wide, n_in))
        module.attrs["weight_hh" + suffix] = parameter(m, (wide, hidden))
        if given.get("bias") is not False:
            module.attrs["bias_ih" + suffix] = parameter(m, (wide,))
            module.attrs["bias_hh" + suffix] = parameter(m, (wide,))
    module.extra.update(hidden=hidden, batch_first=given.get("batch_first") is True, layers=len(suffixes))


def call(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """RNN, LSTM, GRU and their cells: the output and the state from the input and the state before."""
    name = module.kind.removeprefix("torch.nn.")
    given = args[0] if args else kwargs.get("input")
    source = given[0] if isinstance(given, Packed) else given
    states = args[1] if len(args) > 1 else kwargs.get("hx")
    if not isinstance(source, Tensor) and not isinstance(source, Unknown):
        return m.unknown(name)
    hidden = [s for s in (states if isinstance(states, list | tuple) else [states]) if isinstance(s, Tensor)]
    weights = [v for v in module.attrs.values() if isinstance(v, Tensor) and v.parameter]
    known, node, needing = ops.graph(
        m, f"aten.{name.lower()}", name + "Backward0", [source, *hidden, *weights]
    )
    if isinstance(states, Unknown) and known is False:
        known = None
    if node is not None:
        _keep(m, node, name, module, source, hidden, needing)
    results = _results(m, name, module, source, known, node)
    if node is not None:
        first = results[0] if isinstance(results, tuple) else results
        node.output = first
        if name == "RNNCell":
            m.trace.save(node, first)
    if isinstance(given, Packed) and isinstance(results, tuple):
        return Packed((results[0], *given[1:])), *results[1:]
    return results


def _keep(
    m: Machine,
    node: Any,
    name: str,
    module: Instance,
    source: Value,
    hidden: list[Tensor],
    needing: list[Tensor],
) -> None:
    attrs = module.attrs
    m.trace.save_own(node)
    if isinstance(source, Tensor):
        m.trace.save(node, source)
    for each in hidden:
        m.trace.save(node, each)
    if m.autocast:
        return
    cell = name.endswith("Cell")
    long = not cell and _steps(module, source) != 1
    for key, value in attrs.items():
        if not isinstance(value, Tensor) or "weight" not in key:
            continue
        deeper = not key.endswith(("_l0", "_ih", "_hh"))
        if "ih" in key:
            used = deeper or source in needing
        else:
            used = long or any(h in needing for h in hidden)
        if used:
            m.trace.save(node, value)


def _steps(module: Instance, source: Value) -> int | None:
    if isinstance(source, Tensor) and source.shape is not None and len(source.shape) >= 2:
        return source.shape[1 if module.extra.get("batch_first") and len(source.shape) == 3 else 0]
    return None


def _results(m: Machine, name: str, module: Instance, source: Value, known: Any, node: Any) -> Value:
    hidden = module.extra.get("hidden")
    shape: Shape = source.shape if isinstance(source, Tensor) else None
    out: Shape = None if shape is None else (*shape[:-1], hidden)

    def one(sizes: Shape) -> Tensor:
        return ops.new(m, sizes, "float32", known, node)

    if name == "LSTMCell":
        return one(out), one(out)
    if name.endswith("Cell"):
        return one(out)
    batch = None
    if shape is not None and len(shape) == 3:
        batch = shape[0 if module.extra.get("batch_first") else 1]
    last: Shape = (
        (module.extra.get("layers"), batch, hidden) if shape is not None and len(shape) == 3 else None
    )
    state: Value = (one(last), one(last)) if name == "LSTM" else one(last)
    return one(out), state
