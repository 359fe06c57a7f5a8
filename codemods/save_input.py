"""See :class:`SaveInput`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, exchange
from gradfix.rewrite.liveness import binds
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import parameters
from gradfix.tape import Custom


class SaveInput(Codemod):
    """Save the input of a custom Function for its backward, not its result.

    Why: `ctx.save_for_backward(result)` is right where the derivative is written for the result (exp, sigmoid, tanh).
    Where the backward takes what it gets for the input, PyTorch has nothing to say: the gradient is another
    function's. What the backward needs is measured: it is the derivative of the forward with one of the two.

    When not: the forward overwrites the input.
    """

    kinds = ("silent-overwrite",)
    effects = ("none",)
    examples = (
        Example(
            """\
import torch


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x * x.sigmoid()
        ctx.save_for_backward(result)  # conflict: silent-overwrite
        return result

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 5, 3):
    loss = Swish.apply(net(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x * x.sigmoid()
        ctx.save_for_backward(x)  # conflict: silent-overwrite
        return result

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return grad * (s + x * s * (1 - s))


net = torch.nn.Linear(3, 4)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 5, 3):
    loss = Swish.apply(net(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        event = conflict.event
        if conflict.pattern != "result-saved" or not isinstance(event, Custom) or event.alias is None:
            return
        view, node = project.node(event.stack[-1]) or (None, None)
        function = view.function(node) if view is not None and node is not None else None
        if view is None or node is None or not isinstance(function, cst.FunctionDef):
            return
        calls = [
            n
            for n in (node, *descendants(node))
            if isinstance(n, cst.Call) and function_of(n) == "save_for_backward"
        ]
        names = parameters(function)[1:]  # behind ctx
        if len(calls) != 1 or event.alias >= len(names) or function.name.value != "forward":
            return
        name = names[event.alias]
        results = {
            n.value.value
            for n in descendants(function)
            if isinstance(n, cst.Return) and isinstance(n.value, cst.Name)
        }
        saved = [a.value for a in calls[0].args if isinstance(a.value, cst.Name) and a.value.value in results]
        if len(saved) == 1 and name not in binds(function.body):
            code = view.code(saved[0])
            edit = exchange(saved[0], cst.Name(name))
            yield Proposal(
                f"save `{name}`, which the backward needs, not `{code}`", NONE, {view.path: (edit,)}
            )
