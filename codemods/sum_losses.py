"""Differentiate several losses over one graph in one backward, or keep the graph for the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, Replace, View, parenthesized
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of, retain
from gradfix.rewrite.loops import bound, repeatable
from gradfix.rewrite.stale import stale
from gradfix.rewrite.statements import (
    Unit,
    common_block,
    dotted,
    lifted,
    line_of,
    names,
    put_before,
    take_away,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward, Event, Step, Zero
from gradfix.verdict import NONE, Effect

GRADIENTS = re.compile(r"(?<!no_)(?<!enable_)grad")
TWICE = Effect("changes-value", "the gradient is counted once instead of twice")


class SumLosses(Codemod):
    """Sum the losses and run one backward, or give the earlier backward `retain_graph=True`.

    Why: the first `backward()` frees what the second one needs. Gradients add up, so the gradient of the sum
    is the sum of the gradients, at the cost of one walk. Where a step stands between the two and the
    parameters are shared (chained optimizers), the graph has to be kept instead, which is right as long as
    nothing in it is overwritten.

    When not: where the losses train different models (`detach-boundary`), or where a step between the two
    overwrites what the graph saved; `retain_graph=True` then only exchanges one error for another.
    """

    kinds = ("freed-graph",)
    effects = ("none", "changes-value")

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(2, 4, 3):
    y = net(x).tanh()
    near, small = (y - x).pow(2).mean(), y.abs().mean()
    optimizer.zero_grad()
    near.backward()
    small.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(2, 4, 3):
    y = net(x).tanh()
    near, small = (y - x).pow(2).mean(), y.abs().mean()
    optimizer.zero_grad()
    (near + small).backward()  # conflict: freed-graph
    optimizer.step()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        earlier, later = conflict.earlier, conflict.backward
        if earlier is None or later is None:
            return
        first, second = backward_call(project, earlier), backward_call(project, later)
        if first is None or second is None:
            return
        if not _between(project, earlier, later):
            yield from _loop(second[0], second[1])
        if earlier.stack == later.stack:
            # (a state that is carried wants its graph cut, not kept for ever)
            if (
                conflict.pattern == "two-losses"
                and first[1] is second[1]
                and not _between(project, earlier, later, Step)
                and not stale(project, later)[0]
            ):
                keep = gather((first[0], [retain(first[1])]))
                yield Proposal("keep the graph that the losses share", NONE, keep, 3)
            return
        if first[0] is second[0] and not _between(project, earlier, later):
            yield from _summed(first[0], first[1], second[1])
        if not stale(project, later)[0]:
            keep = gather((first[0], [retain(first[1])]))
            yield Proposal("keep the graph for the second backward", NONE, keep, 3)


def _between(project: Project, earlier: Backward, later: Backward, *kinds: type[Event]) -> bool:
    """Whether gradients are used or cleared between two backwards."""
    return any(
        isinstance(e, kinds or (Step, Zero)) and earlier.time < e.time < later.time
        for e in project.tape.events
    )


def _summed(view: View, first: cst.Call, second: cst.Call) -> Iterator[Proposal]:
    block = common_block(view, first, second)
    one = unit_in(view, block, first) if block else None
    two = unit_in(view, block, second) if block else None
    if block is None or one is None or two is None or not one < two:
        return
    body = units(block)
    if not (_plain(body[one], first) and _plain(body[two], second)):
        return
    if any(GRADIENTS.search(view.code(u.node)) for u in body[one + 1 : two]):
        return  # looks at the gradients of the first loss
    left, right = loss_of(first), loss_of(second)
    if view.code(left) == view.code(right):
        kept = gather((view, [retain(first)]))
        yield Proposal("keep the graph: the gradient counts twice, as written", NONE, kept, 0)
        yield Proposal(
            "take the second backward away",
            TWICE,
            gather((view, take_away(body[two], view, comments=True))),
            1,
        )
        return
    total = cst.BinaryOperation(_plus(left), cst.Add(), _plus(right))
    named = _named(view, body[two + 1 :], left, right)
    edits: list[Edit] = [*take_away(body[one], view, comments=True)]
    if named is None:
        edits.append(Replace(right, lambda _: parenthesized(total)))
    else:
        unit, name = named
        edits += [*take_away(unit, view), put_before(body[two], lifted(unit)), Replace(right, lambda _: name)]
    said = view.code(total).strip()
    yield Proposal(f"run one backward on `{said}`", NONE, gather((view, edits)), 0)


def _named(
    view: View, behind: Sequence[Unit], left: cst.BaseExpression, right: cst.BaseExpression
) -> tuple[Unit, cst.Name] | None:
    """The statement behind both that gives their sum a name, where it may be made before them."""
    written, read = set[str](), set[str]()
    for unit in behind:
        node = unit.node
        if (
            isinstance(node, cst.Assign)
            and len(node.targets) == 1
            and isinstance(node.value, cst.BinaryOperation)
        ):
            target, value = node.targets[0].target, node.value
            terms = {view.code(value.left), view.code(value.right)}
            adds = isinstance(value.operator, cst.Add) and terms == {view.code(left), view.code(right)}
            free = not touches(unit.reads, written) and not touches(unit.writes, written | read)
            if adds and free and isinstance(target, cst.Name):
                return unit, target
        written |= unit.writes
        read |= unit.reads
    return None


def _plain(unit: Unit, call: cst.Call) -> bool:
    """Whether the statement is the call alone, without a gradient or inputs of its own."""
    allowed = {"retain_graph"}
    return (
        isinstance(unit.node, cst.Expr)
        and unit.node.value is call
        and all(a.keyword is not None and a.keyword.value in allowed for a in call.args)
    )


def _plus(node: cst.BaseExpression) -> cst.BaseExpression:
    atoms = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
    if isinstance(node, atoms) or node.lpar:
        return node.deep_clone()
    if isinstance(node, cst.BinaryOperation) and isinstance(
        node.operator, (cst.Add, cst.Multiply, cst.Divide)
    ):
        return node.deep_clone()
    return parenthesized(node.deep_clone())


def _loop(view: View, call: cst.Call) -> Iterator[Proposal]:
    """``for loss in losses: loss.backward()`` as ``sum(losses).backward()``; what else the loop does stays, the sum
    behind it."""
    loop = view.loop(call)
    if not isinstance(loop, cst.For) or loop.orelse is not None or loop.asynchronous is not None:
        return
    body, total = units(loop.body), _total(loop, loss_of(call))
    at = next((n for n, u in enumerate(body) if u.node is view.small_statement(call)), None)
    if total is None or at is None or not _plain(body[at], call):
        return
    line = line_of(cst.Expr(cst.Call(cst.Attribute(total, cst.Name("backward")))))
    if len(body) == 1:
        edits: tuple[Edit, ...] = (Replace(loop, lambda node: _in_place_of(node, line)),)
    elif any(GRADIENTS.search(view.code(u.node)) for u in body if u is not body[at]) or not repeatable(
        loop.iter
    ):
        return  # looks at the gradients of each loss, or can be gone through only once
    else:
        edits = (*take_away(body[at], view, comments=True), Insert(loop, after=(line,)))
    said = cst.Module([]).code_for_node(total)
    yield Proposal(f"run one backward on `{said}`", NONE, {view.path: edits}, 0)


def _total(loop: cst.For, loss: cst.BaseExpression) -> cst.Call | None:
    """The sum of what the loop differentiates; None where a pass makes that itself."""
    own, read = bound(loop.target), {r.split(".")[0] for r in names(loss).reads}
    if any(touches(read, u.names.binds) for u in walk(loop.body)):
        return None
    if isinstance(loop.target, cst.Name) and dotted(loss) == loop.target.value:
        summed: cst.BaseExpression = loop.iter.deep_clone()
    elif own & read:
        target = (
            loop.target.with_changes(lpar=[], rpar=[]) if isinstance(loop.target, cst.Tuple) else loop.target
        )
        each = cst.CompFor(target, loop.iter.deep_clone())
        bare = loss.deep_clone().with_changes(lpar=[], rpar=[])
        summed = cst.GeneratorExp(bare, each, lpar=[], rpar=[])
    else:
        return None
    return cst.Call(cst.Name("sum"), [cst.Arg(summed)])


def _in_place_of(node: cst.CSTNode, line: cst.SimpleStatementLine) -> cst.CSTNode:
    """`line` with the comments of the loop whose place it takes."""
    assert isinstance(node, cst.For)
    above, behind = list(node.leading_lines), line.trailing_whitespace
    inner = node.body.body[0]
    if isinstance(node.body, cst.IndentedBlock) and node.body.header.comment:
        above.append(cst.EmptyLine(comment=node.body.header.comment))
    if isinstance(inner, cst.SimpleStatementLine):
        above += [each for each in inner.leading_lines if each.comment]
        behind = inner.trailing_whitespace
    return line.with_changes(leading_lines=above, trailing_whitespace=behind)
