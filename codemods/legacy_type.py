"""See :class:`LegacyType`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.blocks import of_torch
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants

OLD = Effect("restored", "the comparison holds for tensors, as it did in PyTorch 0.x")


class LegacyType(Codemod):
    """Ask whether something is a tensor with `isinstance`, not by comparing its type with `Variable`.

    Why: before PyTorch 0.4 what had a graph was a `Variable`. Today it is a `torch.Tensor`, `type(h) == Variable`
    holds for nothing, and code that told a hidden state from a tuple of them walks into the tensor.

    When not: never; `isinstance` says what was meant.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch
from torch.autograd import Variable


def repackage(h):
    if type(h) == Variable:  # conflict: legacy-api
        return h.detach()
    return tuple(repackage(v) for v in h)


rnn = torch.nn.LSTM(2, 3)
optimizer = torch.optim.SGD(rnn.parameters(), 0.1)
state = (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
for x in torch.randn(3, 4, 1, 2):
    state = repackage(state)
    optimizer.zero_grad()
    out, state = rnn(x, state)
    out.pow(2).mean().backward()
    optimizer.step()
""",
            """\
import torch
from torch.autograd import Variable


def repackage(h):
    if isinstance(h, torch.Tensor):  # conflict: legacy-api
        return h.detach()
    return tuple(repackage(v) for v in h)


rnn = torch.nn.LSTM(2, 3)
optimizer = torch.optim.SGD(rnn.parameters(), 0.1)
state = (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
for x in torch.randn(3, 4, 1, 2):
    state = repackage(state)
    optimizer.zero_grad()
    out, state = rnn(x, state)
    out.pow(2).mean().backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = project.node(conflict.at) if conflict.pattern == "compared" else None
        if found is None:
            return
        view, node = found
        here = next((n for n in (node, *descendants(node)) if _compared(n)), None)
        asked = _compared(here) if here is not None else None
        if asked is None:
            return
        tensor = of_torch(view, "Tensor")
        edits = [*_same(view, asked[1], tensor.expression), *tensor.edits]
        code = view.code(tensor.expression)
        yield Proposal(
            f"`isinstance(…, {code})` for a type that is `{asked[1]}`", OLD, {view.path: tuple(edits)}
        )


def _same(view: View, name: str, tensor: cst.BaseExpression) -> Iterator[Edit]:
    """An edit for every comparison of a type with `name` in the file: they all mean the same."""
    for node in descendants(view.module):
        asked = _compared(node)
        if asked is not None and asked[1] == name:
            yield exchange(node, _instance(asked[0], tensor, asked[2]))


def _compared(node: cst.CSTNode) -> tuple[cst.BaseExpression, str, bool] | None:
    """``(h, "Variable", True)`` of ``type(h) == Variable``; False where it asks for the opposite."""
    if not isinstance(node, cst.Comparison) or len(node.comparisons) != 1:
        return None
    operator, right = node.comparisons[0].operator, node.comparisons[0].comparator
    if not isinstance(operator, cst.Equal | cst.NotEqual | cst.Is | cst.IsNot):
        return None
    for type_of, other in ((node.left, right), (right, node.left)):
        name = dotted(other)
        if (
            isinstance(type_of, cst.Call)
            and dotted(type_of.func) == "type"
            and len(type_of.args) == 1
            and name.rpartition(".")[2] == "Variable"
        ):
            return type_of.args[0].value, name, isinstance(operator, cst.Equal | cst.Is)
    return None


def _instance(what: cst.BaseExpression, tensor: cst.BaseExpression, holds: bool) -> cst.BaseExpression:
    arguments = [cst.Arg(what.deep_clone()), cst.Arg(tensor.deep_clone())]
    call = cst.Call(cst.Name("isinstance"), arguments)
    return call if holds else cst.UnaryOperation(cst.Not(), call)
