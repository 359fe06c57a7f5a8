"""The recorder: installs the hooks in the user's process and turns what they see into the lines of a tape.

    recorder = Recorder(emit, request)
    recorder.install()
    ...the script...
    recorder.finish("finished", None)

See docs/tape.md for the lines and DESIGN for the facts it stands on. Parts: watch.py sees calls, saves.py
what was saved, engine.py backwards, optimizers.py steps, regions.py what can't be watched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import chain
from time import monotonic  # bound here: the script may patch the module
from typing import Any

import torch

from . import failure
from .aliases import Aliases
from .alike import Alike
from .calls import Calls
from .checkpoints import Checkpoints
from .computed import Computed
from .constants import Constants
from .custom import Custom
from .elsewhere import Processes, Threads
from .engine import FREED, Engine
from .frozen import Frozen
from .gradients import FULL, Gradients
from .gradmode import GradMode
from .holding import Holding
from .kept import Kept
from .later import more_terms
from .leaves import Leaves
from .legacy import Legacy
from .modes import Modes
from .multiview import unreadable
from .names import Names
from .numbers import Numbers
from .opposed import Opposed
from .optimizers import Optimizers
from .phases import phases
from .regions import Regions
from .saves import GONE, NOBODY, Entry, Saves, fate_of, keep_value, number_of_maker
from .shortcut import shorten_the_way
from .sites import Key, Sites
from .storages import Storage, Storages, addresses_of
from .tapewriter import Clock, TapeWriter
from .tensor_hooks import TensorHooks
from .told import Records
from .walk import Walk
from .watch import Watch
from .writes import is_view_refusal

_EARLY_STEPS = 16  # how long values of freed graphs are kept for their own sake
_MANY = 1024  # writes at one place, where a pass has one for each parameter


class Recorder:
    """What the parts share: the files of storages, saves and calls, and how each kind of event is written."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> None:
        self._pid = os.getpid()
        self._request = request
        self._started = monotonic()
        self._emitted: set = set()  # type: ignore[type-arg]
        self._counts: dict[Any, int] = {}
        self._notes: set = set()  # type: ignore[type-arg]
        self._cloned_freed = 0
        self.bare: set[int] = set()  # nodes that saved numbers only
        self.quiet = False
        self.stepping: int | None = None
        self.met_freed = False
        self._shapes: dict[Any, Any] = {}  # one object for each
        self.clock = Clock()
        self.sites = Sites(request.get("files"))
        self.storages = Storages()
        self.saves = Saves(self.clock)
        self.saves.lost = self._lost
        self.calls = Calls(self.clock)
        self.names = Names(self.sites, self.storages)
        self.holding = Holding(self.sites)
        self.cuts = False  # whether there was one
        self.tape = TapeWriter(emit, self.sites, self.storages)
        self.leaves = Leaves(self.storages, self.tape, self.clock)
        self.aliases = Aliases(self)
        self.constants = Constants(self)
        self.numbers = Numbers(self)
        self.computed = Computed(self)
        self.watch = Watch(self)  # of the thread that is recorded
        self.threads = Threads(self)
        self.processes = Processes()
        self.engine = Engine(self)
        self.optimizers = Optimizers(self)
        self.gradients = Gradients(self)
        self.regions = Regions(self)
        self.grad_mode = GradMode(self)
        self.frozen = Frozen(self)
        self.legacy = Legacy(self)
        self.kept = Kept(self)
        self.alike = Alike(self)
        self.custom = Custom(self)
        self.checkpoints = Checkpoints(self)
        self.opposed = Opposed(self)

    def install(self) -> None:
        self.tape.header(str(self._request.get("script", "")))
        self.regions.install()
        self.grad_mode.install()
        self.custom.install()
        TensorHooks(self).install()
        self.checkpoints.install()
        self.aliases.install()
        self.optimizers.install()
        self.engine.install()
        torch._C._autograd._push_saved_tensors_default_hooks(self.saves.pack, self.saves.unpack)
        shorten_the_way()
        self.watch.__enter__()  # type: ignore[no-untyped-call]
        self.threads.install()
        self.legacy.install()
        Modes(self).install()
        self.constants.install()
        self.processes.install()

    def finish(self, how: str, exc: BaseException | None) -> None:
        """Write what ended the run. Never raises for what the script did."""
        if self.forked():
            return
        self.quiet = True
        for missed in (self.threads.missed(), self.processes.missed()):
            if missed:
                self.tape.event("Note", self.clock.tick(), (), text=missed)
        if exc is not None:
            self._failure(exc)
        self.kept.finish()
        self.alike.finish()
        for storage in self.storages.alive():
            self.tape.rename(storage)
        seconds = round(monotonic() - self._started, 3)
        never = self.optimizers.unstepped()
        more: dict[str, Any] = {"unstepped": never} if never else {}
        if how == "steps" and self.optimizers.untrained() and more_terms(self.sites):
            more["later"] = True
        if how == "steps" and self.cuts and (when := phases(self.sites.trees())):
            more["phases"] = when
        self.tape.end(self.clock.tick(), how=how, seconds=seconds, **more)
        self.tape.flush()

    def off(self) -> bool:
        """Whether this is not what is recorded: a DataLoader worker, a fork of the user's, another thread."""
        return self.forked() or not self.threads.mine()

    def forked(self) -> bool:
        return os.getpid() != self._pid

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """The mode is off inside a call it sees; what the engine calls (hooks, backwards of the user's) wants
        it on."""
        if torch._C._len_torch_function_stack():
            yield
        else:
            with self.watch:
                yield

    # ---- values

    def keep(self, entry: Entry, clones: dict[Any, Any], early: bool | None = None) -> None:
        """Clone what `entry` saved before a write: always while a backward may need it, else within
        reason."""
        if entry.freed is None:
            keep_value(entry, clones)
        elif self.keep_freed() if early is None else early:
            self.engine.freed.cloned(entry.freed, keep_value(entry, clones))

    def keep_freed(self) -> bool:
        """Whether values of graphs that were freed are still kept: at first, and where graphs are walked
        twice."""
        self._cloned_freed += 1
        return self.met_freed or self._cloned_freed <= _EARLY_STEPS

    def unseen(self, entry: Entry, time: int) -> None:
        """Emit a write that only the version counter shows; where it was done nobody knows."""
        if time:
            fate = fate_of(entry)
            fate.time, fate.counted = fate.time or time, True
            self.mutated(time, (), "unknown", entry.tensor, threatens=True)

    def counter(self, storage: Storage | None, tensor: Any) -> Callable[[], bool]:
        """A function that tells, after a write, whether the counter of the tensor the user knows has
        moved."""
        watched = self.leaves.tensor(storage) if storage is not None else None
        if watched is None:
            watched = tensor
        version = watched._version
        return lambda: bool(watched._version != version)

    def _lost(self) -> None:
        raise RuntimeError(FREED)

    # ---- events

    def record(self, walk: Walk, dull: bool = False) -> None:
        """The Records of the nodes that no backward has walked before. Those of a `dull` pass say only how the nodes
        hang together: what they saved is told when a backward that is not dull walks them again."""
        nodes = walk.nodes
        if not self._emitted.isdisjoint(nodes):
            nodes = {number: node for number, node in nodes.items() if number not in self._emitted}
        numbers = list(nodes)
        entries, into_views = self.saves.of_nodes(numbers), []
        for at, (number, node) in enumerate(nodes.items()):
            if type(node) is _WRITES_VIEW:
                entries[at] = [e for n in self.calls.nodes_of(number) for e in self.saves.of_node(n)]
                into_views.append(at)
            if not entries[at] and _saves_numbers(node):
                self.bare.add(number)
        calls = self.calls.of_each(numbers)
        names = [_NAMES.get(type(node)) or _name(node) for node in nodes.values()]
        parents = list(map(walk.parents.__getitem__, numbers))
        stacks, times = [stack for stack, _ in calls], [time for _, time in calls]
        columns = (times, stacks, numbers, names, parents)
        if dull:
            self.tape.records(Records((*columns, [0] * len(numbers))), dull)
            return
        self._emitted.update(numbers)
        saved = list(chain.from_iterable(entries))
        if str in {type(entry.tensor) for entry in saved}:  # (GONE == tensor would run an operator)
            entries = [[entry for entry in own if entry.tensor is not GONE] for own in entries]
            saved = list(chain.from_iterable(entries))
        records = Records((*columns, list(map(len, entries))))
        self._tell_saved(records, saved)
        for at in into_views:
            made = [records.outputs[e.node] for e in entries[at] if e.output]
            records.outputs.update((numbers[at], last) for last in made[-1:])
        self._tell_held(records, numbers)
        for root in walk.tensors:
            if root.grad_fn is not None:
                records.outputs[root.grad_fn._sequence_nr()] = len(records.saved[0])
                row = (self.storages.of(root), self.clock.now, root.shape, root.dtype, None)
                for column, value in zip(records.saved, row):  # noqa: B905 (Python 3.9)
                    column.append(value)
        self.tape.records(records, dull)

    def _tell_saved(self, records: Records, saved: list[Entry]) -> None:
        """Fill in what was saved, and which of it is the output of a node."""
        tensors = [entry.tensor for entry in saved]
        versions, makers = [entry.version for entry in saved], [entry.maker for entry in saved]
        addresses = [entry.address for entry in saved]
        if versions != [tensor._version for tensor in tensors]:
            # another node may have made what is there now, and elsewhere
            addresses = addresses_of(tensors)
            makers = [entry.maker if entry.output else number_of_maker(entry.tensor) for entry in saved]
        records.outputs = dict(zip(makers, range(len(makers))))  # noqa: B905 (Python 3.9)
        records.outputs.pop(NOBODY, None)
        shapes = [tensor.shape for tensor in tensors]
        records.saved = (
            self.storages.of_each(tensors, addresses),
            [entry.time for entry in saved],
            list(map(self._shapes.setdefault, shapes, shapes)),
            [tensor.dtype for tensor in tensors],
            versions,
        )

    def _tell_held(self, records: Records, numbers: list[int]) -> None:
        """Fill in what the ctx of custom Functions keep, and what checkpoints hide."""
        hidden = self.checkpoints.saved()
        if not (hidden or len(self.custom.nodes)):
            return
        storage_of = self.storages.of
        for number in numbers:
            known = self.custom.nodes.get(number)
            entries = [*hidden.get(number, ()), *(known.held if known else ())]
            held = [(e, tensor) for e in entries if (tensor := e.tensor) is not GONE]
            if held:
                records.held[number] = [(storage_of(t), e.time, t.shape, t.dtype) for e, t in held]
                if number in hidden:
                    records.hidden.add(number)

    def mutated(
        self, time: int, stack: Key, op: str, tensor: Any, counted: bool = True, how: str = "",
        refused: str = "", threatens: bool = False, optimizer: int | None = None, frame: Any = None,
        quietly: bool = False,
    ) -> None:  # fmt: skip
        """A write. It is always counted; it is told where it matters, or while it is new."""
        storage = self.storages.of(tensor)
        storage.written(time)
        if optimizer is None:
            optimizer = self.stepping
        seen = 0
        if not threatens and not refused:
            if quietly:
                return
            seen = self._counts[(stack, op)] = self._counts.get((stack, op), 0) + 1
        fields: dict[str, Any] = {}
        if frame is not None and (threatens or refused or not storage.name):
            if not storage.name:
                storage.name = self.names.local(frame, tensor)
            module = _module_of(frame, self.sites)
            if module is not None:
                fields["module"] = self.names.owner(module, frame) or type(module).__name__
                how = how or "module"
        if not counted:
            fields["counted"] = False
        looks = frame is not None and threatens and optimizer is None
        if looks and (holders := self.holding.of(tensor, frame, stack)):
            fields["holders"] = holders
        for key, value in (("how", how), ("refused", refused)):
            if value:
                fields[key] = value
        if optimizer is not None:
            fields["optimizer"] = optimizer
        ref = self.tape.ref(storage, tensor)
        fields.update(op=op, ref=[*ref, tensor._version] if counted and not refused else ref)
        if seen <= FULL:
            self.tape.event("Mutate", time, stack, **fields)
        else:
            self.tape.common("Mutate", time, stack, seen > _MANY, **fields)

    def cut(self, how: str, tensor: Any, frame: Any, made: Any = None) -> int | None:
        """The graph of `tensor` is left, for `made` perhaps, which may be a leaf; the time of the Cut where one is
        told, as for the first of a place."""
        stack = self.sites.stack(frame)
        if not self._new(("cut", how, stack)):
            return None
        storage = self.storages.of(tensor)
        if not storage.name:
            storage.name = self.names.local(frame, tensor)
        node = tensor.grad_fn
        if node is not None and (self._new(("tell", stack), 4) or self._new_pass(stack)):
            self.engine.tell(tensor)
        fields = {} if node is None else {"node": node._sequence_nr()}
        if isinstance(made, torch.Tensor) and made.requires_grad:
            fields["leaf"] = self.storages.of(made).number
        if how == "detach" and self.sites.called_by_user(frame) and self.sites.dropped(stack):
            fields["dropped"] = True
        time: int = self.clock.tick()
        self.cuts = True
        self.tape.event("Cut", time, stack, how=how, ref=self.tape.ref(storage, tensor), **fields)
        return time

    def _new_pass(self, stack: Key) -> bool:
        """Whether a backward has run since the last Cut at `stack`: an inner loop cuts what it has made of what it had
        cut before."""
        return self._new(("tell", stack, self.engine.count), 1) and self._new(("passes", stack), 8)

    def fed(self, made: Any, cuts: frozenset[int], frame: Any) -> None:
        """What these Cuts left went into the op that made `made`. See Constants."""
        stack = self.sites.stack(frame)
        if self._new(("fed", stack), 8):
            node = made.grad_fn._sequence_nr()
            self.tape.event("Fed", self.clock.tick(), stack, node=node, cuts=sorted(cuts))

    def added(self, term: Any, made: Any, cut: int | None, frame: Any, function: bool = False) -> None:
        """`term`, which has no graph, was added to something that has one: `made`. See Constants, and Computed for what
        is a `function` of what was cut off."""
        with torch._C.DisableTorchFunction():
            stack = self.sites.stack(frame)
            if self._new(("added", stack), 4):
                storage = self.storages.of(term)
                storage.name = storage.name or self.names.local(frame, term)
                self._added(self.tape.ref(storage, term), made, cut, stack, function)

    def added_number(self, ref: Any, made: Any, cut: int | None, stack: Key, function: bool = False) -> None:
        """The same of a number that was taken out of the tensor `ref`. See Numbers."""
        if self._new(("added", stack), 4):
            self._added(ref, made, cut, stack, function)

    def _added(self, ref: Any, made: Any, cut: int | None, stack: Key, function: bool) -> None:
        fields = {"ref": ref, "node": made.grad_fn._sequence_nr()}
        if function:
            fields["function"] = True
        if cut is not None:
            fields["cut"] = cut
        self.tape.event("Added", self.clock.tick(), stack, **fields)

    def note_once(self, text: str, frame: Any = None) -> None:
        if text not in self._notes and not self.off():
            self._notes.add(text)
            self.tape.event("Note", self.clock.tick(), self.sites.stack(frame), text=text)

    def flood(self) -> None:
        text = "From here on passes like those before are not recorded; what is new or wrong still is."
        if text not in self._notes:
            self._notes.add(text)
            self.tape.common("Note", self.clock.tick(), (), False, text=text)

    def _new(self, key: Any, most: int = FULL) -> bool:
        return self.seen(key) <= most

    def seen(self, key: Any) -> int:
        """How often there was something like `key`, this time among them."""
        seen = self._counts[key] = self._counts.get(key, 0) + 1
        return seen

    def _failure(self, exc: BaseException) -> None:
        frames: list[int] = []
        trace = exc.__traceback__
        while trace is not None:
            if self.sites.is_user(trace.tb_frame.f_code):
                frames[:0] = [id(trace.tb_frame.f_code), trace.tb_lasti]
            read = unreadable(failure.given(trace)) if is_view_refusal(str(exc)) else None
            if read is not None:
                self._unread(read, frames, str(exc), trace.tb_frame.f_back)
            trace = trace.tb_next
        said = failure.describe(exc)
        self.tape.event(
            "Failure",
            self.clock.tick(),
            tuple(frames),
            type=said["type"],
            message=said["message"],
            traceback=said["traceback"],
        )

    def _unread(self, tensor: Any, stack: list[int], message: str, frame: Any) -> None:
        """The program ends at an op that would have read a view made where gradients were off."""
        with torch._C.DisableTorchFunction():
            storage, name = self.storages.of(tensor), self.names.local(frame, tensor)
            fields = {"ref": self.tape.ref(storage, tensor), "view": name, "refused": message}
            if storage.writes:
                self.tape.event(
                    "ViewUse", self.clock.tick(), tuple(stack), write=storage.writes[-1], **fields
                )


# the node of an in-place write into a view, which the view's base has from then on
_WRITES_VIEW: Any = torch._C._functions.CopySlices  # type: ignore[attr-defined]
_SAVED: dict[Any, list[str]] = {}  # names of a node class's saved tensors
_NAMES: dict[Any, str] = {}  # of node classes, where all nodes of a class have one


def _name(node: Any) -> str:
    """Its name, as autograd has it."""
    name: str = node.name()
    if type(node).__name__ == name:
        _NAMES[type(node)] = name
    return name


def _saves_numbers(node: Any) -> bool:
    """Whether a node without entries has something to free all the same: the number in ``x * 3`` passes no hook,
    nor does the function that a write into a view (CopySlices) keeps."""
    kind = type(node)
    if kind is _WRITES_VIEW:
        return True
    names = _SAVED.get(kind)
    if names is None:
        names = _SAVED[kind] = ["_saved_" + n[11:] for n in dir(kind) if n.startswith("_raw_saved_")]
    for name in names:
        try:
            if isinstance(getattr(node, name, None), torch.Tensor):
                return True
        except RuntimeError:  # already freed, or a size that was not saved
            pass
    return False


def _module_of(frame: Any, sites: Sites) -> Any:
    """The torch.nn module in whose forward `frame` runs, if no frame of the user's comes between."""
    while frame is not None and not sites.is_user(frame.f_code):
        if frame.f_code.co_name == "forward":
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module):
                return owner
        frame = frame.f_back
    return None
