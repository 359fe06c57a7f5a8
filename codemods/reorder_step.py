"""See :class:`ReorderStep`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, View
from gradfix.rewrite.behind import calls
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.loops import bound
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import (
    block_of,
    common_block,
    dotted,
    lifted,
    names,
    put_after,
    put_before,
    take_away,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward, Stack, Zero

STEPPED = Effect("adds-gradient", "each step uses the gradient of its own loss")


class ReorderStep(Codemod):
    """Put clearing, backward and step in their order.

    Why: a step uses what is in `.grad`. Where `zero_grad()` stands between `backward()` and `step()`, or
    `step()` before `backward()` and behind `zero_grad()`, there is nothing in it, and the training stands
    still without a word. Where several passes are gathered for one step (`if i % n == 0: optimizer.step()`) and each
    clears what the last has computed, the clearing belongs behind the step, or before the loop of the passes; where
    each of several losses has a model of its own and one optimizer has them all, one clearing before the first is
    enough.

    When not: never known to be meant.
    """

    kinds = ("unreset-grad",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    loss.backward()
    optimizer.zero_grad()  # conflict: unreset-grad
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()  # conflict: unreset-grad
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "cleared-between":
            yield from _gathered(conflict, project)
            return
        if conflict.pattern == "cleared-apart":
            yield from _once(conflict, project)
            return
        step, zero, backward = (conflict.label(role) for role in ("step", "zero", "needed"))
        if conflict.pattern != "cleared-before-step" or step is None or zero is None or backward is None:
            return
        first = _first(conflict, project)
        stacks = [first.stack if first else backward.stack, zero.stack, step.stack, backward.stack]
        depth = meeting(*stacks)
        found = [frame(project, stack, depth) for stack in stacks]
        places = [f for f in found if f is not None]
        if len(places) < len(stacks) or any(f[0] is not places[0][0] for f in places):
            return
        view = places[0][0]
        block = common_block(view, *(f[1] for f in places))
        at = [unit_in(view, block, f[1]) for f in places] if block is not None else []
        if block is None or None in at:
            return
        body = units(block)
        begin, cleared, stepped, end = (body[i] for i in at if i is not None)
        order = [i for i in at if i is not None]
        if order[2] < order[3]:  # step before backward
            edits = (*take_away(stepped, view), put_after(end, lifted(stepped)))
            summary = "step when the gradients are there"
        elif order[0] < order[1] < order[2]:
            edits = (*take_away(cleared, view), put_before(begin, lifted(cleared)))
            summary = "clear the gradients before they are computed"
        elif order[1] == order[2] and (late := _behind(project, view, zero.stack, step.stack)) is not None:
            edits, summary = late, "clear the gradients after the step that uses them"
        else:
            return
        yield Proposal(summary, STEPPED, {view.path: edits})


def _gathered(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """Where every pass clears and only each n-th steps (`if i % n == 0:`), gradients are gathered for the step: what
    clears them goes behind it. Where the step stands behind the loop, it goes before that."""
    step, zero, backward = (conflict.label(role) for role in ("step", "zero", "needed"))
    stacks = [x.stack for x in (zero, backward, step) if x is not None]
    depth = meeting(*stacks) if len(stacks) == 3 else -1
    found = [f for s in stacks if (f := frame(project, s, depth)) is not None]
    if len(found) < 3 or any(f[0] is not found[0][0] for f in found):
        return
    view, (clearing, needing, stepping) = found[0][0], [f[1] for f in found]
    block = common_block(view, clearing, needing, stepping)
    at = [unit_in(view, block, n) for n in (clearing, needing, stepping)] if block is not None else []
    own = block_of(view, stepping)
    last = unit_in(view, own, stepping) if own is not None else None
    if block is None or own is None or last is None or None in at:
        return
    words = Effect("adds-gradient", "each step uses the gradients of all the passes since the last")
    cleared, needed, branch = (units(block)[i] for i in at if i is not None)
    if cleared.node is needed.node is not branch.node:
        edits = _before_the_loop(view, needed.node, clearing, needing)
        if edits is not None:
            yield Proposal("gather the gradients: clear them before the loop", words, {view.path: edits})
        return
    test = branch.node.test if isinstance(branch.node, cst.If) else None
    if test is None or own is not branch.node.body or not _counts(view, test, block):  # type: ignore[union-attr]
        return
    while last + 1 < len(units(own)) and calls(units(own)[last + 1].node, ("update", "step")):
        last += 1  # (the scaler's, the scheduler's)
    edits = (*take_away(cleared, view), put_after(units(own)[last], lifted(cleared)))
    yield Proposal("gather the gradients: clear them after the step", words, {view.path: edits})


def _before_the_loop(
    view: View, loop: cst.CSTNode, clearing: cst.CSTNode, needing: cst.CSTNode
) -> tuple[Edit, ...] | None:
    """What clears in every pass, before the loop. Each loss is a part of the whole (`loss / n`): otherwise it may be
    the step that belongs into the loop."""
    own = block_of(view, clearing)
    if not isinstance(loop, cst.For | cst.While) or own is not loop.body or view.loop(needing) is not loop:
        return None
    at = unit_in(view, own, clearing)
    if at is None or not calls(units(own)[at].node, ("zero_grad",)) or not _divided(view, loop, needing):
        return None
    cleared = units(own)[at]
    if touches(cleared.reads, {w for u in walk(loop.body) for w in u.writes} | _bound_by(loop)):
        return None
    return (*take_away(cleared, view), Insert(loop, before=(lifted(cleared),)))


def _bound_by(loop: cst.For | cst.While) -> set[str]:
    """The names that the head of a loop binds."""
    return bound(loop.target) if isinstance(loop, cst.For) else set()


def _divided(view: View, loop: cst.For | cst.While, needing: cst.CSTNode) -> bool:
    """Whether the loss that a pass differentiates was divided by what is the same in all passes."""
    body = [u for u in walk(loop.body) if not isinstance(u.node, cst.BaseCompoundStatement)]
    small = view.small_statement(needing)
    read, made = names(small or needing).reads, {w for u in body for w in u.names.binds} | _bound_by(loop)
    divisors: list[cst.BaseExpression] = []
    for node in (needing, *(u.node for u in body if touches(u.names.binds, read))):
        for inner in (node, *descendants(node)):
            if isinstance(inner, cst.BinaryOperation) and isinstance(inner.operator, cst.Divide):
                divisors.append(inner.right)
            elif isinstance(inner, cst.AugAssign) and isinstance(inner.operator, cst.DivideAssign):
                divisors.append(inner.value)
    return any(not touches(names(d).reads, made) for d in divisors)


def _once(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """Where several losses are for one step and each is preceded by a clearing, the first clearing is enough."""
    step, zero, backward = (conflict.label(role) for role in ("step", "zero", "needed"))
    stacks = [x.stack for x in (zero, backward, step) if x is not None]
    depth = meeting(*stacks) if len(stacks) == 3 else -1
    found = [f for s in stacks if (f := frame(project, s, depth)) is not None]
    if len(found) < 3 or any(f[0] is not found[0][0] for f in found):
        return
    view, nodes = found[0][0], [f[1] for f in found]
    block = common_block(view, *nodes)
    at = [unit_in(view, block, n) for n in nodes] if block is not None else []
    if block is None or None in at:
        return
    cleared, needed, stepped = (i for i in at if i is not None)
    clearing = units(block)[cleared]
    if not needed < cleared < stepped or not calls(clearing.node, ("zero_grad",)):
        return
    words = Effect("adds-gradient", "each step uses the gradients of all the losses before it")
    yield Proposal(
        "clear the gradients once for all the losses",
        words,
        {view.path: take_away(clearing, view, comments=True)},
    )


def _counts(view: View, test: cst.BaseExpression, block: cst.CSTNode) -> bool:
    """Whether a test comes true every so many passes: it, or what its name is bound to, has a ``%``; or it compares
    what is counted up in each pass, and set back where the test is true."""
    read = names(test).reads
    bound = (u.node for u in units(block) if isinstance(u.node, cst.Assign) and u.writes & read)
    if any(isinstance(x, cst.Modulo) for n in (test, *bound) for x in descendants(n)):
        return True
    branch = view.parents[test]
    counted = dotted(test.left) if isinstance(test, cst.Comparison) else None
    if not counted or not isinstance(branch, cst.If):
        return False
    adds = (u.node for u in units(block) if isinstance(u.node, cst.AugAssign))
    sets = (u.node for u in units(branch.body) if isinstance(u.node, cst.Assign))
    up = any(dotted(n.target) == counted and isinstance(n.operator, cst.AddAssign) for n in adds)
    return up and any(
        dotted(n.targets[0].target) == counted and isinstance(n.value, cst.Integer) for n in sets
    )


def _behind(project: Project, view: View, zero: Stack, step: Stack) -> tuple[Edit, ...] | None:
    """Where several passes are gathered for one step, what clears them goes behind it, in the block of both."""
    depth = meeting(zero, step)
    clearing, stepping = frame(project, zero, depth), frame(project, step, depth)
    if clearing is None or stepping is None or clearing[0] is not view or stepping[0] is not view:
        return None
    block = common_block(view, clearing[1], stepping[1])
    if block is None:
        return None
    first, last = unit_in(view, block, clearing[1]), unit_in(view, block, stepping[1])
    if first is None or last is None or not first < last:
        return None
    cleared, stepped = units(block)[first], units(block)[last]
    return (*take_away(cleared, view), put_after(stepped, lifted(cleared)))


def _first(conflict: Conflict, project: Project) -> Backward | None:
    """The first of the backwards whose gradients are cleared together."""
    zero = conflict.event
    if not isinstance(zero, Zero) or conflict.backward is None:
        return conflict.backward
    own = {r.storage for r in zero.refs}
    since: list[Backward] = []
    for event in project.graph.tape.events:
        if event.time >= zero.time:
            break
        if isinstance(event, Zero) and {r.storage for r in event.refs} & own:
            since.clear()
        elif isinstance(event, Backward) and {r.storage for r in event.accumulates} & own:
            since.append(event)
    return since[0] if since else conflict.backward
