"""The machine of one symbolic run: frames, decisions, what has been spent."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from gradfix.read.project import Project, Unit
from gradfix.read.trace import Exhausted, Trace
from gradfix.read.values import Class, Instance, Tensor, Unknown, Value
from gradfix.read.variants import Open, Variant
from gradfix.tape import Failure, Site, Stack

if TYPE_CHECKING:
    from gradfix.read import Budget
    from gradfix.read.watched import Watch

__all__ = ["Frame", "Machine", "Raised", "Unit"]


class Raised(Exception):
    """The program raises here, or stops: nothing of this path comes after it. `value` is what was raised, `failure`
    what PyTorch says."""

    def __init__(self, value: Value = None, failure: Failure | None = None) -> None:
        super().__init__()
        self.value, self.failure = value, failure


class Frame:
    """A running function (or module or class body) of the program's."""

    __slots__ = (
        "cls", "declared", "doubts", "function", "given", "here", "names", "node", "parent", "passed_over", "passing",
        "prefix", "qualname", "result", "stacks", "unit", "yielding",
    )  # fmt: skip

    def __init__(
        self, unit: Unit, qualname: str, prefix: Stack, names: dict[str, Value], parent: Frame | None
    ) -> None:
        self.unit, self.qualname, self.prefix, self.names, self.parent = unit, qualname, prefix, names, parent
        self.node: Any = None
        self.result: Value = None
        self.cls: Class | None = None
        self.function: Any = None
        self.here: Value = None  # the object of a method
        self.given: tuple[Value, ...] = ()  # its arguments, where it was called inside itself
        self.declared: dict[str, str] = {}  # name -> "global" or "nonlocal"
        self.stacks: dict[int, Stack] = {}
        self.yielding: Callable[[Value], None] | None = None
        self.doubts = 0  # of the machine, when it was entered
        self.passing: set[str] = set()  # variables of its loops
        self.passed_over = False  # a value that would have been returned, had a test come out otherwise

    def stack(self) -> Stack:
        node = self.node
        if node is None:
            return self.prefix
        found = self.stacks.get(id(node))
        if found is None:
            found = self.stacks[id(node)] = (*self.prefix, self.unit.site(node, self.qualname))
        return found


class Machine:
    """What the parts of the interpreter share."""

    def __init__(self, project: Project, budget: Budget, watch: Watch | None = None) -> None:
        self.project, self.budget, self.watch = project, budget, watch
        self.frame: Frame = None  # type: ignore[assignment]
        self.frames: list[Frame] = []
        self.steps = 0  # of all entries together
        self.limit = budget.steps
        self.grad = True
        self.turned_off: Stack = ()  # where, by a call that no with-block ends
        self.inference = False
        self.autocast = False
        self.late = 0  # steps that went into the rest of long lists
        self.loops = 0  # that stand around what runs
        self.guards = 0  # what stands around what runs and may take an exception
        self.gathering = 0  # generators that run whose values are gathered first
        self.partial = 0  # of those around what runs: that go on behind the passes which are read
        self.long = 0  # of them: that have several passes
        self.grown: dict[int, Value] = {}  # containers that something was put into in such a loop, by id
        self.draws: dict[int, int] = {}  # how often what a call draws at random was drawn, by id of the node
        self.awaited = False  # a test was met that comes out otherwise when something has grown
        self.ripe = False  # it has
        self.turn = 0  # the passes after which what comes every so often, by a count that grows, comes again
        self.way_out: Any = None  # the one statement by which the loop is left that runs
        self.turned = False  # unknown tests come out the other way in this pass of the loop
        self.backwards = 0  # that were evaluated
        self.initial: list[
            Tensor
        ] = []  # an object has them that a method was entered of, and may have others then
        self.lent: list[Any] = []  # functions that it got
        self.started: set[tuple[Any, ...]] = set()  # what was run in threads and processes of its own
        self.escaped = False  # code that isn't known got a model or an optimizer
        self.computed: set[int] = set()  # nodes of whose value something was computed past torch
        self.drawn: set[int] = set()  # times of the Cuts that gave indices, whole numbers or truth values
        self.numbers: set[int] = set()  # nodes off which a value was cut that is used as a number on purpose
        self.constants = (
            False  # gradients without a graph, or what was cut off its own, may be part of a loss
        )
        self.whole = False  # torch.full made tensors of whole numbers
        self.leaving: set[int] = set()  # times of the Cuts under no_grad of the op at work
        self.checkpoint: Stack | None = None  # where the one is called that runs without a graph
        self.blurs = 0  # backwards that may have filled any gradient
        self.doubts = 0  # unknown tests that stand around what runs
        self.variant: Variant | None = None  # what is taken otherwise than in the first reading of this entry
        self.open = Open()  # what could be
        self.trace = Trace(self.stack, self.sure, budget.events)
        self.decisions: dict[str, bool] = {}
        self.tests: dict[int, str] = {}  # their text, by id of the node
        self.optimizers: list[Instance] = []
        self.losses: list[Any] = []  # that were differentiated since one of them stepped
        self.asked: dict[str, int] = {}
        self.reached: set[Site] = set()
        self.entered: set[int] = set()  # ids of function nodes that ran
        self.records: dict[
            Tensor, dict[str, Value]
        ] = {}  # arguments that were taken for tensors, and have items
        self.importing: set[tuple[str, str]] = set()  # names of files that are being looked up
        self.functions: dict[
            int, dict[Any, Any]
        ] = {}  # custom Functions that ran, and what their backwards do
        self.hooked = False  # a hook may change a gradient on its way
        self.overheard = False  # a hook may keep what a module gives
        self.customized = False  # a custom Function makes gradients of its own
        self.gone: tuple[Any, Any] = (None, None)  # where a gradient was last read that is None, and whose
        self.clearing = False  # it is asked whether there is a gradient to clear
        self.assigned = False  # the backward of a custom Function gives tensors gradients by hand
        self.called: dict[Any, Any] = {}
        self.interned: dict[Stack, Stack] = {}

    def sure(self) -> bool:
        """Whether what happens now does so whenever the program comes here."""
        return self.doubts == 0 and (self.variant is None or self.variant.sure)

    def begin(self, variant: Variant | None = None) -> None:
        """Another entry: a tape of its own, with the optimizers that are there already, and nobody's gradient."""
        self.trace, self.losses = self.trace.following(), []
        self.blurs, self.loops, self.late, self.partial, self.long, self.guards = 0, 0, 0, 0, 0, 0
        self.awaited, self.ripe, self.way_out, self.turn = False, False, None, 0
        self.limit = min(self.steps + self.budget.entry, self.budget.steps)
        self.doubts, self.grad, self.inference, self.autocast = 0, True, False, False
        self.variant = variant
        self.open = Open()
        self.decisions.clear()
        self.records.clear()
        self.reached.clear()
        self.asked.clear()
        self.frames.clear()
        self.initial.clear()
        self.started.clear()
        for optimizer in self.optimizers:
            optimizer.extra.update(blurs=0, stepped_at=0)
            for group in optimizer.extra.get("parameters", ()):
                for tensor in group["params"]:
                    tensor.grad = None

    def stack(self) -> Stack:
        stack = self.frame.stack()
        return self.interned.setdefault(stack, stack)

    def fail(self, kind: str, message: str) -> NoReturn:
        """The program raises here for certain, in these words."""
        failure = Failure(self.trace.tick(), self.stack(), kind, message)
        raise Raised(Instance(None, kind="builtins." + kind), failure)

    @property
    def outlived(self) -> bool:
        """Whether this reading goes on past what PyTorch took away."""
        return self.variant is not None and self.variant.kind == "outdated"

    def outdated(self, kind: str, message: str) -> None:
        """The program raises here, in these words, where the PyTorch it was written for went on. What comes after is
        looked at in another reading."""
        if not self.outlived:
            self.open.add(Variant("outdated"))
            self.fail(kind, message)

    def spend(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise Exhausted

    def unknown(self, origin: str, like: str = "") -> Unknown:
        """A value that isn't known, because of `origin`."""
        self.asked[origin] = self.asked.get(origin, 0) + 1
        return Unknown(origin, like)

    @contextmanager
    def inside(self, frame: Frame) -> Iterator[None]:
        before = self.frame
        self.frame = frame
        self.frames.append(frame)
        if len(self.frames) > self.budget.depth:
            self.frames.pop()
            self.frame = before
            raise Deep
        try:
            yield
        finally:
            self.frames.pop()
            self.frame = before

    def decide(self, test: ast.expr) -> bool:
        """An unknown test: the same text is always answered alike."""
        key, negated = self.key(test)
        plain = test.operand if negated else test  # type: ignore[attr-defined]
        answer = self.decisions.setdefault(key, not negated and not _missing(plain))
        return not answer if negated else answer

    def key(self, test: ast.expr) -> tuple[str, bool]:
        """The text of a test without its ``not``, and whether it has one."""
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        plain = test.operand if negated else test  # type: ignore[attr-defined]
        key = self.tests.get(id(plain))
        if key is None:  # unparsing takes longer than all else that is done about a test
            key = self.tests[id(plain)] = ast.unparse(plain)
        return key, negated

    @property
    def closely(self) -> bool:
        """Whether this reading is for what becomes of gradients (`gradfix.read.watched`)."""
        return self.watch is not None and self.watch.closely

    def turns(self, test: ast.expr) -> bool:
        """Whether an unknown test comes out the other way in this pass of a loop than it does otherwise."""
        return self.turned and not any(
            isinstance(x, ast.Constant) and x.value is None for x in ast.walk(test)
        )


def _missing(test: ast.expr) -> bool:
    """``x is None``, ``x == ""``: what is not known has been given, in all likelihood."""
    match test:
        case ast.Compare(_, [ast.Is() | ast.Eq()], [ast.Constant(None | "")]):
            return True
    return False


class Deep(Exception):
    """Too many calls inside one another: the call is Unknown."""
