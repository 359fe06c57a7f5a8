"""See :class:`InsertZeroGrad`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.calls import step_expression
from gradfix.rewrite.dropped import uncalled
from gradfix.rewrite.liveness import dotted, reads, scope_of, statement_before, target_names
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    bound,
    common_block,
    lifted,
    put_after,
    put_before,
    take_away,
    unit_in,
    units,
)
from gradfix.rewrite.writes import write_of
from gradfix.tape import Backward, Step
from gradfix.wording import briefly

OWN = Effect("cut-own-loss", "each step uses the gradient of its own loss only")
ALONE = Effect("adds-gradient", "every step uses the gradient of its own loss and its own pass only")
CLEARED = Effect("adds-gradient", "every step uses the gradient of its own pass only")
SINCE = Effect("adds-gradient", "every step uses the gradients of the passes since the last one only")


class InsertZeroGrad(Codemod):
    """Clear an optimizer's gradients once for each of its steps, before the backward that the step is for.

    Why: `backward()` adds to `.grad`. Without `optimizer.zero_grad()` every step uses the sum of the
    gradients of all passes so far. It is cleared before the first backward that the step is for, or right
    after the step where several passes are gathered for one. So is the gradient of a tensor that is updated by
    hand (`delta.data += alpha * delta.grad.sign()`), behind the update; and that of a worker's own copy of a model,
    which it hands to the shared one (`theirs._grad = ours.grad`): since PyTorch 2.0 the optimizer's `zero_grad()` lets
    go of the tensor instead of filling it with zeros, and the copy keeps it.

    When not: where the sum over all passes is meant (a hand-written running sum of gradients).
    """

    kinds = ("unreset-grad", "mixed-gradient")
    effects = ("adds-gradient", "cut-own-loss")
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    loss.backward()  # conflict: unreset-grad
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: unreset-grad
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        step = conflict.event
        if conflict.pattern in ("left-over", "attack") and isinstance(step, Step):
            yield from _left_over(conflict, project, step)
        if conflict.pattern == "never-cleared-leaf":
            yield from _by_hand(conflict, project)
            yield from _of_the_model(conflict, project)
        if conflict.pattern != "never-cleared" or not isinstance(step, Step):
            return
        optimizer = step_expression(project, step)
        place = frame(project, step.stack, len(step.stack) - 1)
        block = block_of(place[0], place[1]) if place else None
        index = unit_in(place[0], block, place[1]) if place and block else None
        if optimizer is None or place is None or block is None or index is None:
            return
        view = place[0]
        code = view.code(optimizer)
        if any(True for _ in uncalled(view, "zero_grad", code)):
            return  # (it stands there, without its parentheses)
        summary = f"clear the gradients of `{code}`"
        clear = cst.parse_statement(f"{code}.zero_grad()")
        if (edit := _in_closure(conflict, project, step, clear)) is not None:
            yield Proposal(f"{summary} whenever the closure is called", CLEARED, edit)
        first = _first(conflict, project, step)
        left_out = _left_out(project, first, step) if first is not None else None
        if left_out is not None:
            edits = {left_out[0].path: (put_before(left_out[1], clear),)}
            yield Proposal(f"{summary} before the backward", CLEARED, edits)
            return  # (behind the step, they would be those of what was left out, too)
        own = (
            conflict.backward if conflict.label("other") is not None else None
        )  # what was before it is another's
        at = None
        if first is not None and meeting(first.stack, step.stack) == len(step.stack) - 1:
            made = frame(project, first.stack, len(step.stack) - 1)
            at = unit_in(view, block, made[1]) if made and made[0] is view else None
        if (
            at is not None
            and at < index
            and not isinstance(units(block)[index].node, cst.BaseCompoundStatement)
        ):
            edits = {view.path: (put_before(units(block)[at], clear),)}
            yield Proposal(f"{summary} before the backward", CLEARED, edits, 0 if own is None else 1)
        if own is not None:
            made = frame(project, own.stack, len(step.stack) - 1)
            at = unit_in(view, block, made[1]) if made and made[0] is view else None
            if (
                at is not None
                and at < index
                and not isinstance(units(block)[at].node, cst.BaseCompoundStatement)
            ):
                said = f"{summary} before `{briefly(view.code(units(block)[at].node))}`"
                yield Proposal(said, ALONE, {view.path: (put_before(units(block)[at], clear),)})
        effect = SINCE if _gathered(project, first, step) else CLEARED
        yield Proposal(
            f"{summary} after the step", effect, {view.path: (put_after(units(block)[index], clear),)}, 1
        )


def _gathered(project: Project, first: Backward | None, step: Step) -> bool:
    """Whether some step of the optimizer has had more than one pass of the same backward."""
    graph = project.graph
    return any(
        sum(first is not None and e.stack == first.stack for e in graph.before_step(s)) > 1
        for s in graph.steps_of(step.optimizer)
    )


def _left_out(project: Project, first: Backward, step: Step) -> tuple[View, Unit] | None:
    """The statement with the backward, where what this pass has computed (a loss that is not finite, say) decides if
    the step behind it is taken; None where it does not, or where passes are counted up to the step, whose sum is
    meant (``if i % n == 0``, ``if seen >= batch``)."""
    depth = len(step.stack) - 1
    if meeting(first.stack, step.stack) != depth:
        return None
    made, stepped = frame(project, first.stack, depth), frame(project, step.stack, depth)
    if made is None or stepped is None or made[0] is not stepped[0]:
        return None
    view, block = made[0], common_block(made[0], made[1], stepped[1])
    start = unit_in(view, block, made[1]) if block is not None else None
    end = unit_in(view, block, stepped[1]) if block is not None else None
    if block is None or start is None or end is None:
        return None
    between, computed = units(block)[start : end + 1], set(reads(made[1]))
    for unit in between:
        if isinstance(unit.node, cst.If) and _decides(view, unit.node, stepped[1]):
            return (view, between[0]) if reads(unit.node.test) & computed else None
        for target, value in bound(unit.node):
            computed |= target_names(target) - reads(value)
    return None


def _decides(view: View, decision: cst.If, step: cst.CSTNode) -> bool:
    """Whether `step` stands in the body of `decision`, or behind what ends the pass there."""
    if any(x is decision for x in view.ancestors(step)):
        return block_of(view, step) is decision.body
    last = units(decision.body)[-1].node
    return isinstance(last, cst.Continue | cst.Break | cst.Return | cst.Raise)


def _in_closure(
    conflict: Conflict, project: Project, step: Step, clear: cst.BaseStatement
) -> dict[str, tuple[Edit, ...]] | None:
    """What clears them first in the closure that the step calls for its gradients; None where it calls none."""
    backward = conflict.backward
    if backward is None or backward.stack[: len(step.stack)] != step.stack:
        return None
    found = frame(project, backward.stack, len(step.stack))
    function = found[0].function(found[1]) if found is not None else None
    if found is None or not isinstance(function, cst.FunctionDef):
        return None
    body = units(function.body)
    first = body[1 if function.get_docstring() is not None and len(body) > 1 else 0]
    return {found[0].path: (put_before(first, clear),)}


def _by_hand(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """A tensor that is updated without an optimizer: its gradient is cleared behind the update, or none is left before
    the backward (where it is read in between)."""
    write = write_of(conflict, project)
    block = block_of(write.view, write.node) if write is not None and write.name else None
    index = unit_in(write.view, block, write.node) if write is not None and block is not None else None
    if write is None or block is None or index is None:
        return
    view, name = write.view, write.name
    clear = cst.parse_statement(f"{name}.grad.zero_()")
    said = f"clear the gradient of `{name}` after the update"
    yield Proposal(said, CLEARED, {view.path: (put_after(units(block)[index], clear),)})
    found = (
        project.node(conflict.backward.stack[-1]) if conflict.backward and conflict.backward.stack else None
    )
    if found is None or found[0] is not view or scope_of(view, found[1]) is not scope_of(view, write.node):
        return
    outer = block_of(view, found[1])
    at = unit_in(view, outer, found[1]) if outer is not None else None
    if outer is not None and at is not None and statement_before(view, found[1], name) is not None:
        clear = cst.parse_statement(f"{name}.grad = None")
        said = f"leave no gradient of `{name}` before the backward"
        yield Proposal(said, CLEARED, {view.path: (put_before(units(outer)[at], clear),)}, 1)


def _of_the_model(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """A model that takes another's values (``model.load_state_dict(shared.state_dict())``) and hands that one its
    gradients: they are cleared before the backward. (``zero_grad()`` of the other's optimizer leaves them alone.)"""
    write, backward = conflict.write, conflict.backward
    loading = project.node(write.stack[-1]) if write is not None and write.stack else None
    call = project.node(backward.stack[-1]) if backward is not None and backward.stack else None
    if loading is None or call is None or loading[0] is not call[0]:
        return
    view, statement = loading
    load = statement.value if isinstance(statement, cst.Expr) else statement
    if not isinstance(load, cst.Call) or function_of(load) != "load_state_dict":
        return
    model = dotted(load.func.value) if isinstance(load.func, cst.Attribute) else ""
    block = block_of(view, call[1])
    at = unit_in(view, block, call[1]) if block is not None else None
    if not model or block is None or at is None or scope_of(view, load) is not scope_of(view, call[1]):
        return
    clear = cst.parse_statement(f"{model}.zero_grad()")
    said = f"clear the gradients of `{model}` before the backward"
    yield Proposal(said, CLEARED, {view.path: (put_before(units(block)[at], clear),)})


def _left_over(conflict: Conflict, project: Project, step: Step) -> Iterator[Proposal]:
    """What another loss has left in `.grad` goes before this one's backward: a `zero_grad()` that stands behind the
    step comes too late for it."""
    mixed, own = conflict.earlier, {r.storage for r in step.refs}
    since = (e for e in project.graph.before_step(step) if isinstance(e, Backward))
    meant = [b for b in since if mixed is not None and b.time > mixed.time]
    first = min((b for b in meant if any(r.storage in own for r in b.accumulates)), key=_time, default=None)
    depth = len(step.stack) - 1
    optimizer = step_expression(project, step)
    if first is None or optimizer is None or meeting(first.stack, step.stack) != depth:
        return
    made, stepped = frame(project, first.stack, depth), frame(project, step.stack, depth)
    block = common_block(made[0], made[1], stepped[1]) if made and stepped and made[0] is stepped[0] else None
    if made is None or stepped is None or block is None:
        return
    view, body = made[0], units(block)
    start, end = unit_in(view, block, made[1]), unit_in(view, block, stepped[1])
    if start is None or end is None or isinstance(body[start].node, cst.BaseCompoundStatement):
        return
    code = view.code(optimizer)
    late = next((u for u in body[end + 1 :] if view.code(u.node).startswith(f"{code}.zero_grad(")), None)
    if late is not None:
        edits = (put_before(body[start], lifted(late)), *take_away(late, view))
    else:
        edits = (put_before(body[start], cst.parse_statement(f"{code}.zero_grad()")),)
    said = f"clear the gradients of `{code}` before `{briefly(view.code(body[start].node))}`"
    yield Proposal(said, OWN, {view.path: edits})


def _first(conflict: Conflict, project: Project, step: Step) -> Backward | None:
    """The first backward since the optimizer's last step that fills what it steps."""
    own = {r.storage for r in step.refs}
    found = (e for e in project.graph.before_step(step) if isinstance(e, Backward))
    return next((b for b in found if any(r.storage in own for r in b.accumulates)), conflict.backward)


def _time(event: Backward) -> int:
    return event.time
