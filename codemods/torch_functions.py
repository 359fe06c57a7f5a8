"""See :class:`TorchFunctions`."""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.computed import Computed
from gradfix.rewrite.dropped import asked_of_loss
from gradfix.rewrite.peeling import layer_in, outermost
from gradfix.tape import Cut
from gradfix.verdict import GAINS, TERM

LOST = frozenset(("no-graph", "dead-parameter", "rewrapped"))  # what is said of a loss without any graph


class TorchFunctions(Codemod):
    """Compute a term of the loss, or all of it, with torch's functions, not NumPy's.

    Why: autograd sees nothing of what NumPy or Python computes. A term of the loss that is made there, of an array or
    of numbers that were read of a tensor, is a constant: the loss shows it, and nothing is trained by it. A whole loss
    of that kind, made a tensor that requires a gradient, differentiates and trains nothing.

    When not: where the number is meant as one: a weight, a target, a baseline, what is shown.
    """

    kinds = ("cut-graph",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import numpy as np
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(4, 5, 3):
    y = net(x)
    loss = (y - 1).pow(2).mean() + 0.1 * np.mean(np.abs(y.detach().numpy()))  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import numpy as np
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(4, 5, 3):
    y = net(x)
    loss = (y - 1).pow(2).mean() + 0.1 * torch.mean(torch.abs(y))  # conflict: cut-graph
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        cut, used = conflict.event, conflict.label("used")
        if isinstance(cut, Cut) and conflict.pattern in LOST and conflict.severity != "note":
            yield from _of_the_loss(cut, conflict, project)
        if (
            not isinstance(cut, Cut)
            or used is None
            or conflict.pattern not in ("computed-term", "constant-term")
        ):
            return
        found = project.node(cut.stack[-1])
        layer = layer_in(*found) if found is not None else None
        if found is None or layer is None:
            return
        way = Computed(project, cut.stack, used.stack, conflict.backward)
        if way.value(found[0], layer) and way.functions:
            yield Proposal("compute this term with torch's functions", TERM, gather(*way.parts))


def _of_the_loss(first: Cut, conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """Nothing of the loss has a graph: whatever was cut off in this pass and comes to it is kept in its own."""
    end = conflict.backward.time if conflict.backward is not None else first.time + 1
    begin = max((s.time for s in project.graph.steps if s.time < first.time), default=-1)
    cuts = [e for e in project.graph.tape.events if isinstance(e, Cut) and begin < e.time < end and e.stack]
    way = Computed(project, first.stack, (), conflict.backward, whole=True)
    seen: set[object] = set()
    for cut in cuts:
        if cut.how == "discrete" or cut.node is None:
            continue
        found = project.node(cut.stack[-1]) if cut.stack[-1] not in seen else None
        seen.add(cut.stack[-1])
        layer = layer_in(*found) if found is not None else None
        top = outermost(found[0], layer) if found is not None and layer is not None else None
        if found is None or top is None or top in seen or not project.graph.reach_mask(cut.node):
            continue
        seen.add(top)
        way.too(found[0], top, cut.stack)
    if parts := way.parts:
        parts += asked_of_loss(conflict.backward, project)
        said = "compute the loss with torch's functions" if way.functions else "keep every value of the loss"
        yield Proposal(f"{said}, graphs and all", GAINS, gather(*parts))
