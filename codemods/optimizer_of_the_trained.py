"""See :class:`OptimizerOfTheTrained`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.parameters import given_values
from gradfix.detect.stray import nobodys
from gradfix.edit import Project, View, exchange
from gradfix.rewrite.replaced import last_of
from gradfix.rewrite.spelling import descendants, function_of
from gradfix.rewrite.statements import dotted
from gradfix.tape import Optimizer, Ref

HELD = Effect(
    "adds-gradient", "the optimizer trains what the loss gives a gradient; all others are as before"
)
ANOTHER = Effect(
    "changes-value", "the optimizer trains the model that its loss goes through, and no longer the other"
)

Shapes = Mapping[str, tuple[int, ...]]  # of a model's parameters, by their names in it


class OptimizerOfTheTrained(Codemod):
    """Give the optimizer the parameters of the model that the loss trains.

    Why: the optimizer was handed the copy that targets are computed with. Nothing gives that a gradient, and the model
    that the loss does give one keeps its first values. Or it was handed what another optimizer has (a generator's the
    discriminator), which is stepped twice.

    When not: where the copy is the one that is to be trained; then the graph is cut in the wrong one of the two.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient", "changes-value")
    examples = (
        Example(
            """\
import copy
import torch

critic = torch.nn.Linear(3, 1)
target = copy.deepcopy(critic)
optimizer = torch.optim.SGD(target.parameters(), 0.1)  # conflict: stray-optimizer
for x in torch.randn(3, 4, 3):
    with torch.no_grad():
        aim = 1 + 0.9 * target(x + 1)
    loss = (critic(x) - aim).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import copy
import torch

critic = torch.nn.Linear(3, 1)
target = copy.deepcopy(critic)
optimizer = torch.optim.SGD(critic.parameters(), 0.1)  # conflict: stray-optimizer
for x in torch.randn(3, 4, 3):
    with torch.no_grad():
        aim = 1 + 0.9 * target(x + 1)
    loss = (critic(x) - aim).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        made = conflict.event
        twin = conflict.pattern == "another-models"
        if not (twin or conflict.pattern == "replaced") or not isinstance(made, Optimizer) or not made.stack:
            return
        found = project.node(made.stack[-1])
        given = [m for n in descendants(found[1]) if (m := _of_parameters(n)) is not None] if found else []
        if found is None or len(given) != 1:
            return
        view, model = found[0], given[0]
        trained = {r.name: r.shape for r, _ in nobodys(project.graph).values() if r.name}
        if not (twin or given_values(project.graph, made.optimizer) or _copied(project, last_of(model))):
            return
        for rank, name in enumerate(_beside(made.refs, trained, model, alike=not twin)):
            said = f"give the optimizer the parameters of `{name}`"
            edits = {view.path: (exchange(model, cst.parse_expression(name)),)}
            yield Proposal(said, ANOTHER if twin else HELD, edits, rank)
            if twin:
                return  # (the outermost holds it all)


def _of_parameters(node: cst.CSTNode) -> cst.BaseExpression | None:
    """``model`` of ``model.parameters()``."""
    called = (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and function_of(node) == "parameters"
    )
    return cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value if called else None


def _beside(held: tuple[Ref, ...], trained: Shapes, model: cst.BaseExpression, alike: bool) -> Iterator[str]:
    """What stands beside the `model` that the optimizer holds, and has the same parameters: ``self.critic`` beside
    ``self.target``; or, not `alike`, all that are trained."""
    said, own = dotted(model) or "", last_of(model)
    before = {r.name.split(f"{own}.")[0] for r in held}
    if not said or len(before) != 1:
        return
    (owner,) = before
    shapes = {r.name.removeprefix(f"{owner}{own}."): r.shape for r in held}
    for name, others in _models(trained).items():
        if (others == shapes if alike else len(others) == len(trained)) and name.startswith(owner):
            yield said.removesuffix(own) + name.removeprefix(owner)


def _models(parameters: Shapes) -> dict[str, dict[str, tuple[int, ...]]]:
    """Every model that the names of parameters tell of, with its own; the outer ones first."""
    found: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in parameters.items():
        parts = name.split(".")
        for n in range(1, len(parts)):
            found.setdefault(".".join(parts[:n]), {})[".".join(parts[n:])] = shape
    return found


def _copied(project: Project, name: str) -> bool:
    """Whether what is bound to `name` is a copy somewhere."""
    views: list[View] = [v for path in project.files if (v := project.view(path)) is not None]
    return any(
        isinstance(node, cst.Assign)
        and any(last_of(t.target) == name for t in node.targets)
        and any(
            isinstance(n, cst.Call) and function_of(n) == "deepcopy"
            for n in (node.value, *descendants(node.value))
        )
        for view in views
        for node in view.parents
    )
