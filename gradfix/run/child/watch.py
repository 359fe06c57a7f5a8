"""Every call of torch's Python API, seen by one TorchFunctionMode: nodes, writes, cuts, refused writes.

A dispatch mode would see every ATen op, also those inside the engine and the optimizers, and costs two to
three times as much; the calls are what the user wrote. What a call wrote unseen (TorchScript, an extension)
still shows by the version counter when a backward asks for the tensor.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import writes
from .constants import within
from .gradients import FULL
from .let_through import detached, let_through
from .multiview import MultiViews, splits
from .rebinding import Anew
from .saves import GONE, Entry, fate_of
from .storages import address_of
from .unrecorded import Unrecorded, is_leaf

_sequence = torch._C._autograd._get_sequence_nr
_grad_enabled = torch.is_grad_enabled
_getframe = sys._getframe
_MOST_DISCRETE = 64
_LIBRARY = "library"  # .data read by torch's own code
_DATA = ("data", _LIBRARY)


def _not_counted() -> bool:
    return False


class Watch(TorchFunctionMode):
    """The mode. `r` is the recorder, whose files and tape it fills; `idle` where another thread is recorded."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.r = recorder
        self.idle = False
        self.hooked = False  # this thread's saved tensors pass the recorder's hooks
        self._exposed = recorder.saves.exposed
        self._constants = recorder.constants.living
        self._numbers = recorder.numbers.living
        self._computed = recorder.computed.living
        self._known: dict[Any, tuple[Any, Any]] = {}
        self.unrecorded = Unrecorded(recorder)
        self._discrete_left = _MOST_DISCRETE
        self.views = MultiViews()
        self.anew = Anew(recorder)
        self._aliases: dict[int, Any] = {}  # id of a tensor -> (weak reference, "data" or "detach")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        r = self.r
        if r.quiet or (self.idle and not r.threads.take(self, args)):
            return func(*args, **kwargs) if kwargs else func(*args)
        found: Any = self._known.get(func)
        if found is None:
            found = self._known[func] = ("split", None) if splits(func) else writes.classify(func)
        kind = found[0]
        if self._exposed and func.__name__ != "__get__":
            self._check_aliases()
        if kind == "op" or (kind == "may-write" and not found[1](args, kwargs or {})):
            if kwargs and kwargs.get("out") is not None:
                return self._write(func, args, kwargs, writes.with_out(args, kwargs))
            before = _sequence()
            result = func(*args, **kwargs) if kwargs else func(*args)
            after = _sequence()
            if after != before:
                stack = r.sites.stack(_getframe(1))
                r.calls.add(before, after, stack)
                if self.views.stale:
                    self._read_stale((args, *(kwargs or {}).values()), stack, _getframe(1))
                if found[1] and kind == "op":
                    given = args if len(args) > 1 or not kwargs else (*args, *kwargs.values())
                    self._arithmetic(func, found[1], given, result, stack, _getframe(1))
            elif not _grad_enabled():
                if not self.unrecorded.full:
                    self.unrecorded.met(args, result, _getframe(1))
            elif (
                self._discrete_left
                and isinstance(result, torch.Tensor)
                and not result.dtype.is_floating_point
            ):
                self._discrete(args, result, _getframe(1))
            if self._constants:
                r.constants.met(func, args, kwargs or {}, result, _getframe(1))
            return result
        if kind in ("run", "full"):
            made = func(*args, **(kwargs or {}))
            if kind == "full":
                r.legacy.filled(made, (kwargs or {}).get("dtype"), _getframe(1))
            return made
        if kind == "split":
            return self._split(func, args, kwargs or {})
        if kind == "freeze":
            return r.frozen.set(func, args, kwargs or {}, _getframe(1))
        if kind in ("write", "may-write"):
            return self._write(func, args, kwargs or {}, found[1](args, kwargs or {}))
        if kind == "cut":
            return self._cut(func, args, kwargs or {}, found[1])
        return getattr(self, "_" + kind.replace("-", "_"))(func, args)

    def _arithmetic(self, func: Any, kind: str, args: Any, result: Any, stack: Any, frame: Any) -> None:
        """A call at `stack` added, compared or scaled (see writes.arithmetic)."""
        r = self.r
        if kind == "compares" and len(args) > 1:
            r.alike.compared(args[0], args[1], result, stack, frame)
        if kind == "adds" and r.kept.stepped:
            r.kept.added(result, stack, args, frame)
        if self._numbers and len(args) > 1 and not isinstance(args[1], torch.Tensor):
            r.numbers.met(kind == "adds", args[1], result, stack)
        if kind == "adds" and self._computed and len(args) > 1:
            r.computed.met(func.__name__, args, result, stack)

    def _split(self, func: Any, args: Any, kwargs: Any) -> Any:
        before = _sequence()
        result = func(*args, **kwargs)
        if _sequence() != before:
            stack = self.r.sites.stack(_getframe(2))
            self._read_stale((args, *kwargs.values()), stack, _getframe(2))
            result = self.views.apart(func, args, kwargs, result)
            self.r.calls.add(before, _sequence(), stack)
        return result

    def _read_stale(self, args: Any, stack: Any, frame: Any) -> None:
        """An op made a node of `args`: tell of the views among them that PyTorch would not have let it read."""
        r = self.r
        for tensor, write, refused, node in self.views.met(args):
            if r.seen(("stale view", stack)) <= FULL:
                with torch._C.DisableTorchFunction():
                    ref = r.tape.ref(r.storages.of(tensor), tensor)
                    name = r.names.local(frame, tensor)
                    fields = {"ref": ref, "write": write, "view": name, "refused": refused, "node": node}
                    r.tape.event("ViewUse", r.clock.tick(), stack, **fields)

    def _check_aliases(self) -> None:
        with torch._C.DisableTorchFunction():
            self.r.aliases.check(_getframe(2))

    # ---- writes

    def _write(self, func: Any, args: Any, kwargs: Any, targets: list[Any]) -> Any:
        r = self.r
        if len(targets) == 1 and self._counts_only(targets[0]):
            return func(*args, **kwargs)
        if self.anew.places and (anew := self.anew.again(func, args, kwargs, _getframe(2))) is not None:
            return anew
        if r.custom.running:
            r.custom.writing(targets, _getframe(2))
        behind = self.views.sharing(targets)
        if behind:
            for tensor in targets:
                r.storages.of(tensor)  # the write is told
        before = _sequence()
        watched: list[tuple[Any, int, list[Any], Any, Any]] = []
        clones: dict[Any, Any] = {}
        for tensor in targets:
            if not isinstance(tensor, torch.Tensor):
                continue
            address = address_of(tensor)
            entries = r.saves.at(address) if address else []
            storage = r.storages.at(address)
            if (
                entries
                or storage is not None
                or (tensor.requires_grad and is_leaf(tensor))
                or self._how(tensor)
                or writes.unseen(tensor)
            ):
                moved: set[int] = set()
                for entry in entries:
                    r.keep(entry, clones)
                    if entry.moved():
                        moved.add(id(entry))
                watched.append((tensor, address, entries, self._counter(storage, tensor), moved))
        refused = next((said for t in targets if (said := self.views.refusal(t))), "")
        if refused and not watched:
            watched = [(t, address_of(t), [], r.counter(None, t), ()) for t in targets]
        r.saves.writing = watched[0][1] if watched else (address_of(targets[0]) if targets else None)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as problem:
            if not writes.is_refusal(str(problem)):
                raise
            refused = str(problem)
            if (anew := self.anew.refused(func, args, kwargs, refused, _getframe(2))) is not None:
                return anew
            if not watched:
                tensors = [t for t in targets if isinstance(t, torch.Tensor)]
                watched = [(t, address_of(t), [], r.counter(None, t), ()) for t in tensors]
            try:
                result, were = let_through(func, args, kwargs, targets, refused, r.engine.second_order)
                watched = [(were.get(id(t), t), *rest) for t, *rest in watched]
            except RuntimeError:  # it can't be: the run ends as PyTorch ends it, and the write is told
                stack = r.sites.stack(_getframe(2))
                for tensor, *_ in watched:
                    r.mutated(
                        r.clock.tick(),
                        stack,
                        writes.op_name(func),
                        tensor,
                        refused=refused,
                        frame=_getframe(2),
                    )
                raise RuntimeError(refused) from None
        finally:
            r.saves.writing = None
        after = _sequence()
        stack = None
        if after != before:
            stack = r.sites.stack(_getframe(2))
            r.calls.add(before, after, stack)
            if self.views.stale:
                self._read_stale((args[1:], *kwargs.values()), stack, _getframe(2))
            arithmetic = writes.arithmetic(func)
            if arithmetic:
                self._arithmetic(func, arithmetic, args, result, stack, _getframe(2))
        for tensor, address, entries, counter, moved in watched:
            known = r.storages.at(address) is not None or self._how(tensor) or writes.unseen(tensor)
            if not (entries or refused or known):
                continue  # a fresh leaf being initialised
            if stack is None:
                stack = r.sites.stack(_getframe(2))
            self._written(func, stack, tensor, address, entries, counter, moved, refused)
        if behind and not refused:
            self.views.written(r.clock.now)
        if after != before and not any(w[2] for w in watched):
            self._wrote_own_save(func, stack, targets)
        r.gradients.written(func, targets, _getframe(2))
        if self._constants:
            r.constants.met(func, args, kwargs, result, _getframe(2))
        return result

    def _counts_only(self, tensor: Any) -> bool:
        """Whether the target is a tensor of integers that nobody saved (``num_batches_tracked += 1``)."""
        if type(tensor) is not torch.Tensor or tensor.is_floating_point() or tensor.is_complex():
            return False
        address = address_of(tensor)
        return bool(address) and self.r.storages.at(address) is None and not self.r.saves.at(address)

    def _counter(self, storage: Any, tensor: Any) -> Any:
        """``.data`` has a counter of its own: that it moves says nothing to whoever saved the tensor."""
        if (storage is None or not storage.leaf) and tensor._version == 0 and self._how(tensor) in _DATA:
            return _not_counted
        return self.r.counter(storage, tensor)

    def _wrote_own_save(self, func: Any, stack: Any, targets: list[Any]) -> None:
        """An op that saved its own input in the very call that overwrote it (``x *= x``, first save of x)."""
        for tensor in targets:
            if isinstance(tensor, torch.Tensor):
                address = address_of(tensor)
                entries = self.r.saves.at(address) if address else []
                if any(e.counted() for e in entries):
                    self._written(func, stack, tensor, address, [], lambda: True, (), "")

    def _written(
        self,
        func: Any,
        stack: Any,
        tensor: Any,
        address: int,
        entries: list[Entry],
        counter: Any,
        before: Any,
        refused: str,
    ) -> None:
        """`before` are the ids of those of `entries` whose counter had moved already: they tell nothing of it."""
        r = self.r
        living = r.saves.at(address) if address else []
        time = r.clock.tick()
        known = {id(e) for e in entries}
        counted, threatens, checked, seen = counter(), False, False, False
        for entry in living:
            if entry.tensor is GONE:
                continue
            moved = entry.moved()
            if id(entry) not in known and not entry.counted():
                entry.time = max(entry.time, time)  # the result, saved by the op itself: after this write
                continue
            fate = fate_of(entry)
            if fate.time is None:
                fate.time, fate.place, fate.counted = time, stack, moved
                fate.late = time if r.engine.had(entry) else 0
            elif moved:
                fate.counted = True
            if entry.freed is None:
                threatens = True
                if id(entry) not in before:
                    checked, seen = checked or type(entry) is Entry, seen or moved
        if checked:
            counted = seen
        r.mutated(
            time,
            stack,
            writes.op_name(func),
            tensor,
            counted=counted,
            how=self._told(tensor),
            refused=refused,
            threatens=threatens,
            frame=_getframe(3),
        )

    def _how(self, tensor: Any) -> str:
        for each in (tensor, tensor._base):
            known = self._aliases.get(id(each)) if each is not None else None
            if known is not None and known[0]() is each:
                return str(known[1])
        return ""

    def _told(self, tensor: Any) -> str:
        """The route of a write as the tape tells it: a ``.data`` of torch's own is nothing the user wrote."""
        how = self._how(tensor)
        return "" if how == _LIBRARY else how

    def _alias(self, tensor: Any, how: str) -> None:
        key = id(tensor)
        self._aliases[key] = (weakref.ref(tensor, lambda _: self._aliases.pop(key, None)), how)

    # ---- leaving the graph

    def _cut(self, func: Any, args: Any, kwargs: Any, how: str) -> Any:
        r = self.r
        try:
            result = func(*args, **kwargs)
        except RuntimeError as problem:
            if writes.DETACHED not in str(problem):
                raise
            said = str(problem).partition(" If you")[0]  # (the rest is of gradients in buckets)
            ref, stack = r.tape.ref(r.storages.of(args[0]), args[0]), r.sites.stack(_getframe(2))
            fields = {"op": "aten.detach_", "ref": ref, "counted": False, "refused": said}
            r.tape.event("Mutate", r.clock.tick(), stack, **fields)
            result = detached(args[0])
        tensors = [a for a in (*args[:2], *kwargs.values()) if isinstance(a, torch.Tensor)]
        if how == "tensor" and not tensors:
            tensors = within(args[0]) if args else []
        if how == "tensor" and not tensors and args and func is torch.as_tensor:
            r.aliases.take_in(result, args[0], _getframe(2))
        if how == "tensor" and self._numbers and args and not tensors:
            r.numbers.filled(result, args[0], r.sites.stack(_getframe(2)))
        if how == "tensor" and self._computed and args and not tensors:
            r.computed.filled(result, r.sites.stack(_getframe(2)))
        if how == "numpy" and tensors:
            r.aliases.hand_out(tensors[0], result, _getframe(2))
        if how == "detach" and isinstance(result, torch.Tensor):
            self._alias(result, how)
        r.constants.leave(how, tensors, result, _getframe(2))
        if how in ("item", "numpy"):
            r.numbers.taken(tensors, result, _getframe(2))
        return result

    def _discrete(self, args: Any, result: Any, frame: Any) -> None:
        """A function of a tensor with a graph gives indices, other whole numbers or truth values: they have none."""
        for a in args:
            if isinstance(a, torch.Tensor) and a.requires_grad and a.grad_fn is not None:
                self._discrete_left -= 1
                self.r.constants.left(result, self.r.cut("discrete", a, frame))
                return

    def _get_data(self, func: Any, args: Any) -> Any:
        tensor = args[0]
        result = func(*args)
        frame = _getframe(2)
        spelled = self.r.sites.called_by_user(frame)
        self._alias(result, "data" if spelled else _LIBRARY)
        if spelled and tensor.requires_grad:
            self.r.constants.cut("data", (tensor,), result)
            told = self.r.cut("data", tensor, frame)
            self.r.constants.left(result, told)
            self.r.computed.taken("data", tensor, frame, told)
        return result

    def _set_data(self, func: Any, args: Any) -> Any:
        tensor = args[0]
        r = self.r
        address = address_of(tensor)
        entries = [e for e in r.saves.at(address) if e.tensor is tensor] if address else []
        storage = r.storages.at(address)
        old = tensor.data if entries else None
        result = func(*args)
        if storage is None and not entries:
            return result
        time, stack = r.clock.tick(), r.sites.stack(_getframe(2))
        for entry in entries:
            fate = fate_of(entry)
            if fate.time is None:
                fate.time, fate.place, fate.counted = time, stack, False
                fate.late = time if r.engine.had(entry) else 0
            if fate.value is None:
                fate.value = old
        r.saves.move(address, entries)
        if storage is not None:
            r.storages.rebind(storage, tensor, address)
        threatens = any(e.freed is None for e in entries)
        r.mutated(
            time,
            stack,
            "aten.set_",
            tensor,
            counted=False,
            how="set_data" if r.sites.called_by_user(_getframe(2)) else "",
            threatens=threatens,
            frame=_getframe(2),
        )
        return result

    # ---- .grad

    def _get_grad(self, func: Any, args: Any) -> Any:
        tensor, result = args[0], func(*args)
        if result is None and tensor.requires_grad:
            if tensor.is_leaf:
                self.r.gradients.none(tensor, _getframe(2))
            elif not tensor.retains_grad:
                self.r.gradients.read(tensor, _getframe(2))
        elif result is not None and tensor.requires_grad and is_leaf(tensor):
            self.r.gradients.used(tensor, _getframe(2))
        return result

    def _set_grad(self, func: Any, args: Any) -> Any:
        result = func(*args)
        self.r.gradients.assigned(args[0], args[1] if len(args) > 1 else None, _getframe(2))
        return result
