"""What a run computed, as data: gradients at every optimizer step, losses, updates, draws.

One JSON line an observation, key ``m``:

``b``  a backward: its roots' values, which optimizers' parameters it filled; without optimizers, gradients.
``z``  an optimizer's zero_grad().
``s``  an optimizer's step(): gradients before it, its updates, buffers, optimizer state, random state.
``l``  the end: gradients of the leaves in the script's globals (where nothing stepped), and retained ones (of
       tensors that were told to, too: ``#0`` is the first).

Parameters are known by (number of the optimizer in order of creation, index in its param_groups): names and
addresses differ between two versions of a script. A gradient of up to FULL elements travels whole, a larger
one as a CountSketch (Charikar, Chen, Farach-Colton 2002), from which cosines and norm ratios are
estimated.
"""

from __future__ import annotations

import binascii
import contextlib
import ctypes
import math
import random
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .transforms import transformed

FULL = 65536
BUCKETS = 4096
LEAVES = 256  # leaves without an optimizer that are followed
_ROUNDING = 4  # units in the last place

Emit = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No mode, hook or tape sees what is done here."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class Optimizers:
    """The optimizers of the run, numbered in order of creation."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.live: list[Any] = []

    def number(self, optimizer: Any) -> int:
        """The optimizer's number; one met for the first time gets the next."""
        found = self._numbers.get(optimizer)
        if found is None:
            found = len(self.live)
            self._numbers[optimizer] = found
            self.live.append(weakref.ref(optimizer))
        return found

    def watch(self) -> None:
        """Number every optimizer as it is made."""
        made = torch.optim.Optimizer.__init__

        def init(this: Any, *args: Any, **kwargs: Any) -> None:
            self.number(this)
            made(this, *args, **kwargs)

        torch.optim.Optimizer.__init__ = init  # type: ignore

    def parameters(self) -> Iterator[tuple[int, int, Any]]:
        """(optimizer, index, parameter) of all that exist."""
        for k, ref in enumerate(self.live):
            optimizer = ref()
            if optimizer is not None:
                for j, p in enumerate(parameters(optimizer)):
                    yield k, j, p


def parameters(optimizer: Any) -> list[Any]:
    """The tensors of an optimizer, in the order of its groups."""
    groups = getattr(optimizer, "param_groups", None) or []
    return [p for group in groups for p in group.get("params", ())]


class Measurer:
    """Watches one run and emits what it computed: `install` before the script, `finish` on every way out."""

    def __init__(self, emit: Emit, request: dict[str, Any]) -> None:
        self.emit = emit
        self.seed = int(request.get("seed", 0))
        self.optimizers = Optimizers()
        self.steps = 0
        self.depth = 0
        self.buffers: weakref.WeakKeyDictionary[Any, dict[str, None]] = weakref.WeakKeyDictionary()
        self.before: dict[int, list[Any]] = {}  # parameter values when step() began
        self.after: dict[int, list[Any]] = {}  # and when it ended
        self.signs: dict[int, Any] = {}  # by size
        self.asked: list[weakref.ref[Any]] = []  # tensors that were told to retain their gradient
        self.retained: dict[str, Any] = {}  # what they did, in that order
        self.done = False

    def install(self) -> None:
        self.optimizers.watch()
        self._watch_buffers()
        self._watch_zero_grad()
        self._watch_backward()
        self._watch_retain_grad()
        from torch.optim import optimizer as hooks

        hooks.register_optimizer_step_pre_hook(self._before_step)
        handle = hooks.register_optimizer_step_post_hook(self._after_step)
        # first, before a null step puts the old values back and before the bound ends the run
        hooks._global_optimizer_post_hooks.move_to_end(handle.id, last=False)  # type: ignore

    def finish(self, how: str, exc: BaseException | None = None) -> None:
        """Say what the globals hold, where nothing stepped. Safe to call twice."""
        if self.done:
            return
        self.done = True
        with quiet():
            leaves, found = self._globals()
            retained = {**self.retained, **found}
            line: dict[str, Any] = {
                "m": "l",
                "how": how,
                "rng": random_state(self.seed),
                "retained": retained,
            }
            if not self.steps:
                line["leaves"] = leaves
            self.emit(line)

    def _watch_backward(self) -> None:
        engine = torch.autograd._engine_run_backward  # type: ignore

        def run(roots: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth or transformed(roots):  # a checkpoint's backward inside ours
                return engine(roots, *args, **kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", False))
            with quiet():
                values = [number(r) for r in roots if isinstance(r, torch.Tensor)]
                had = [(o, j, p, _grad_state(p)) for o, j, p in self.optimizers.parameters()]
                leaves = leaves_of(roots) if not had and accumulates else []
            line: dict[str, Any] = {"m": "b", "v": values, "a": int(accumulates)}
            self.depth += 1
            try:
                result = engine(roots, *args, **kwargs)
            except BaseException:
                self.emit(dict(line, raised=1))
                raise
            finally:
                self.depth -= 1
            with quiet():
                if had:
                    line["r"] = [[o, j] for o, j, p, old in had if _grad_state(p) != old]
                elif accumulates:
                    line["g"] = [self.vector(grad_of(leaf)) for leaf in leaves]
                else:
                    line["g"] = [self.vector(g) for g in result if g is None or isinstance(g, torch.Tensor)]
                self.emit(line)
                for n, ref in enumerate(self.asked):
                    tensor = ref()
                    if tensor is not None and tensor.grad is not None:
                        self.retained[f"#{n}"] = self.vector(tensor.grad)
            return result

        torch.autograd._engine_run_backward = run  # type: ignore

    def _watch_retain_grad(self) -> None:
        """A function's tensors are gone at the end."""
        plain = torch.Tensor.retain_grad

        def retain_grad(tensor: Any) -> None:
            plain(tensor)
            if len(self.asked) < LEAVES:
                self.asked.append(weakref.ref(tensor))

        torch.Tensor.retain_grad = retain_grad  # type: ignore[method-assign, assignment]

    def _watch_zero_grad(self) -> None:
        clear = torch.optim.Optimizer.zero_grad

        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.emit({"m": "z", "o": self.optimizers.number(this)})
            return clear(this, *args, **kwargs)

        torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore

    def _watch_buffers(self) -> None:
        register = torch.nn.Module.register_buffer

        def register_buffer(this: Any, name: str, *args: Any, **kwargs: Any) -> None:
            register(this, name, *args, **kwargs)
            self.buffers.setdefault(this, {})[name] = None  # (setting a buffer anew registers it again)

        torch.nn.Module.register_buffer = register_buffer  # type: ignore

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with quiet():
            k = self.optimizers.number(optimizer)
            ps = parameters(optimizer)
            last = self.after.get(k)
            changed = []
            if last is not None and len(last) == len(ps):
                same = [p.shape == q.shape and torch.equal(p.detach(), q) for p, q in zip(ps, last)]  # noqa: B905
                changed = [j for j, p in enumerate(ps) if not same[j] and _differ(p, last[j])]
                self.before[k] = [last[j] if same[j] else p.detach().clone() for j, p in enumerate(ps)]
            else:
                self.before[k] = [p.detach().clone() for p in ps]
            line = {
                "m": "s",
                "o": k,
                "g": [self.vector(grad_of(p)) for p in ps],
                "c": changed,
                "rng": random_state(self.seed),
            }
            self.emit(line)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        with quiet():
            self.steps += 1
            k = self.optimizers.number(optimizer)
            ps, old = parameters(optimizer), self.before.pop(k, [])
            self.after[k] = [p.detach().clone() for p in ps]
            updates = [number(p.detach() - q) for p, q in zip(ps, old) if p.shape == q.shape]  # noqa: B905
            self.emit({"m": "u", "o": k, "u": updates, "b": self._buffers(), "st": _state(optimizer, ps)})

    def _buffers(self) -> list[Any]:
        return [
            number(buffer)
            for module, names in list(self.buffers.items())
            for name in names
            if name != "num_batches_tracked" and isinstance(buffer := module._buffers.get(name), torch.Tensor)
        ]

    def _globals(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(leaves, retained): name -> gradient, of what the script's globals hold."""
        main = sys.modules.get("__main__")
        leaves: dict[str, Any] = {}
        retained: dict[str, Any] = {}
        seen: set[int] = set()

        def visit(name: str, value: Any, depth: int) -> None:
            if isinstance(value, torch.Tensor):
                if id(value) in seen or not value.requires_grad or len(seen) > LEAVES:
                    return
                seen.add(id(value))
                if _asked(value, "is_leaf"):
                    leaves[name] = self.vector(value.grad)
                elif _asked(value, "retains_grad"):
                    retained[name] = self.vector(value.grad)
            elif isinstance(value, torch.nn.Module):
                for n, p in value.named_parameters():
                    visit(name + "." + n, p, depth)
            elif isinstance(value, dict) and depth < 3:
                for k, x in list(value.items()):
                    visit(f"{name}[{k!r}]", x, depth + 1)
            elif isinstance(value, (list, tuple)) and depth < 3:
                for k, x in enumerate(value):
                    visit(f"{name}[{k}]", x, depth + 1)

        names = vars(main) if main is not None else {}
        for name in sorted(n for n in names if not n.startswith("__")):
            visit(name, names[name], 0)
        return leaves, retained

    def vector(self, value: Any) -> Any:
        """A gradient as [norm, sum, kind, base64] or None: ``f4`` and ``f8`` whole, ``cs`` a sketch."""
        if value is None:
            return None
        t = value.detach()
        if t.layout != torch.strided:
            t = t.to_dense()
        if t.is_complex():
            t = torch.view_as_real(t)
        t = t.to("cpu").flatten()
        norm, total = wide_norm(t), float(_sums(t).sum())
        if t.numel() > FULL:
            return [norm, total, "cs", encode(self._sketch(t))]
        if t.dtype == torch.float64:
            return [norm, total, "f8", encode(t)]
        return [norm, total, "f4", encode(t.float())]

    def _sketch(self, t: Any) -> Any:
        """Sums of the elements that lie BUCKETS apart, each with a sign of its own (a count sketch: inner products
        are kept on average)."""
        size = t.numel()
        if size not in self.signs:
            g = torch.Generator().manual_seed(size)  # its own: the script's draws stay as they are
            self.signs[size] = torch.randint(0, 2, (size,), generator=g, dtype=torch.int8).mul_(2).sub_(1)
        square, rest = _rows(t * self.signs[size])
        sketch = square.sum(0).double()
        sketch[: rest.numel()] += rest
        return sketch.float()


def _asked(tensor: Any, question: str) -> bool:
    """What a tensor says of itself; no, where PyTorch does not let it be asked: of several views that one op made, and
    whose base was written since."""
    try:
        return bool(getattr(tensor, question))
    except RuntimeError:
        return False


def encode(t: Any) -> str:
    """The bytes of a contiguous tensor on the CPU, without NumPy (the script's interpreter may lack it)."""
    t = t.contiguous()
    raw = ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) if t.numel() else b""
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def number(t: Any) -> list[float]:
    """A tensor in three numbers: norm, sum, and the sum weighted by position (so that order counts)."""
    t = t.detach()
    if t.layout != torch.strided:
        t = t.to_dense()
    if t.is_complex():
        t = torch.view_as_real(t)
    t, size = t.flatten(), t.numel()
    if size == 1:
        value = float(t)
        return [abs(value), value, value]
    if size <= FULL:
        t = t.double()
        weights = torch.linspace(1.0, 2.0, size, dtype=torch.float64, device=t.device)
        found: list[float] = torch.stack([t.norm(), t.sum(), t.dot(weights)]).tolist()
        return found
    # weights from 1 to 2, of rows, of columns, of what is left over
    square, rest = _rows(t)
    along, down, rest = _sums(t)[: len(square)], square.sum(0).double(), rest.double()
    total = along.sum() + rest.sum()
    placed = along.dot(_places(len(square), t)) * BUCKETS + down.dot(_places(BUCKETS, t))
    placed = placed + rest.dot(_places(rest.numel(), t) + len(square) * BUCKETS)
    return [wide_norm(t), float(total), float(total + placed / (size - 1))]


def _rows(t: Any) -> tuple[Any, Any]:
    """A flat tensor as rows of BUCKETS elements, and the rest. Sums of rows are made in its own precision, which is
    ten times as fast as a copy in double, and summed up in double; half precision is no precision for that."""
    if t.dtype not in (torch.float32, torch.float64):
        t = t.double()
    whole = t.numel() // BUCKETS * BUCKETS
    return t[:whole].view(-1, BUCKETS), t[whole:]


def _sums(t: Any) -> Any:
    """The sums of a flat tensor's rows, and what is left over."""
    square, rest = _rows(t)
    return torch.cat([square.sum(1).double(), rest.double()])


def _places(count: int, like: Any) -> Any:
    return torch.arange(count, dtype=torch.float64, device=like.device)


def wide_norm(t: Any) -> float:
    """The norm of a tensor as if in double precision."""
    t = t.flatten()
    square, rest = _rows(t)
    parts = torch.cat([torch.linalg.vector_norm(square, dim=1).double(), rest.double()])
    norm = float(torch.linalg.vector_norm(parts))
    return norm if math.isfinite(norm) else float(torch.linalg.vector_norm(t.double()))


def random_state(seed: int) -> list[int]:
    """Digests of the states of torch's, Python's and NumPy's global generators, in this order."""
    state = torch.default_generator.get_state()
    found = [
        zlib.crc32(ctypes.string_at(state.data_ptr(), state.numel())),
        zlib.crc32(repr(random.getstate()[1]).encode()),
    ]
    numpy = sys.modules.get("numpy.random")
    # untouched reads like not imported: what else the interpreter has loaded is no draw of the script's
    known: Any = numpy if hasattr(numpy, "get_state") else None
    touched = known is not None and not _as_seeded(known, seed)
    found.append(_digest(known.get_state()) if touched else 0)
    return found


def _as_seeded(numpy: Any, seed: int) -> bool:
    """Whether NumPy's global generator is as a seed has left it: nothing drawn since."""
    _, keys, position, has_gauss, _ = numpy.get_state()
    fresh = numpy.RandomState(seed % 2**32).get_state()
    return bool(position == fresh[2] and not has_gauss and keys.tobytes() == fresh[1].tobytes())


def _digest(state: Any) -> int:
    return zlib.crc32(state[1].tobytes() + repr(state[2:]).encode())


def leaves_of(roots: Any) -> list[Any]:
    """The leaves a backward from `roots` reaches, in the order of a depth-first walk."""
    found: list[Any] = []
    seen = set()
    stack = [
        r.grad_fn for r in reversed(list(roots)) if isinstance(r, torch.Tensor) and r.grad_fn is not None
    ]
    while stack and len(found) < LEAVES:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.append(leaf)
        stack.extend(n for n, _ in reversed(node.next_functions) if n is not None and n not in seen)
    return found


def grad_of(p: Any) -> Any:
    """`p.grad`, without PyTorch's warning where a non-leaf has none."""
    return p.grad if p.is_leaf or p.retains_grad else None


def _grad_state(p: Any) -> tuple[int, int]:
    grad = grad_of(p)
    return (0, 0) if grad is None else (id(grad), grad._version)


def _differ(p: Any, q: Any) -> bool:
    """Whether `p` holds other values than `q`; what was added and taken off again differs by its rounding."""
    if p.shape != q.shape:
        return True
    if not q.is_floating_point():
        return True
    far = (p.detach() - q).abs().max()
    return bool(far > _ROUNDING * torch.finfo(q.dtype).eps * q.abs().max())


def _state(optimizer: Any, ps: list[Any]) -> dict[str, list[float]]:
    """The norms of the tensors of the optimizer's state, by key, in order of parameter."""
    found: dict[str, list[float]] = {}
    for p in ps:
        for key, t in optimizer.state[p].items() if p in optimizer.state else ():
            if isinstance(t, torch.Tensor) and t.numel():
                found.setdefault(str(key), []).append(wide_norm(t.detach()))
    return found
