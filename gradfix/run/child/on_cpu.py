"""The processor in the place of a GPU that is not there, for scripts that ask for one whatever the machine has.

A tensor that goes to CUDA is copied, by an op of autograd's, as it is on a GPU: a leaf that is moved is none any more,
and what is written to the copy is not written to the tensor. Streams and events are there, and wait for nothing.
``torch.cuda.is_available()`` stays false, so that scripts which look first choose for themselves; it is true to who
asserts it. The idea is that of torch.set_default_device: a TorchFunctionMode that turns devices over. Standard library
and torch only.
"""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from .elsewhere import each_thread
from .pretend import foreign
from .storages import Weak, address_of, weak_reference

_HERE = torch.device("cpu")
_NOTHING = ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats", "init")
_COUNTS = (
    *("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved"),
    *("max_memory_reserved", "memory_cached", "max_memory_cached"),
)


def stand_in() -> None:
    """From here on the processor stands in for CUDA."""
    each_thread.enter(_OnCpu())
    cuda: Any = torch.cuda
    for name in _NOTHING:
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in _COUNTS:
        setattr(cuda, name, lambda *args, **kwargs: 0)
    cuda.get_device_name = lambda *args, **kwargs: "none"
    cuda.is_available = _available
    cuda.Stream, cuda.Event, cuda.ExternalStream = _Stream, _Event, _Stream
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, lambda device=None: _Stream())
    cuda.stream = cuda.StreamContext = lambda stream: stream or _Stream()
    cuda.set_stream = lambda stream: None
    torch.Tensor.record_stream = lambda self, stream: None  # type: ignore
    nn: Any = torch._C._nn
    nn._parse_to = _numbered(nn._parse_to)  # what Module.to() asks
    for name in ("_exchange_device", "_maybe_exchange_device"):
        setattr(cuda, name, lambda device: -1)
    for name in dir(cuda):
        if name.endswith("Tensor") and hasattr(torch, name):
            setattr(cuda, name, getattr(torch, name))
    for name in ("set_default_device", "set_default_tensor_type"):
        setattr(torch, name, _turned(getattr(torch, name)))
    scaler: Any = torch.amp.GradScaler
    scaler.__init__ = _scaling_here(scaler.__init__)
    torch.load = _loaded_here(torch.load)
    torch.Generator = _Generator  # type: ignore[misc]


def _available() -> bool:
    frame = sys._getframe(1)
    asked = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
    return asked.startswith(("assert ", "assert(")) and not foreign(frame.f_code.co_filename)


def _numbered(plain: Callable[..., Any]) -> Callable[..., Any]:
    """`plain` with the device of that name for a number: there, that is a GPU."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*map(_named, args), **{k: _named(x) for k, x in kwargs.items()})

    return call


def _named(value: Any) -> Any:
    return torch.device("cuda", value) if type(value) is int else value


class _Stream:
    """A queue of work, all of which is done when it is put there."""

    priority = stream_id = cuda_stream = 0
    device = torch.device("cuda", 0)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    wait_stream = wait_event = lambda self, other: None

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True


class _Event:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    wait = record

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


def _turned(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is no op of torch's, with the processor in the place of CUDA."""

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*map(_turn, args), **{k: _turn(x) for k, x in kwargs.items()})

    return call


def _scaling_here(plain: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a GradScaler, which torch would switch off without CUDA."""

    @functools.wraps(plain)
    def init(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        plain(self, str(_turn(device)), *args, **kwargs)

    return init


def _loaded_here(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return plain(f, map_location if callable(map_location) else _HERE, *args, **kwargs)

    return load


_Meta: Any = type(torch.Generator)


class _AnyGenerator(_Meta):  # type: ignore[misc]
    """Takes generators that were made otherwise, torch.default_generator among them, for instances."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch._C.Generator)


class _Generator(torch.Generator, metaclass=_AnyGenerator):
    def __new__(cls, device: Any = _HERE) -> Self:
        plain: Any = super().__new__
        return plain(cls, _turn(device))  # type: ignore[no-any-return]


def _is_cuda(value: Any) -> bool:
    if isinstance(value, str):
        return value == "cuda" or value.startswith(("cuda:", "torch.cuda."))
    return isinstance(value, torch.device) and value.type == "cuda"


def _is_cpu(value: Any) -> bool:
    return (
        value == "cpu" if isinstance(value, str) else isinstance(value, torch.device) and value.type == "cpu"
    )


def _turn(value: Any) -> Any:
    if not _is_cuda(value):
        return value
    return value.replace("torch.cuda.", "torch.") if str(value).startswith("torch.") else _HERE


class _OnCpu(TorchFunctionMode):
    """Turns CUDA over to the processor, in arguments; what was moved there is known by its storage."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[int, Weak] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "cuda" and args and isinstance(args[0], torch.Tensor):
            return self._to(args[0])
        if name == "cpu" or (name == "to" and (any(map(_is_cpu, args)) or _is_cpu(kwargs.get("device")))):
            return self._back(func, args, kwargs)
        if name == "pin_memory":
            return args[0]
        if name == "to":
            args = (args[0], *map(_named, args[1:2]), *args[2:])
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": _named(kwargs["device"])}
        asked = any(map(_is_cuda, args)) or _is_cuda(kwargs.get("device")) or _is_cuda(kwargs.get("dtype"))
        if not asked or func is torch.device:
            return func(*args, **kwargs)
        args, kwargs = tuple(map(_turn, args)), {k: _turn(v) for k, v in kwargs.items()}
        if name in ("to", "type") and isinstance(args[0], torch.Tensor):
            kwargs.pop("non_blocking", None)
            if not self._knows(args[0]):
                return self._marked(self._copied(name, args, kwargs))
        return self._marked(func(*args, **kwargs))

    def _back(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A copy, too; but a leaf that never went there stays the leaf that it is."""
        tensor = args[0]
        stays = tensor.is_leaf and tensor.requires_grad and not self._knows(tensor)
        made = func(*args, **kwargs)
        return made if stays or made is not tensor else tensor.to(_HERE, copy=True)

    def _to(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self._knows(tensor) else self._marked(tensor.to(_HERE, copy=True))

    @staticmethod
    def _copied(name: str, args: Any, kwargs: Any) -> Any:
        if name == "type":
            made = args[0].type(*args[1:], **kwargs)
            return made.to(_HERE, copy=True) if made is args[0] else made
        return args[0].to(*args[1:], **{**kwargs, "copy": True})

    def _knows(self, tensor: torch.Tensor) -> bool:
        known = self.moved.get(address_of(tensor))
        return known is not None and not known.gone()

    def _marked(self, made: Any) -> Any:
        if isinstance(made, torch.Tensor) and (address := address_of(made)):
            self.moved[address] = Weak(weak_reference(made))
        return made
