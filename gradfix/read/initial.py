"""torch.nn.init, and ``reset_parameters()``: numbers anew in the same tensors, under no_grad."""

from __future__ import annotations

from gradfix.read import ops
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Native, Tensor, Value

_DRAWN = {"normal": "normal_", "uniform": "uniform_", "constant": "fill_", "ones": "fill_", "zeros": "zero_"}


def call(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.nn.init.name(tensor, …)``: the tensor. ``calculate_gain`` writes nothing; names without an underscore
    are those of before 1.0, and write too."""
    if name == "calculate_gain":
        return m.unknown(name)
    target = args[0] if args else kwargs.get("tensor")
    if isinstance(target, Tensor):
        _write(m, target, "aten." + _DRAWN.get(name.rstrip("_").rpartition("_")[2], "copy_"))
    return target


def resetting(m: Machine, layer: Instance) -> Native | None:
    """The method of a layer of torch.nn that has parameters of its own; None where there is none, as in Sequential."""
    own = [v for v in layer.attrs.values() if isinstance(v, Tensor) and v.parameter]
    if (layer.cls is not None and layer.kind == "torch.nn.Module") or not own:
        return None

    def run(machine: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for each in own:
            _write(machine, each, "aten.uniform_" if len(each.shape or (0, 0)) > 1 else "aten.fill_")
        return None

    return Native("reset_parameters", run)


def _write(m: Machine, target: Tensor, op: str) -> None:
    grad, m.grad = m.grad, False
    try:
        ops.write(m, target, op, False, None)
    finally:
        m.grad = grad
