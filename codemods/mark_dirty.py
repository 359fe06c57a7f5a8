"""See :class:`MarkDirty`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, View, exchange
from gradfix.rewrite.blocks import line
from gradfix.rewrite.liveness import dotted, functions, parameters, scope_of
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.writes import write_at


class MarkDirty(Codemod):
    """Tell autograd that a custom Function's forward has changed its input: `ctx.mark_dirty(x)`.

    Why: autograd does not look into `forward`. An input that is written in place and returned has to be marked, or
    whoever reads that tensor afterwards sees the new value and sends its gradient to the op that made the old one,
    past the Function.

    When not: where the input was not meant to change; then the forward works on a tensor of its own. What is not
    returned can't be marked.
    """

    kinds = ("silent-overwrite",)
    effects = ("none",)
    examples = (
        Example(
            """\
import torch


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.tanh_()  # conflict: silent-overwrite
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
for x in torch.rand(3, 6, 3):
    h = first(x)
    loss = (second(Squash.apply(h)) + h.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.tanh_()  # conflict: silent-overwrite
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * (1 - y * y)


first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
for x in torch.rand(3, 6, 3):
    h = first(x)
    loss = (second(Squash.apply(h)) + h.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "unmarked-input" or conflict.event is None:
            return
        write = write_at(project, conflict.event.stack[-1])
        for view, node in reversed(list(project.frames(conflict.event.stack))):
            function = scope_of(view, node)
            if isinstance(function, cst.FunctionDef) and function.name.value == "forward":
                own = write is not None and scope_of(write.view, write.node) is function
                name = _returned(function, write.name if write is not None and own else "")
                if name:
                    edit = _marked(view, node, function, name)
                    yield Proposal(f"mark `{name}` as changed in place", NONE, {view.path: (edit,)})
                return


def _returned(function: cst.FunctionDef, written: str) -> str:
    """The name of what was written: `written` itself, where that is the input or what is returned, and not a view of
    either; else the one input that is returned."""
    values = [n.value for n in descendants(function) if isinstance(n, cst.Return) and n.value is not None]
    parts = [[e.value for e in v.elements] if isinstance(v, cst.Tuple) else [v] for v in values]
    returned = {part.value for each in parts for part in each if isinstance(part, cst.Name)}
    inputs = set(parameters(function))
    if written in inputs | returned:
        return written
    both = inputs & returned
    return both.pop() if len(both) == 1 else ""


def _marked(view: View, node: cst.CSTNode, function: cst.FunctionDef, name: str) -> Edit:
    holder = view.enclosing(function, cst.ClassDef)
    setup = next((f for f in functions(holder) if f.name.value == "setup_context"), None) if holder else None
    ctx = parameters(setup or function)[0]
    marks = [
        n
        for n in descendants(setup or function)
        if isinstance(n, cst.Call) and dotted(n.func) == f"{ctx}.mark_dirty"
    ]
    if setup is not None and name in parameters(function):
        name = f"{parameters(setup)[1]}[{parameters(function).index(name)}]"
    elif setup is not None:
        name = parameters(setup)[2]
    marked = cst.parse_expression(name)
    if marks:
        return exchange(marks[0], marks[0].with_changes(args=[*marks[0].args, cst.Arg(marked)]))
    new = line(cst.Expr(cst.Call(cst.parse_expression(f"{ctx}.mark_dirty"), [cst.Arg(marked)])))
    if setup is not None:
        return Insert(setup.body.body[-1], after=(new,))
    statement = view.statement(node)
    assert statement is not None
    if isinstance(view.small_statement(node), cst.Return):
        return Insert(statement, before=(new,))
    return Insert(statement, after=(new,))
