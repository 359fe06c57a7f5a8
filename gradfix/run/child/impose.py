"""What a rewrite says it will change, done to a run on purpose, so that before and after can be compared.

The request is a JSON object; every key is optional, and they combine:

``null``     ``steps``: a step() leaves parameters and optimizer state as they were. ``rounds``: updates take
             effect when the round ends, not at the step. ``writes``: without an optimizer, in-place writes to
             leaves that a backward has reached are left out. Running statistics stand still in both.
``period``   the optimizers' numbers in the order of their steps in one round; that many steps end a round.
``draws``    random draws (torch's, Python's, NumPy's) depend on (round, op, arguments, how many before in the
             round), not on how many were made in all; for the keys listed under ``constant`` on (round, op,
             arguments) alone.
``cut``      no gradient flows through nodes of an earlier round (``step``), or of before the last run of the
             same backward (``backward``), or that were made in one of the ``places`` (lists of frames, each
             [file, first line, last line], outermost first).
``clips``    once an optimizer has stepped, the script's own in-place writes to parameters are left out, and counted.
``own``      the k-th backward fills only the parameters of the optimizers listed for it, and leaves of none.
``edges``    no gradient flows from the node with the first sequence number to its input with the second.
``write``    an op's in-place writes to some parameters or to tensors of a shape are left out, and counted.
``through``  ``.data``, ``.detach()`` and ``torch.tensor(t)`` in user lines (all, or those listed) give the
             tensor itself.
``clear``    an optimizer's gradients are cleared after each of its steps.
``retain``   non-leaf tensors given to an optimizer keep their gradient, as leaves do.
``keep``     tensors made in the [file, line, how]s listed keep their gradient as ``retain_grad()`` has them do
             (``keep``), or are leaves (``leaf``).
``create``   ``torch.autograd.grad`` at the [file, line]s listed makes a graph of its own (``create_graph=True``).
``shims``    calls of PyTorch 0.x that were removed do what they did.

Standard library and torch only; installed after the recorder and before the measurer.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .elsewhere import each_thread
from .measure import Optimizers, parameters, quiet
from .pretend import (
    DATA,
    about,
    differentiate_twice,
    foreign,
    freeze_statistics,
    key_draws_of_others,
    restore_old_calls,
    retain_gradients,
    see_through,
)

Emit = Callable[[dict[str, Any]], None]

_MADE = "gradfix made in a place"


class Imposer:
    """Imposes one request on the run: `install` before the script runs, `finish` on every way out."""

    def __init__(self, request: dict[str, Any], recorder: Any, emit: Emit) -> None:
        self.request = request
        self.emit = emit
        self.optimizers = Optimizers()
        self.rounds = Rounds(len(request.get("period") or ()))
        self.backwards = 0
        self.depth = 0
        self.edges = {(consumer, producer) for consumer, producer in request.get("edges", ())}
        self.marks: dict[
            tuple[Any, ...], tuple[int, int]
        ] = {}  # backward's frames -> (sequence number, steps) then
        self.mode: _Ops | None = None
        self.leaves: dict[int, Any] = {}  # address -> a leaf that a backward has reached
        self.done = False

    def install(self) -> None:
        self.optimizers.watch()
        _Steps(self).install()
        still = self.request.get("null") == "writes"
        if still or "cut" in self.request or "own" in self.request or "edges" in self.request:
            self._watch_backward()
        if self.request.get("places"):
            each_thread.enter(_Made(self.request["places"]))
        if self.request.get("null"):
            freeze_statistics()
        if "through" in self.request:
            see_through(self.request["through"])
        if self.request.get("create"):
            differentiate_twice(self.request["create"])
        if self.request.get("retain"):
            retain_gradients()
        if self.request.get("shims"):
            restore_old_calls()
        if self.request.get("keep"):
            each_thread.enter(_Keep(self.request["keep"]))
        if "draws" in self.request or "write" in self.request:
            self.mode = _Ops(self)
            if "draws" in self.request:
                key_draws_of_others(self.mode.seed_of)
            each_thread.enter(self.mode)

    def finish(self, how: str, exc: BaseException | None = None) -> None:
        if self.done:
            return
        self.done = True
        if self.mode is not None:
            self.emit({"m": "d", "draws": self.mode.counts, "writes": self.mode.writes})

    def _watch_backward(self) -> None:
        engine = torch.autograd._engine_run_backward  # type: ignore

        def run(
            roots: Any, grads: Any, retain: Any, create: Any, inputs: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if self.depth:
                return engine(roots, grads, retain, create, inputs, *args, **kwargs)
            accumulates = bool(kwargs.get("accumulate_grad", False))
            number, self.backwards = self.backwards, self.backwards + 1
            with quiet():
                old, leaves = self._reach(roots)
                if self.request.get("null") == "writes":
                    self.leaves.update((x.untyped_storage().data_ptr(), x) for x in leaves)
            if accumulates:
                keep = [x for x in leaves if self._feeds(number, x)] if "own" in self.request else leaves
                if inputs:
                    keep = [x for x in inputs if not x.is_leaf or any(x is y for y in keep)]
                elif len(keep) == len(leaves) and not old:
                    keep = []  # nothing to restrict
                elif not keep:
                    return None
                inputs = tuple(keep)
                if not inputs and old:
                    return None
            handles = [node.register_prehook(_zeros) for node in old]
            if self.edges:
                handles += self._cut_edges(roots)
            self.depth += 1
            try:
                return engine(roots, grads, retain, create, inputs, *args, **kwargs)
            finally:
                self.depth -= 1
                for handle in handles:
                    handle.remove()

        torch.autograd._engine_run_backward = run  # type: ignore

    def _reach(self, roots: Any) -> tuple[list[Any], list[Any]]:
        """(nodes of an earlier round where the walk from `roots` stops, leaves it reaches without them)."""
        limit = self._limit() if "cut" in self.request else 0
        old: list[Any] = []
        leaves: list[Any] = []
        seen: set[Any] = set()
        stack: list[Any] = []
        for root in roots:
            node = root.grad_fn if isinstance(root, torch.Tensor) else root.node
            if node is not None:
                stack.append(node)
            elif isinstance(root, torch.Tensor) and root.is_leaf:
                leaves.append(root)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if leaf is not None:
                leaves.append(leaf)
            elif node._sequence_nr() < limit or node.metadata.get(_MADE):
                old.append(node)
            else:
                stack.extend(n for n, _ in node.next_functions if n is not None)
        return old, leaves

    def _cut_edges(self, roots: Any) -> list[Any]:
        """Hooks on the nodes of this walk whose gradient to one of their inputs is left out."""
        handles: list[Any] = []
        seen: set[Any] = set()
        stack = [r.grad_fn if isinstance(r, torch.Tensor) else r.node for r in roots]
        consumers = {consumer for consumer, _ in self.edges}
        while stack:
            node = stack.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            inputs = [n for n, _ in node.next_functions]
            stack += inputs
            number = node._sequence_nr()
            if number in consumers:
                which = {k for k, n in enumerate(inputs) if n and (number, n._sequence_nr()) in self.edges}
                if which:
                    handles.append(node.register_hook(_without(which)))
        return handles

    def _limit(self) -> int:
        """The sequence number below which a node is of an earlier round for the coming backward."""
        here, now = _frames(), torch._C._autograd._get_sequence_nr()
        number, steps = self.marks.get(here, (0, -1))
        self.marks[here] = (now, self.rounds.steps)
        if self.request["cut"] == "places":
            return 0
        if self.request["cut"] == "backward":
            return number
        return max(self.rounds.start, number if steps != self.rounds.steps else 0)

    def _feeds(self, backward: int, leaf: Any) -> bool:
        own = self.request["own"]
        if backward >= len(own) or own[backward] is None:
            return True
        owners = {k for k, _, p in self.optimizers.parameters() if p is leaf}
        return not owners or bool(owners & set(own[backward]))


class Rounds:
    """Counts steps into rounds of `period` steps; each step is a round where there is no period."""

    def __init__(self, period: int) -> None:
        self.period = period or 1
        self.steps = 0
        self.number = 0
        self.start = 0  # the first sequence number of this round

    def stepped(self) -> bool:
        """Count one step; whether it ended a round."""
        self.steps += 1
        if self.steps % self.period:
            return False
        self.number += 1
        self.start = torch._C._autograd._get_sequence_nr()
        return True


class _Steps:
    """What happens around optimizer steps: updates undone or put off, gradients cleared."""

    def __init__(self, imposer: Imposer) -> None:
        self.imposer = imposer
        self.null = imposer.request.get("null")
        self.before: dict[int, tuple[list[Any], Any]] = {}
        self.due: dict[
            int, tuple[Any, Any]
        ] = {}  # id of a parameter -> (it, its value from the round's end on)

    def install(self) -> None:
        from torch.optim import optimizer as hooks

        hooks.register_optimizer_step_pre_hook(self._pre)
        hooks.register_optimizer_step_post_hook(self._post)

    def _pre(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.imposer.depth += 1  # a closure's backward and the writes of a step are not the script's own
        if self.null:
            with quiet():
                state = None
                if self.null == "steps":
                    state = {p: {k: _copy(v) for k, v in s.items()} for p, s in optimizer.state.items()}
                self.before[id(optimizer)] = ([p.detach().clone() for p in parameters(optimizer)], state)
            return _closed(args, kwargs, lambda closure: self._still(optimizer, closure))
        return None

    def _still(self, optimizer: Any, closure: Any) -> Any:
        """A closure that finds the parameters as they were when the step began, however often it is called."""
        old, _ = self.before[id(optimizer)]

        def call(*args: Any, **kwargs: Any) -> Any:
            with quiet():
                now = [p.detach().clone() for p in parameters(optimizer)]
                _put(optimizer, old)
            try:
                return closure(*args, **kwargs)
            finally:
                with quiet():
                    _put(optimizer, now)

        return call

    def _post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.imposer.depth -= 1
        with quiet():
            if self.null and id(optimizer) in self.before:
                old, state = self.before.pop(id(optimizer))
                for p, value in zip(parameters(optimizer), old):  # noqa: B905  (Python 3.9)
                    if self.null == "rounds":
                        self.due[id(p)] = (p, p.detach().clone())
                    DATA.__get__(p).copy_(value)  # through .data: no version counter moves
                if state is not None:
                    optimizer.state.clear()
                    optimizer.state.update(state)
            if self.imposer.request.get("clear"):
                for p in parameters(optimizer):
                    p.grad = None
            if self.imposer.rounds.stepped():
                for p, value in self.due.values():
                    DATA.__get__(p).copy_(value)
                self.due.clear()


def _closed(args: Any, kwargs: Any, wrap: Callable[[Any], Any]) -> Any:
    """The arguments of a step (the optimizer first), its closure wrapped; None where it has none."""
    if callable(kwargs.get("closure")):
        return args, {**kwargs, "closure": wrap(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], wrap(args[1]), *args[2:]), kwargs
    return None


def _put(optimizer: Any, values: Any) -> None:
    for p, value in zip(parameters(optimizer), values):  # noqa: B905  (Python 3.9)
        DATA.__get__(p).copy_(value)  # through .data: no version counter moves


class _Keep(TorchFunctionMode):
    """retain_grad() of every tensor made in some lines of the user's, or a leaf instead of it."""

    def __init__(self, sites: Any) -> None:
        super().__init__()
        self.sites = {(os.path.realpath(file), line): how for file, line, how in sites}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else (result,)
        for tensor in made:
            inner = isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf
            how = self._how() if inner else ""
            if how == "keep":
                tensor.retain_grad()
            elif how == "leaf" and tensor is result:
                return tensor.detach().requires_grad_()
        return result

    def _how(self) -> str:
        frame = sys._getframe(2)
        while frame is not None and foreign(frame.f_code.co_filename):
            frame = frame.f_back  # type: ignore[assignment]
        if frame is None:
            return ""
        how: str = self.sites.get((os.path.realpath(frame.f_code.co_filename), frame.f_lineno), "")
        return how


class _Made(TorchFunctionMode):
    """Marks the nodes of every tensor that is made in some places of the user's program."""

    def __init__(self, places: Any) -> None:
        super().__init__()
        self.places = [[(os.path.realpath(f), a, b) for f, a, b in place] for place in places]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = result if isinstance(result, (list, tuple)) else (result,)
        nodes = [x.grad_fn for x in made if isinstance(x, torch.Tensor) and x.grad_fn is not None]
        if nodes and self._here():
            for node in nodes:
                marks: Any = node.metadata
                marks[_MADE] = True
        return result

    def _here(self) -> bool:
        found = []
        frame = sys._getframe(2)
        while frame is not None:
            if not foreign(frame.f_code.co_filename):
                found.append((os.path.realpath(frame.f_code.co_filename), frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        found.reverse()
        return any(
            len(place) <= len(found)
            and all(f == g and a <= n <= b for (f, a, b), (g, n) in zip(place, found[-len(place) :]))  # noqa: B905
            for place in self.places
        )


class _Ops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keyed random draws, and writes left out."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import torch._dynamo, which takes as long as torch, to keep it off this mode."""
        return False

    def __init__(self, imposer: Imposer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.imposer = imposer
        self.draws: Any = imposer.request.get("draws")
        self.constant = set((self.draws or {}).get("constant", ()))
        self.write: Any = imposer.request.get("write")
        self.round = -1
        self.met: dict[str, int] = {}  # draws of a key in this round
        self.counts: dict[str, list[int]] = {}  # key -> draws per round
        self.writes: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (
            self.draws is not None
            and torch.Tag.nondeterministic_seeded in func.tags
            and not kwargs.get("generator")
        ):
            self._seed(func, args, kwargs)
        elif self._left_out(func, args):
            return args[0]
        return func(*args, **kwargs)

    def _seed(self, func: Any, args: Any, kwargs: Any) -> None:
        seed = self.seed_of("{} {}".format(func, ",".join(about(x) for x in args)))
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)

    def seed_of(self, key: str) -> int:
        """The seed of the coming draw of `key`."""
        number = self.imposer.rounds.number
        if number != self.round:
            self.round, self.met = number, {}
        index = self.met.get(key, 0)
        self.met[key] = index + 1
        counts = self.counts.setdefault(key, [])
        counts.extend([0] * (number + 1 - len(counts)))
        counts[number] += 1
        which = 0 if key in self.constant else index
        return zlib.crc32(f"{number}|{key}|{which}".encode())

    def _left_out(self, func: Any, args: Any) -> bool:
        """Whether the op is a write that is not to be made."""
        if not _writes_first(func, args):
            return False
        if self.imposer.leaves and args[0].untyped_storage().data_ptr() in self.imposer.leaves:
            return True
        if self.imposer.depth:
            return False
        if self.imposer.request.get("clips") and self.imposer.rounds.steps and self._of_parameter(args[0]):
            self._count(func, args)
            return True
        return self.write is not None and self._suppressed(func, args)

    def _of_parameter(self, target: Any) -> bool:
        where = target.untyped_storage().data_ptr()
        return any(
            p.untyped_storage().data_ptr() == where for _, _, p in self.imposer.optimizers.parameters()
        )

    def _count(self, func: Any, args: Any) -> None:
        what = "{} {}".format(func, ",".join(about(x) for x in args[1:]))
        self.writes[what] = self.writes.get(what, 0) + 1

    def _suppressed(self, func: Any, args: Any) -> bool:
        op, name = self.write["op"], str(func).rpartition(".")[0]
        # the tape knows the call (aten.embedding), this mode what it comes to (aten.embedding_renorm_)
        if not (name == op or name.startswith(op + "_")):
            return False
        target = args[0]
        wanted = self.write.get("parameters")
        if wanted is not None:
            where = target.untyped_storage().data_ptr()
            mine = [
                [k, j]
                for k, j, p in self.imposer.optimizers.parameters()
                if p.untyped_storage().data_ptr() == where
            ]
            if not any(x in wanted for x in mine):
                return False
        elif list(target.shape) != self.write.get("shape"):
            return False
        self._count(func, args)
        return True


def _writes_first(func: Any, args: Any) -> bool:
    """Whether the op writes into its first argument."""
    if not args or not isinstance(args[0], torch.Tensor):
        return False
    into = func._schema.arguments[0].alias_info
    return into is not None and bool(into.is_write)


def _zeros(grads: Any) -> Any:
    return tuple(None if g is None else torch.zeros_like(g) for g in grads)


def _without(which: set[int]) -> Callable[[Any, Any], Any]:
    def cut(inputs: Any, outputs: Any) -> Any:
        return tuple(torch.zeros_like(g) if k in which and g is not None else g for k, g in enumerate(inputs))

    return cut


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _frames() -> tuple[Any, ...]:
    """The user's frames: which call, of which line, and where in its code."""
    found = []
    frame = sys._getframe(1)
    while frame is not None:
        if not foreign(frame.f_code.co_filename):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)
