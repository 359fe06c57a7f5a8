"""Run a module on copies of its parameters, so that what it made can be differentiated behind later steps."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.blocks import of_torch
from gradfix.rewrite.boundary import gather, meeting
from gradfix.rewrite.spelling import unused
from gradfix.rewrite.statements import block_of, dotted, line_of, put_before, unit_in, units
from gradfix.tape import Backward, Mutate, Record


class ForwardOnCopies(Codemod):
    """Run a module on copies of its parameters: an optimizer's steps then leave what its graph has saved as it is.

    Why: truncated backpropagation through time with windows that overlap (`k1 < k2`) hands a gradient on to states
    that were computed before the last steps, so their graphs hold weights that those steps have overwritten. Copies
    (`torch.func.functional_call`) keep the weights that a state was computed with, which is what its gradient is to be
    taken by, and gradients flow through them to the parameters.

    When not: where windows need not overlap, or each may begin with a forward pass of its own: then no copies are
    needed.
    """

    kinds = ("stale-saved-tensor", "silent-overwrite")
    effects = ("none",)

    examples = (
        Example(
            """\
import torch

cell = torch.nn.RNNCell(3, 3)
optimizer = torch.optim.SGD(cell.parameters(), 0.1)
states = [(None, torch.zeros(4, 3))]
for x in torch.randn(4, 4, 3):
    state = states[-1][1].detach().requires_grad_()
    states.append((state, cell(x, state)))
    optimizer.zero_grad()
    (states[-1][1] - 1).pow(2).mean().backward(retain_graph=True)
    if len(states) > 2:
        states[-2][1].backward(state.grad)
    optimizer.step()  # conflict: stale-saved-tensor
""",
            """\
import torch

cell = torch.nn.RNNCell(3, 3)
optimizer = torch.optim.SGD(cell.parameters(), 0.1)
states = [(None, torch.zeros(4, 3))]
for x in torch.randn(4, 4, 3):
    state = states[-1][1].detach().requires_grad_()
    weights = {name: p.clone() for name, p in cell.named_parameters()}
    states.append((state, torch.func.functional_call(cell, weights, (x, state))))
    optimizer.zero_grad()
    (states[-1][1] - 1).pow(2).mean().backward(retain_graph=True)
    if len(states) > 2:
        states[-2][1].backward(state.grad)
    optimizer.step()  # conflict: stale-saved-tensor
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        backward, write = conflict.backward, conflict.write
        if backward is None or write is None or write.optimizer is None or conflict.record is None:
            return
        graph = project.graph
        made = [graph.records[r].time for r in backward.roots if r in graph.records]
        again = graph.made_between(conflict.record.stack, write.time, backward.time)
        if not made or max(made) > write.time or not again:
            return  # (of this pass, or of a graph that has grown since: nothing but old graphs is kept for later)
        calls: dict[int, tuple[View, cst.Call]] = {}
        for record in _stale(project, backward):
            place = _module_call(project, record, backward)
            if place is None:
                return
            calls[id(place[1])] = place
        parts = [(view, _on_copies(view, call)) for view, call in calls.values()]
        if parts and all(edits for _, edits in parts):
            said = ", ".join(f"`{view.code(call.func)}`" for view, call in calls.values())
            yield Proposal(f"run {said} on copies of the parameters", NONE, gather(*parts))


def _stale(project: Project, backward: Backward) -> Iterator[Record]:
    """The nodes walked whose saved tensors an optimizer has stepped since."""
    graph = project.graph
    for node in graph.walk(backward):
        record = graph.records.get(node)
        writes = (w for ref in record.saves for w in graph.writes.get(ref.storage, ())) if record else ()
        if record is not None and any(
            isinstance(w, Mutate) and w.optimizer is not None and record.time < w.time < backward.time
            for w in writes
        ):
            yield record


def _module_call(project: Project, record: Record, backward: Backward) -> tuple[View, cst.Call] | None:
    """The outermost call of a module that made the node, behind what it shares with the backward."""
    stack = record.stack
    for n in range(max(meeting(stack, backward.stack), 0), len(stack)):
        found = project.node(stack[n])
        node = found[1].value if found is not None and isinstance(found[1], cst.Expr) else found and found[1]
        inner = n + 1 == len(stack) or stack[n + 1].function.endswith(".forward")
        if found is not None and isinstance(node, cst.Call) and inner and dotted(node.func):
            return found[0], node
    return None


def _on_copies(view: View, call: cst.Call) -> list[Edit]:
    """``functional_call`` in the place of the call, and its parameters' copies before its statement."""
    block, small = block_of(view, call), view.small_statement(call)
    index = unit_in(view, block, call) if block is not None else None
    if block is None or index is None or units(block)[index].node is not small:
        return []
    if any(isinstance(x, (cst.BaseComp, cst.Lambda)) for x in view.ancestors(call)):
        return []
    name, module = unused(view, "weights"), view.code(call.func)
    copies = cst.parse_statement(f"{name} = {{name: p.clone() for name, p in {module}.named_parameters()}}")
    assert isinstance(copies, cst.SimpleStatementLine)
    called = of_torch(view, "func.functional_call")

    def build(node: cst.CSTNode) -> cst.CSTNode:
        assert isinstance(node, cst.Call)
        given = cst.Module([]).code_for_node
        args = [a.star + given(a.value) for a in node.args if a.keyword is None and a.star != "**"]
        words = [a for a in node.args if a.keyword is not None or a.star == "**"]
        both = [module, name, f"({', '.join(args)}{',' * (len(args) == 1)})"]
        if words:
            pairs = (
                f"**{given(a.value)}" if a.keyword is None else f'"{a.keyword.value}": {given(a.value)}'
                for a in words
            )
            both.append(f"{{{', '.join(pairs)}}}")
        return cst.parse_expression(f"{given(called.expression)}({', '.join(both)})")

    return [put_before(units(block)[index], line_of(copies.body[0])), Replace(call, build), *called.edits]
