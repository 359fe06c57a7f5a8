"""Data sets, and the batches that a DataLoader makes of them: as far as they are tensors, nobody asks for their
gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

from gradfix.dataclass import dataclass
from gradfix.read import calls, indexing, objects, ops
from gradfix.read.frames import Machine, Raised
from gradfix.read.trace import Exhausted
from gradfix.read.values import Instance, Lib, Native, Number, Shape, Tensor, Unknown, Value

LOADER, TENSORS = "torch.utils.data.DataLoader", "torch.utils.data.TensorDataset"
SUBSET = "torch.utils.data.Subset"
KINDS = {LOADER, TENSORS}  # that can be gone through
_MOST = 2_000  # steps within which an item has to be made
_BATCHES = 24
_SAMPLE = "sample"
_ARGUMENTS = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn")
PICTURES = "torchvision.datasets."
TRANSFORMS = "torchvision.transforms."
# with the transform at the place, what they give is a picture and the number of its class
_LABELLED = {
    "MNIST": 2, "FashionMNIST": 2, "KMNIST": 2, "USPS": 2, "CIFAR10": 2, "CIFAR100": 2, "SVHN": 2, "ImageFolder": 1,
}  # fmt: skip
_TO_TENSOR = {"ToTensor", "PILToTensor"}
_OF_TENSORS = {
    "Normalize", "Resize", "Scale", "CenterCrop", "RandomCrop", "RandomResizedCrop", "RandomHorizontalFlip",
    "RandomVerticalFlip", "RandomRotation", "RandomAffine", "RandomPerspective", "ColorJitter", "Grayscale",
    "RandomGrayscale", "Pad", "RandomErasing", "GaussianBlur", "ConvertImageDtype", "RandomInvert", "RandomSolarize",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Pictures(Unknown):
    """A data set of torchvision's, that gives pictures and the number of their class. `found` is one, once it was
    asked for."""

    transform: Value = None
    found: list[Value] = field(default_factory=list)


# ---- made


def loader(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``DataLoader(dataset, …)``."""
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    data = given.get("dataset", m.unknown("dataset"))
    return Instance(None, {"dataset": data}, LOADER, {"source": data, "given": given})


def tensors(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``TensorDataset(x, y)``."""
    return Instance(None, {"tensors": tuple(args)}, TENSORS, {"source": args})


def subset(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Subset(dataset, indices)``."""
    return Instance(None, kind=SUBSET, extra={"source": args[0] if args else kwargs.get("dataset")})


def random_split(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``random_split(dataset, lengths)``."""
    parts = args[1] if len(args) > 1 else kwargs.get("lengths")
    known = args and isinstance(args[0], Pictures | Instance)
    if not known or not isinstance(parts, list | tuple):
        return m.unknown("random_split")
    return [subset(m, args, {}) for _ in parts]


FUNCTIONS: dict[str, Callable[..., Value]] = {
    LOADER: loader,
    "torch.utils.data.dataloader.DataLoader": loader,
    TENSORS: tensors,
    "torch.utils.data.dataset.TensorDataset": tensors,
    SUBSET: subset,
    "torch.utils.data.dataset.Subset": subset,
    "torch.utils.data.random_split": random_split,
    "torch.utils.data.dataset.random_split": random_split,
}


def pictured(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of torchvision's: what makes tensors of pictures is known."""
    name, origin = path.rpartition(".")[2], "call " + path
    if path.startswith(TRANSFORMS) and name in _TO_TENSOR | _OF_TENSORS:
        return Native(name, lambda m, args, kwargs: _transformed(m, name, args))
    at = _LABELLED.get(name) if path.startswith(PICTURES) else None
    made = m.unknown(origin)
    if at is None or kwargs.get("target_transform") is not None or len(args) > at + 1:
        return made
    return Pictures(origin, transform=args[at] if len(args) > at else kwargs.get("transform"))


def _transformed(m: Machine, name: str, args: list[Value]) -> Value:
    given = args[0] if len(args) == 1 else None
    if name in _TO_TENSOR or (isinstance(given, Tensor) and given.requires is False and not given.guessed):
        return ops.new(m, (None, None, None))
    return m.unknown(name)


# ---- gone through


def listed(m: Machine, source: Instance, count: int) -> list[Value] | None:
    """The first items of a loader, or of a set of tensors; None where nothing is known of them."""
    if source.kind == LOADER:
        return _batches(m, source, min(count, _BATCHES))
    found = [item(m, source) for _ in range(min(count, m.budget.passes))]
    return found if all(map(_known, found)) else None


def next_of(m: Machine, iterator: Instance) -> Value:
    """``iterator.next`` of a loader's, which it had until PyTorch 1.12; None of another."""
    source = iterator.extra.get("source")
    if not isinstance(source, Instance) or source.kind != LOADER or source.cls is not None:
        return None
    m.outdated("AttributeError", "'_SingleProcessDataLoaderIter' object has no attribute 'next'")
    return Native("next", lambda m, args, kwargs: calls.call(m, Lib("builtins.next"), [iterator], {}))


def item(m: Machine, source: Instance) -> Value:
    """``dataset[i]`` of a set of tensors."""
    return tuple(_row(m, each) for each in source.extra.get("source", ()))


def _row(m: Machine, tensor: Value) -> Value:
    if not isinstance(tensor, Tensor) or tensor.guessed or tensor.shape == ():
        return m.unknown("item of a data set")
    return indexing.item(m, tensor, 0)


def _batches(m: Machine, source: Instance, count: int) -> list[Value] | None:
    given, data = source.extra.get("given", {}), source.extra.get("source")
    single = given.get("batch_size", 1) is None and given.get("batch_sampler") is None
    if given.get("collate_fn") is not None or "**" in given:
        return None
    sample = _sample(m, data)
    if not _known(sample):
        return None
    size = _size(data, given)
    apart = given.get("num_workers", 0) != 0
    return [_batch(m, sample, None if single else (size,), apart) for _ in range(count)]


def _size(data: Value, given: dict[str, Value]) -> int | None:
    """How many items every batch has."""
    size = given.get("batch_size", 1)
    if not isinstance(size, int) or size < 1 or given.get("batch_sampler") is not None:
        return None
    if given.get("drop_last") is True:
        return size
    tensors = data.extra.get("source") if isinstance(data, Instance) and data.kind == TENSORS else None
    first = tensors[0] if tensors else None
    length = first.shape[0] if isinstance(first, Tensor) and first.shape else None
    even = length is not None and length % size == 0 and given.get("sampler") is None
    return size if size == 1 or even else None


def _known(sample: Value) -> bool:
    """Whether something in an item is known."""
    if isinstance(sample, list | tuple):
        return any(map(_known, sample))
    if isinstance(sample, dict):
        return any(map(_known, sample.values()))
    return not isinstance(sample, Unknown) or isinstance(sample, Number)


def _sample(m: Machine, data: Value) -> Value:
    """An item of a data set, as good as any."""
    while isinstance(data, Instance) and data.kind == SUBSET:
        data = data.extra["source"]
    if isinstance(data, Pictures):
        if not data.found:
            picture = _guarded(m, data.transform, "picture")
            data.found.append((_without_graph(m, picture), ops.new(m, (), "int64")))
        return data.found[0]
    if isinstance(data, Tensor):
        return _row(m, data)
    if isinstance(data, list | tuple) and data:
        alike = len({_shape(each) for each in data[:_MOST]}) == 1 and len(data) <= _MOST
        return data[0] if alike else m.unknown("items of several kinds")
    if not isinstance(data, Instance) or data.kind == LOADER:
        return m.unknown("item of a data set")
    if data.kind == TENSORS and data.cls is None:
        return item(m, data)
    if _SAMPLE not in data.extra:
        data.extra[_SAMPLE] = _without_graph(m, _own(m, data))
    return data.extra[_SAMPLE]


def _shape(value: Value) -> object:
    """What tells items of two kinds apart."""
    if isinstance(value, tuple | list):
        return tuple(map(_shape, value))
    return (value.requires, value.dtype) if isinstance(value, Tensor) else type(value)


def _own(m: Machine, data: Instance) -> Value:
    """An item of a data set of the program's: its ``__getitem__`` of an index that is not known."""
    return _guarded(m, objects.method(m, data, "__getitem__"), "index")


def _guarded(m: Machine, function: Value, argument: str) -> Value:
    """What a function makes of what is not known, if that is soon done."""
    if function is None:
        return m.unknown("item of a data set")
    limit, guessed, node = m.limit, m.trace.guessed, m.frame.node
    m.limit = min(limit, m.steps + _MOST)
    try:
        return calls.call(m, function, [m.unknown(argument)], {})
    except (Raised, Exhausted):
        return m.unknown("item of a data set")
    finally:
        m.limit, m.trace.guessed, m.frame.node = limit, guessed, node


def _without_graph(m: Machine, value: Value) -> Value:
    """`value` as every item may be like it: what has a graph has one of its own each time."""
    if isinstance(value, Tensor) and value.requires is not False:
        return m.unknown("item with a graph")
    if isinstance(value, tuple | list):
        return tuple(_without_graph(m, each) for each in value)
    if isinstance(value, dict):
        return {key: _without_graph(m, each) for key, each in value.items()}
    return value


# ---- put together


def _batch(m: Machine, sample: Value, more: Shape, apart: bool) -> Value:
    """What ``default_collate`` makes of items like `sample`: `more` is the size in front, None where each is by
    itself. Other processes give nothing that has a graph."""
    if isinstance(sample, Tensor):
        return _stacked(m, sample, more, apart)
    if isinstance(sample, tuple | list):
        return [_batch(m, each, more, apart) for each in sample]
    if isinstance(sample, dict):
        return {key: _batch(m, each, more, apart) for key, each in sample.items()}
    if more is not None and isinstance(sample, bool | int | float | Number):
        kind = "bool" if isinstance(sample, bool) else "int64" if isinstance(sample, int) else "float64"
        return ops.new(m, more, kind)
    return sample if more is None else m.unknown("batch")


def _stacked(m: Machine, tensor: Tensor, more: Shape, apart: bool) -> Value:
    if tensor.guessed or (apart and tensor.requires is not False):
        return m.unknown("batch")
    if more is None:
        return tensor
    shape = None if tensor.shape is None else (*more, *tensor.shape)
    parts: Sequence[Value] = [tensor]
    known, node, _ = ops.graph(m, "aten.stack", "StackBackward0", parts)
    made = ops.new(m, shape, tensor.dtype, known, node)
    if node is not None:
        node.output = made
    return made
