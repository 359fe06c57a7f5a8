"""Calling a module: the program's own forward, or what a module of torch.nn does to the graph."""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import calls, constants, hooks, iteration, names, ops, recurrent, strides, tensors
from gradfix.read.frames import Machine
from gradfix.read.layers import number, parameters
from gradfix.read.values import Bound, Function, Instance, Native, Tensor, Unknown, Value

# module -> function of torch.nn.functional, or an op of the table
ACTIVATIONS = {
    "ReLU": "relu", "LeakyReLU": "leaky_relu", "ELU": "elu", "SELU": "selu", "CELU": "celu", "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus", "Softsign": "softsign",
    "Hardtanh": "hardtanh",
    "ReLU6": "relu6", "Hardswish": "hardswish", "Hardsigmoid": "hardsigmoid", "Mish": "mish",
    "LogSigmoid": "logsigmoid",
    "Threshold": "threshold", "RReLU": "rrelu", "Tanhshrink": "tanhshrink", "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Dropout": "dropout", "Dropout2d": "dropout2d", "Dropout3d": "dropout3d", "AlphaDropout": "alpha_dropout",
    "Softmin": "softmin", "GLU": "glu",
}  # fmt: skip
LOSSES = {
    "MSELoss": "mse_loss", "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss",
    "BCELoss": "binary_cross_entropy", "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "NLLLoss": "nll_loss",
    "CrossEntropyLoss": "cross_entropy", "KLDivLoss": "kl_div", "PoissonNLLLoss": "poisson_nll_loss",
    "CosineEmbeddingLoss": "cosine_embedding_loss", "MarginRankingLoss": "margin_ranking_loss",
    "TripletMarginLoss": "triplet_margin_loss", "HingeEmbeddingLoss": "hinge_embedding_loss",
    "SoftMarginLoss": "soft_margin_loss", "GaussianNLLLoss": "gaussian_nll_loss", "CTCLoss": "ctc_loss",
}  # fmt: skip
# what an activation keeps for its backward when it works in place: its result, its input, or something of its own
RESULT = {"relu", "leaky_relu", "elu", "selu", "celu", "sigmoid", "tanh", "relu6", "hardtanh", "threshold"}
VIEWING = {
    "Flatten": "flatten",
    "Unflatten": "view",
    "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle",
}


def call(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module(x)``: its forward, or what a module of torch.nn does."""
    if hooks.HOOKED in module.extra:
        return hooks.called(m, _call, module, args, kwargs)
    return _call(m, module, args, kwargs)


def _call(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if module.cls is not None:
        from gradfix.read import objects

        forward = module.attrs.get("forward") or objects.lookup(module.cls, "forward")
        if isinstance(forward, Function):
            return calls.call(m, Bound(forward, module), args, kwargs)
        if isinstance(forward, Bound | Native):
            return calls.call(m, forward, args, kwargs)
    return base(m, module, args, kwargs)


def base(m: Machine, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What torch.nn's own forward of the module does."""
    name = module.kind.removeprefix("torch.nn.")
    if name in ("DataParallel", "DistributedDataParallel"):
        return calls.call(m, module.attrs["module"], args, kwargs)
    items = module.extra.get("items")
    if module.kind == "torch.nn.Sequential" and isinstance(items, list):
        value = args[0] if args else m.unknown("input")
        for each in items:
            m.spend()
            if isinstance(each, Unknown) and isinstance(value, Tensor) and value.requires:
                value = _somehow(m, value)
            else:
                value = calls.call(m, each, [value], {})
        return value
    if name == "Identity":
        return args[0] if args else m.unknown("input")
    if m.constants:
        m.leaving.clear()
    before = m.trace.made()
    made = _builtin(m, name, module, args, kwargs)
    if isinstance(made, Tensor) and made.node is not None and made.node.number >= before:
        made.node.module = module
    if m.constants:
        constants.follow(m, name, [*args, *kwargs.values()], made)
    return made


def _somehow(m: Machine, value: Tensor) -> Value:
    """What a layer that is not known makes of a tensor that requires grad: in all likelihood another."""
    m.doubts += 1
    try:
        known, node, _ = ops.graph(m, "aten.alias", "AliasBackward0", [value])
        made = ops.new(m, None, value.dtype, known, node)
        if node is not None:
            node.output, node.vague = made, True
        return made
    finally:
        m.doubts -= 1


def _builtin(m: Machine, name: str, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from gradfix.read.torchlib import functional

    if not args and "input" in kwargs:
        args = [kwargs["input"]]
    if not args:
        return m.unknown(name)
    made, given = module.extra.get("args", []), module.extra.get("kwargs", {})
    if name in LOSSES:
        options = {k: v for k, v in given.items() if k in ("reduction", "size_average", "reduce")}
        return functional(m, LOSSES[name], args, options)
    if name in ACTIVATIONS:
        return _activation(m, name, module, args, made, given)
    if name == "Linear":
        return ops.apply(m, "linear", [args[0], _own(m, module, "weight"), _own(m, module, "bias")], {})
    if name == "Bilinear" and len(args) > 1:
        return ops.apply(m, "bilinear", [*args[:2], _own(m, module, "weight"), _own(m, module, "bias")], {})
    if name in recurrent.KINDS:
        return recurrent.call(m, module, args, kwargs)
    if name.startswith("Embedding"):
        return _embedding(m, module, args)
    if name in VIEWING and VIEWING[name] != "view":
        if name == "Flatten":
            ends = [number(made, given, 0, "start_dim"), number(made, given, 1, "end_dim")]
            return ops.apply(
                m,
                "flatten",
                [args[0], 1 if ends[0] is None else ends[0], -1 if ends[1] is None else ends[1]],
                {},
            )
        return ops.apply(m, VIEWING[name], [args[0], made[0] if made else 2], {})
    if name.startswith(("Conv", "LazyConv")) or "Norm" in name or name == "PReLU":
        return weighted(m, name, module, args)
    if (
        name == "Unflatten"
        or name == "Fold"
        or name == "Unfold"
        or "Pad" in name
        or "Pool" in name
        or name.startswith("Upsample")
    ):
        return opaque(m, name, args, "Pool" in name and "Avg" not in name)
    if name in ("MultiheadAttention",) or name.startswith("Transformer"):
        return _attention(m, name, module, args, kwargs)
    return m.unknown("module " + name)


def _activation(
    m: Machine, name: str, module: Instance, args: list[Value], made: list[Value], given: dict[str, Value]
) -> Value:
    from gradfix.read.torchlib import functional

    function = ACTIVATIONS[name]
    at = {
        "ReLU": 0,
        "ReLU6": 0,
        "SELU": 0,
        "SiLU": 0,
        "Mish": 0,
        "LeakyReLU": 1,
        "ELU": 1,
        "Dropout": 1,
        "Hardtanh": 2,
    }.get(name)
    inplace = given.get("inplace", made[at] if at is not None and len(made) > at else False)
    if "ropout" in name and module.attrs.get("training") is False:
        return args[0]
    options: dict[str, Value] = {"inplace": True} if inplace is True else {}
    extra: list[Value] = []
    if "ropout" in name:
        options["p"] = given.get("p", made[0] if made else 0.5)
    if function in ("softmax", "log_softmax", "softmin"):
        extra = [given.get("dim", made[0] if made else None)]
    return functional(
        m, function, [args[0], *extra], options, _writer(m, module, args[0]) if options.get("inplace") else ""
    )


def in_place(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value], module: str = "") -> Value:
    """An activation with ``inplace=True``: it writes into its input, and keeps its result or its input."""
    target = args[0]
    if not isinstance(target, Tensor):
        return target
    if "dropout" in name:
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        if share == 0 or kwargs.get("training", args[2] if len(args) > 2 else True) is False:
            return target  # nothing is written
        if isinstance(share, Unknown):
            m.doubts += 1
            try:
                return in_place(m, name, [target], {}, module)
            finally:
                m.doubts -= 1
    refused = ops.refusal(m, target, (), strides.refused(target, name))
    known = ops.requires(m, target)
    node = None
    from gradfix.read.effects import node_of

    if m.grad and known and target.alias != "numpy" and not refused:
        _, node, _ = ops.graph(m, "aten." + name, node_of(name), [target])
    ops.write(m, target, f"aten.{name}_", known, node, refused, module)
    if node is not None:
        if name in RESULT:
            m.trace.save(node, target)
        else:
            m.trace.save_own(node)
    return target


def _embedding(m: Machine, module: Instance, args: list[Value]) -> Value:
    weight = _own(m, module, "weight")
    norm = module.extra.get("max_norm")
    if isinstance(weight, Tensor) and norm is not None and not isinstance(norm, Unknown):
        m.trace.wrote("aten.embedding_renorm_", weight, how="module", module=_name(m, module))
    return ops.apply(m, "embedding", [weight, args[0]], {})


def _own(m: Machine, module: Instance, name: str) -> Value:
    """What a module of torch.nn is given when it is made; unknown where the program's class never had it made."""
    return module.attrs[name] if name in module.attrs else m.unknown(name)


def _writer(m: Machine, module: Instance, target: Value) -> str:
    """What the person calls a module that writes into `target`: looked for where somebody may be told."""
    if isinstance(target, Tensor) and (
        (target.requires and target.leaf) or any(not n.freed for n in target.storage.saved)
    ):
        names.look(m)
    return _name(m, module)


def _name(m: Machine, module: Instance) -> str:
    return str(module.extra.get("name") or module.kind.rpartition(".")[2])


def weighted(m: Machine, name: str, module: Instance, args: list[Value]) -> Value:
    """Convolutions and normalisations: both the input and the weight are kept where either needs a gradient."""
    source = args[0]
    weight, bias = module.attrs.get("weight"), module.attrs.get("bias")
    op, node_name = (
        ("aten.convolution", "ConvolutionBackward0")
        if "Conv" in name
        else (
            ("aten.native_batch_norm", "NativeBatchNormBackward0")
            if name.startswith(("Batch", "Instance", "Sync"))
            else ("aten.native_layer_norm", "NativeLayerNormBackward0")
        )
    )
    inputs = [source, weight, bias]
    known, node, needing = ops.graph(m, op, node_name, inputs)
    if node is not None:
        needs = [t for t in needing if t is not bias]
        if needs or "Conv" not in name:
            for each in (source, weight):
                if isinstance(each, Unknown):
                    m.trace.save_own(node)
                elif isinstance(each, Tensor):
                    cast = m.autocast and "Conv" in name
                    m.trace.save_own(node) if cast else m.trace.save(node, each, True)
    shape = source.shape if isinstance(source, Tensor) and "Norm" in name else None
    if "Conv" in name and isinstance(source, Tensor) and source.shape:
        shape = (source.shape[0], module.attrs.get("out_channels"), *(None,) * (len(source.shape) - 2))
    made = ops.new(m, shape, "float32", known, node)
    if node is not None:
        node.output = made
    return made


def opaque(m: Machine, name: str, args: list[Value], saves: bool = True) -> Value:
    """A differentiable op of one input: max pooling keeps its input, others nothing that a variable holds."""
    source = args[0] if args else None
    if not isinstance(source, Tensor):
        return source if source is not None else m.unknown(name)
    op = "aten." + name.lower()
    known, node, _ = ops.graph(m, op, name + "Backward0", [source])
    if node is not None and (saves or "Pool" in name):
        m.trace.save(node, source)
    shape = source.shape[:2] + (None,) * (len(source.shape) - 2) if source.shape is not None else None
    made = ops.new(m, shape, source.dtype, known, node)
    if node is not None:
        node.output = made
    return made


def _attention(m: Machine, name: str, module: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Attention: its weights and inputs are kept (projections are products of both)."""
    weights = [t for _, t in parameters(module) if t.shape is None]
    inputs = [a for a in [*args, *kwargs.values()] if isinstance(a, Tensor)]
    known, node, _needing = ops.graph(
        m, "aten.scaled_dot_product_attention", "AttentionBackward0", [*inputs, *weights]
    )
    if node is not None:
        for each in inputs:
            m.trace.save(node, each)
        m.trace.save_own(node)
    made = ops.new(m, inputs[0].shape if inputs else None, "float32", known, node)
    if node is not None:
        node.output = made
    return (made, m.unknown("attention weights")) if name == "MultiheadAttention" else made


# ---- torch.nn.functional that isn't in the table, and torch.nn.utils


def _conv(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    names = ("input", "weight", "bias")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    module = Instance(None, {"weight": given.get("weight"), "bias": given.get("bias")}, "torch.nn.Conv")
    return weighted(m, "Conv", module, [given.get("input")])


def _norm(kind: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        at = {"batch_norm": 3, "layer_norm": 2, "group_norm": 2, "instance_norm": 3}[kind]
        weight = args[at] if len(args) > at else kwargs.get("weight")
        module = Instance(None, {"weight": weight, "bias": kwargs.get("bias")}, "")
        return weighted(
            m, "BatchNorm" if kind in ("batch_norm", "instance_norm") else "LayerNorm", module, args
        )

    return run


def _dropout(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs.get("training", args[2] if len(args) > 2 else True) is False:
        return args[0]
    known, node, _ = ops.graph(m, "aten.mul", "MulBackward0", args[:1])
    source = args[0]
    if not isinstance(source, Tensor):
        return m.unknown("dropout")
    if node is not None:
        m.trace.save_own(node)
    made = ops.new(m, source.shape, source.dtype, known, node)
    if node is not None:
        node.output = made
    return made


def _plain(name: str, saves: bool) -> Callable[..., Value]:
    return lambda m, args, kwargs: opaque(m, name, args, saves)


def _embed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = {**dict(zip(("input", "weight", "padding_idx", "max_norm"), args, strict=False)), **kwargs}
    module = Instance(
        None, {"weight": given.get("weight")}, "torch.nn.Embedding", {"max_norm": given.get("max_norm")}
    )
    return _embedding(m, module, [given.get("input")])


def _embed_bag(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``F.embedding_bag(input, weight, offsets, max_norm, …)``, of whose result the shape is not known."""
    given = {**dict(zip(("input", "weight", "offsets", "max_norm"), args, strict=False)), **kwargs}
    if len(args) > 4 or given.get("per_sample_weights") is not None:
        return m.unknown("embedding_bag")
    made = _embed(m, [], {name: given.get(name) for name in ("input", "weight", "max_norm")})
    if isinstance(made, Tensor):
        made.shape = None
    return made


def _softmax(name: str) -> Callable[..., Value]:
    def call(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        dim = args[1] if len(args) > 1 else kwargs.get("dim")
        if dim is None:  # PyTorch chooses it, and warns
            shape = args[0].shape if args and isinstance(args[0], Tensor) else None
            dim = m.unknown("dim") if shape is None else 0 if len(shape) in (0, 1, 3) else 1
        return ops.apply(m, name, args[:1], {"dim": dim})

    return call


FUNCTIONAL: dict[str, Callable[..., Value]] = {
    **{f"conv{d}d": _conv for d in (1, 2, 3)},
    **{f"conv_transpose{d}d": _conv for d in (1, 2, 3)},
    **{n: _norm(n) for n in ("batch_norm", "layer_norm", "group_norm", "instance_norm")},
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"), _dropout),
    **{f"max_pool{d}d": _plain("MaxPool", True) for d in (1, 2, 3)},
    **{f"avg_pool{d}d": _plain("AvgPool", True) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _plain("AvgPool", True) for d in (1, 2, 3)},
    **{f"adaptive_max_pool{d}d": _plain("MaxPool", True) for d in (1, 2, 3)},
    "interpolate": _plain("Upsample", False),
    "upsample": _plain("Upsample", False),
    "pad": _plain("Pad", False),
    "embedding": _embed,
    "embedding_bag": _embed_bag,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "one_hot": lambda m, args, kwargs: tensors.fresh(m, None, "int64"),
}


def utility(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """torch.nn.utils: what changes gradients only, and the parametrisations."""
    if name.startswith("clip_grad"):
        given = args[0] if args else kwargs.get("parameters")
        found = [given] if isinstance(given, Tensor) else iteration.listed(m, given) or []
        clipped = [each for each in found if isinstance(each, Tensor) and isinstance(each.grad, Tensor)]
        m.trace.clipped(clipped)
        for each in clipped if m.closely else ():
            m.trace.grad_write(each)
    if name.startswith("clip_grad") or name == "parameters_to_vector":
        return m.unknown(name)
    if name in (
        "spectral_norm",
        "weight_norm",
        "parametrizations.spectral_norm",
        "parametrizations.weight_norm",
    ):
        return args[0] if args else m.unknown(name)
    return m.unknown("utils." + name)
