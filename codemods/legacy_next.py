"""See :class:`LegacyNext`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.legacy import NEXT
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import descendants

_OWN = re.compile(r"^def next\b|^[ \t]*next[ \t]*=", re.M)  # the file has another function by that name
OLD = Effect("restored", "the next batch is taken as today's Python has it")


class LegacyNext(Codemod):
    """Take the next batch of a data loader's iterator with the built-in `next()`.

    Why: `batches.next()` is Python 2's spelling. The iterators of `DataLoader` kept it until PyTorch 1.12.

    When not: never; it is the same batch.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
batches = iter(torch.utils.data.DataLoader(torch.randn(6, 3), batch_size=2))
for _ in range(3):
    x = batches.next()  # conflict: legacy-api
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
batches = iter(torch.utils.data.DataLoader(torch.randn(6, 3), batch_size=2))
for _ in range(3):
    x = next(batches)  # conflict: legacy-api
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = project.node(conflict.at)
        if found is None or conflict.message != NEXT:
            return
        view, node = found
        # Python marks the attribute that is not there; the call of it is around
        near = (node, view.parents.get(node), *descendants(node))
        asked = next((n for n in near if isinstance(n, cst.Call) and _asks(n)), None)
        if asked is None or _OWN.search(view.module.code):
            return
        iterator = cst.ensure_type(asked.func, cst.Attribute).value
        edits = tuple(_edits(view, iterator))
        yield Proposal(f"`next({view.code(iterator)})`", OLD, {view.path: edits})


def _asks(call: cst.Call) -> bool:
    """Whether this is a call of ``.next()``."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value == "next" and not call.args


def _edits(view: View, iterator: cst.BaseExpression) -> Iterator[Edit]:
    """Every such call in the file on this iterator, and on what the file makes an iterator: a phase that the run has
    not come to may take its batches so, too."""
    made = {
        view.code(t.target)
        for n in view.parents
        if isinstance(n, cst.Assign) and _iter(n.value)
        for t in n.targets
    }
    for call in view.parents:
        if isinstance(call, cst.Call) and _asks(call):
            asked = cst.ensure_type(call.func, cst.Attribute).value
            if _iter(asked) or view.code(asked) in {view.code(iterator), *made}:
                yield Replace(call, _by_the_builtin)


def _iter(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "iter"


def _by_the_builtin(now: cst.CSTNode) -> cst.CSTNode:
    call = cst.ensure_type(now, cst.Call)
    iterator = cst.ensure_type(call.func, cst.Attribute).value
    return call.with_changes(func=cst.Name("next"), args=[cst.Arg(iterator)])
