"""What some impositions put in the place of functions of torch, Python and NumPy; see impose.py.

Standard library and torch only.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import os
import random
import sys
import sysconfig
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .imports import AfterImport

DATA: Any = torch._C.TensorBase.data
_NO_DRAWS = ("seed", "getstate", "setstate", "get_state", "set_state")
_FOREIGN = tuple(
    os.path.realpath(p) + os.sep
    for p in {
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.abspath(__file__)),
        sysconfig.get_paths()["stdlib"],
        sysconfig.get_paths()["purelib"],
        sysconfig.get_paths()["platlib"],
    }
)


def lines(sites: Any) -> set[tuple[str, int]]:
    """The [file, line]s of a request, as `user_line` gives them."""
    return {(os.path.realpath(file), line) for file, line in sites}


def user_line() -> tuple[str, int]:
    """File and line of the user's innermost frame; the outermost one where there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return os.path.realpath(frame.f_code.co_filename), frame.f_lineno


def about(value: Any) -> str:
    """An argument of a draw, in short."""
    if isinstance(value, torch.Tensor):
        return "x".join(str(n) for n in value.shape) + "t"
    if hasattr(value, "shape"):
        return f"{value.shape}a"
    if isinstance(value, (list, tuple, dict, set)) and len(value) > 8:
        return f"{type(value).__name__} of {len(value)}"
    return repr(value)[:80]


def key_draws_of_others(seed_of: Callable[[str], int]) -> None:
    """Draws of Python's and NumPy's global generators depend on their key alike."""
    _key_draws(random, random._inst, seed_of)

    def numpy(module: Any) -> None:
        _key_draws(module, module.mtrand._rand, seed_of)

    if "numpy.random" in sys.modules:
        numpy(sys.modules["numpy.random"])
    else:
        sys.meta_path.insert(0, AfterImport("numpy.random", numpy))


def _key_draws(module: Any, generator: Any, seed_of: Callable[[str], int]) -> None:
    """Every function of `module` that is a method of its global generator draws from a seed of its key."""
    reseed = module.seed

    def keyed(name: str, draw: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = ",".join(about(x) for x in (*args, *kwargs.values()))
            reseed(seed_of(f"{module.__name__}.{name} {given}"))
            return draw(*args, **kwargs)

        return call

    for name, value in list(vars(module).items()):
        if getattr(value, "__self__", None) is generator and name not in _NO_DRAWS:
            setattr(module, name, keyed(name, value))


def freeze_statistics() -> None:
    """A second forward changes nothing: running statistics and power iterations stand still."""
    functional = torch.nn.functional
    for name, position in (("batch_norm", 6), ("instance_norm", 6)):
        setattr(functional, name, _without_momentum(getattr(functional, name), position))
    try:
        from torch.nn.utils import parametrizations

        parametrizations._SpectralNorm._power_method = lambda *args: None  # type: ignore
    except (ImportError, AttributeError):
        pass
    from torch.nn.utils.spectral_norm import SpectralNorm

    compute = SpectralNorm.compute_weight

    def compute_weight(self: Any, module: Any, do_power_iteration: bool) -> Any:
        return compute(self, module, False)

    SpectralNorm.compute_weight = compute_weight  # type: ignore


def _without_momentum(call: Any, position: int) -> Any:
    def frozen(*args: Any, **kwargs: Any) -> Any:
        if len(args) > position:
            args = (*args[:position], 0.0, *args[position + 1 :])
        else:
            kwargs["momentum"] = 0.0
        return call(*args, **kwargs)

    return frozen


def joined(value: Any) -> torch.Tensor | None:
    """The tensors of a list, and of its lists, as one with their graphs, each as the number that torch.tensor() takes
    it for; None where they have none, or it is another list."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    parts = [_single(each) if isinstance(each, torch.Tensor) else joined(each) for each in value]
    known = [
        part for part in parts if part is not None and parts[0] is not None and part.shape == parts[0].shape
    ]
    whole = torch.stack(known) if len(known) == len(parts) else None
    return whole if whole is not None and whole.requires_grad else None


def _single(value: torch.Tensor) -> torch.Tensor | None:
    return value.reshape(()) if value.numel() == 1 else None


def see_through(sites: Any) -> None:
    """`.data`, `.detach()`, `torch.tensor(t)` give the tensor itself (a list's, stacked) in user lines: all, or [file,
    line]s. In those that are listed so do `.item()`, `.numpy()` and `float(t)`: a number that is a term of a loss; a
    distribution's `sample()` is its `rsample()`; and what has a derivative of zero passes the gradient on as it is."""
    wanted = None if sites is True else lines(sites)

    def here(depth: int = 2) -> bool:
        frame = sys._getframe(depth)
        file = os.path.realpath(frame.f_code.co_filename)
        if wanted is not None:
            return (file, frame.f_lineno) in wanted
        return not foreign(file)

    plain_detach, plain_tensor, plain_new = torch.Tensor.detach, torch.tensor, torch.Tensor.__new__

    def data(self: Any) -> Any:
        return self if here() else DATA.__get__(self)

    def detach(self: Any) -> Any:
        return self if here() else plain_detach(self)

    def tensor(value: Any, *args: Any, **kwargs: Any) -> Any:
        kept = value if isinstance(value, torch.Tensor) else joined(value)
        if kept is None or not here():
            return plain_tensor(value, *args, **kwargs)
        return kept if kwargs.get("dtype") is None else kept.to(kwargs["dtype"])

    def __new__(*args: Any, **kwargs: Any) -> Any:  # torch._dynamo compares signatures
        kept = joined(args[1]) if len(args) > 1 and args[0] is torch.Tensor else None
        if kept is None or not here():
            return plain_new(*args, **kwargs)
        return kept.to(torch.get_default_dtype())

    def number(plain: Any) -> Any:
        return lambda self, *args, **kwargs: self if here() else plain(self, *args, **kwargs)

    def straight(plain: Any) -> Any:
        def call(value: Any, *args: Any, **kwargs: Any) -> Any:
            made = plain(value, *args, **kwargs)
            return value + plain_detach(made - value) if value.requires_grad and here() else made

        return call

    def drawn(plain: Any) -> Any:
        def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
            return (self.rsample if self.has_rsample and here() else functools.partial(plain, self))(
                *args, **kwargs
            )

        return sample

    torch.Tensor.data = property(data, DATA.__set__)  # type: ignore
    torch.Tensor.detach = detach
    torch.tensor = tensor  # type: ignore
    torch.Tensor.__new__ = __new__  # type: ignore
    if wanted is not None:
        torch.Tensor.item, torch.Tensor.numpy = number(torch.Tensor.item), number(torch.Tensor.numpy)  # type: ignore
        _replace_float(lambda value: value if isinstance(value, torch.Tensor) and here(3) else None)
        for name in ("sign", "round", "floor", "ceil", "trunc", "fix"):
            for place in (torch.Tensor, torch):
                setattr(place, name, straight(getattr(place, name)))
        for kind in (
            k for k in vars(torch.distributions).values() if isinstance(k, type) and "sample" in vars(k)
        ):
            kind.sample = drawn(kind.sample)  # type: ignore[attr-defined]


def take_apart(sites: Any) -> None:
    """What `.data`, `.detach()` and `.numpy()` give in the user lines [file, line] has memory of its own."""
    wanted = lines(sites)
    detach, numpy = torch.Tensor.detach, torch.Tensor.numpy

    def here() -> bool:
        frame = sys._getframe(2)
        return (os.path.realpath(frame.f_code.co_filename), frame.f_lineno) in wanted

    torch.Tensor.data = property(  # type: ignore
        lambda self: DATA.__get__(self).clone() if here() else DATA.__get__(self), DATA.__set__
    )
    torch.Tensor.detach = lambda self: detach(self).clone() if here() else detach(self)
    torch.Tensor.numpy = lambda self, *args, **kwargs: (  # type: ignore
        numpy(self, *args, **kwargs).copy() if here() else numpy(self, *args, **kwargs)
    )


def without(which: set[int]) -> Callable[[Any, Any], Any]:
    """A hook for a node, by which no gradient flows to its inputs of these numbers."""

    def cut(inputs: Any, outputs: Any) -> Any:
        return tuple(torch.zeros_like(g) if k in which and g is not None else g for k, g in enumerate(inputs))

    return cut


def _replace_float(instead: Callable[[Any], Any]) -> None:
    """What the script itself calls float() gives what `instead` does, unless that is None. Every other module, imported
    since or before, keeps Python's."""

    class Type(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, float)

        def __eq__(cls, other: object) -> bool:
            return other is float or other is cls

        def __hash__(cls) -> int:
            return hash(float)

    class Float(float, metaclass=Type):
        def __new__(cls, value: Any = 0.0, /) -> Any:
            found = instead(value)
            return float(value) if found is None else found

    own = types.ModuleType("builtins")  # what _become_main takes
    own.__dict__.update(builtins.__dict__, float=Float)
    sys.modules["builtins"] = own


def differentiate_twice(sites: Any) -> None:
    """torch.autograd.grad() in the [file, line]s gives gradients that can be differentiated in turn."""
    wanted = lines(sites)
    plain, create = torch.autograd.grad, 4  # the position of create_graph

    def grad(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if (os.path.realpath(frame.f_code.co_filename), frame.f_lineno) in wanted:
            args, kwargs["create_graph"] = args[:create], True
        return plain(*args, **kwargs)

    torch.autograd.grad = grad


def retain_gradients() -> None:
    """An optimizer takes non-leaf tensors, and they keep their gradient."""
    add = torch.optim.Optimizer.add_param_group

    def add_param_group(self: Any, group: Any) -> Any:
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else list(given)
        for p in given:
            if isinstance(p, torch.Tensor) and p.requires_grad and not p.is_leaf:
                p.retain_grad()
        return add(self, {**group, "params": given})

    torch.optim.Optimizer.add_param_group = add_param_group  # type: ignore


def clear_to_zero() -> None:
    """``zero_grad()`` without a word sets gradients to zero."""
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = _to_zero(owner.zero_grad)  # type: ignore


def _to_zero(plain: Any) -> Any:
    def zero_grad(self: Any, set_to_none: bool = False) -> None:
        plain(self, set_to_none)

    return zero_grad


def restore_old_calls() -> None:
    """PyTorch 0.x took: loss.data[0], loss.data.numpy()[0], backward(retain_variables=), clip_grad_norm,
    Variable(volatile=), masks of bytes, 1 - mask, multinomial() of one, and Variable was the type of what has a graph;
    later ones whole numbers as betas, and as counts of steps in the state that a program makes; iterators over data
    loaders had a next(). A Function was an object that is called."""
    getitem, backward = torch.Tensor.__getitem__, torch.Tensor.backward
    numpy, tolist = torch.Tensor.numpy, torch.Tensor.tolist

    def old_getitem(self: Any, index: Any) -> Any:
        if self.dim() == 0 and type(index) is int and index == 0:
            return self
        return getitem(self, index)

    def old_numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        array = numpy(self, *args, **kwargs)
        return array.reshape(1) if not self.dim() and _indexes_next(sys._getframe(1)) else array

    def old_tolist(self: Any) -> Any:
        found = tolist(self)
        return [found] if not self.dim() and _indexes_next(sys._getframe(1)) else found

    setitem = torch.Tensor.__setitem__

    def old_setitem(self: Any, index: Any, value: Any) -> Any:
        return setitem(self, _of_truth(index), value)

    rsub = torch.Tensor.__rsub__

    def old_rsub(self: Any, other: Any) -> Any:
        if self.dtype is torch.bool and type(other) in (int, float) and other == 1:
            return self.logical_not()
        return rsub(self, other)

    def old_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "retain_variables" in kwargs:
            kwargs["retain_graph"] = kwargs.pop("retain_variables")
        return backward(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    torch.Tensor.__getitem__ = old_getitem  # type: ignore
    torch.Tensor.__setitem__ = old_setitem  # type: ignore
    torch.Tensor.__rsub__ = old_rsub  # type: ignore
    for owner in (torch.Tensor, torch):
        for name in ("masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_", "masked_select"):
            if hasattr(owner, name):
                setattr(owner, name, _masked(getattr(owner, name)))
    torch.Tensor.multinomial = _drawn(torch.Tensor.multinomial)  # type: ignore
    torch.Tensor.numpy = old_numpy  # type: ignore
    torch.Tensor.tolist = old_tolist  # type: ignore
    torch.Tensor.backward = old_backward  # type: ignore
    if not hasattr(torch.nn.utils, "clip_grad_norm"):
        torch.nn.utils.clip_grad_norm = torch.nn.utils.clip_grad_norm_
    torch.autograd.Variable = _Variable  # type: ignore
    batches: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    batches.next = batches.__next__
    function: Any = torch.autograd.Function
    function.__call__ = _called(function.__call__)
    for optimizer in (torch.optim.Adam, torch.optim.AdamW):
        optimizer.__init__ = _with_floats(optimizer.__init__)  # type: ignore
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and "_init_group" in vars(kind):
            kind._init_group = _with_counts(kind._init_group)  # type: ignore[attr-defined]


def _called(call: Any) -> Any:
    """What calls a Function, where its methods take the object: a ctx takes its place, and has what that has."""
    made: dict[Any, Any] = {}
    waiting: list[Any] = []

    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        if isinstance(inspect.getattr_static(kind, "forward"), staticmethod):
            return call(self, *args, **kwargs)

        def forward(ctx: Any, *inputs: Any) -> Any:
            vars(ctx).update(vars(waiting.pop()))
            return kind.forward(ctx, *inputs)

        def backward(ctx: Any, *gradients: Any) -> Any:
            return kind.backward(ctx, *gradients)

        if kind not in made:
            methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
            made[kind] = types.new_class(
                kind.__name__, (torch.autograd.Function,), {}, lambda body: body.update(methods)
            )
        waiting.append(self)
        return made[kind].apply(*args)

    return apply


def _with_counts(begin: Any) -> Any:
    """What an optimizer reads its state with, where that may have whole numbers of steps."""

    @functools.wraps(begin)
    def init_group(self: Any, group: Any, *args: Any, **kwargs: Any) -> Any:
        for p in group["params"]:
            count = self.state[p].get("step") if p in self.state else None
            if type(count) is int:
                self.state[p]["step"] = torch.tensor(float(count))
        return begin(self, group, *args, **kwargs)

    return init_group


def _with_floats(make: Any) -> Any:
    """Adam's constructor with betas that may be whole numbers."""

    @functools.wraps(make)
    def init(
        self: Any, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), *args: Any, **kwargs: Any
    ) -> None:
        make(self, params, lr, tuple(float(b) if type(b) is int else b for b in betas), *args, **kwargs)

    return init


class OfFloats(TorchFunctionMode):
    """``torch.full(size, 1)`` was of floats."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.full and kwargs.get("dtype") is None:
            value = args[1] if len(args) > 1 else kwargs.get("fill_value")
            if isinstance(value, int):
                kwargs["dtype"] = torch.get_default_dtype()
        return func(*args, **kwargs)


def _indexes_next(frame: Any) -> bool:
    """Whether what the call in `frame` gives is indexed with 0 right away."""
    after = [
        i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti and i.opname != "CACHE"
    ]
    return (
        len(after) > 1
        and after[0].argval == 0
        and (after[1].opname == "BINARY_SUBSCR" or after[1].argrepr == "[]")
    )


def _of_truth(mask: Any) -> Any:
    """A mask was a tensor of bytes before PyTorch 1.2."""
    if type(mask) is tuple:
        return tuple(map(_of_truth, mask))
    return mask.bool() if isinstance(mask, torch.Tensor) and mask.dtype == torch.uint8 else mask


def _masked(plain: Any) -> Any:
    @functools.wraps(plain)
    def call(self: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        return plain(self, _of_truth(mask), *args, **kwargs)

    return call


def _drawn(plain: Any) -> Any:
    @functools.wraps(plain)
    def multinomial(self: Any, num_samples: int = 1, *args: Any, **kwargs: Any) -> Any:
        return plain(self, num_samples, *args, **kwargs)

    return multinomial


class _WasVariable(type):
    """``type(h) == Variable`` held for every tensor with a graph."""

    def __eq__(cls, other: object) -> bool:
        return other is torch.Tensor or other is _Variable

    def __hash__(cls) -> int:
        return hash(torch.Tensor)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor)


class _Variable(metaclass=_WasVariable):
    def __new__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Any:
        if volatile:
            return data.detach()
        return data.requires_grad_(True) if requires_grad else data


def foreign(filename: str) -> bool:
    """Whether code of that file is nobody's own: made at run time, of the library or a package."""
    return filename.startswith("<") or os.path.realpath(filename).startswith(_FOREIGN)
