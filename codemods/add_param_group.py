"""Give the optimizer the layer that was put in place of another."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, View
from gradfix.rewrite.calls import step_expression
from gradfix.rewrite.replaced import given_whole, replacing
from gradfix.rewrite.statements import block_of, dotted, every_parameter, put_after, unit_in, units, walk
from gradfix.tape import Optimizer, Step

HELD = Effect(
    "adds-gradient", "the optimizer trains the new parameters, too; every other gradient is as before"
)
PLACES = 3  # statements that may have replaced it


class AddParamGroup(Codemod):
    """Give the optimizer a layer that was replaced after it was made: `optimizer.add_param_group(…)`.

    Why: an optimizer holds the tensors that it was given. A head that is put in place of another between two phases of
    a training gets gradients and stays as it was made, without a word. The group is stepped with the optimizer's own
    settings; what is known of the other parameters (momentum, Adam's averages) is kept.

    When not: where the new layer is to stay as it is (then freeze it). Where every phase is to start afresh, make the
    optimizer anew instead.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for n, x in enumerate(torch.randn(4, 4, 3)):
    if n == 1:
        net[1] = torch.nn.Linear(3, 2)
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stray-optimizer
""",
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for n, x in enumerate(torch.randn(4, 4, 3)):
    if n == 1:
        net[1] = torch.nn.Linear(3, 2)
        optimizer.add_param_group({"params": net[1].parameters()})
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stray-optimizer
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        step, early = conflict.event, conflict.pattern == "replaced"
        if isinstance(step, Optimizer):
            step = next(iter(project.graph.steps_of(step.optimizer)), None)
        if (
            not (early or conflict.pattern == "replaced-later")
            or not isinstance(step, Step)
            or conflict.ref is None
        ):
            return
        named, place = step_expression(project, step), project.node(step.stack[-1]) if step.stack else None
        if named is None or place is None:
            return
        stepped, code = place[0], place[0].code(named)
        found = 0
        for path in sorted(project.files):
            view = project.view(path)
            for statement, given in _replacing(view, conflict.ref.name) if view is not None else ():
                assert view is not None
                if given_whole(project, conflict, dotted(statement.targets[0].target) or ""):
                    continue
                block = block_of(view, statement)
                index = unit_in(view, block, statement) if block is not None else None
                if (
                    block is None
                    or index is None
                    or not _means_the_same(code, stepped, place[1], view, statement)
                ):
                    continue
                added = cst.parse_statement(f'{code}.add_param_group({{"params": {given}}})')
                edits = {path: (put_after(units(block)[index], added),)}
                alone = given.startswith("[")  # (a parameter is better written in place)
                summary = f"give `{code}` the parameters of `{_target(view, statement)}`"
                # (before its first step the optimizer is better made later, where it can be)
                yield Proposal(summary, HELD, edits, found + alone + (2 * PLACES if early else 0))
                found += 1
                if found == PLACES:
                    return


def _replacing(view: View, name: str) -> Iterator[tuple[cst.Assign, str]]:
    """The statements that may have replaced the parameter `name` or a module within a model, and how the new
    parameters are read behind them. (Where the whole model is another one, the optimizer has nothing to keep.)"""
    for node, behind in replacing(view, name):
        target = node.targets[0].target
        if not isinstance(target, cst.Name):
            code = view.code(target).strip()
            yield node, f"{code}.parameters()" if behind else f"[{code}]"


def _target(view: View, statement: cst.Assign) -> str:
    return " ".join(view.code(statement.targets[0].target).split())


def _means_the_same(code: str, view: View, step: cst.CSTNode, other: View, statement: cst.Assign) -> bool:
    """Whether the optimizer has the name of its step where the statement stands: in the same function, on the same
    object, or at the top of the same file."""
    if view is not other:
        return False
    there, here = view.function(step), view.function(statement)
    if there is here:
        return True
    if code.startswith("self."):
        return view.enclosing(step, cst.ClassDef) is view.enclosing(statement, cst.ClassDef) is not None
    return not any(isinstance(f, cst.FunctionDef) and _binds(f, code.split(".")[0]) for f in (there, here))


def _binds(function: cst.FunctionDef, name: str) -> bool:
    """Whether the name is the function's own: one of its parameters, or bound in its body."""
    own = {p.name.value for p in every_parameter(function)}
    return name in own or any(name in u.writes for u in walk(function.body))
