"""Networks that other packages make: what is in them is not known, but that they have weights, and that a gradient goes
through all of them.

Of such a network one weight stands for all. A part of it (``net.layer4``) works with the same weight; which of its
parameters are that part's own is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gradfix.read import layers, lent, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Bound, Function, Instance, Native, Tensor, Value

KIND = "torch.nn.Network"
# what returns something else than a tensor while it is trained
_OTHERS = r"inception|googlenet|rcnn|retinanet|fcos|ssd|segmentation|detection|quantization|optical|feature"
_MAKERS = (
    r"torchvision\.models\.(?:\w+\.)?[a-z]\w*|timm\.(?:models\.)?create_model|pretrainedmodels\.(?:\w+\.)*[a-z]\w*"
    r"|efficientnet_pytorch\.EfficientNet\.from_(?:pretrained|name)"
    # the graph convolutions that have weights of their own, and return one tensor
    r"|torch_geometric\.nn\.(?:conv\.(?:\w+\.)?)?(?:ARMA|Cheb|ClusterGCN|FeaSt|FiLM|GAT|GATv2|GCN|GEN|Graph|Hypergraph"
    r"|LE|RGCN|ResGatedGraph|SAGE|SG|SuperGAT|TAG|Transformer)Conv"
)
_LIBRARIES = ("torchvision.", "timm.", "pretrainedmodels.", "efficientnet_pytorch.", "torch_geometric.")
_NO_MAKERS = {
    "get_model_weights",
    "list_models",
    "get_weight",
    "get_model_builder",
    "is_model",
}
CHILDREN = 10  # parts of a network that are gone through
PARTS = (
    r"conv\w*|bn\d*|layer\d|fc|_fc|classifier|features|relu|maxpool|avgpool|global_pool|head|heads|stem|blocks|encoder"
    r"|norm\d*|last_linear|act\d|patch_embed|backbone"
)


def makes(path: str) -> bool:
    """Whether calling the name of a library makes such a network."""
    if not path.startswith(_LIBRARIES):
        return False
    return (
        re.fullmatch(_MAKERS, path) is not None
        and re.search(_OTHERS, path) is None
        and path.rpartition(".")[2] not in _NO_MAKERS
    )


def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A network of a library's."""
    if kwargs.get("features_only") not in (None, False):
        return m.unknown("network")  # which returns several
    return Instance(None, {"weight": layers.parameter(m, None), "training": True}, KIND, {"unknown": True})


def part(m: Machine, network: Instance, name: str) -> Value:
    """``network.layer4``: what is made of the same weights, until somebody puts another in its place."""
    if re.fullmatch(PARTS, name) is None:
        return m.unknown("part of a network")
    parts = network.extra.setdefault("parts", {})
    if name not in parts:
        whole = network.extra.get("whole", network)
        parts[name] = Instance(None, {}, KIND, {"unknown": True, "whole": whole})
    return parts[name]


def call(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What it makes of its input: something that all of its weights went into."""
    if kwargs.get("return_attention_weights") is not None:
        return m.unknown("network")  # a graph convolution, which returns these too
    whole = network.extra.get("whole", network)
    weights = [t for _, t in layers.parameters(whole)] if whole is network else [whole.attrs["weight"]]
    known, node, needing = ops.graph(m, "aten.convolution", "ConvolutionBackward0", [*args, *weights])
    made = ops.new(m, None, "float32", known, node)
    if node is not None:
        node.output = made
        weight = whole.attrs.get("weight")
        if isinstance(weight, Tensor) and weight in needing and not m.autocast:
            m.trace.save(node, weight)  # that of a layer behind another: its gradient goes to the one before
    lent.run(m)
    return made


def _children(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """As many parts as most networks have; a part has none."""
    whole = network.extra.get("whole")
    if whole is not None:
        return []
    made = network.extra.setdefault("children", [])
    while len(made) < CHILDREN:
        made.append(Instance(None, {}, KIND, {"unknown": True, "whole": network}))
    return list(made)


def _named_children(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return [(m.unknown("name of a part"), each) for each in _children(m, network, [], {})]


def _modules(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return [network, *_children(m, network, [], {})]


def _named_modules(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return [(m.unknown("name of a part"), each) for each in _modules(m, network, [], {})]


def _unknown(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return m.unknown("parts of a network")


def _named_parameters(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if "whole" in network.extra:
        return m.unknown("parts of a network")
    return [(m.unknown("name of a weight"), t) for _, t in layers.parameters(network)]


def _parameters(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if "whole" in network.extra:
        return m.unknown("parts of a network")
    return [t for _, t in layers.parameters(network)]


def _requires_grad_(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if "whole" not in network.extra:
        return layers.METHODS["requires_grad_"](m, network, args, kwargs)
    weight = network.extra["whole"].attrs.get("weight")
    if isinstance(weight, Tensor):
        weight.requires = None  # of some of it
    return network


def _listen(m: Machine, network: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A part's hook is called when the whole network is, with something that nobody sees."""
    if "whole" not in network.extra:
        return layers.METHODS["register_forward_hook"](m, network, args, kwargs)
    m.overheard = True
    for hook in [*args, *kwargs.values()]:
        if isinstance(hook, Function | Bound):
            lent.lend(m, hook)
    return m.unknown("hook")


METHODS: dict[str, Callable[..., Value]] = {
    **dict.fromkeys(("buffers", "named_buffers", "state_dict"), _unknown),
    "children": _children,
    "named_children": _named_children,
    "modules": _modules,
    "named_modules": _named_modules,
    "parameters": _parameters,
    "named_parameters": _named_parameters,
    "register_forward_hook": _listen,
    "requires_grad_": _requires_grad_,
    "forward": call,
    "__call__": call,
    "forward_features": call,
    "extract_features": call,
}


def attribute(m: Machine, network: Instance, name: str) -> Value:
    """An attribute that nobody has set: a method, or a part."""
    found = METHODS.get(name) or layers.METHODS.get(name)
    if found is None:
        return part(m, network, name)
    return Native(name, lambda machine, args, kwargs: found(machine, network, args, kwargs))
