"""Empty a list of graphs after the step that used them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.freed import alone_in_loss
from gradfix.edit import Project, View
from gradfix.rewrite.boundary import frame, gather, meeting
from gradfix.rewrite.carried import carried, cleared_names, entries
from gradfix.rewrite.drawn import views
from gradfix.rewrite.emptied import last_reader, read_elsewhere
from gradfix.rewrite.statements import (
    Unit,
    body_of,
    common_block,
    dotted,
    put_after,
    unit_in,
    units,
    walk,
)
from gradfix.rewrite.stored import grows, stored_elements
from gradfix.rewrite.windows import window_ends
from gradfix.tape import Backward, Step
from gradfix.verdict import Effect

STATES = 2  # ways to detach a state that are tried
ROUND = Effect("cut-round", "each update uses what was stored since the last one")


class ClearHistory(Codemod):
    """Clear the lists that hold one update's graphs, after its step.

    Why: a policy's log-probabilities (and the rewards beside them) are collected for one update. A list that
    is never emptied feeds last episode's freed graphs to the next loss, and counts old episodes again.

    When not: in a replay buffer, whose entries are meant to be used again; store them detached instead
    (`detach-carried-state`).
    """

    kinds = ("freed-graph", "stale-saved-tensor")
    effects = ("cut-round",)

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
kept = []
for x in torch.randn(3, 4, 3):
    kept.append(net(x).pow(2).mean())
    optimizer.zero_grad()
    sum(kept).backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
kept = []
for x in torch.randn(3, 4, 3):
    kept.append(net(x).pow(2).mean())
    optimizer.zero_grad()
    sum(kept).backward()  # conflict: freed-graph
    optimizer.step()
    kept.clear()
""",
            effect="cut-round",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        backward = conflict.backward
        if backward is None:
            return
        edges = entries(project, backward)
        held = {
            (dotted(call.func.value) or "").rpartition(".")[2]
            for _, call, _ in stored_elements(project, (e.producer for e in edges))
            if isinstance(call.func, cst.Attribute) and grows(project, call)
        } - {""}
        if not held:
            return
        for view, step in _places(project, backward):
            lists = _read_lists(project, view, step, held)
            if any(read_elsewhere(project, view, step, name) for name in lists):
                continue
            last = last_reader(view, step, lists)
            if lists and last is not None:
                lines = [cst.parse_statement(f"{name}.clear()") for name in lists]
                said = ", ".join(f"`{name}`" for name in lists)
                summary, cleared = f"clear {said} after the step", (view, [put_after(last, *lines)])
                yield Proposal(summary, ROUND, gather(cleared), 1)
                # what made the entries may carry a state on, too
                state = [e for e in edges if not alone_in_loss(project.graph, backward, e.producer.node)]
                found = carried(project, state, backward)
                for more, parts in islice(window_ends(project, found, state, backward), STATES):
                    yield Proposal(f"{summary}, and {more}", ROUND, gather(cleared, *parts), 2)


def _places(project: Project, backward: Backward) -> Iterator[tuple[View, Unit]]:
    """The statement of the step that follows the backward, in the function they share."""
    step = next((e for e in project.tape.events if isinstance(e, Step) and e.time > backward.time), None)
    if step is None:
        step = next((e for e in reversed(project.tape.events) if isinstance(e, Step)), None)
    if step is None:
        return
    depth = meeting(step.stack, backward.stack)
    stepped, needed = frame(project, step.stack, depth), frame(project, backward.stack, depth)
    if stepped is None or needed is None or stepped[0] is not needed[0]:
        return
    view = stepped[0]
    block = common_block(view, stepped[1], needed[1])
    index = unit_in(view, block, stepped[1]) if block else None
    if block is not None and index is not None:
        yield view, units(block)[index]


def _read_lists(project: Project, view: View, step: Unit, held: set[str]) -> list[str]:
    """Lists that the function around the step reads, that are appended to, and that nothing ever empties;
    those that hold graphs among them, else none."""
    appended = {
        (dotted(n.func.value) or "").rpartition(".")[2]
        for v in views(project)
        for n in v.parents
        if isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "append"
    }
    own = {w for u in walk(body_of(view, step.node)) for w in u.writes if "." not in w}
    found: dict[str, None] = {}
    for unit in units(body_of(view, step.node)):
        for name in sorted(unit.reads):
            last = name.rpartition(".")[2]
            known = last in appended and not any(cleared_names(v, name) for v in views(project))
            local = name in own and view.function(step.node) is not None
            if known and not local:
                found[name] = None
    return list(found) if any(n.rpartition(".")[2] in held for n in found) else []
