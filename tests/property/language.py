"""A small language of training programs: what the strategies draw, the text it stands for.

What a program of it means is said twice, and independently: by PyTorch, which runs the text, and by reference.py,
which evaluates these same values out of place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

INDENT = "    "

# name -> the text of a call of it; the tensors are (2, 3), (3,) or single numbers
PURE = {
    "neg": "-{0}",
    "exp": "{0}.exp()",
    "tanh": "{0}.tanh()",
    "sigmoid": "torch.sigmoid({0})",
    "relu": "F.relu({0})",
    "sin": "{0}.sin()",
    "square": "{0} ** 2",
    "softmax": "F.softmax({0}, dim=-1)",
    "clone": "{0}.clone()",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / ({1} ** 2 + 1)",
    "matmul": "{0} @ {1}",
    "maximum": "torch.maximum({0}, {1})",
    "minimum": "torch.minimum({0}, {1})",
    "stack": "torch.stack([{0}, {1}])",
    "sum": "{0}.sum()",
    "mean": "{0}.mean()",
    "mse": "F.mse_loss({0}, {1})",
    "scale": "{0} * 0.5",
    "shift": "{0} + 1",
}
INFIX = {"neg", "square", "add", "sub", "mul", "div", "matmul", "scale", "shift"}

# views: the text, by name
VIEWS = {
    "row": "{0}[0]",
    "last_row": "{0}[-1]",
    "column": "{0}[:, 0]",
    "corner": "{0}[:, :2]",
    "flat": "{0}.view(-1)",
    "reshaped": "{0}.view(2, 3)",
    "transposed": "{0}.t()",
    "expanded": "{0}.expand(2, 3)",
    "detached": "{0}.detach()",
    "data": "{0}.data",
}
SPLITS = {"unbind": "{0}.unbind()", "chunk": "{0}.chunk(2)", "split": "torch.split({0}, 1)"}

# in-place methods: the text after the target
WRITES = {
    "add_": ".add_({0})",
    "mul_": ".mul_({0})",
    "sub_": ".sub_({0})",
    "copy_": ".copy_({0})",
    "exp_": ".exp_()",
    "tanh_": ".tanh_()",
    "sigmoid_": ".sigmoid_()",
    "relu_": ".relu_()",
    "neg_": ".neg_()",
    "zero_": ".zero_()",
    "fill_": ".fill_(0.5)",
    "clamp_": ".clamp_(-0.5, 0.5)",
}
AUGMENTED = {"add_": "+=", "mul_": "*=", "sub_": "-="}
TAKES_VALUE = {"add_", "mul_", "sub_", "copy_"}


@dataclass(frozen=True, slots=True)
class Name:
    id: str

    def text(self) -> str:
        return self.id


@dataclass(frozen=True, slots=True)
class Number:
    value: float

    def text(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Grad:
    """``w.grad``"""

    of: str

    def text(self) -> str:
        return f"{self.of}.grad"


@dataclass(frozen=True, slots=True)
class Fresh:
    """A tensor of its own: ``torch.randn(2, 3)``, ``torch.zeros(3)``."""

    how: str
    shape: tuple[int, ...]

    def text(self) -> str:
        return f"torch.{self.how}({', '.join(map(str, self.shape))})"


@dataclass(frozen=True, slots=True)
class Pure:
    op: str
    args: tuple[Expr, ...]

    def text(self) -> str:
        atoms = [f"({a.text()})" if isinstance(a, Pure) and a.op in INFIX else a.text() for a in self.args]
        return PURE[self.op].format(*atoms)


@dataclass(frozen=True, slots=True)
class View:
    how: str
    of: Expr

    def text(self) -> str:
        inner = self.of.text()
        return VIEWS[self.how].format(f"({inner})" if isinstance(self.of, Pure) else inner)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function or a module of the program."""

    callee: str
    args: tuple[Expr, ...]

    def text(self) -> str:
        return f"{self.callee}({', '.join(a.text() for a in self.args)})"


@dataclass(frozen=True, slots=True)
class Summed:
    """``sum(losses)`` of a list."""

    of: str

    def text(self) -> str:
        return f"sum({self.of})"


Expr = Name | Number | Grad | Fresh | Pure | View | Call | Summed
Lines = Iterator[str]


@dataclass(frozen=True, slots=True)
class Assign:
    target: str
    value: Expr

    def lines(self) -> Lines:
        yield f"{self.target} = {self.value.text()}"


@dataclass(frozen=True, slots=True)
class Split:
    """``a, b = x.unbind()``"""

    targets: tuple[str, str]
    how: str
    of: Expr

    def lines(self) -> Lines:
        yield f"{', '.join(self.targets)} = {SPLITS[self.how].format(self.of.text())}"


@dataclass(frozen=True, slots=True)
class Write:
    """``x.mul_(y)``, with `augmented` ``x *= y``, with `result` ``result = x.mul_(y)``."""

    target: Expr
    op: str
    value: Expr | None = None
    augmented: bool = False
    result: str = ""

    def lines(self) -> Lines:
        value = "" if self.value is None else self.value.text()
        if self.augmented:
            yield f"{self.target.text()} {AUGMENTED[self.op]} {value}"
            return
        call = self.target.text() + WRITES[self.op].format(value)
        yield f"{self.result} = {call}" if self.result else call


@dataclass(frozen=True, slots=True)
class SetItem:
    """``x[0] = y``: `target` is a view that is spelt as an index."""

    target: View
    value: Expr

    def lines(self) -> Lines:
        yield f"{self.target.text()} = {self.value.text()}"


@dataclass(frozen=True, slots=True)
class NumpyWrite:
    """A write that no version counter sees."""

    target: str

    def lines(self) -> Lines:
        yield f"{self.target}.detach().numpy()[0] = 0.25"


@dataclass(frozen=True, slots=True)
class SetData:
    target: str
    value: Expr

    def lines(self) -> Lines:
        yield f"{self.target}.data = {self.value.text()}"


@dataclass(frozen=True, slots=True)
class NoGrad:
    body: tuple[Statement, ...]

    def lines(self) -> Lines:
        yield "with torch.no_grad():"
        yield from block(self.body)


@dataclass(frozen=True, slots=True)
class If:
    """`test` is an expression of the loop's counter."""

    test: str
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()

    def lines(self) -> Lines:
        yield f"if {self.test}:"
        yield from block(self.body)
        if self.orelse:
            yield "else:"
            yield from block(self.orelse)


@dataclass(frozen=True, slots=True)
class For:
    counter: str
    times: int
    body: tuple[Statement, ...]

    def lines(self) -> Lines:
        yield f"for {self.counter} in range({self.times}):"
        yield from block(self.body)


@dataclass(frozen=True, slots=True)
class Backward:
    of: Expr
    retain: bool = False

    def lines(self) -> Lines:
        inner = self.of.text()
        loss = f"({inner})" if isinstance(self.of, Pure) and self.of.op in INFIX else inner
        yield f"{loss}.backward({'retain_graph=True' if self.retain else ''})"


@dataclass(frozen=True, slots=True)
class Step:
    optimizer: str

    def lines(self) -> Lines:
        yield f"{self.optimizer}.step()"


@dataclass(frozen=True, slots=True)
class Zero:
    optimizer: str

    def lines(self) -> Lines:
        yield f"{self.optimizer}.zero_grad()"


@dataclass(frozen=True, slots=True)
class EmptyList:
    target: str

    def lines(self) -> Lines:
        yield f"{self.target} = []"


@dataclass(frozen=True, slots=True)
class Append:
    target: str
    value: Expr

    def lines(self) -> Lines:
        yield f"{self.target}.append({self.value.text()})"


@dataclass(frozen=True, slots=True)
class Item:
    """``total += loss.item()``"""

    target: str
    of: str

    def lines(self) -> Lines:
        yield f"{self.target} += {self.of}.item()"


Statement = (
    Assign | Split | Write | SetItem | NumpyWrite | SetData | NoGrad | If | For | Backward | Step | Zero
    | EmptyList | Append | Item
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    result: Expr

    def lines(self) -> Lines:
        yield f"def {self.name}({', '.join(self.parameters)}):"
        yield from block(self.body)
        yield f"{INDENT}return {self.result.text()}"


@dataclass(frozen=True, slots=True)
class Model:
    """``name = Class()``: layers of 3 to 3, then a body on ``x`` that calls them as ``self.first`` and so on."""

    name: str
    layers: tuple[str, ...]
    body: tuple[Statement, ...]
    result: Expr

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{layer}.{part}" for layer in self.layers for part in ("weight", "bias"))

    def class_lines(self) -> Lines:
        yield f"class {self.class_name}(nn.Module):"
        yield f"{INDENT}def __init__(self):"
        yield f"{INDENT * 2}super().__init__()"
        for layer in self.layers:
            yield f"{INDENT * 2}self.{layer} = nn.Linear(3, 3)"
        yield ""
        yield f"{INDENT}def forward(self, x):"
        for line in block(self.body):
            yield INDENT + line
        yield f"{INDENT * 2}return {self.result.text()}"

    @property
    def class_name(self) -> str:
        return f"Class{self.name.capitalize()}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """``w = torch.randn(3, 3, requires_grad=True)``"""

    name: str
    shape: tuple[int, ...]

    def lines(self) -> Lines:
        yield f"{self.name} = torch.randn({', '.join(map(str, self.shape))}, requires_grad=True)"


@dataclass(frozen=True, slots=True)
class Optimizer:
    name: str
    kind: str  # SGD, Adam
    owners: tuple[str, ...]  # models and leaves
    options: tuple[tuple[str, object], ...]

    def lines(self, models: tuple[str, ...]) -> Lines:
        lists = [f"{o}.parameters()" if o in models else f"[{o}]" for o in self.owners]
        what = (
            lists[0]
            if len(lists) == 1
            else "[" + ", ".join(f"*{x}" if x[0] != "[" else x[1:-1] for x in lists) + "]"
        )
        options = "".join(f", {k}={v!r}" for k, v in self.options)
        yield f"{self.name} = torch.optim.{self.kind}({what}{options})"


@dataclass(frozen=True, slots=True, repr=False)
class Program:
    models: tuple[Model, ...]
    leaves: tuple[Leaf, ...]
    optimizers: tuple[Optimizer, ...]
    functions: tuple[Function, ...]
    body: tuple[Statement, ...]

    @property
    def parameters(self) -> tuple[str, ...]:
        """What a backward may fill, as the program calls it."""
        return (*(p for m in self.models for p in m.parameters), *(leaf.name for leaf in self.leaves))

    def __repr__(self) -> str:
        return "\n" + self.text()

    def text(self) -> str:
        lines = ["import torch", "import torch.nn.functional as F", "from torch import nn", ""]
        for model in self.models:
            lines += ["", *model.class_lines(), ""]
        lines += ["", "torch.manual_seed(0)"]
        lines += [f"{m.name} = {m.class_name}()" for m in self.models]
        names = tuple(m.name for m in self.models)
        for each in self.leaves:
            lines += each.lines()
        for optimizer in self.optimizers:
            lines += optimizer.lines(names)
        for function in self.functions:
            lines += ["", "", *function.lines(), "", ""]
        for statement in self.body:
            lines += statement.lines()
        return "\n".join(lines) + "\n"


def block(body: tuple[Statement, ...]) -> Lines:
    for statement in body:
        for line in statement.lines():
            yield INDENT + line


def root(target: Expr | str) -> str:
    """The name that a write goes through: ``w`` of ``w[0]``."""
    while isinstance(target, View):
        target = target.of
    return target if isinstance(target, str) else target.id if isinstance(target, Name) else ""


def left_out(body: tuple[Statement, ...], leaves: set[str]) -> tuple[Statement, ...]:
    """The statements, line for line, without what they write into `leaves`."""
    return tuple(_left_out(statement, leaves) for statement in body)


def _left_out(statement: Statement, leaves: set[str]) -> Statement:
    if isinstance(statement, If):
        body, orelse = left_out(statement.body, leaves), left_out(statement.orelse, leaves)
        return replace(statement, body=body, orelse=orelse)
    if isinstance(statement, For | NoGrad):
        return replace(statement, body=left_out(statement.body, leaves))
    if isinstance(statement, Write | SetItem | NumpyWrite | SetData) and root(statement.target) in leaves:
        target = Name(statement.target) if isinstance(statement.target, str) else statement.target
        return Write(target, "mul_", Number(1.0), True)
    return statement
