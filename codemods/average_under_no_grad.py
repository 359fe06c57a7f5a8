"""See :class:`AverageUnderNoGrad`."""

from __future__ import annotations

from collections.abc import Iterator

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.averages import averages
from gradfix.edit import Project
from gradfix.rewrite.averaged import begun_without, made_without
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import drop_carried_retain
from gradfix.verdict import Effect

DATA = Effect(
    "cut-round",
    "the average is data: no gradient flows through it to what it is made of; its values stay the same",
)


class AverageUnderNoGrad(Codemod):
    """Update an average of parameters under `torch.no_grad()`.

    Why: the weights of a mean teacher, an exponential moving average of the student's, are data to every pass that
    reads them. Made with a graph, they hand each pass the graph of all passes before, which their backwards have freed;
    and detached from the average of before alone, they hand the student a gradient through its own target still.

    When not: where the loss is meant to train the parameters through their average.
    """

    kinds = ("freed-graph",)
    effects = ("cut-round",)
    examples = (
        Example(
            """\
import torch

student = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
teacher = student.weight.detach().clone()

def update():
    global teacher
    teacher = 0.9 * teacher + 0.1 * student.weight

for x in torch.randn(4, 4, 3):
    loss = student(x).pow(2).mean() + (student(x) - x @ teacher.T).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
    update()
""",
            """\
import torch

student = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
teacher = student.weight.detach().clone()

@torch.no_grad()
def update():
    global teacher
    teacher = 0.9 * teacher + 0.1 * student.weight

for x in torch.randn(4, 4, 3):
    loss = student(x).pow(2).mean() + (student(x) - x @ teacher.T).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
    update()
""",
            effect="cut-round",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = averages(project.graph, (conflict,))
        if found is None or conflict.backward is None:
            return
        drop = drop_carried_retain(project, conflict.backward)
        outset = begun_without(project, found)
        for rank, (summary, parts) in enumerate(made_without(project, found, conflict.backward)):
            if outset:
                said = f"{summary}, and begin without a graph"
                yield Proposal(said, DATA, gather(*parts, *outset, *drop), rank, idea="whole")
            # (what the first pass reads keeps its graph where it had one)
            yield Proposal(summary, DATA, gather(*parts, *drop), rank + 3 * bool(outset), idea="updates")
