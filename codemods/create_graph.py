"""See :class:`CreateGraph`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.calls import retain, says, with_arguments
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.spelling import descendants, function_of

NUMBERS = frozenset(("sign", "sign_", "detach", "data", "item", "argmax", "numpy", "tolist"))
TWICE = Effect("adds-gradient", "the gradients that are part of the loss are differentiated as well")


class CreateGraph(Codemod):
    """Make gradients that can be differentiated: `autograd.grad(..., create_graph=True)`.

    Why: `autograd.grad` frees the graph it walks and gives plain numbers. A derivative that is differentiated
    again, or that is part of a loss (a differential equation's residual, a gradient penalty), needs a graph of its
    own, and the graph it came from.

    When not: where the gradient is used as a number only (a saliency map, an attack, a first-order inner step): then
    `retain_graph=True` keeps the graph for the loss.
    """

    kinds = ("freed-graph", "cut-graph")
    effects = ("none", "adds-gradient")
    examples = (
        Example(
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.rand(3, 6, 1):
    x.requires_grad_()
    u = net(x)
    slope = torch.autograd.grad(u.sum(), x)[0]
    loss = (slope - u).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.rand(3, 6, 1):
    x.requires_grad_()
    u = net(x)
    slope = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    loss = (slope - u).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "updated-copies":
            return  # nothing leads back through the update, whatever it is made of
        edits: dict[str, tuple[Edit, ...]] = {}
        kept: dict[str, tuple[Edit, ...]] = {}
        lost = conflict.pattern == "plain-gradient"
        for site in project.graph.plain_gradients(conflict.earlier, None if lost else conflict.backward):
            found = project.node(site)
            if found is None:
                return
            view, node = found
            calls = [
                n for n in (node, *descendants(node)) if isinstance(n, cst.Call) and function_of(n) == "grad"
            ]
            if len(calls) != 1:
                return
            edits[view.path] = (*edits.get(view.path, ()), _with_graph(calls[0]))
            keep = retain(calls[0]) if _only_numbers(view, calls[0]) else None
            kept[view.path] = (*kept.get(view.path, ()), *((keep,) if keep else ()))
        count = sum(map(len, edits.values()))
        if count and not lost and sum(map(len, kept.values())) == count:
            yield Proposal(
                "keep the graph: `retain_graph=True`, since the gradient is a number only", NONE, kept
            )
        if count:
            what = "the gradient" if count == 1 else f"{count} gradients"
            yield Proposal(f"make {what} with `create_graph=True`", TWICE, edits, 1)


def _with_graph(call: cst.Call) -> Edit:
    put: dict[str, cst.BaseExpression] = {"create_graph": cst.Name("True")}
    if says(call, "retain_graph") == "False":
        put["retain_graph"] = cst.Name("True")
    return with_arguments(call, put)


def _only_numbers(view: View, call: cst.Call) -> bool:
    """Whether nothing could flow back through the gradient: where it is made, or wherever it is read by its name, only
    its sign or its bare value is used."""
    small = view.small_statement(call)
    above = [n for n in view.ancestors(call) if isinstance(n, cst.Attribute)]
    if any(n.attr.value in NUMBERS for n in above):
        return True
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    target, around = small.targets[0].target, view.function(call) or view.module
    named = [n for n in descendants(around) if isinstance(n, cst.Name) and n.value == dotted(target)]
    reads = [n for n in named if n is not target]
    parents = [view.parents[n] for n in reads]
    return bool(reads) and all(isinstance(p, cst.Attribute) and p.attr.value in NUMBERS for p in parents)
