"""``torch.nn.utils.rnn``: sequences of several lengths in one tensor, packed and padded.

A PackedSequence is a named tuple whose ``data`` is a tensor within the graph, which that of a tensor is not.
"""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read import forwards, iteration, ops
from gradfix.read.frames import Machine
from gradfix.read.values import Native, Packed, Tensor, Unknown, Value

FIELDS = ("data", "batch_sizes", "sorted_indices", "unsorted_indices")
MOVES = ("to", "cuda", "cpu", "pin_memory")


def call(m: Machine, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calling ``torch.nn.utils.rnn.name``."""
    function = _FUNCTIONS.get(name)
    return m.unknown("utils.rnn." + name) if function is None else function(m, args, kwargs)


def attribute(m: Machine, value: Packed, name: str) -> Value:
    """``value.name``."""
    if name in FIELDS:
        return value[FIELDS.index(name)]
    return Native(name, lambda m, args, kwargs: value) if name in MOVES else m.unknown("attribute " + name)


def _packed(m: Machine, data: Value) -> Packed:
    return Packed((data, *(m.unknown(f) for f in FIELDS[1:])))


def _first(args: list[Value], kwargs: dict[str, Value], name: str) -> Value:
    return args[0] if args else kwargs.get(name)


def _pack_padded(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = _first(args, kwargs, "input")
    if not isinstance(source, Tensor):
        return m.unknown("pack_padded_sequence")
    made = forwards.opaque(m, "_pack_padded_sequence", [source], saves=False)
    if isinstance(made, Tensor):
        made.shape = None if source.shape is None else (None, *source.shape[2:])
    return _packed(m, made)


def _pad_packed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    source = _first(args, kwargs, "sequence")
    if not isinstance(source, Packed):
        return m.unknown("pad_packed_sequence"), m.unknown("lengths")
    made = forwards.opaque(m, "_pad_packed_sequence", [source[0]], saves=False)
    if isinstance(made, Tensor):
        made.shape = None if made.shape is None else (None, None, *made.shape[1:])
    return made, m.unknown("lengths")


def _joined(m: Machine, given: Value, name: str) -> Value:
    parts = iteration.listed(m, given)
    if not parts or any(isinstance(p, Unknown) for p in parts):
        return m.unknown(name)
    tensors = [p for p in parts if isinstance(p, Tensor)]
    known, node, _ = ops.graph(m, "aten.cat", "CatBackward0", tensors)
    made = ops.new(m, None, tensors[0].dtype if tensors else "float32", known, node)
    if node is not None:
        node.output = made
    return made


def _pad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _joined(m, _first(args, kwargs, "sequences"), "pad_sequence")


def _pack(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _packed(m, _joined(m, _first(args, kwargs, "sequences"), "pack_sequence"))


def _made(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = {**dict(zip(FIELDS, args, strict=False)), **kwargs}
    return Packed(given.get(f) for f in FIELDS)


_FUNCTIONS: dict[str, Callable[[Machine, list[Value], dict[str, Value]], Value]] = {
    "pack_padded_sequence": _pack_padded,
    "pad_packed_sequence": _pad_packed,
    "pack_sequence": _pack,
    "pad_sequence": _pad,
    "PackedSequence": _made,
}
