"""Run the backwards of a loop over losses first, and step in a loop of its own."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.boundary import OWN, frame, gather, meeting
from gradfix.rewrite.calls import (
    backward_call,
    retain,
    says,
    step_expression,
    with_arguments,
)
from gradfix.rewrite.loops import narrowed, repeatable
from gradfix.rewrite.optimized import parameters_held
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    lifted,
    names,
    put_after,
    take_all_away,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Backward, Step

# calls that look something up, and do nothing else
_LOOKS_UP = frozenset(("getattr", "get", "str", "format", "lower", "upper"))
# what follows a step and goes with it
_DRIVES = frozenset(("step", "zero_grad", "update"))


class StepAfterLoop(Codemod):
    """Run every backward of a loop over losses before the first step: the steps get a loop of their own.

    Why: `for loss, optimizer in zip(losses, optimizers)` steps one model while the next loss, over the same forward
    pass, still has to be differentiated through it. The gradients are those of one forward pass if no parameter
    changes between the backwards; `inputs=` keeps each loss out of what the others train, where they share more than
    they are meant to.

    When not: where one optimizer steps with each loss; then each loss wants a forward pass of its own.
    """

    kinds = ("stale-saved-tensor", "freed-graph", "silent-overwrite")
    effects = ("none", "cut-own-loss")

    examples = (
        Example(
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (D, G)]
for _ in range(2):
    score = D(G(torch.randn(4, 2))).mean()
    for loss, optimizer in zip((score, -score), optimizers):
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()  # conflict: stale-saved-tensor
""",
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (D, G)]
for _ in range(2):
    score = D(G(torch.randn(4, 2))).mean()
    for loss, optimizer in zip((score, -score), optimizers):
        optimizer.zero_grad()
        loss.backward(retain_graph=True, inputs=[p for group in optimizer.param_groups for p in group["params"]])
    for optimizer in optimizers:
        optimizer.step()  # conflict: stale-saved-tensor
""",
            effect="cut-own-loss",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = _between(project, conflict.backward) if conflict.backward is not None else None
        if found is None or conflict.backward is None:
            return
        step, place = found, backward_call(project, conflict.backward)
        edits = _apart(project, conflict.backward, step)
        if place is None or edits is None:
            return
        previous, graph = project.graph.previous(conflict.backward), project.graph
        shared = previous is not None and graph.walk(previous) & graph.walk(conflict.backward)
        keep = retain(place[1]) if shared else None
        yield Proposal("step when every backward has run", NONE, gather(edits, (place[0], [keep])), 1)
        inputs = _inputs(project, step, *place)
        if inputs is not None and not says(place[1], "inputs"):
            put = {"inputs": inputs} if keep is None else {"retain_graph": cst.Name("True"), "inputs": inputs}
            whole = gather(edits, (place[0], [with_arguments(place[1], put)]))
            said = "step when every backward has run, each into the parameters it trains"
            yield Proposal(said, OWN, whole, 2)


def _between(project: Project, backward: Backward) -> Step | None:
    """The step between this backward and its previous execution, where another optimizer's step follows this one:
    each pass of the loop steps with an optimizer of its own."""
    graph = project.graph
    previous = graph.previous(backward)
    if previous is None:
        return None
    between = [s for s in graph.steps if previous.time < s.time < backward.time]
    stepped = {r.storage for s in between for r in s.refs}
    known = (graph.records[n] for n in graph.walk(backward) if n in graph.records)
    old = any(r.time < previous.time and any(s.storage in stepped for s in r.saves) for r in known)
    if not old and not graph.walk(previous) & graph.walk(backward):
        return None
    behind = next((s for s in graph.steps if s.time > backward.time), None)
    if not between or behind is None or behind.stack != between[0].stack:
        return None
    return between[0] if behind.optimizer not in {s.optimizer for s in between} else None


def _apart(project: Project, backward: Backward, step: Step) -> tuple[View, list[Edit]] | None:
    """The step and what goes with it in a loop of its own behind the loop."""
    depth = meeting(backward.stack, step.stack)
    needed, stepped = frame(project, backward.stack, depth), frame(project, step.stack, depth)
    if needed is None or stepped is None or needed[0] is not stepped[0]:
        return None
    view = needed[0]
    loop = view.loop(needed[1])
    if not isinstance(loop, cst.For) or loop.orelse is not None or loop.asynchronous is not None:
        return None
    body = units(loop.body)
    block = block_of(view, loop)
    index = unit_in(view, block, loop) if block is not None else None
    at, end = unit_in(view, loop.body, needed[1]), unit_in(view, loop.body, stepped[1])
    whole = block is not None and index is not None and repeatable(loop.iter)
    if not whole or at is None or end is None or not at < end or block is None or index is None:
        return None
    going = [u for n, u in enumerate(body) if n == end or (n > end and _drives(u))]
    if body[end].node is not view.small_statement(stepped[1]) or any(_leaves(u.node) for u in body):
        return None
    made = _made_again(body[:end], going)
    if made is None:
        return None
    read = frozenset().union(*(u.reads for u in (*made, *going)))
    head = narrowed(loop, read)
    lines = [*(lifted(u) for u in made), *(lifted(u) for u in going)]
    second = head.with_changes(body=loop.body.with_changes(body=lines), leading_lines=())
    edits = take_all_away(going, view)
    return view, [*edits, put_after(units(block)[index], second)]


def _drives(unit: Unit) -> bool:
    call = unit.node.value if isinstance(unit.node, cst.Expr) else None
    func = call.func if isinstance(call, cst.Call) else None
    return isinstance(func, cst.Attribute) and func.attr.value in _DRIVES


def _leaves(node: cst.CSTNode) -> bool:
    return any(isinstance(n, (cst.Break, cst.Continue, cst.Return)) for n in (node, *descendants(node)))


def _made_again(before: tuple[Unit, ...], going: list[Unit]) -> list[Unit] | None:
    """The statements of the pass that name what those in `going` need (``opt = self.opts[name]``); None where one of
    them does more than that."""
    wanted: set[str] = set().union(*(u.reads for u in going))
    found: list[Unit] = []
    for unit in reversed(before):
        if not touches(unit.names.binds, wanted):
            continue
        calls = [n for n in descendants(unit.node) if isinstance(n, cst.Call)]
        if not isinstance(unit.node, cst.Assign) or any(function_of(c) not in _LOOKS_UP for c in calls):
            return None
        found.insert(0, unit)
        wanted |= unit.reads
    return found


def _inputs(project: Project, step: Step, view: View, call: cst.Call) -> cst.BaseExpression | None:
    """The parameters of the optimizer that steps behind this backward, by the name it has in the loop."""
    named, place = step_expression(project, step), project.node(step.stack[-1])
    if named is None or place is None or place[0] is not view:
        return None
    loop = view.loop(call)
    if loop is None or view.loop(place[1]) is not loop:
        return None
    at = unit_in(view, loop.body, call)
    late = frozenset().union(*(u.names.binds for u in units(loop.body)[at or 0 :]))
    return (
        None if touches(names(named).reads, late) else parameters_held(project, step.optimizer, view, named)
    )
