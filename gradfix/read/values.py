"""What a variable can hold in the symbolic run.

Numbers, strings, tuples, lists and dictionaries are Python's own. What is here stands for the rest: tensors without
contents, the program's functions, classes and objects, names of libraries, and the Unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any

from gradfix.dataclass import dataclass
from gradfix.tape import Stack

if TYPE_CHECKING:
    from gradfix.read.frames import Frame, Unit

HOLE = "\0"
GUESSED = "argument"  # the origin of an argument that was taken for a tensor, and may be a list of them
Value = Any  # Python's own values, or one of the classes below
Shape = tuple[int | None, ...] | None  # None: not known at all
Spread = tuple[bool, ...] | None
Truth = bool | None  # None: not known


@dataclass(frozen=True, slots=True, eq=False)
class Unknown:
    """A value of which nothing is known. `origin` says where that began, for `gradfix.read.origins`. Of a string, some
    may be: `like` is it, with HOLE where it is not."""

    origin: str
    like: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Number(Unknown):
    """A number that is not known: it has no items."""


@dataclass(slots=True, eq=False)
class Storage:
    """The memory that a tensor and its views share.

    `version` counts every write, `counted` those that PyTorch's own counter sees; `touched` is the time of the last of
    these. `saved` are the nodes that saved it.
    """

    number: int
    name: str = ""
    rank: tuple[int, int, int] = (9, 9, 9)
    version: int = 0
    counted: int = 0
    touched: int = 0
    split: bool = False  # one op has made several views of it
    known: bool = False  # an event spoke of it
    handed: bool = False  # something unknown got it: it may have it require grad, or clear its gradient
    grad_of: Tensor | None = None  # the leaf whose gradient it holds
    plain: bool = False  # made of gradients that autograd.grad gave without a graph
    guessed: bool = False  # it was made behind a test of which nothing is known
    whole: bool = False  # torch.full made whole numbers of it
    filled: tuple[int, float] | None = None  # the version in which it was full of one number, and that
    joined: tuple[Any, ...] = ()  # the op that made it of these, in which versions: (storage, version), ...
    replaced: int = 0  # how often its tensor was given other memory by .data
    exported: Stack = ()  # where a tensor was last made of it, if it is an array's
    saved: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Array(Unknown):
    """An array of NumPy's that the program made (`gradfix.read.arrays`)."""

    storage: Storage | None = None
    dtype: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A tensor that a node keeps for its backward: `version` and `counted` as they were then. `tensor` where it is that
    very tensor, and no view of it."""

    storage: Storage
    version: int
    counted: int
    shape: tuple[int, ...]
    dtype: str
    tensor: Tensor | None = None


@dataclass(slots=True, eq=False)
class Node:
    """An op in the autograd graph. `parents` are nodes, or leaves (tensors)."""

    number: int
    time: int
    stack: Stack
    op: str
    name: str
    parents: tuple[Node | Tensor, ...]
    saves: list[Saved] = field(default_factory=list)
    bare: bool = False  # saved numbers only
    output: Tensor | None = None
    freed: int = 0  # time of the backward that released it
    told: bool = False
    vague: bool = False  # a value that is not known went into it too
    scaled: bool = False  # its first term has a weight: alpha, or it is what is subtracted
    custom: Any = None  # of a custom Function: see gradfix.read.custom
    held: tuple[Saved, ...] = ()  # what its backward uses of what it keeps on ctx, or a checkpoint hides
    checkpoint: bool = False  # what it saves is made anew by one
    needing: list[Tensor] = field(default_factory=list)  # the arguments that `parents` are the edges of
    given: dict[str, Value] | None = None  # the arguments, of an op of the table that gives one tensor
    module: Instance | None = None  # of torch.nn, that it was made by
    hooks: list[Value] = field(default_factory=list)  # called with the gradient of what it made


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor without contents.

    `requires` is its requires_grad. A view has a `base`; `rebased` says which graph of the base its own node is of.
    `view` is how PyTorch would refuse an in-place write: ``multi-view``, ``no-grad`` or ``custom``.
    `spread` says of each dimension whether ``expand()`` made it: its elements lie in one place. Empty where none is,
    None where that is not known.
    `alias` is the route by which it shares memory unseen: ``data``, ``detach`` or ``numpy``.
    `cut` are the numbers of the nodes off which a loss was cut that it is made of, `left` the times of all Cuts that
    left values which it is made of without a graph.
    """

    storage: Storage
    requires: Truth = False
    node: Node | None = None
    shape: Shape = None
    dtype: str = "float32"
    base: Tensor | None = None
    rebased: int = 0
    view: str = ""
    alias: str = ""
    origin: str = ""  # the op that made a view
    parameter: bool = False
    retains: bool = False
    grad: Value = None
    cut: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()
    items: list[Tensor] | None = None  # of a tensor that is a list of tensors made at once
    spread: Spread = ()
    memory: int = 0  # of an alias: how often its tensor had been given other memory when it was taken

    @property
    def leaf(self) -> bool:
        return self.node is None

    @property
    def guessed(self) -> bool:
        """Whether it may be a list of tensors."""
        return self.origin == GUESSED


@dataclass(frozen=True, slots=True, eq=False)
class Taken(Unknown):
    """A number that was read of `tensor` (``loss.item()``), or is made of such: `cut` are the nodes it was cut off."""

    cut: frozenset[int] = frozenset()
    tensor: Tensor | None = None


class Deque(list[Any]):
    """A ``collections.deque`` of at most `most` items."""

    def __init__(self, items: Iterable[Value] = (), most: int | None = None) -> None:
        super().__init__()
        self.most = most
        self.extend(items)

    def append(self, item: Value) -> None:
        super().append(item)
        if self.most is not None:
            del self[: max(0, len(self) - self.most)]

    def appendleft(self, item: Value) -> None:
        self.insert(0, item)
        if self.most is not None:
            del self[self.most :]

    def extend(self, items: Iterable[Value]) -> None:
        for item in list(items):
            self.append(item)

    def extendleft(self, items: Iterable[Value]) -> None:
        for item in list(items):
            self.appendleft(item)

    def __iadd__(self, items: Iterable[Value]) -> Deque:  # type: ignore[misc]
        self.extend(items)
        return self

    def popleft(self) -> Value:
        return self.pop(0)

    def rotate(self, n: int = 1) -> None:
        n %= len(self) or 1
        self[:] = [*self[-n:], *self[:-n]] if n else [*self]

    def copy(self) -> Deque:
        return Deque(self, self.most)


class Packed(tuple[Any, ...]):
    """A PackedSequence: data, batch_sizes, sorted_indices and unsorted_indices."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Function:
    """A function of the program: its text, where it was defined, and the values of its defaults."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    unit: Unit
    scope: Frame | None
    qualname: str
    defaults: tuple[Value, ...] = ()
    kw_defaults: dict[str, Value] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()  # no_grad, enable_grad, ... as decorators
    owner: Class | None = None
    kind: str = ""  # staticmethod, classmethod, property
    attrs: dict[str, Value] = field(default_factory=dict)
    generator: bool | None = None


@dataclass(slots=True, eq=False)
class Class:
    """A class of the program. `bases` are classes, library names or Unknowns."""

    name: str
    qualname: str
    bases: tuple[Value, ...]
    attrs: dict[str, Value]
    unit: Unit
    order: tuple[Value, ...] = ()  # method resolution order, itself first


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a class of the program, or of a library's class that is known (``kind`` is its name)."""

    cls: Class | None
    attrs: dict[str, Value] = field(default_factory=dict)
    kind: str = ""  # the library class that it is or derives from: torch.nn.Module, torch.nn.Linear, ...
    extra: dict[str, Any] = field(default_factory=dict)  # what the overlay of the library class keeps


@dataclass(slots=True, eq=False)
class Bound:
    """A method with its object, or ``super()``'s view of one."""

    function: Value
    receiver: Value


@dataclass(slots=True, eq=False)
class Super:
    """``super()``: what comes `after` a class, for a receiver."""

    receiver: Value
    after: Class


@dataclass(frozen=True, slots=True)
class Lib:
    """A name of a library: ``torch.nn.functional.relu``. What it is shows when it is called."""

    path: str


@dataclass(slots=True, eq=False)
class Native:
    """A function that the overlays give: `call(machine, args, kwargs)`."""

    name: str
    call: Callable[..., Value]


@dataclass(slots=True, eq=False)
class Generator:
    """A call of a generator function that has not begun."""

    function: Function
    frame: Frame
    done: bool = False


@dataclass(slots=True, eq=False)
class Lazy:
    """An iterable of the library's: its items one by one, `length` where known."""

    items: Callable[[int], list[Value]]  # of a number of passes, the items
    length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """A name that nobody has asked for yet: the sibling's file is read, or the `statement` run, when somebody does."""

    find: Callable[[], Value]
    statement: ast.stmt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ModuleValue:
    """A module of the program."""

    unit: Unit
