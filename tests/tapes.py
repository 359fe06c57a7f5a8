"""Tapes made by hand: a script told in the words of a training loop, and the events a recorder would have
written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradfix.tape import (
    AnyEvent,
    Backward,
    Cut,
    End,
    Failure,
    Free,
    GradRead,
    Legacy,
    Mutate,
    Optimizer,
    Record,
    Ref,
    Site,
    Stack,
    Step,
    Tape,
    Zero,
)

FILE = "/project/train.py"
Lines = int | tuple[int, ...]  # a line of the script, or the lines of its frames, outermost first


@dataclass(eq=False)
class Tensor:
    """A tensor of the script: its storage, its grad_fn's node (~storage for a leaf, None without a graph),
    its name."""

    storage: int
    node: int | None
    name: str = ""


@dataclass(eq=False)
class Optim:
    """An optimizer of the script."""

    number: int
    name: str
    parameters: list[Tensor]


class Script:
    """Builds a tape statement by statement; keeps versions, gradients and freed graphs as the recorder
    would."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.time = 0
        self.storages = 0
        self.nodes: dict[int, Record] = {}
        self.versions: dict[int, int] = {}
        self.tensors: dict[int, Tensor] = {}
        self.filled: set[int] = set()
        self.optimizers = 0

    def tick(self) -> int:
        self.time += 1
        return self.time

    def new(self, name: str = "", node: int | None = None) -> Tensor:
        self.storages += 1
        self.versions[self.storages] = 0
        tensor = Tensor(self.storages, node, name)
        self.tensors[self.storages] = tensor
        return tensor

    def leaf(self, name: str) -> Tensor:
        """A leaf that requires grad."""
        tensor = self.new(name)
        tensor.node = ~tensor.storage
        return tensor

    def ref(self, tensor: Tensor) -> Ref:
        return Ref(tensor.storage, self.versions[tensor.storage], tensor.name, (2, 2), "float32")

    def op(
        self,
        op: str,
        line: Lines,
        *inputs: Tensor,
        saves: Sequence[Tensor] = (),
        saves_result: bool = False,
        name: str = "",
    ) -> Tensor:
        """A forward op; inputs without a graph are no parents."""
        parents = tuple(t.node for t in inputs if t.node is not None)
        result = self.new(name, len(self.nodes))
        saved = tuple(self.ref(t) for t in saves) + ((self.ref(result),) if saves_result else ())
        record = Record(
            self.tick(), stack(line), len(self.nodes), f"aten.{op}", op, parents, saved, self.ref(result)
        )
        self.nodes[record.node] = record
        self.events.append(record)
        return result

    def linear(self, line: Lines, weight: Tensor, x: Tensor, name: str = "") -> Tensor:
        """``x @ weight``: saves both factors that the other one's gradient needs."""
        saves = [x] if x.node is None else [x, weight]
        return self.op("mm", line, x, weight, saves=saves, name=name)

    def data(self) -> Tensor:
        """A tensor without a graph."""
        return self.new()

    def write(
        self,
        tensor: Tensor,
        line: Lines,
        op: str = "aten.add_",
        counted: bool = True,
        how: str = "",
        refused: str = "",
        module: str = "",
        optimizer: int | None = None,
    ) -> None:
        self.versions[tensor.storage] += 1
        ref = self.ref(tensor)
        self.events.append(
            Mutate(self.tick(), stack(line), op, ref, counted, how, optimizer, refused, module)
        )

    def backward(
        self,
        loss: Tensor,
        line: Lines,
        retain: bool = False,
        create: bool = False,
        wrong: float = 0.0,
        refused: str = "",
        inputs: Sequence[Tensor] | None = None,
        blame: tuple[tuple[int, float], ...] = (),
    ) -> None:
        walked: list[int] = []
        leaves: dict[int, Ref] = {}
        pending = [loss.node] if loss.node is not None else []
        while pending:
            node = pending.pop()
            if node < 0:
                leaves[~node] = self.ref(self.tensors[~node])
            elif node not in walked:
                walked.append(node)
                pending.extend(self.nodes[node].parents)
        if inputs is not None:
            leaves = {t.storage: self.ref(t) for t in inputs}
        self.filled |= leaves.keys()
        time = self.tick()
        self.events.append(
            Backward(
                time,
                stack(line),
                () if loss.node is None else (loss.node,),
                tuple(walked),
                retain or create,
                create,
                inputs is not None,
                tuple(leaves.values()),
                refused,
                wrong,
                blame,
            )
        )
        if not (retain or create):
            self.events.append(Free(self.tick(), stack(line), tuple(walked)))

    def optimizer(self, name: str, parameters: Sequence[Tensor], line: Lines) -> Optim:
        self.optimizers += 1
        refs = tuple(self.ref(p) for p in parameters)
        self.events.append(Optimizer(self.tick(), stack(line), self.optimizers, "SGD", name, refs))
        return Optim(self.optimizers, name, list(parameters))

    def step(self, optimizer: Optim, line: Lines, counted: bool = True) -> None:
        having = [p for p in optimizer.parameters if p.storage in self.filled]
        for p in having:
            self.write(p, line, "aten.add_", counted=counted, optimizer=optimizer.number)
        without = tuple(self.ref(p) for p in optimizer.parameters if p.storage not in self.filled)
        self.events.append(
            Step(self.tick(), stack(line), optimizer.number, tuple(self.ref(p) for p in having), without)
        )

    def zero(self, optimizer: Optim, line: Lines) -> None:
        self.filled -= {p.storage for p in optimizer.parameters}
        refs = tuple(self.ref(p) for p in optimizer.parameters)
        self.events.append(Zero(self.tick(), stack(line), refs, optimizer.number))

    def cut(self, how: str, tensor: Tensor, line: Lines) -> Tensor:
        """The tensor out of its graph; detach() and .data share its storage."""
        node = tensor.node if tensor.node is not None and tensor.node >= 0 else None
        self.events.append(Cut(self.tick(), stack(line), how, self.ref(tensor), node))
        return replace(tensor, node=None) if how in ("detach", "data", "numpy") else self.new()

    def detach(self, tensor: Tensor, line: Lines) -> Tensor:
        return self.cut("detach", tensor, line)

    def grad_read(self, tensor: Tensor, line: Lines) -> None:
        self.events.append(GradRead(self.tick(), stack(line), self.ref(tensor), tensor.node))

    def none(self, leaf: Tensor, line: Lines) -> None:
        """``.grad`` of a leaf is read, and is None."""
        self.events.append(Legacy(self.tick(), stack(line), "cleared", self.ref(leaf)))

    def failure(self, type: str, message: str, line: Lines) -> None:
        self.events.append(Failure(self.tick(), stack(line), type, message))

    def end(self, how: str = "finished") -> Tape:
        self.events.append(End(self.tick(), (), how))
        return self.tape()

    def tape(self) -> Tape:
        return Tape(tuple(self.events), FILE)


def stack(line: Lines) -> Stack:
    lines = (line,) if isinstance(line, int) else line
    return tuple(Site(FILE, n, 4, n, 24) for n in lines)
