"""Sum the loss as a number, and differentiate this pass's loss."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, parenthesized
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of
from gradfix.rewrite.carried import sets_back
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import Unit, body_of, dotted, line_of, names, put_before, walk
from gradfix.verdict import Effect

_NUMBER = re.compile(r"[-+]?\d*\.?\d*(?:e[-+]?\d+)?")
ROUND = Effect("cut-round", "each pass differentiates its own loss; the sum is a number")


class AccumulateItem(Codemod):
    """Add `loss.item()` to the running sum and call `backward()` on the loss itself.

    Why: `total += loss` chains every pass's graph to the next: backward on the sum walks graphs that earlier
    backwards freed, and without a backward memory grows with every pass.

    When not: where several losses are meant to be differentiated together once, after the loop.
    """

    kinds = ("freed-graph", "stale-saved-tensor", "wasted-backward")
    effects = ("cut-round",)

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    total += loss
    optimizer.zero_grad()
    total.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    total += loss.item()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            effect="cut-round",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = backward_call(project, conflict.backward) if conflict.backward else None
        if found is None:
            return
        view, call = found
        name = dotted(loss_of(call))
        loop = view.loop(call)
        if name is None or loop is None:
            return
        for unit in walk(body_of(view, call)):
            added = _added(unit, name)
            if added is None or loop not in list(view.ancestors(unit.node)):
                continue
            others = [u for u in walk(loop.body) if name in u.writes and u.node is not unit.node]
            if not all(sets_back(u, name) and _at_times(view, u.node) for u in others):
                return  # bound anew in the pass: a loss of several terms, no running sum
            yield from _proposals(view, call, unit, name, added, project)
            return


def _at_times(view: View, node: cst.CSTNode) -> bool:
    """Whether not every pass of the loop comes to the statement."""
    around = next((x for x in view.ancestors(node) if isinstance(x, (cst.If, cst.For, cst.While))), None)
    return isinstance(around, cst.If)


def _added(unit: Unit, name: str) -> cst.BaseExpression | None:
    """``x`` of ``total += x`` and ``total = total + x``."""
    node = unit.node
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign):
        return node.value if dotted(node.target) == name else None
    if isinstance(node, cst.Assign) and len(node.targets) == 1 and dotted(node.targets[0].target) == name:
        value = node.value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            if dotted(value.left) == name:
                return value.right
            if dotted(value.right) == name:
                return value.left
    return None


def _proposals(
    view: View, call: cst.Call, unit: Unit, name: str, added: cst.BaseExpression, project: Project
) -> Iterator[Proposal]:
    loss = loss_of(call)
    own: cst.BaseExpression = added.deep_clone()
    edits: list[Edit] = []
    if dotted(added) is None:
        taken = {n.value for n in view.parents if isinstance(n, cst.Name)}
        fresh = next(n for n in ("loss", "batch_loss", "pass_loss", "loss_now", "loss_") if n not in taken)
        own = cst.Name(fresh)
        bind = cst.Assign([cst.AssignTarget(own)], added.deep_clone())
        edits.append(put_before(unit, line_of(bind)))
    numbers = _read_as_number(view, call, unit, name, project)
    if numbers is not None:
        edits += [Replace(n, lambda _, f=n.func: f.value.deep_clone()) for n in numbers]  # type: ignore[misc]
    taken_as = "detach" if numbers is None else "item"
    value = cst.Call(cst.Attribute(parenthesized(own), cst.Name(taken_as)))
    edits += [Replace(added, lambda _: value), Replace(loss, lambda _: own)]
    said = "the value alone" if numbers is None else "a number"
    summary = f"add {said} to `{name}`, and differentiate the pass's own loss"
    yield Proposal(summary, ROUND, gather((view, edits)))


def _read_as_number(
    view: View, call: cst.Call, unit: Unit, name: str, project: Project
) -> list[cst.Call] | None:
    """The calls of ``total.item()`` that go once `total` is a number; None where something may need a tensor, here or
    (a sum that is returned or kept) elsewhere."""
    scope = view.module if "." in name else body_of(view, call)
    inside = {id(n) for n in (scope, *descendants(scope))}
    methods: list[cst.Call] = []
    handed_on = False
    starts: list[str] = []
    for node in view.parents:
        if id(node) not in inside:
            continue
        if isinstance(node, cst.Assign) and any(dotted(t.target) == name for t in node.targets):
            starts += [view.code(node.value).strip()] * (node is not unit.node)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node is not call:
            if dotted(node.func.value) == name:
                methods.append(node)
            kept = node.func.attr.value == "append"
            handed_on = handed_on or (kept and any(dotted(a.value) == name for a in node.args))
        if isinstance(node, cst.Return) and node.value is not None:
            handed_on = handed_on or name in names(node.value).reads
    if starts and all(s.startswith("torch.") for s in starts):
        return []  # a tensor it is, and stays
    plain = all(_NUMBER.fullmatch(s) for s in starts)
    items = [m for m in methods if view.code(m.func).endswith(".item") and not m.args]
    if not plain or items != methods:
        return None if methods else []
    elsewhere = sum(text.count(".item()") for text in project.files.values()) - len(items)
    return None if handed_on and elsewhere else items
