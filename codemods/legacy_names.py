"""See :class:`LegacyNames`."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.spelling import descendants, function_of

SUCCESSOR = re.compile(r"`([\w.]+)` is (?:now )?deprecated(?: in favor of|\. Use) `([\w.]+)`")


class LegacyNames(Codemod):
    """Call a function by the name that PyTorch's warning gives.

    Why: PyTorch gave functions that write in place a name that ends in an underscore (`clip_grad_norm_`,
    `init.xavier_uniform_`), and says at every call of the old one that it will go.

    When not: where the code must still run on a PyTorch without the new name.
    """

    kinds = ("legacy-api",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm(net.parameters(), 1.0)  # conflict: legacy-api
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # conflict: legacy-api
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        said = SUCCESSOR.search(conflict.message) if conflict.pattern == "deprecated" else None
        found = project.node(conflict.at)
        if said is None or found is None:
            return
        view, node = found
        old, new = (name.rpartition(".")[2] for name in said.groups())
        calls = [n for n in (node, *descendants(node)) if isinstance(n, cst.Call) and function_of(n) == old]
        if calls:
            alone = view.path == project.tape.script
            edits = tuple(_renamed(view, old, new, isinstance(calls[0].func, cst.Name), alone))
            yield Proposal(f"`{new}` for `{old}`", NONE, {view.path: edits})


def _renamed(view: View, old: str, new: str, imported: bool, alone: bool) -> Iterator[Edit]:
    """Every call of the old name in the file; with its import, where it is called by its bare name. A file that is not
    `alone` keeps the old import: others, which perhaps did not run, may take the name from it."""
    for node in descendants(view.module):
        if not isinstance(node, cst.Name) or node.value != old:
            continue
        parent = view.parents[node]
        bare = not isinstance(parent, cst.Attribute | cst.Arg | cst.Param)
        called = isinstance(parent, cst.Attribute) and parent.attr is node and _called(view, parent)
        if (imported and (bare or (isinstance(parent, cst.Arg) and parent.value is node))) or called:
            whole = view.parents[parent]
            if alone or not isinstance(parent, cst.ImportAlias) or not isinstance(whole, cst.ImportFrom):
                yield Replace(node, lambda _: cst.Name(new))
            else:
                yield Replace(whole, lambda now: _with(now, new))


def _with(now: cst.CSTNode, name: str) -> cst.CSTNode:
    """An import of one more name."""
    assert isinstance(now, cst.ImportFrom)
    assert not isinstance(now.names, cst.ImportStar)
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    *some, last = now.names
    more = cst.ImportAlias(cst.Name(name), comma=last.comma)
    return now.with_changes(names=[*some, last.with_changes(comma=comma), more])


def _called(view: View, node: cst.CSTNode) -> bool:
    parent = view.parents[node]
    return isinstance(parent, cst.Call) and parent.func is node
