"""See :class:`LegacyVariable`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.blocks import as_receiver, method
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants
from gradfix.tape import Legacy


class LegacyVariable(Codemod):
    """Take tensors out of `Variable`, which does nothing since PyTorch 0.4.

    Why: a tensor has had its own gradient and graph since then. `Variable(x)` gives `x` without its graph,
    `volatile=True` is ignored, and the reader is left to wonder what the wrapping is for.

    When not: where the code must still run on PyTorch 0.3.
    """

    kinds = ("legacy-api",)
    examples = (
        Example(
            """\
import torch
from torch.autograd import Variable

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.randn(3, 4, 3):
    x = Variable(batch)  # conflict: legacy-api
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.randn(3, 4, 3):
    x = batch  # conflict: legacy-api
    optimizer.zero_grad()
    net(x).pow(2).mean().backward()
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        view = project.view(conflict.at.file) if conflict.pattern == "variable" else None
        if view is None:
            return
        attached = _wrapped(project, view)
        edits: list[Edit] = []
        gone: list[cst.CSTNode] = []
        for call, had_graph in attached.items():
            plain = _plain(call, had_graph)
            if plain is not None:
                edits.append(Replace(call, plain))
                gone.append(call.func)
        if edits:
            what = "the tensor" if len(edits) == 1 else f"{len(edits)} tensors"
            if (
                view.path == project.tape.script
            ):  # of a module, files that did not run may take the name from here
                edits += _unimported(view, gone)
            yield Proposal(f"take {what} out of `Variable`", NONE, {view.path: tuple(edits)})


def _wrapped(project: Project, view: View) -> dict[cst.Call, bool]:
    """The calls of Variable that the run made in this file, and whether a tensor came to them with its graph."""
    found: dict[cst.Call, bool] = {}
    for event in project.tape.events:
        if isinstance(event, Legacy) and event.use == "Variable" and event.at and event.at.file == view.path:
            node = view.at(event.at)
            calls = [n for n in (node, *descendants(node)) if _wraps(n)] if node is not None else []
            for call in calls[:1]:
                assert isinstance(call, cst.Call)
                found[call] = found.get(call, False) or event.attached
    return found


def _wraps(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and dotted(node.func).rpartition(".")[2] == "Variable"


def _plain(call: cst.Call, attached: bool) -> _Build | None:
    """What makes the tensor of the call, or None where the arguments are not those that are known."""
    keywords = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
    plain = [a for a in call.args if a.keyword is None]
    if (
        len(plain) > 1
        or any(a.star for a in call.args)
        or set(keywords) - {"data", "requires_grad", "volatile"}
    ):
        return None
    wants = keywords.get("requires_grad")
    if wants is not None and dotted(wants) not in ("True", "False"):
        return None
    return _Build(attached, wants is not None and dotted(wants) == "True")


class _Build:
    """The tensor, by itself; cut from its graph where it had one; a leaf of its own where that is asked for."""

    def __init__(self, attached: bool, wants: bool) -> None:
        self.attached, self.wants = attached, wants

    def __call__(self, now: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(now, cst.Call)
        given = [a for a in now.args if a.keyword is None or a.keyword.value == "data"]
        value = given[0].value
        fresh = isinstance(value, cst.Call) or (
            isinstance(value, cst.Attribute) and value.attr.value == "data"
        )
        if self.attached or (self.wants and not fresh):
            value = method(as_receiver(value), "detach")
        if self.wants:
            value = method(as_receiver(value), "requires_grad_")
        return value.with_changes(lpar=(*now.lpar, *value.lpar), rpar=(*value.rpar, *now.rpar))


def _unimported(view: View, gone: Sequence[cst.CSTNode]) -> Iterator[Edit]:
    """Drops ``from torch.autograd import Variable`` where nothing uses it any more."""
    names = [n for n in descendants(view.module) if isinstance(n, cst.Name) and n.value == "Variable"]
    for statement in view.module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if not isinstance(small, cst.ImportFrom) or isinstance(small.names, cst.ImportStar):
                continue
            mine = [a for a in small.names if dotted(a.name) == "Variable" and a.asname is None]
            used = [n for n in names if not any(n is g for g in gone) and not any(n is a.name for a in mine)]
            if not mine or used or not isinstance(statement, cst.SimpleStatementLine):
                continue
            if len(small.names) > 1:
                yield Replace(small, _without)
            elif len(statement.body) == 1 and not any(x.comment for x in statement.leading_lines):
                yield Replace(statement, lambda _: cst.RemoveFromParent())


def _without(now: cst.CSTNode) -> cst.CSTNode:
    assert isinstance(now, cst.ImportFrom)
    assert not isinstance(now.names, cst.ImportStar)
    kept = [a for a in now.names if dotted(a.name) != "Variable"]
    return now.with_changes(names=[*kept[:-1], kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)])
