"""NumPy's arrays: those that the program makes, whose memory ``torch.from_numpy`` shares, and the writes to them.

An Array is an Unknown for everything else. It is one object wherever the program hands the array itself on, and what
may be a copy is none.
"""

from __future__ import annotations

from collections.abc import Callable

from gradfix.read.frames import Machine
from gradfix.read.values import Array, Lib, Native, Tensor, Value

_MADE = {"zeros": 1, "ones": 1, "empty": 1, "full": 2}  # where their dtype stands
_DRAWN = {"rand", "randn", "random", "uniform", "normal", "standard_normal", "random_sample"}
_SAME = {"asarray", "ascontiguousarray", "asanyarray"}
_WRITING = {
    "numpy.copyto",
    "numpy.put",
    "numpy.putmask",
    "numpy.place",
    "numpy.fill_diagonal",
    "numpy.random.shuffle",
}
_WRITTEN = {"fill", "sort", "partition", "put", "itemset"}  # methods
_TYPES = {"float": "float64", "double": "float64", "single": "float32", "int": "int64", "long": "int64"}
COMPUTED = "ndarray"  # the origin of a tensor that stands for an array
_REAL = ("float32", "float64", "float16")


def _dtype(value: Value) -> str:
    """The name of a dtype; "" where it is not known."""
    said = (
        value.path.rpartition(".")[2] if isinstance(value, Lib) else value if isinstance(value, str) else ""
    )
    said = _TYPES.get(said, said)
    return said if said in _REAL or said.startswith(("int", "uint")) else ""


def _new(m: Machine, dtype: str) -> Value:
    return Array("array", "", m.trace.storage(), dtype) if dtype else m.unknown("array")


def call(m: Machine, path: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calling ``numpy.…``: the array that it makes, or None where nothing is known of that."""
    name, first = path.rpartition(".")[2], args[0] if args else None
    target = kwargs.get("out", first if path in _WRITING else None)
    if isinstance(target, Array):
        write(m, target)
        return target if "out" in kwargs else None
    if path == f"numpy.{name}" and name in _MADE:
        at = _MADE[name]
        given = kwargs.get("dtype", args[at] if len(args) > at else None)
        filled = args[1] if name == "full" and len(args) > 1 else 0.0
        return _new(m, _dtype(given) if given is not None else "float64" if isinstance(filled, float) else "")
    if path.startswith("numpy.random.") and name in _DRAWN and (args or "size" in kwargs):
        return _new(m, "float64")
    if isinstance(first, Array) and len(args) == 1 and not kwargs:
        if name in _SAME:
            return first
        if name in ("array", "copy", "zeros_like", "ones_like", "empty_like"):
            return _new(m, first.dtype)
    return None


def attribute(m: Machine, array: Array, name: str) -> Value:
    """``array.name``."""
    if name == "T":
        return array
    if name in ("copy", "astype"):
        return Native(name, _copying(array, name))
    if name in _WRITTEN:
        return Native(name, lambda machine, args, kwargs: write(machine, array))
    return m.unknown("array." + name)


def _copying(array: Array, name: str) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "copy" or "copy" in kwargs:
            return _new(m, array.dtype if name == "copy" else "")
        return _new(m, _dtype(args[0] if args else kwargs.get("dtype")))

    return run


def item(m: Machine, array: Array, index: Value) -> Value:
    """``array[index]``: a slice shares the memory."""
    return array if isinstance(index, slice) else m.unknown("item of an array")


def computed(m: Machine, left: Value, right: Value) -> Value:
    """What an operator makes of two values, of which one is an array."""
    array, other = (left, right) if isinstance(left, Array) else (right, left)
    known = isinstance(array, Array) and array.dtype in _REAL and isinstance(other, int | float)
    return _new(m, array.dtype if known else "")


def in_place(m: Machine, array: Array, right: Value) -> Value:
    """``array += right``. A tensor would make a tensor of it."""
    if isinstance(right, int | float | Array) or (isinstance(right, Tensor) and of_numpy(right)):
        write(m, array)
        return array
    return m.unknown("array")


def of_numpy(value: Value) -> bool:
    """Whether a tensor stands for an array: ``x.numpy()``, and what is computed of such."""
    return isinstance(value, Tensor) and (value.alias == "numpy" or value.origin == COMPUTED)


def joined(left: Value, right: Value, made: Value) -> Value:
    """`made` of two values: an array where they are arrays and numbers."""
    if isinstance(made, Tensor) and all(isinstance(v, int | float) or of_numpy(v) for v in (left, right)):
        made.origin = COMPUTED
    return made


def shared(m: Machine, array: Array) -> Tensor:
    """``torch.from_numpy(array)``."""
    storage = array.storage
    assert storage is not None
    storage.exported = m.stack()
    return Tensor(storage, False, None, None, array.dtype)


def write(m: Machine, array: Array) -> None:
    """Something writes to the array. A run looks for the place in the functions that still run when it notices, and
    tells of the sharing where it finds none."""
    storage = array.storage
    if storage is None or not storage.exported:
        return
    here, there = m.stack(), storage.exported
    near = (here[-1].file, here[-1].function) == (there[-1].file, there[-1].function)
    m.trace.wrote("numpy", Tensor(storage, dtype=array.dtype), False, "numpy", stack=here if near else there)
