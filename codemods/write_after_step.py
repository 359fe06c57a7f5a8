"""See :class:`WriteAfterStep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.graph import plain_op
from gradfix.rewrite.behind import DRIVES, calls, harmless
from gradfix.rewrite.liveness import binds
from gradfix.rewrite.statements import (
    Unit,
    common_block,
    dotted,
    lifted,
    names,
    put_after,
    put_before,
    stored,
    take_away,
    touches,
    unit_in,
    units,
)
from gradfix.rewrite.tensors import is_leaf
from gradfix.tape import Mutate, Record, Site, Stack, Step
from gradfix.wording import briefly

GIVEN = ("copy", "set")  # ops that ask nothing of what a tensor holds
TRAINS = (*DRIVES, "step", "clip_grad_norm_", "clip_grad_value_", "unscale_", "update")


class WriteAfterStep(Codemod):
    """Move a write into a model's own weights from between forward and backward to after the optimizer's
    step.

    Why: clipping weights, blending them with an average or renormalising them changes parameters that the
    forward pass has saved. Behind `.data` nobody notices, and the backward mixes the activations of the old
    weights with the new ones; under `no_grad` PyTorch refuses. After `optimizer.step()` the same write harms
    nothing.

    When not: where the write is part of what is computed (then it belongs out of place into the forward
    pass).
    """

    kinds = ("silent-overwrite", "stale-saved-tensor", "leaf-write")
    effects = ("moved-write",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(2, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.5)
for _ in range(3):
    loss = w.pow(2).sum()
    w.data.clamp_(-0.4, 0.4)  # conflict: silent-overwrite
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
            """\
import torch

w = torch.ones(2, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.5)
for _ in range(3):
    loss = w.pow(2).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    w.data.clamp_(-0.4, 0.4)  # conflict: silent-overwrite
""",
            "moved-write",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write, backward, record = conflict.write, conflict.backward, conflict.record
        if write is None or backward is None or write.optimizer is not None:
            return
        if write.how == "module" or not is_leaf(project, write.ref.storage):
            return
        found = _parting(project, write.stack, backward.stack)
        if found is None:
            return
        view, writing, needing, depth = found
        step = _step(conflict, project)
        # (a step that is the caller's comes later all the same)
        if step is not None and _restores(project, write):
            step = None
        goals = (_frame(view, step.stack, depth) if step is not None else None, needing)
        ways = ((goal, _moved(view, writing, goal, after=True)) for goal in goals if goal is not None)
        goal, edits = next((way for way in ways if way[1]), (needing, ()))
        if edits:
            words = f"after `{_code(view, goal)}`"
            effect = Effect("moved-write", f"the write comes {words}")
            yield Proposal(f"move the write {words}", effect, {view.path: edits})
        first = _first_read(project, conflict) or record
        parted = _parting(project, write.stack, first.stack) if first is not None else None
        if parted is not None:
            view, writing, saving, _ = parted
            words = f"before `{_code(view, saving)}`"
            if edits := _moved(view, writing, saving, after=False):
                effect = Effect("moved-write", f"the write comes {words}")
                yield Proposal(f"move the write {words}", effect, {view.path: edits}, 1)


def _parting(project: Project, one: Stack, other: Stack) -> tuple[View, cst.CSTNode, cst.CSTNode, int] | None:
    """Where two stacks part: the nodes of the first frames that differ, in the same file, and their depth."""
    for depth, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            first, second = project.node(a), project.node(b)
            if first is None or second is None or first[0] is not second[0]:
                return None
            return first[0], first[1], second[1], depth
    return None


def _restores(project: Project, write: Mutate) -> bool:
    """Whether the write gives the weights other values altogether (those of before, as a rule), and none that are made
    of what they hold: behind a step it would undo that."""
    found = project.node(write.stack[-1]) if write.stack and plain_op(write) in GIVEN else None
    small = found[0].small_statement(found[1]) if found is not None else None
    if isinstance(small, cst.Assign):
        name, given = dotted(small.targets[0].target), [small.value]
    elif isinstance(small, cst.Expr) and isinstance(call := small.value, cst.Call):
        name, given = dotted(call.func), [arg.value for arg in call.args]
    else:
        return False
    written = (name or "").removesuffix(".copy_").removesuffix(".data")
    return bool(written) and not any(touches({written}, names(value).reads) for value in given)


def _step(conflict: Conflict, project: Project) -> Step | None:
    """The first step after the backward that updates what was written."""
    assert conflict.write is not None
    assert conflict.backward is not None
    for event in project.tape.events:
        if not isinstance(event, Step):
            continue
        later = event.time > conflict.backward.time and event.stack
        if later and any(r.storage == conflict.write.ref.storage for r in event.refs):
            return event
    return None


def _first_read(project: Project, conflict: Conflict) -> Record | None:
    """The first op of the pass that takes what was written: before that, all of the pass sees it written."""
    assert conflict.write is not None
    assert conflict.backward is not None
    leaf, since = ~conflict.write.ref.storage, project.graph.pass_begin(conflict.backward)
    reads = (e for e in project.tape.events if isinstance(e, Record) and since < e.time < conflict.write.time)
    return next((e for e in reads if leaf in e.parents), None)


def _frame(view: View, stack: Stack, depth: int) -> cst.CSTNode | None:
    site: Site | None = stack[depth] if depth < len(stack) else None
    return view.at(site) if site is not None and site.file == view.path else None


def _code(view: View, node: cst.CSTNode) -> str:
    return briefly(view.code(view.small_statement(node) or node).rstrip("; "))


def _moved(view: View, writing: cst.CSTNode, goal: cst.CSTNode, after: bool) -> tuple[Edit, ...]:
    """The writing statement taken away and put after (or before) the goal's, where no name it shares with
    what it passes is bound by either."""
    block = common_block(view, writing, goal)
    if block is None:
        return ()
    i, j = unit_in(view, block, writing), unit_in(view, block, goal)
    every = units(block)
    if i is None or j is None or i == j or (i < j) != after:
        return ()
    passed = every[i + 1 : j + 1] if after else every[j:i]
    moved = every[i]
    if after and not all(_unmoved(view, u, every) for u in passed):
        return ()  # a metric, another loss: it sees the written weights
    own = moved.writes - _written_in_place(moved.node)
    for unit in passed:
        if touches(moved.reads, unit.writes & binds(unit.node)) or touches(own, unit.reads | unit.writes):
            return ()
    put = put_after(every[j], lifted(moved)) if after else put_before(every[j], lifted(moved))
    return (*take_away(moved, view), put)


def _unmoved(view: View, passed: Unit, body: Sequence[Unit]) -> bool:
    """Whether a statement does the same whether the weights are written before it or behind it."""
    loop = view.loop(passed.node)
    bound = {w for u in body for w in u.writes if "." not in w}
    bound |= stored(loop.target) if isinstance(loop, cst.For) else set()
    return calls(passed.node, TRAINS) or harmless(passed.node, bound)


def _written_in_place(node: cst.CSTNode) -> frozenset[str]:
    """Names whose tensors the statement only writes into (the loop variable of a write, the weights
    themselves)."""
    bound = binds(node)
    loop = isinstance(node, cst.For)
    return frozenset(n for n in names(node).writes if loop or n not in bound or "." in n)
