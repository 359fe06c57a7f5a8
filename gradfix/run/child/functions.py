"""Custom autograd Functions at work: what is known of a node, of a forward and of a backward that runs."""

from __future__ import annotations

from typing import Any

from .derivative import Slot
from .saves import Entry
from .sites import Key


class Held(Entry):
    """A tensor that is an attribute of ctx: nobody checks its version."""

    __slots__ = ()

    def moved(self) -> bool:
        return False


class Known:
    """What is known of the node of a custom Function; it lives as long as the node. `unmarked`: (number of the input,
    number of the output that it is, node of the output)."""

    __slots__ = (
        "__weakref__",
        "argument",
        "held",
        "own",
        "place",
        "ref",
        "stack",
        "time",
        "unmarked",
        "what",
    )

    def __init__(self) -> None:
        self.what = ""  # UNMARKED, GRADIENT, SPOILT, INSTEAD or HOOK
        self.argument: int | None = None  # by number, of the forward: what should have been kept
        self.held: list[Held] = []
        self.unmarked: tuple[int, int, int] | None = None
        self.own: tuple[int, ...] = ()  # gradients that its backward wrote into, by number
        self.place: Any = None  # the statement that wrote
        self.stack: Key = ()
        self.time = 0
        self.ref: Any = None


class Forward:
    """A running forward: its arguments, and what those were that it wrote into; the inputs with a graph among them, as
    (number, tensor, version); what they held, and what wrote into them; those written that it did not mark: what it
    returns, and what it `kept` to itself. What its `ctx` keeps and it overwrites is `spoilt`: (the value, who); `now`
    is what it keeps in the end. Of the saved ones `results` are what it returns, saved at `saving`."""

    __slots__ = (
        *("args", "ctx", "given", "held", "inputs", "kept", "now"),
        *("results", "saving", "spoilt", "stacks", "unmarked"),
    )

    def __init__(self, args: tuple[Any, ...], inputs: list[tuple[int, Any, int]]) -> None:
        self.args = args
        self.ctx: Any = None
        self.given: dict[int, Any] = {}
        self.spoilt: dict[Slot, tuple[Any, Key]] = {}
        self.now: dict[Slot, Any] = {}
        self.results: list[Slot] = []
        self.saving: Key = ()
        self.inputs = inputs
        self.held: dict[int, Any] = {}
        self.kept: list[Any] = []
        self.stacks: dict[int, Key] = {}
        self.unmarked: list[tuple[int, Any]] = []


class Given:
    """A running backward: the gradients it was given; of those that it has written into, an alias and what was in
    their memory (which may be that of one number, expanded)."""

    __slots__ = ("before", "grads", "stack")

    def __init__(self, grads: tuple[Any, ...]) -> None:
        self.grads = grads
        self.before: dict[int, tuple[Any, Any]] = {}
        self.stack: Key = ()
