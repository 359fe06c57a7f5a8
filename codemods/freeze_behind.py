"""See :class:`FreezeBehind`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, meeting
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import (
    Block,
    Unit,
    common_block,
    lifted,
    line_of,
    put_after,
    put_before,
    renamed,
    shown,
    take_away,
    unit_in,
    units,
)
from gradfix.tape import Backward, Frozen, Stack
from gradfix.verdict import GAINS


class FreezeBehind(Codemod):
    """Freeze parameters behind the backward that trains them, or thaw them before their forward.

    Why: `requires_grad = False` keeps what another loss computes out of a network's gradients. Until something sets it
    to True again, it keeps the network's own loss out, too: that has no graph, or fills nothing, and the optimizer
    steps without a gradient.

    When not: where the network is meant to stay as it is from there on; then its optimizer has nothing to step.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

G = torch.nn.Linear(2, 3)
D = torch.nn.Linear(3, 1)
optG = torch.optim.SGD(G.parameters(), 0.1)
optD = torch.optim.SGD(D.parameters(), 0.1)
for z in torch.randn(4, 5, 2):
    optD.zero_grad()
    (D(G(z).detach()) - 1).pow(2).mean().backward()  # conflict: cut-graph
    optD.step()
    D.requires_grad_(False)
    optG.zero_grad()
    D(G(z)).pow(2).mean().backward()
    optG.step()
""",
            """\
import torch

G = torch.nn.Linear(2, 3)
D = torch.nn.Linear(3, 1)
optG = torch.optim.SGD(G.parameters(), 0.1)
optD = torch.optim.SGD(D.parameters(), 0.1)
for z in torch.randn(4, 5, 2):
    D.requires_grad_(True)
    optD.zero_grad()
    (D(G(z).detach()) - 1).pow(2).mean().backward()  # conflict: cut-graph
    optD.step()
    D.requires_grad_(False)
    optG.zero_grad()
    D(G(z)).pow(2).mean().backward()
    optG.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        event, backward = conflict.event, conflict.backward
        if not isinstance(event, Frozen) or backward is None or event.until is not None:
            return
        depth = meeting(event.stack, backward.stack)
        froze, needed = frame(project, event.stack, depth), frame(project, backward.stack, depth)
        if froze is None or needed is None or froze[0] is not needed[0]:
            return
        view = froze[0]
        block = common_block(view, froze[1], needed[1])
        start = unit_in(view, block, froze[1]) if block is not None else None
        end = unit_in(view, block, needed[1]) if block is not None else None
        if block is None or start is None or end is None or start == end:
            return
        here = Here(project, view, block, depth)
        ran = {here.unit(b.stack) for b in project.graph.backwards if b.time < backward.time}
        if start in ran:
            return  # the statement does more than to freeze
        body = units(block)
        between = [n for n in ran if n is not None and start < n < end]
        others = start > end or bool(between)
        thawing = _thawing(body[start])
        uses = [n for n in here.uses(event, backward) if (start if start < end else -1) < n <= end]
        if thawing is not None and (uses or others):
            at = min(uses, default=end)
            if between and not uses:  # behind the pass that it was frozen for
                at = max(between) + 1
                while at < end and _calls(body[at], "step"):
                    at += 1
            while at > 0 and at - 1 != start and _calls(body[at - 1], "zero_grad"):
                at -= 1
            summary = f"before the forward: `{' '.join(view.code(thawing).split())}`"
            thaw = put_before(body[at], _line(thawing))
            yield Proposal(summary, GAINS, {view.path: (thaw,)}, 0 if others else 1)
        if start < end:
            edits = (*take_away(body[start], view), put_after(body[end], lifted(body[start])))
            summary = f"`{shown(view, body[start].node)}` behind `{shown(view, body[end].node)}`"
            yield Proposal(summary, GAINS, {view.path: edits}, 2 if others else 0)


@dataclass(frozen=True, slots=True)
class Here:
    """A body of `view` that frames at `depth` stand in."""

    project: Project
    view: View
    block: Block
    depth: int

    def unit(self, stack: Stack) -> int | None:
        """The number of the unit that what happened at `stack` runs in."""
        place = frame(self.project, stack, self.depth)
        return unit_in(self.view, self.block, place[1]) if place and place[0] is self.view else None

    def uses(self, event: Frozen, backward: Backward) -> set[int]:
        """The units that compute with what was frozen, in the last pass of `backward` that had a graph."""
        graph, frozen = self.project.graph, {~r.storage for r in event.refs}
        nodes = (graph.previous(backward) or backward).nodes
        records = filter(None, map(graph.records.get, nodes))
        found = {self.unit(r.stack) for r in records if not frozen.isdisjoint(r.parents)}
        return {n for n in found if n is not None}


def _calls(unit: Unit, method: str) -> bool:
    call = unit.node.value if isinstance(unit.node, cst.Expr) else None
    return isinstance(call, cst.Call) and function_of(call) == method


def _thawing(unit: Unit) -> cst.CSTNode | None:
    """The statement with True where it says False, once."""
    every = (unit.node, *descendants(unit.node))
    false = [n for n in every if isinstance(n, cst.Name) and n.value == "False"]
    thawing = renamed(unit.node, {false[0]: "True"}) if len(false) == 1 else None
    return cast(cst.CSTNode, thawing.visit(_Uncommented())) if thawing is not None else None


class _Uncommented(cst.CSTTransformer):
    """What is said of the freezing is not said of its end."""

    def leave_TrailingWhitespace(
        self, original_node: cst.TrailingWhitespace, updated_node: cst.TrailingWhitespace
    ) -> cst.TrailingWhitespace:
        return cst.TrailingWhitespace(newline=updated_node.newline)

    def leave_EmptyLine(
        self, original_node: cst.EmptyLine, updated_node: cst.EmptyLine
    ) -> cst.RemovalSentinel:
        return cst.RemoveFromParent()


def _line(node: cst.CSTNode) -> cst.BaseStatement:
    return cast(cst.BaseStatement, node) if isinstance(node, cst.BaseCompoundStatement) else line_of(node)
