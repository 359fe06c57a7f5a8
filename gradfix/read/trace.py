"""The tape of one symbolic run: nodes made, storages written, backwards walked, as the recorder would write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import cast

from gradfix.read.values import Node, Saved, Shape, Storage, Tensor, Truth
from gradfix.tape import (
    Added,
    AnyEvent,
    Backward,
    Clip,
    Cut,
    Fed,
    Free,
    Frozen,
    GradRead,
    GradUse,
    GradWrite,
    Itself,
    Legacy,
    Mode,
    Mutate,
    Off,
    Optimizer,
    Record,
    Ref,
    Stack,
    Step,
    Terms,
    Unbounded,
    ViewUse,
    Zero,
)

FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they "
    "have already been freed)."
)
MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace operation"
NO_GRAPH = "element 0 of tensors does not require grad and does not have a grad_fn"
NO_INPUT = "One of the differentiated Tensors does not require grad"
LEAF = "a leaf Variable that requires grad is being used in an in-place operation."
LEAF_VIEW = "a view of a leaf Variable that requires grad is being used in an in-place operation."
VIEWS = {
    "multi-view": "Output 0 of {} is a view and is being modified inplace. This view is the output of a function that "
    "returns multiple views.",
    "no-grad": "A view was created in no_grad mode and is being modified inplace with grad mode enabled.",
    "custom": "Output 0 of {} is a view and is being modified inplace. This view was created inside a custom Function "
    "(or because an input was returned as-is).",
    "expanded": "unsupported operation: more than one element of the written-to tensor refers to a single memory "
    "location.",
}
BEHIND = "this is one of several views of one op, and its base or another view of its base has been modified inplace."
UNMEASURED = float("inf")  # a gradient that is wrong by no one knows how much


class Exhausted(Exception):
    """The budget of this entry is spent."""


class Trace:
    """Events so far. `stack` gives the program's frames, `sure` whether no unknown test stands around them."""

    def __init__(self, stack: Callable[[], Stack], sure: Callable[[], bool], most: int) -> None:
        self._stack, self._sure, self._most = stack, sure, most
        self.events: list[AnyEvent] = []
        self.likely: set[int] = set()
        self.guessed = False  # an unknown test was answered on the way here
        self.storages: list[Storage] = []
        self._time = 0
        self._end = most
        self._nodes = 0
        self._told: list[Node] = []
        self._fed: Node | None = None  # last
        self.optimizer_names: dict[int, str] = {}  # an optimizer gets its name after it is made
        self.assigned = False  # a tensor was given a gradient by hand
        self.stepping: int | None = None  # the optimizer whose step() runs
        self._held: list[Callable[[int], AnyEvent]] = []
        # by id, leaves that were frozen: the tensor, where (until that is told), when that was taken back
        self._frozen: dict[int, tuple[Tensor, Stack, int | None]] = {}
        self._leaves: dict[int, tuple[int, Tensor]] = {}  # whose gradient was read: the number of each, by id

    def following(self) -> Trace:
        """An empty tape that goes on counting, and knows the optimizers."""
        other = Trace(self._stack, self._sure, self._most)
        other.storages, other._time, other._nodes = self.storages, self._time, self._nodes
        other.guessed, other.optimizer_names = self.guessed, self.optimizer_names
        other._frozen = self._frozen
        other._end = self._time + self._most
        other.events += [e for e in self.events if isinstance(e, Optimizer)]
        return other

    def tick(self) -> int:
        self._time += 1
        if self._time > self._end:
            raise Exhausted
        return self._time

    def now(self) -> int:
        return self._time

    def made(self) -> int:
        """The number of nodes so far."""
        return self._nodes

    def storage(self) -> Storage:
        storage = Storage(len(self.storages), guessed=not self._sure())
        self.storages.append(storage)
        return storage

    # ---- the graph

    def node(self, name: str, op: str, parents: Sequence[Node | Tensor]) -> Node:
        time = self.tick()
        node = Node(self._nodes, time, self._stack(), op, name, tuple(parents))
        if not self._sure():
            self.likely.add(time)
        self._nodes += 1
        return node

    def save(self, node: Node, tensor: Tensor, itself: bool = False) -> None:
        """`node` keeps `tensor`: it `itself` for certain, or maybe a view of it."""
        s = tensor.storage
        s.known = True
        own = tensor if itself else None
        node.saves.append(Saved(s, s.version, s.counted, _sizes(tensor.shape), tensor.dtype, own))
        s.saved.append(node)

    def hold(self, node: Node, tensor: Tensor) -> Saved:
        """A custom Function keeps `tensor` on its ctx; whether its backward uses it is not known yet."""
        s = tensor.storage
        s.known = True
        s.saved.append(node)
        return Saved(s, s.version, s.counted, _sizes(tensor.shape), tensor.dtype)

    def save_own(self, node: Node) -> None:
        """Something of the op's own that no variable holds."""
        storage = self.storage()
        node.saves.append(Saved(storage, 0, 0, (), ""))

    # ---- events

    def add(self, event: AnyEvent) -> None:
        if not self._sure():
            self.likely.add(event.time)
        self.events.append(event)

    def ref(self, tensor: Tensor) -> Ref:
        storage = tensor.storage
        storage.known = True
        return Ref(storage.number, storage.version, storage.name, _sizes(tensor.shape), tensor.dtype)

    def wrote(
        self, op: str, tensor: Tensor, counted: bool = True, how: str = "", refused: str = "", module: str = "",
        optimizer: int | None = None, stack: Stack | None = None,
    ) -> None:  # fmt: skip
        storage = tensor.storage
        storage.version += op != "aten.detach_"  # (a refused one)
        storage.counted += counted
        time = self.tick()
        if counted and not refused:
            storage.touched = time
        threatens = any(not n.freed for n in storage.saved)
        if storage.known or refused or how or threatens:
            ref = replace(self.ref(tensor), counter=storage.counted if counted else None)
            if optimizer is None:
                optimizer = self.stepping
            self.add(Mutate(time, stack or self._stack(), op, ref, counted, how, optimizer, refused, module))

    def rebound(self, tensor: Tensor) -> None:
        """``tensor.data = y``: the tensor has other memory. What keeps a view of it, or made it, goes on with the old,
        and only what keeps the tensor itself finds the new."""
        storage, old = tensor.storage, None
        for node in dict.fromkeys(storage.saved):
            for n, saved in enumerate(node.saves):
                if saved.storage is storage and (saved.tensor is not tensor or tensor.node is node):
                    if old is None:
                        old = self.storage()
                        old.name, old.rank, old.version, old.counted = (
                            storage.name,
                            storage.rank,
                            storage.version,
                            storage.counted,
                        )
                    node.saves[n] = replace(saved, storage=old)
                    old.saved.append(node)
        if old is not None:
            kept = (n for n in storage.saved if any(s.storage is storage for s in (*n.saves, *n.held)))
            storage.saved = list(dict.fromkeys(kept))
        self.wrote("aten.set_", tensor, False, "set_data")

    def cut(
        self,
        how: str,
        tensor: Tensor,
        node: Node | None,
        stack: Stack | None = None,
        leaf: Tensor | None = None,
    ) -> int:
        """The time of the Cut, by which the `leaf` was made."""
        if node is not None:
            self._record(self.reached([node], None)[0])
        number = None if node is None else node.number
        time = self.tick()
        made = None if leaf is None else leaf.storage.number
        self.add(Cut(time, stack or self._stack(), how, self.ref(tensor), number, made))
        return time

    def fed(self, node: Node, cuts: frozenset[int]) -> None:
        """What these Cuts left went into `node`: told once for each."""
        if self._fed is not node:
            self._fed = node
            self.add(Fed(self.tick(), self._stack(), node.number, tuple(sorted(cuts))))

    def mode(self, tensors: Iterable[Tensor], training: bool) -> None:
        """The module of these parameters was put into training or evaluation mode."""
        refs = tuple(self.ref(t) for t in tensors if t.requires)
        if refs:
            self.add(Mode(self.tick(), self._stack(), refs, training))

    def added(self, term: Tensor, node: Node, cut: int | None, function: bool = False) -> None:
        self.add(Added(self.tick(), self._stack(), self.ref(term), node.number, cut, function))

    def itself(self, tensor: Tensor, node: Node) -> None:
        """`node` is the difference of `tensor` and itself."""
        self.add(Itself(self.tick(), self._stack(), node.number, self.ref(tensor)))

    def wrapped(self, tensor: Tensor, volatile: bool) -> None:
        """``Variable(tensor)``."""
        said = "volatile" if volatile else ""
        self.add(
            Legacy(self.tick(), self._stack(), "Variable", self.ref(tensor), bool(tensor.requires), said)
        )

    def cleared(self, tensor: Tensor) -> bool:
        """The gradient of a leaf is read, and is None: whether a backward had filled it before it was cleared."""
        storage, filled, lost = tensor.storage.number, False, False
        for event in self.events:
            if isinstance(event, Backward) and any(r.storage == storage for r in event.accumulates):
                filled, lost = True, False
            elif isinstance(event, Zero) and any(r.storage == storage for r in event.refs):
                lost = filled
        if lost:
            self.add(Legacy(self.tick(), self._stack(), "cleared", self.ref(tensor)))
        return lost

    def filled(self, tensor: Tensor) -> None:
        """``torch.full(size, 1)``."""
        self.add(Legacy(self.tick(), self._stack(), "filled", self.ref(tensor)))

    def compared(self) -> None:
        """``type(tensor) == Variable``."""
        self.add(Legacy(self.tick(), self._stack(), "type"))

    def grad_read(self, tensor: Tensor, node: Node | None) -> None:
        if node is not None:
            self._record(self.reached([node], None)[0])
        number = None if node is None else node.number
        self.add(GradRead(self.tick(), self._stack(), self.ref(tensor), number))

    def grad_used(self, tensor: Tensor) -> None:
        number, _ = self._leaves.setdefault(id(tensor), (len(self._leaves), tensor))
        self.add(GradUse(self.tick(), self._stack(), self.ref(tensor), number))

    def zero(self, tensors: Iterable[Tensor], optimizer: int | None = None) -> None:
        refs, stack = tuple(self.ref(t) for t in tensors), self._stack()
        self._emit(lambda time: Zero(time, stack, refs, optimizer))

    def grad_write(self, *tensors: Tensor, assigned: bool = False) -> None:
        refs, stack = tuple(self.ref(t) for t in tensors), self._stack()
        self._emit(lambda time: GradWrite(time, stack, refs, assigned))

    def clipped(self, tensors: Iterable[Tensor]) -> None:
        self.add(Clip(self.tick(), self._stack(), tuple(self.ref(t) for t in tensors)))

    def _emit(self, make: Callable[[int], AnyEvent]) -> None:
        """What a step does to its gradients itself comes behind it: it has used them before."""
        if self.stepping is not None:
            self._held.append(make)
        else:
            self.add(make(self.tick()))

    def settle(self) -> None:
        """The step has ended."""
        held, self._held = self._held, []
        for make in held:
            self.add(make(self.tick()))

    def view_used(self, tensor: Tensor, made: Node, name: str) -> None:
        """A view of several that one op `made` is read: what was first written behind it is told."""
        storage = tensor.storage.number
        written = (
            e.time
            for e in reversed(self.events)
            if isinstance(e, Mutate) and e.ref.storage == storage and e.counted and not e.refused
        )
        first = min(takewhile(lambda time: time > made.time, written), default=None)
        if first is not None:
            time, ref = self.tick(), self.ref(tensor)
            self.add(ViewUse(time, self._stack(), ref, first, name, BEHIND, made.number))

    def step(
        self, number: int, kind: str, having: list[Tensor], without: list[Tensor], vague: list[Tensor], counted: bool
    ) -> None:  # fmt: skip
        """`vague` may have had a gradient or not: they count as stepped, but not as written to."""
        for tensor in having:
            storage = tensor.storage
            threatens = any(not n.freed for n in storage.saved) or (storage.saved and not counted)
            if threatens or (storage.split and counted):
                self.wrote(f"{kind}.step", tensor, counted, optimizer=number)
            else:
                storage.version += 1
                storage.counted += counted
        self.stepped(number, having, without, vague)

    def stepped(self, number: int, having: list[Tensor], without: list[Tensor], vague: list[Tensor]) -> None:
        refs = tuple(self.ref(t) for t in having + vague)
        self.frozen(without)
        if vague:  # whatever filled them, the text doesn't show it
            self.add(GradWrite(self.tick(), self._stack(), tuple(self.ref(t) for t in vague)))
        self.add(Step(self.tick(), self._stack(), number, refs, tuple(self.ref(t) for t in without)))

    def opposed(self, one: Node, other: Node, value: Node) -> None:
        """Two terms of the loss that was just differentiated, or it and the loss before, pull `value` opposite
        ways."""
        self.add(Terms(self.tick(), self._stack(), (one.number, other.number), value.number))

    def unbounded(self, value: Node, optimizer: int, sign: int) -> None:
        """The loss that was just differentiated wants ever more (1), or less (-1), of what that optimizer's network
        makes of `value`."""
        self.add(Unbounded(self.tick(), self._stack(), value.number, optimizer, sign))

    def set_requires(self, tensor: Tensor, before: Truth) -> None:
        """The program has set its requires_grad."""
        key = id(tensor)
        if tensor.requires is None:
            self._frozen.pop(key, None)
        elif not tensor.requires and before:
            self._frozen[key] = (tensor, self._stack(), None)
        elif tensor.requires and key in self._frozen and self._frozen[key][2] is None:
            self._frozen[key] = (*self._frozen[key][:2], self.tick())

    def frozen(self, among: Iterable[Tensor] | None = None) -> None:
        """Tell, once, who froze the leaves `among` (all that are frozen still)."""
        found: dict[tuple[Stack, int | None], list[Ref]] = {}
        for key in [*self._frozen] if among is None else list(map(id, among)):
            if key not in self._frozen:
                continue
            tensor, stack, until = self._frozen[key]
            if stack and (among is not None or until is None):
                self._frozen[key] = (tensor, (), until)
                found.setdefault((stack, until), []).append(self.ref(tensor))
        for (stack, until), refs in found.items():
            self.add(Frozen(self.tick(), stack, tuple(refs), until))

    def off(self, stack: Stack) -> None:
        """Gradients are off since the call at `stack`."""
        self.add(Off(self.tick(), stack))

    def no_graph(
        self, root: Tensor, retain: bool, create: bool, inputs: bool, refused: str = NO_GRAPH
    ) -> None:
        roots = (~root.storage.number,)
        self.frozen()
        time = self.tick()
        if self.guessed:  # the other branch may be where the graph comes from
            self.likely.add(time)
        self.add(Backward(time, self._stack(), roots, (), retain, create, inputs, refused=refused))

    def backward(
        self, roots: Sequence[Node | Tensor], inputs: Sequence[Node | Tensor] | None, retain: bool, create: bool,
        accumulate: bool, blame: tuple[tuple[int, float], ...] = (),
    ) -> list[Tensor]:  # fmt: skip
        """Walk the graph from `roots`; the leaves whose gradient was filled. `blame` has what custom Functions do to
        gradients on the way."""
        nodes, leaves = self.reached(roots, inputs)
        time = self.tick()
        free = self.tick()
        refused, wrong = self._judged(nodes)
        self._record(nodes)
        # (what was frozen behind the forward is walked to, and given nothing)
        filled = [t for t in leaves if t.requires is not False] if accumulate else []
        for tensor in filled:
            tensor.storage.known = True
        numbers = (*(n.number for n in nodes), *(~t.storage.number for t in leaves))
        self.add(
            Backward(
                time,
                self._stack(),
                tuple(_number(r) for r in roots),
                numbers,
                retain,
                create,
                inputs is not None,
                tuple(self.ref(t) for t in filled),
                refused,
                max([wrong, *(off for _, off in blame)]),
                blame,
            )
        )
        if not retain:
            self.add(Free(free, self._stack(), tuple(n.number for n in nodes)))
            for node in nodes:
                node.freed = node.freed or time
        return filled

    def _judged(self, nodes: list[Node]) -> tuple[str, float]:
        """What PyTorch would say, in the engine's order; how wrong the gradients are that it would give in silence."""
        wrong = 0.0
        for node in sorted(nodes, key=lambda n: -n.number):
            if node.freed and (node.saves or node.bare):
                return FREED, 0.0
            for saved in node.saves:
                if saved.storage.counted != saved.counted:
                    return MODIFIED, 0.0
                if saved.storage.version != saved.version:
                    wrong = UNMEASURED
            for held in node.held:
                if held.storage.version != held.version:
                    wrong = UNMEASURED
        return "", wrong

    def reached(
        self, roots: Sequence[Node | Tensor], inputs: Sequence[Node | Tensor] | None
    ) -> tuple[list[Node], list[Tensor]]:
        order: dict[int, Node | Tensor] = {}
        todo = list(roots)
        while todo:
            each = todo.pop()
            if id(each) not in order:
                order[id(each)] = each
                if isinstance(each, Node):
                    todo += each.parents
        if inputs is not None:
            order = _leading(order, inputs)
        nodes = [n for n in order.values() if isinstance(n, Node)]
        return nodes, [t for t in order.values() if isinstance(t, Tensor)]

    def _record(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if not node.told:
                node.told = True
                self._told.append(node)

    def finished(self) -> tuple[AnyEvent, ...]:
        """Every event in order of time, the Records of the nodes that were spoken of among them."""
        records: list[AnyEvent] = [self._as_record(n) for n in self._told]
        return tuple(sorted(records + [self._named(e) for e in self.events], key=lambda e: e.time))

    def _named(self, event: AnyEvent) -> AnyEvent:
        if isinstance(event, Optimizer) and not event.name:
            return replace(event, name=self.optimizer_names.get(event.optimizer, ""))
        return event

    def _as_record(self, node: Node) -> Record:
        output = node.output
        ref = None
        if output is not None:
            storage = output.storage
            ref = Ref(storage.number, 0, storage.name, _sizes(output.shape), output.dtype)
        return Record(
            node.time,
            node.stack,
            node.number,
            node.op,
            node.name,
            tuple(_number(p) for p in node.parents),
            tuple(
                Ref(s.storage.number, s.version, s.storage.name, s.shape, s.dtype, s.counted)
                for s in node.saves
            ),
            ref,
            tuple(Ref(s.storage.number, s.version, s.storage.name, s.shape, s.dtype) for s in node.held),
            node.checkpoint and bool(node.held),
        )


def _number(each: Node | Tensor) -> int:
    return each.number if isinstance(each, Node) else ~each.storage.number


def _leading(order: dict[int, Node | Tensor], inputs: Sequence[Node | Tensor]) -> dict[int, Node | Tensor]:
    """Those on a way from the roots to one of `inputs`."""
    users: dict[int, list[Node]] = {}
    for each in order.values():
        if isinstance(each, Node):
            for parent in each.parents:
                users.setdefault(id(parent), []).append(each)
    needed: dict[int, Node | Tensor] = {}
    todo: list[Node | Tensor] = []
    for each in inputs:
        if isinstance(each, Tensor) and id(each) in order:
            needed[id(each)] = each
        todo += users.get(id(each), [])
    while todo:
        each = todo.pop()
        if id(each) not in needed:
            needed[id(each)] = each
            todo += users.get(id(each), [])
    return needed


def _sizes(shape: Shape) -> tuple[int, ...]:
    return () if shape is None or None in shape else cast("tuple[int, ...]", shape)
