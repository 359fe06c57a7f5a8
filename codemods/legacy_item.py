"""See :class:`LegacyItem`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.blocks import as_receiver, method
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import body_of

OLD = Effect("restored", "the number is read as today's PyTorch has it")
OUT = frozenset(("cpu", "detach", "numpy", "tolist"))
MAYBE = (
    cst.If,
    cst.IfExp,
    cst.BooleanOperation,
    cst.For,
    cst.While,
    cst.Try,
    cst.CompFor,
    cst.FunctionDef,
    cst.Lambda,
)


class LegacyItem(Codemod):
    """Read the number of a tensor without dimensions with `.item()`.

    Why: before PyTorch 0.4 a loss had one dimension, and `loss.data[0]` read its number. A loss has none
    today, and indexing it raises.

    When not: where the tensor has a dimension after all, and the first element is meant.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.data[0])  # conflict: legacy-api
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())  # conflict: legacy-api
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = project.node(conflict.at)
        if found is None:
            return
        view, node = found
        failing = [n for n in (node, *descendants(node)) if isinstance(n, cst.Subscript) and _first(n)]
        exact = [n for n in failing if n is node] or failing
        if not exact:
            return
        reads = [
            n
            for n in descendants(body_of(view, node))
            if isinstance(n, cst.Subscript) and _first(n) and view.function(n) is view.function(node)
        ]
        # the pass that failed would have come to these next, and they are read in the same way
        ways, sure = {_way(view, n) for n in exact}, _maybe(view, node)
        next_ones = [n for n in reads if _way(view, n) in ways and _maybe(view, n) <= sure]
        for rank, some in enumerate((next_ones, exact)):
            codes = {view.code(n): view.code(_plain(n)) for n in (*exact, *some)}
            edits: list[Edit] = [Replace(n, _number) for n in reads if view.code(n) in codes]
            tensors = list(dict.fromkeys(codes.values()))
            said = (
                ", ".join(f"`{name}`" for name in tensors) if len(tensors) < 4 else f"{len(tensors)} tensors"
            )
            yield Proposal(f"read the number of {said} with `.item()`", OLD, {view.path: tuple(edits)}, rank)


def _way(view: View, node: cst.Subscript) -> str:
    """How the number leaves its tensor: ``.data[0]``."""
    return view.code(node).removeprefix(view.code(_plain(node)))


def _maybe(view: View, node: cst.CSTNode) -> set[cst.CSTNode]:
    """What around a node decides whether it runs."""
    return {x for x in view.ancestors(node) if isinstance(x, MAYBE)}


def _first(node: cst.Subscript) -> bool:
    """Whether this is ``x[0]``."""
    if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
        return False
    index = node.slice[0].slice.value
    return isinstance(index, cst.Integer) and index.value == "0"


def _plain(node: cst.Subscript) -> cst.BaseExpression:
    """The tensor that is read: ``loss`` of ``loss.data.cpu()[0]``."""
    inner = node.value
    while True:
        if isinstance(inner, cst.Attribute) and inner.attr.value == "data":
            inner = inner.value
        elif (
            isinstance(inner, cst.Call)
            and isinstance(inner.func, cst.Attribute)
            and inner.func.attr.value in OUT
            and not inner.args
        ):
            inner = inner.func.value
        else:
            return inner


def _number(node: cst.CSTNode) -> cst.CSTNode:
    """``loss.item()``; a tensor that is not taken out of its graph stays a tensor."""
    assert isinstance(node, cst.Subscript)
    plain = _plain(node)
    return method(as_receiver(plain), "item") if plain is not node.value else plain
