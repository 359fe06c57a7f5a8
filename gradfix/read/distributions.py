"""torch.distributions: which of their methods carry the parameters' graph, and what is kept for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradfix.read import calls, constants, ops, shapes, tensors
from gradfix.read.frames import Machine
from gradfix.read.objects import MISSING
from gradfix.read.values import Instance, Native, Shape, Tensor, Unknown, Value

PREFIX = "torch.distributions."
_PLACED = ("loc", "scale")
_CHANCES = ("probs", "logits")
SIGNATURES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("Normal", "LogNormal", "Laplace", "Cauchy", "Gumbel", "LogisticNormal"), _PLACED),
    **dict.fromkeys(("Bernoulli", "Categorical", "OneHotCategorical", "Geometric"), _CHANCES),
    **dict.fromkeys(("OneHotCategoricalStraightThrough", "ContinuousBernoulli"), _CHANCES),
    **dict.fromkeys(("Binomial", "NegativeBinomial", "Multinomial"), ("total_count", *_CHANCES)),
    **dict.fromkeys(("RelaxedBernoulli", "RelaxedOneHotCategorical"), ("temperature", *_CHANCES)),
    **dict.fromkeys(("Exponential", "Poisson"), ("rate",)),
    **dict.fromkeys(("HalfNormal", "HalfCauchy"), ("scale",)),
    "Beta": ("concentration1", "concentration0"),
    "Dirichlet": ("concentration",),
    "Gamma": ("concentration", "rate"),
    "StudentT": ("df", "loc", "scale"),
    "Uniform": ("low", "high"),
    "Independent": ("base_dist", "reinterpreted_batch_ndims"),
    "TransformedDistribution": ("base_dist", "transforms"),
    "MultivariateNormal": ("loc", "covariance_matrix", "precision_matrix", "scale_tril"),
    "LowRankMultivariateNormal": ("loc", "cov_factor", "cov_diag"),
}
_CALLED = {"base_distribution": "base_dist"}  # arguments that have another name as attributes
# those that `loc` moves, and that are as wide wherever it is
_MOVED = {
    "Normal", "Laplace", "Cauchy", "Gumbel", "StudentT", "MultivariateNormal", "LowRankMultivariateNormal",
}  # fmt: skip
# those whose draws have no derivative by the parameters
_DRAWN_ONLY = {
    "Bernoulli", "Binomial", "Categorical", "Geometric", "MixtureSameFamily", "Multinomial", "NegativeBinomial",
    "OneHotCategorical", "Poisson", "VonMises",
}  # fmt: skip
_WHOLE = {"Categorical"}  # those that draw whole numbers
_ROWS = {  # those of which a draw is a row
    "OneHotCategorical", "OneHotCategoricalStraightThrough", "RelaxedOneHotCategorical", "Multinomial",
    "MultivariateNormal", "LowRankMultivariateNormal", "LogisticNormal", "Dirichlet",
}  # fmt: skip
_LEAST = 1e-7
_MOST = 64  # dimensions of a tensor
_PLAIN = (int, float, str, type(None))


def make(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A distribution (or a transform): an object that keeps its parameters."""
    name = path.rpartition(".")[2]
    if name == "kl_divergence":
        return _derived(m, args)
    if not name[:1].isupper():
        return m.unknown("call " + path)
    value = Instance(None, kind=PREFIX + name)
    fill(m, value, args, kwargs)
    return value


def fill(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Distribution.__init__``."""
    if calls.REST in args or "**" in kwargs:
        return None  # which argument is which is not known
    name = _name(value)
    signature = SIGNATURES.get(name, ())
    given: dict[str, Value] = {_CALLED.get(k, k): v for k, v in kwargs.items() if k != "validate_args"}
    given.update((signature[i] if i < len(signature) else str(i), v) for i, v in enumerate(args))
    value.extra["given"] = given
    value.extra["made"] = made = {}
    if "ategorical" in name and given.get("probs") is not None:
        made["probs"] = _op(m, "div", given["probs"], _op(m, "sum", given["probs"], -1, True))
    elif "ategorical" in name and "logits" in given:
        made["logits"] = _op(m, "sub", given["logits"], _op(m, "logsumexp", given["logits"], -1, True))
    elif name == "MultivariateNormal" and isinstance(given.get("covariance_matrix"), Tensor):
        made["scale_tril"] = _op(m, "linalg_cholesky", given["covariance_matrix"])
    return None


def attribute(m: Machine, value: Instance, name: str) -> Value:
    """An attribute of a distribution, or MISSING."""
    if name == "__init__":
        return Native(name, lambda machine, args, kwargs: fill(machine, value, args, kwargs))
    method = METHODS.get(name)
    if "given" not in value.extra:  # of a class of the user's, whose constructor keeps what it wants
        return MISSING if method is None else Unknown(f"{value.kind} of a class of the user's")
    if method is not None:
        return Native(name, lambda machine, args, kwargs: method(machine, value, args, kwargs))
    return _kept(m, value, name)


def _name(value: Instance) -> str:
    return value.kind.rpartition(".")[2]


def _op(m: Machine, name: str, *args: Value, **kwargs: Value) -> Value:
    return ops.apply(m, name, list(args), kwargs)


def _parameters(value: Value) -> list[Value]:
    """What a distribution, a transform or a list of them rests on: tensors, and what may be one."""
    found: list[Value] = []
    pending, seen = [value], set[int]()
    while pending:
        each = pending.pop()
        if isinstance(each, Tensor | Unknown):
            found.append(each)
        elif isinstance(each, _PLAIN) or id(each) in seen:
            continue
        elif isinstance(each, list | tuple):
            pending += reversed(each)
        elif isinstance(each, Instance) and "given" in each.extra:
            pending += reversed([*{**each.extra["given"], **each.extra["made"]}.values()])
        else:
            found.append(Unknown("part of a distribution"))
        seen.add(id(each))
    return found


def _derived(m: Machine, inputs: Sequence[Value], shape: Shape = None) -> Tensor:
    """Something made of all of `inputs`, for whose backward something of its own is kept."""
    wanted = _parameters(list(inputs))
    known, node, _ = ops.graph(m, "aten.sub", "SubBackward0", wanted)
    if node is not None:
        m.trace.save_own(node)
    made = ops.new(m, shape, "float32", known, node)
    if node is not None:
        node.output = made
    return made


# ---- what is known of it


def _kept(m: Machine, value: Instance, name: str) -> Value:
    """A parameter, made of the other kind where only that was given; or a moment."""
    given, made = value.extra["given"], value.extra["made"]
    if name in made:
        return made[name]
    own = given.get(name)
    if isinstance(own, int | float) and name in _MOVABLE:
        return tensors.fresh(m, ())
    if own is not None:
        return own
    grad, m.grad = m.grad, True  # (made when it is asked for first, for all who ask)
    try:
        if name == "probs" and (logits := _of(value, "logits")) is not None:
            made[name] = (
                _op(m, "softmax", logits, -1) if "ategorical" in _name(value) else _op(m, "sigmoid", logits)
            )
            return made[name]
        if name == "logits" and (probs := _of(value, "probs")) is not None:
            made[name] = _op(m, "log", _op(m, "clamp", probs, _LEAST, 1 - _LEAST))
            return made[name]
    finally:
        m.grad = grad
    return _moment(m, value, name)


_MOVABLE = {*_PLACED, *_CHANCES, "rate", "concentration", "concentration0", "concentration1", "low", "high"}


def _of(value: Instance, name: str) -> Value:
    return value.extra["made"].get(name, value.extra["given"].get(name))


def _moment(m: Machine, value: Instance, name: str) -> Value:
    kind = _name(value)
    if name not in ("mean", "mode", "stddev", "variance"):
        return MISSING
    if kind == "Independent" and isinstance(value.extra["given"].get("base_dist"), Instance):
        return attribute(m, value.extra["given"]["base_dist"], name)
    if kind in ("Normal", "Laplace", "MultivariateNormal") and name in ("mean", "mode"):
        return _kept(m, value, "loc")
    if kind == "Normal":
        scale = _kept(m, value, "scale")
        return scale if name == "stddev" else _op(m, "pow", scale, 2)
    if kind == "Bernoulli" and name == "mean":
        return _kept(m, value, "probs")
    if kind in _WHOLE or (kind in _DRAWN_ONLY and name == "mode"):
        return tensors.fresh(m, None)  # indices, or no number at all
    return _derived(m, _width(value) if name in ("stddev", "variance") else [value])


def _width(value: Instance) -> list[Value]:
    """What its width rests on."""
    if _name(value) not in _MOVED:
        return [value]
    return [v for k, v in {**value.extra["given"], **value.extra["made"]}.items() if k != "loc"]


# ---- shapes


def _batch(value: Value) -> Shape:
    """Sizes of what it draws, one draw."""
    if not isinstance(value, Instance) or "given" not in value.extra:
        return None
    given = value.extra["given"]
    if "base_dist" in given:
        return _batch(given["base_dist"]) if _name(value) == "Independent" else None
    if "MultivariateNormal" in _name(value):
        return _row(given)
    found = [v for v in given.values() if v is not None and not isinstance(v, int | float)]
    if not found or not all(isinstance(v, Tensor) for v in found):
        return None
    shape = shapes.broadcast([v.shape for v in found])
    return shape[:-1] if shape is not None and _name(value) in _WHOLE else shape


def _row(given: dict[str, Value]) -> Shape:
    """Sizes of a draw of a multivariate normal distribution: its matrix may have more of them than `loc`."""
    batches: list[Shape] = []
    width: Shape = None
    for name, value in given.items():
        if value is None:
            continue
        shape, own = (
            value.shape if isinstance(value, Tensor) else None,
            1 if name in ("loc", "cov_diag") else 2,
        )
        if shape is None or len(shape) < own:
            return None
        batches.append(shape[:-own])
        width = shape[-1:] if name == "loc" else width
    batch = shapes.broadcast(batches)
    return None if batch is None or width is None else (*batch, *width)


def _events(value: Value) -> int | None:
    """How many of those sizes are one event's."""
    if not isinstance(value, Instance) or "given" not in value.extra:
        return None
    if _name(value) == "Independent":
        more, inner = (
            value.extra["given"].get("reinterpreted_batch_ndims"),
            value.extra["given"].get("base_dist"),
        )
        below = _events(inner)
        return below + more if isinstance(more, int) and below is not None else None
    return 1 if _name(value) in _ROWS else 0 if _name(value) in SIGNATURES else None


def _scored(value: Instance, of: Value) -> Shape:
    """Sizes of a log-probability."""
    drawn, events = _batch(value), _events(value)
    if events is None or not isinstance(of, Tensor):
        return None
    shape = shapes.broadcast([drawn, of.shape])
    return shape if not events or shape is None else shape[:-events]


# ---- methods


def _wanted(args: list[Value], kwargs: dict[str, Value], name: str, otherwise: Value) -> Value:
    return args[0] if args else kwargs.get(name, otherwise)


def _sizes(value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Shape:
    """Sizes of draws."""
    given, one = shapes.sizes(_wanted(args, kwargs, "sample_shape", ())), _batch(value)
    return None if given is None or one is None else (*given, *one)


def _sample(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if _name(value) not in _WHOLE | _DRAWN_ONLY:
        recording, m.grad = m.grad, False
        try:
            made = _rsample(m, value, args, kwargs)
        finally:
            m.grad = recording
        if isinstance(made, Tensor) and made.requires is False:
            return made
    if _name(value) not in _WHOLE:
        return tensors.fresh(m, _sizes(value, args, kwargs), "float32")
    made = tensors.fresh(m, _sizes(value, args, kwargs), "int64")
    given = [t for t in value.extra.get("given", {}).values() if isinstance(t, Tensor)]
    ops.discrete(m, given)
    return constants.drawn(m, made)


def _rsample(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, kind = value.extra["given"], _name(value)
    if kind in _DRAWN_ONLY:
        return m.unknown("rsample of " + kind)
    shape = _sizes(value, args, kwargs)
    if kind == "Normal":
        scaled = _op(m, "mul", tensors.fresh(m, shape), given.get("scale", 1.0))
        return _op(m, "add", scaled, given.get("loc", 0.0))
    if kind == "Independent" and _followed(given.get("base_dist")):
        return _rsample(m, given["base_dist"], args, kwargs)
    return _derived(m, [value], shape)


def _followed(value: Value) -> bool:
    return isinstance(value, Instance) and "given" in value.extra


def _log_prob(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, kind, of = value.extra["given"], _name(value), _wanted(args, kwargs, "value", None)
    shape = _scored(value, of)
    if of is None:
        return m.unknown("log_prob of nothing")
    if kind == "Normal":
        return _normal(m, of, given.get("loc"), given.get("scale"))
    if kind == "Categorical":
        if isinstance(of, Tensor) and of.dtype != "int64":
            of = tensors.fresh(m, of.shape, "int64")
        found = _op(m, "gather", _kept(m, value, "logits"), -1, of)
        if isinstance(found, Tensor):
            found.shape = shape
        return found
    if kind == "Bernoulli":
        scored = _op(m, _CROSS, _kept(m, value, "logits"), of, reduction="none")
        return _op(m, "neg", scored)
    if kind == "Independent" and _followed(given.get("base_dist")):
        return _summed(m, value, _log_prob(m, given["base_dist"], args, kwargs))
    return _derived(m, [of, value], shape)


def _normal(m: Machine, value: Value, mean: Value, deviation: Value) -> Value:
    """What Normal.log_prob does."""
    if isinstance(deviation, int | float):
        variance, logarithm = 1.0, 0.0
    else:
        variance = _op(m, "mul", _op(m, "pow", deviation, 2), 2)
        logarithm = _op(m, "log", deviation)
    squared = _op(m, "pow", ops.operator_(m, "sub", value, mean), 2)
    share = ops.operator_(m, "div", _op(m, "neg", squared), variance)
    return _op(m, "sub", ops.operator_(m, "sub", share, logarithm), 0.9)


def _entropy(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given, kind, shape = value.extra["given"], _name(value), _batch(value)
    if kind == "Normal":
        scale = given.get("scale")
        if isinstance(scale, int | float):
            return tensors.fresh(m, shape)
        return _op(m, "add", _op(m, "log", scale), 0.5)
    if kind == "Categorical":
        each = _op(m, "mul", _op(m, "clamp", _kept(m, value, "logits"), -1e38), _kept(m, value, "probs"))
        return _op(m, "neg", _op(m, "sum", each, -1))
    if kind == "Bernoulli":
        chances = _kept(m, value, "logits"), _kept(m, value, "probs")
        return _op(m, _CROSS, *chances, reduction="none")
    if kind == "Independent" and _followed(given.get("base_dist")):
        return _summed(m, value, _entropy(m, given["base_dist"], [], {}))
    return _derived(m, _width(value))


_CROSS = "nn.binary_cross_entropy_with_logits"


def _summed(m: Machine, value: Instance, scored: Value) -> Value:
    """Over the dimensions that Independent takes for one event."""
    more = value.extra["given"].get("reinterpreted_batch_ndims")
    if more == 0 or not isinstance(scored, Tensor):
        return scored
    known = isinstance(more, int) and 0 < more <= _MOST
    dims = list(range(-more, 0)) if known else m.unknown("dimensions")
    return _op(m, "sum", scored, dims)


def _expand(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The same parameters, seen as more."""
    extra: dict[str, Any] = {"given": {"base_dist": value, "sizes": m.unknown("sizes")}, "made": {}}
    return Instance(None, kind=PREFIX + "Expanded", extra=extra)


def _function(m: Machine, value: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _derived(m, [value, *args, *kwargs.values()])


METHODS: dict[str, Callable[..., Value]] = {
    "sample": _sample,
    "rsample": _rsample,
    "log_prob": _log_prob,
    "entropy": _entropy,
    "expand": _expand,
    "cdf": _function,
    "icdf": _function,
}
