"""Differentiate several losses over one graph in one backward, or keep the graph for the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.freed import one_update
from gradfix.edit import Edit, Insert, Project, Replace, View, exchange, parenthesized, parse_small
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of, retain
from gradfix.rewrite.loops import bound, in_place_of, repeatable
from gradfix.rewrite.spelling import unused
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
            if one_update(project.graph, earlier, later) and conflict.pattern != "accumulated":
                yield from _added_up(project, *second)
            # (a state that is carried from one update to the next wants its graph cut, not kept for ever)
            elif conflict.pattern != "two-losses" or _between(project, earlier, later, Step):
                return
            if first[1] is second[1] and not stale(project, later)[0] and not _grows(project, conflict):
                keep = gather((first[0], [retain(first[1])]))
                yield Proposal("keep the graph that the losses share", NONE, keep, 3)
            return
        if first[0] is second[0] and not _between(project, earlier, later):
            yield from _summed(first[0], first[1], second[1])
        if not stale(project, later)[0] and not _grows(project, conflict):
            keep = gather((first[0], [retain(first[1])]))
            rank = 3 if not _of_another(project, earlier, later) else 9
            yield Proposal("keep the graph for the second backward", NONE, keep, rank)


def _between(project: Project, earlier: Backward, later: Backward, *kinds: type[Event]) -> bool:
    """Whether gradients are used or cleared between two backwards."""
    return any(
        isinstance(e, kinds or (Step, Zero)) and earlier.time < e.time < later.time
        for e in project.tape.events
    )


def _of_another(project: Project, earlier: Backward, later: Backward) -> bool:
    """Whether the first loss is stepped with before the second, and what they share is a model that this step is not
    for: a gradient would be kept that nobody wants."""
    graph = project.graph
    stepped = {s.optimizer for s in graph.steps if earlier.time < s.time < later.time}
    both = (graph.records[n] for n in graph.walk(earlier) & graph.walk(later) if n in graph.records)
    owners = [graph.reached_optimizers(record.node) for record in both]
    return bool(stepped) and bool(owners) and not any(each & stepped for each in owners)


def _grows(project: Project, conflict: Conflict) -> bool:
    """Whether a backward comes to what was made before its optimizer's previous step, and carried on since: a graph
    that is kept gets longer with every update."""
    graph, later = project.graph, conflict.backward
    if later is None or conflict.pattern == "before-loop":
        return False
    for backward in graph.passes(later):
        step = next((s for s in graph.steps if s.time > backward.time), None)
        times = (s.time for s in graph.steps_of(step.optimizer) if s.time < backward.time) if step else ()
        since = max(times, default=None)
        if since is not None and any(
            n in graph.records and graph.records[n].time < since for n in graph.walk(backward)
        ):
            return True
    return False


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
    return isinstance(unit.node, cst.Expr) and unit.node.value is call and _plain_call(call)


def _plain_call(call: cst.Call) -> bool:
    return all(a.keyword is not None and a.keyword.value == "retain_graph" for a in call.args)


def _plus(node: cst.BaseExpression) -> cst.BaseExpression:
    atoms = (cst.Name, cst.Attribute, cst.Call, cst.Subscript)
    if isinstance(node, atoms) or node.lpar:
        return node.deep_clone()
    if isinstance(node, cst.BinaryOperation) and isinstance(
        node.operator, (cst.Add, cst.Multiply, cst.Divide)
    ):
        return node.deep_clone()
    return parenthesized(node.deep_clone())


def _added_up(project: Project, view: View, call: cst.Call) -> Iterator[Proposal]:
    """The losses that the passes of a loop make themselves, added up, and one backward behind the loop."""
    small = view.small_statement(call)
    if not isinstance(small, cst.Expr) or small.value is not call or not _plain_call(call):
        return
    stepped = [e.stack for e in project.tape.events if isinstance(e, (Step, Zero)) and e.stack]
    inner: set[cst.CSTNode] = {
        n
        for stack in dict.fromkeys(stepped)
        for v, f in project.frames(stack)
        for n in view.ancestors(f)
        if v is view
    }
    for loop in view.ancestors(call):
        if isinstance(loop, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return
        if not isinstance(loop, (cst.For, cst.While)):
            continue
        looked_at = any(GRADIENTS.search(view.code(u.node)) for u in walk(loop.body) if u.node is not small)
        if loop.orelse is not None or loop in inner or looked_at or _returns(loop):
            return
        name = unused(view, "total_loss")
        loss = loss_of(call)
        if isinstance(loss, cst.BinaryOperation):
            loss = _plus(loss.with_changes(lpar=[], rpar=[]))
        edits = (
            Insert(loop, before=(line_of(parse_small(f"{name} = 0")),)),
            exchange(small, parse_small(f"{name} = {name} + {view.code(loss).strip()}")),
            Insert(loop, after=(line_of(parse_small(f"{name}.backward()")),)),
        )
        summary = "add the losses up and run one backward behind the loop"
        yield Proposal(summary, NONE, {view.path: edits}, 1, idea="added up")


def _returns(loop: cst.For | cst.While) -> bool:
    """Whether a pass may leave the function: what stands behind the loop is not run then."""
    return any(isinstance(u.node, cst.Return) for u in walk(loop.body))


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
        edits: tuple[Edit, ...] = (Replace(loop, lambda node: in_place_of(node, line)),)
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
