"""torch.distributions: which of its methods carry the parameters' graph."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import ops, tensors
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Tensor, Value


def make(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A distribution: an object that keeps its parameters."""
    name = path.rpartition(".")[2]
    value = Instance(None, kind="torch.distributions." + name)
    parameters = [v for v in [*args, *kwargs.values()] if isinstance(v, Tensor)]
    if name in ("Categorical", "OneHotCategorical") and parameters:
        soft = ops.apply(m, "log_softmax", [parameters[0], -1], {})
        parameters = [soft] if isinstance(soft, Tensor) else parameters
    value.extra["parameters_"] = parameters
    return value


def _sample(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    shape = None
    if value.kind.endswith("Categorical"):
        logits = value.extra["parameters_"]
        shape = logits[0].shape[:-1] if logits and logits[0].shape else None
        return tensors.fresh(m, shape, "int64")
    return tensors.fresh(m, value.extra["parameters_"][0].shape if value.extra["parameters_"] else None)


def _derived(op: str, node_name: str, saves: bool) -> Callable[..., Value]:
    def run(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
        inputs: list[Tensor] = [*value.extra["parameters_"], *[a for a in args if isinstance(a, Tensor)]]
        known, node, _ = ops.graph(m, op, node_name, inputs)
        if node is not None and saves:
            m.trace.save_own(node)
        made = ops.new(m, None, "float32", known, node)
        if node is not None:
            node.output = made
        return made

    return run


def _log_prob(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if value.kind.endswith(".Categorical") and value.extra["parameters_"]:
        gathered = ops.apply(m, "gather", [value.extra["parameters_"][0], -1, args[0] if args else None], {})
        return gathered if isinstance(gathered, Tensor) else _PLAIN(m, value, args, kwargs)
    if value.kind.endswith(".Normal") and len(value.extra["parameters_"]) == 2 and args:
        found = _normal(m, args[0], *value.extra["parameters_"])
        return found if isinstance(found, Tensor) else _PLAIN(m, value, args, kwargs)
    return _PLAIN(m, value, args, kwargs)


def _normal(m: Machine, value: Value, mean: Tensor, deviation: Tensor) -> Value:
    """What Normal.log_prob does."""
    variance = ops.apply(m, "mul", [ops.apply(m, "pow", [deviation, 2], {}), 2], {})
    squared = ops.apply(m, "pow", [ops.apply(m, "sub", [value, mean], {}), 2], {})
    share = ops.apply(m, "div", [ops.apply(m, "neg", [squared], {}), variance], {})
    outer = ops.apply(m, "sub", [share, ops.apply(m, "log", [deviation], {})], {})
    return ops.apply(m, "sub", [outer, 0.9], {})


_PLAIN = _derived("aten.sub", "SubBackward0", True)
METHODS = {
    "sample": _sample,
    "rsample": _derived("aten.add", "AddBackward0", True),
    "log_prob": _log_prob,
    "entropy": _derived("aten.neg", "NegBackward0", True),
}
