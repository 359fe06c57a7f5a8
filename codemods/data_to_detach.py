"""See :class:`DataToDetach`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace
from gradfix.rewrite.blocks import method
from gradfix.rewrite.spelling import writes_data
from gradfix.tape import Cut, Site


class DataToDetach(Codemod):
    """Read a tensor's value through `.detach()`, not through `.data`.

    Why: both give the value without its graph and share its memory. `.detach()` also shares the version
    counter, so that PyTorch notices when somebody writes into memory that a backward still needs; behind
    `.data` it can't.

    When not: where `.data` is written on purpose: that is `torch.no_grad()`.
    """

    kinds = ("data-attribute",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(2, requires_grad=True)
loss = (w * 2).sum()
loss.backward()
print(loss.data)  # conflict: data-attribute
""",
            """\
import torch

w = torch.ones(2, requires_grad=True)
loss = (w * 2).sum()
loss.backward()
print(loss.detach())  # conflict: data-attribute
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        view = project.view(conflict.at.file)
        if view is None:
            return
        here = [
            e.at
            for e in project.tape.events
            if isinstance(e, Cut) and e.how == "data" and e.at and _line(e.at) == _line(conflict.at)
        ]
        nodes: list[cst.Attribute] = []
        for site in here or [conflict.at]:
            node = view.at(site)
            if isinstance(node, cst.Attribute):
                found = [node] if node.attr.value == "data" else []
            else:
                found = list(_data(node)) if node is not None else []
            nodes += [n for n in found if not any(n is x for x in nodes)]
        smalls = [view.small_statement(n) for n in nodes]
        if not nodes or any(s is not None and writes_data(s) for s in smalls):
            return
        edits: tuple[Edit, ...] = tuple(Replace(n, _detached) for n in nodes)
        code = view.code(nodes[0].value)
        yield Proposal(f"`{code}.detach()` for `.data`", NONE, {view.path: edits})


def _line(site: Site) -> tuple[str, int]:
    return site.file, site.line


def _detached(now: cst.CSTNode) -> cst.CSTNode:
    return method(cast(cst.Attribute, now).value, "detach")


def _data(node: cst.CSTNode) -> Iterator[cst.Attribute]:
    if isinstance(node, cst.Attribute) and node.attr.value == "data":
        yield node
    for child in node.children:
        yield from _data(child)
