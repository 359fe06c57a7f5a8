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
OUT = frozenset(("cpu", "detach", "numpy"))


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
        codes = {view.code(n) for n in exact}
        alike = [
            n
            for n in descendants(body_of(view, node))
            if isinstance(n, cst.Subscript)
            and _first(n)
            and view.code(n) in codes
            and _same_scope(view, n, node)
        ]
        edits: list[Edit] = [Replace(n, _number) for n in alike]
        said = ", ".join(f"`{view.code(_plain(n))}`" for n in exact[:2])
        yield Proposal(f"read the number of {said} with `.item()`", OLD, {view.path: tuple(edits)})


def _same_scope(view: View, one: cst.CSTNode, other: cst.CSTNode) -> bool:
    return view.function(one) is view.function(other)


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
