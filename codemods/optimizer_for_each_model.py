"""See :class:`OptimizerForEachModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix import wording
from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.liveness import locals_of
from gradfix.rewrite.replaced import prepared, reads_whole, replacing
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    dotted,
    lifted,
    line_of,
    put_after,
    take_all_away,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Optimizer

_COPIES = ("deepcopy", "load")  # calls that give what was trained before
ANEW = Effect(
    "adds-gradient", "each model is trained by an optimizer of its own, which begins afresh with it"
)


class OptimizerForEachModel(Codemod):
    """Make the optimizer anew behind each model that is made.

    Why: an optimizer holds the tensors that it was given. Where a loop makes a model for each fold or each seed, an
    optimizer that was made before the loop goes on with the first one's tensors; the others keep their first values.
    The optimizer belongs behind the statement that makes the model, and so does its scheduler.

    When not: where the other model is a copy with better values that the training goes on from; then its values are
    loaded into the one that the optimizer holds.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.1)  # conflict: stray-optimizer
for fold in torch.randn(2, 4, 8, 3):
    model = torch.nn.Linear(3, 1)
    for x in fold:
        loss = (model(x) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            """\
import torch

model = torch.nn.Linear(3, 1)
for fold in torch.randn(2, 4, 8, 3):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)  # conflict: stray-optimizer
    for x in fold:
        loss = (model(x) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "unregistered":
            return
        label = conflict.label("made")
        held = (o for o in project.graph.optimizers.values() if label is not None and o.stack == label.stack)
        made = next(held, None)
        place = project.node(made.stack[-1]) if made is not None and made.stack else None
        block = block_of(*place) if place is not None else None
        index = unit_in(place[0], block, place[1]) if place is not None and block is not None else None
        if made is None or place is None or block is None or index is None:
            return
        view, body = place[0], units(block)
        chain, first_use = prepared(body, index)
        moved = [body[n] for n in chain]
        for statement in _models(view, body[index], made, conflict):
            within = block_of(view, statement)
            at = unit_in(view, within, statement) if within is not None else None
            if within is None or at is None:
                continue
            said = f"make {_bound(moved)} anew behind each `{view.code(statement.targets[0].target).strip()}`"
            rank = int(conflict.pattern == "replaced-later" and _copies(statement.value))
            loop = view.loop(statement)
            behind, unread = units(within)[at], not _read_before(units(within)[:at], moved)
            if (
                loop is not None
                and within is loop.body
                and unread
                and unit_in(view, block, loop) == first_use
            ):
                edits = take_all_away(moved, view)
                edits.append(put_after(behind, *(lifted(u) for u in moved)))
                yield Proposal(said, ANEW, {view.path: tuple(edits)}, rank)
            elif _means_the_same(view, moved, statement):
                anew = put_after(behind, *(line_of(u.node) for u in moved))
                yield Proposal(said, ANEW, {view.path: (anew,)}, rank)


def _models(view: View, made: Unit, optimizer: Optimizer, conflict: Conflict) -> Iterator[cst.Assign]:
    """The statements that make another model, under the name by which the optimizer was given the first."""
    called = {conflict.ref.name if conflict.ref is not None else "", *(r.name for r in optimizer.refs)}
    seen: set[cst.Assign] = set()
    for name in sorted(called - {""}):
        for statement, behind in replacing(view, name):
            target = dotted(statement.targets[0].target)
            if (
                not behind
                or not reads_whole(made.node, target or "")
                or statement in seen
                or not isinstance(statement.value, cst.Call)
            ):
                continue
            seen.add(statement)
            early = view.span(statement).start.line < view.span(made.node).start.line
            if not early or view.function(statement) is not view.function(made.node):
                yield statement


def _copies(value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and function_of(value) in _COPIES


def _read_before(before: Sequence[Unit], moved: Sequence[Unit]) -> bool:
    bound = {w for u in moved for w in u.writes}
    return any(touches(u.reads, bound) for u in before)


def _means_the_same(view: View, moved: Sequence[Unit], statement: cst.Assign) -> bool:
    """Whether what is `moved` says the same where the statement stands: in the same function, or in another method,
    where it speaks of the object alone."""
    here, there = view.function(moved[0].node), view.function(statement)
    if here is there:
        return True
    home = view.enclosing(moved[0].node, cst.ClassDef)
    if home is None or home is not view.enclosing(statement, cst.ClassDef):
        return False
    if not isinstance(here, cst.FunctionDef) or not all(
        w.startswith("self.") for u in moved for w in u.writes
    ):
        return False
    return not {r.partition(".")[0] for u in moved for r in u.reads} & (locals_of(here) - {"self"})


def _bound(moved: Sequence[Unit]) -> str:
    return wording.listed([f"`{w}`" for u in moved for w in sorted(u.names.binds)])
