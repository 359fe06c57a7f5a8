"""The one way into the autograd engine: which nodes a backward walks, what it frees, what it would have
refused.

Every graph is kept, so that the run goes on where PyTorch would raise; what a plain run would have freed is
stamped. A backward that finds nothing wrong costs one walk (walk.py).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch

from .freed import Freed
from .pause import Pause
from .saves import EVERYWHERE, GONE, Entry, Saves
from .transforms import transformed
from .walk import Walk, walk_from

_UNSEEN = 8
_FULL = 32  # passes of one backward that are written whatever they are
_MANY = 400_000
_ROUNDINGS = 8  # of the gradient that a backward begins with
_CULPRITS = 16  # places of writes that are measured one by one, in a backward each

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they "
    "have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


def no_graph(index: int) -> str:
    """PyTorch's sentence for the root number `index` of a backward."""
    return f"element {index} of tensors does not require grad and does not have a grad_fn"


class Engine:
    """Wraps torch.autograd._engine_run_backward."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self.saves: Saves = recorder.saves
        self._plain: Any = None
        self._depth = 0
        self._inner: Walk | None = None
        self.second_order = False  # a backward has made graphs of gradients
        self.watched = False  # the backward at work is the program's own, not one that measures
        self.count = 0  # of backwards that were begun
        self._freed: set[int] = set()  # nodes whose saved tensors were freed, used or not
        self._freed_numbers: set[int] = set()  # those of them that saved numbers only: these pass no hook
        self._passes: dict[Any, list[Any]] = {}
        self.freed = Freed(recorder.note_once)

    def install(self) -> None:
        module: Any = torch.autograd
        plain = module._engine_run_backward
        self._plain = plain

        def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._recorded() or transformed(outputs):
                return plain(outputs, *args, **kwargs)
            return self.run(outputs, *args, **kwargs)

        module._engine_run_backward = run
        module.graph._engine_run_backward = run

    def _recorded(self) -> bool:
        if self.r.forked():
            self.r.processes.walks()
            return False
        return bool(self.r.threads.walks())

    def run(
        self, outputs: Any, grads: Any, retain: Any, create: Any, inputs: Any = (), *more: Any, **kwargs: Any
    ) -> Any:
        r = self.r
        self.count += 1
        r.optimizers.abandon()
        r.gradients.settle()
        self.second_order = self.second_order or bool(create)
        if self._depth:
            return self._nested(outputs, grads, retain, create, inputs, more, kwargs)
        r.watch.unrecorded.walked()
        r.checkpoints.walked()
        frame = sys._getframe(2)
        stack = r.sites.stack(frame)
        accumulate = bool(kwargs.get("accumulate_grad", True))
        for i, root in enumerate(outputs):
            if isinstance(root, torch.Tensor) and not root.requires_grad:
                return self._no_graph(i, outputs, inputs, stack, accumulate, retain, create)
        seen = self._passes.setdefault(stack, [0, None, set()])
        seen[0] += 1
        with torch._C.DisableTorchFunction(), Pause():
            if self.saves.exposed:
                r.aliases.check(frame, always=True)
            walk = walk_from(outputs, inputs, accumulate, r.leaves)
        unseen = iter(range(r.clock.now + 1, r.clock.now + 1 + _UNSEEN))  # times for writes found only now
        r.clock.now += _UNSEEN
        time = r.clock.tick()
        free_time = r.clock.tick()
        used: list[Entry] = []
        self._inner = inner = Walk(())
        r.custom.begun.clear()
        try:
            self.watched, self.saves.since = True, time
            with r.watching():
                result = self._engine(used, outputs, grads, True, create, inputs, more, kwargs)
        except BaseException as problem:
            if isinstance(problem, RuntimeError):
                with torch._C.DisableTorchFunction():
                    self._emit(stack, time, walk, inner, (retain, create, inputs), str(problem), 0.0, frame)
            raise
        finally:
            self._inner, self.watched = None, False
            r.gradients.moved()
        with torch._C.DisableTorchFunction():
            refused, wrong, new = "", 0.0, len(used) not in seen[2]
            blame: list[list[Any]] = []
            seen[2].add(len(used))
            touched = [e for e in self._touched(used) if _late(e) < time]
            held = [e for e in r.custom.held(walk.parents) if _late(e) < time]
            within = any(
                _overwritten(e) >= time for e in (*touched, *held)
            )  # by another's backward, too early
            if within or any(e.time >= time for e in touched):  # ... or saved in a reentrant checkpoint
                time, free_time = r.clock.tick(), r.clock.tick()
            refused = self._refusal(touched)
            if not refused and not self._freed_numbers.isdisjoint(walk.parents):
                refused = FREED
            suspects = r.custom.suspects(walk.parents)
            used, suspected = [*used, *held], [*touched, *held]
            if self._overwritten_unseen(suspected, unseen) or suspects:
                wrong, blame = self._difference(
                    suspected, outputs, grads, inputs, kwargs, (walk, inner), suspects
                )
                r.custom.tell(blame)
            elif accumulate and not (refused or create or inputs):
                self._terms(walk, stack, grads, kwargs)
            dull = seen[0] > _FULL and not (refused or wrong or new)
            if dull:
                r.flood()
            with Pause():
                self._emit(
                    stack, time, walk, inner, (retain, create, inputs), refused, wrong, frame, dull, blame
                )
                if not retain:
                    self._free(walk.parents)
                    r.tape.common("Free", free_time, stack, dull, nodes=list(walk.nodes))
                    self.freed.stamp(used, time)
                    r.kept.freed(outputs, stack)
            if not (accumulate or create):
                r.constants.given(result)
        return result

    def _engine(
        self,
        used: list[Entry] | None,
        outputs: Any,
        grads: Any,
        retain: bool,
        create: Any,
        inputs: Any,
        more: Any,
        kwargs: Any,
    ) -> Any:
        self._depth += 1
        self.saves.used, before = used, self.saves.used
        self.saves.measured, measured = not self.watched, self.saves.measured
        try:
            return self._plain(outputs, grads, retain, create, inputs, *more, **kwargs)
        finally:
            self._depth -= 1
            self.saves.used, self.saves.measured = before, measured

    def _nested(
        self, outputs: Any, grads: Any, retain: Any, create: Any, inputs: Any, more: Any, kwargs: Any
    ) -> Any:
        """A backward inside a backward (reentrant checkpoints): part of the outer one."""
        if self._inner is not None and all(isinstance(o, torch.Tensor) and o.requires_grad for o in outputs):
            walk = walk_from(outputs, inputs, bool(kwargs.get("accumulate_grad", True)), self.r.leaves)
            self._inner.numbers += walk.numbers
            self._inner.nodes.update(walk.nodes)
            self._inner.parents.update(walk.parents)
            self._inner.accumulated += walk.accumulated
        with self.r.watching():
            return self._engine(self.saves.used, outputs, grads, retain, create, inputs, more, kwargs)

    def _no_graph(
        self, index: int, outputs: Any, inputs: Any, stack: Any, accumulate: bool, retain: Any, create: Any
    ) -> Any:
        r = self.r
        message = no_graph(index)
        fields = _flags(retain, create, inputs)
        root = outputs[index]
        storage = r.storages.of(root)
        r.grad_mode.met()
        r.frozen.met()
        r.tape.event(
            "Backward", r.clock.tick(), stack, roots=[~storage.number], nodes=[], refused=message, **fields
        )
        if accumulate:
            return None
        return tuple(torch.zeros_like(x) if isinstance(x, torch.Tensor) else None for x in inputs)

    def tell(self, tensor: Any) -> None:
        """Write the Records of the graph behind `tensor`, which no backward may ever walk: what a cut cuts
        off."""
        self.r.record(walk_from((tensor,), (), True, self.r.leaves))

    def _free(self, nodes: Any) -> None:
        self._freed.update(nodes)
        self._freed_numbers.update(self.r.bare.intersection(nodes))
        if len(self._freed) > _MANY:  # the oldest: what they saved is stamped, as far as it was used
            newest = max(self._freed) - _MANY // 2
            for numbers in (self._freed, self._freed_numbers, self.r.bare):
                numbers.difference_update([n for n in numbers if n < newest])

    # ---- what was found

    def had(self, entry: Entry) -> bool:
        """Whether the program's backward that runs has asked for what `entry` saved already."""
        if not self.watched:
            return False
        if type(entry) is Entry:
            return any(e is entry for e in self.saves.used or ())
        return entry.node in self.r.custom.begun

    def _touched(self, used: list[Entry]) -> list[Entry]:
        """Those of the saved tensors that something has happened to since: in nearly every pass none."""
        freed = self._freed
        return [
            entry
            for entry in used
            if entry.freed is not None
            or entry.fate is not None
            or entry.node in freed
            or (tensor := entry.tensor) is GONE
            or tensor._version != entry.version
        ]

    def _refusal(self, touched: list[Entry]) -> str:
        """PyTorch's sentence at the first saved tensor where a plain run would have raised, in the engine's
        order."""
        for entry in touched:
            if entry.freed is not None or entry.node in self._freed:
                return FREED
            if entry.tensor is not GONE and entry.moved():
                return self.r.watch.views.outdated(entry.tensor) or _modified(entry)
        return ""

    def _overwritten_unseen(self, touched: list[Entry], times: Iterator[int]) -> bool:
        """Whether values used here were overwritten without PyTorch's counter moving; tells writes that no
        call showed (through a NumPy alias, in an extension)."""
        found = False
        for entry in touched:
            if entry.tensor is GONE:
                continue
            fate, moved = entry.fate, entry.moved()
            if moved and (fate is None or fate.time is None or not fate.counted):
                self.r.unseen(entry, next(times, 0))
            elif fate is not None and fate.time is not None and not moved:
                found = True
        return found

    def _difference(
        self, suspected: list[Entry], outputs: Any, grads: Any, inputs: Any, kwargs: Any,
        walks: tuple[Walk, Walk], suspects: dict[Any, int],
    ) -> tuple[float, list[list[Any]]]:  # fmt: skip
        """The relative difference between the gradients from values as saved and as plain PyTorch would use them;
        where several places wrote, or custom Functions did what only this shows (`suspects`: place -> time), the same
        for each alone: [the time of a write there, difference]."""
        walk, inner = walks
        given = [x for x in inputs if isinstance(x, torch.Tensor)]
        leaves = tuple(given or walk.accumulated + inner.accumulated)
        if not leaves:
            return 0.0, []
        run = self._accumulating if inner.numbers else self._engine
        options = dict(kwargs, accumulate_grad=False, allow_unreachable=True)
        noise = _noise(outputs, grads)

        def off(right: Any, place: Any) -> float:
            self.saves.as_plain = place
            # (a backward may write into what it is given)
            own = tuple([g.clone() if isinstance(g, torch.Tensor) else g for g in grads])
            try:
                other = run(None, outputs, own, True, False, leaves, (), options)
                return _relative(right, other, noise)
            except RuntimeError:
                return 1.0  # the overwritten values do not even fit
            finally:
                self.saves.as_plain = None

        try:
            right = run(None, outputs, grads, True, False, leaves, (), options)
        except RuntimeError:
            return 1.0, []
        wrong = off(right, EVERYWHERE)
        fates = [
            e.fate for e in suspected if e.fate is not None and e.fate.time is not None and not e.fate.counted
        ]
        places = {f.place: f.time for f in fates} | suspects
        if not wrong or not (len(places) > 1 or suspects) or len(places) > _CULPRITS:
            return wrong, []
        return wrong, [[time, off(right, place)] for place, time in places.items()]

    def _accumulating(
        self,
        used: None,
        outputs: Any,
        grads: Any,
        retain: Any,
        create: Any,
        leaves: Any,
        more: Any,
        kwargs: Any,
    ) -> Any:
        """The gradients of `leaves` where a reentrant checkpoint refuses to give other than into ``.grad``. It runs its
        function again, which is watched as it was before."""
        had = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        try:
            with torch._C._EnableTorchFunction(), self.r.watching():
                self._engine(
                    used, outputs, grads, retain, create, (), more, dict(kwargs, accumulate_grad=True)
                )
            return tuple(leaf.grad for leaf in leaves)
        finally:
            for leaf, grad in zip(leaves, had):  # noqa: B905 (Python 3.9)
                leaf.grad = grad

    def _terms(self, walk: Walk, stack: Any, grads: Any, kwargs: Any) -> None:
        options = dict(kwargs, accumulate_grad=False, allow_unreachable=True)

        def gradients(outputs: Any, given: Any, inputs: Any) -> Any:
            return self._engine(None, outputs, given, True, False, inputs, (), options)

        self.r.opposed.look(walk, stack, gradients, grads)

    def _emit(
        self, stack: Any, time: int, walk: Walk, inner: Walk, flags: tuple[Any, Any, Any],
        refused: str, wrong: float, frame: Any, dull: bool = False, blame: Any = (),
    ) -> None:  # fmt: skip
        r = self.r
        r.names.look(frame)
        walk.numbers += inner.numbers
        walk.nodes.update(inner.nodes)
        walk.parents.update(inner.parents)
        r.record(walk, dull)
        # (what was frozen behind the forward is walked to, and given nothing)
        leaves = {id(t): t for t in (*walk.accumulated, *inner.accumulated) if t.requires_grad}
        fields: dict[str, Any] = _flags(*flags)
        if leaves:
            fields["accumulates"] = r.leaves.refs(leaves.values())
        if refused:
            fields["refused"] = refused
        if wrong:
            fields["wrong"] = wrong
        if blame:
            fields["blame"] = blame
        fields.update(roots=list(walk.roots), nodes=list(dict.fromkeys(walk.numbers)))
        if dull:
            r.tape.common("Backward", time, stack, True, **fields)
        else:
            r.tape.event("Backward", time, stack, **fields)


def _overwritten(entry: Entry) -> int:
    """When it was, 0 where it was not."""
    return (entry.fate.time or 0) if entry.fate is not None else 0


def _late(entry: Entry) -> int:
    return entry.fate.late if entry.fate is not None else 0


def _flags(retain: Any, create: Any, inputs: Any) -> dict[str, Any]:
    flags = {"retain": bool(retain), "create": bool(create), "inputs": bool(inputs)}
    return {name: value for name, value in flags.items() if value}


def _modified(entry: Entry) -> str:
    tensor = entry.tensor
    try:
        maker = tensor.grad_fn
    except (
        RuntimeError
    ) as error:  # a view that may no longer be read: PyTorch gets no further with its own sentence
        return str(error)
    name = re.sub(r"Backward\d*$", "", maker.name()) if maker is not None else ""
    made = f", which is output {tensor.output_nr} of {name}," if name else ""
    shape = list(tensor.shape)
    return (
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {shape}]{made} is at version {tensor._version}; "
        f"expected version {entry.version} instead. "
        "Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )


def _noise(outputs: Any, grads: Any) -> float:
    """The norm of gradients that are no more than rounding: ``x.softmax(-1).mean()`` is a constant."""
    total = 0.0
    with torch.no_grad():
        for i, root in enumerate(outputs):
            given = grads[i] if i < len(grads) else None
            if isinstance(root, torch.Tensor) and root.is_floating_point():
                size = float(given.double().norm()) if isinstance(given, torch.Tensor) else 1.0
                total += size * torch.finfo(root.dtype).eps
    return _ROUNDINGS * total


def _relative(right: Any, other: Any, noise: float) -> float:
    """The 2-norm of the difference over that of `right`, over all gradients together; 0 where both are `noise`."""
    difference = norm = against = 0.0
    with torch.no_grad():
        for a, b in _pairs(right, other):
            difference += float((a - b).double().pow(2).sum())
            norm += float(a.double().pow(2).sum())
            against += float(b.double().pow(2).sum())
    if difference == 0.0 or max(norm, against) <= noise**2:
        return 0.0
    if not difference < float("inf"):
        return 1.0
    return float((difference / norm) ** 0.5) if norm else 1.0


def _pairs(right: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    for a, b in zip(right, other):  # noqa: B905 (Python 3.9)
        if a is None and b is None:
            continue
        a, b = (torch.zeros_like(b) if a is None else a), (torch.zeros_like(a) if b is None else b)
        yield (a.to_dense() if a.is_sparse else a), (b.to_dense() if b.is_sparse else b)
