"""See :class:`LoadInPlace`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, View, exchange
from gradfix.rewrite.replaced import replacing
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import dotted

HELD = Effect(
    "adds-gradient", "the optimizer goes on with the model it was given; every other gradient is as before"
)
PLACES = 3  # statements that may have replaced it


class LoadInPlace(Codemod):
    """Load the values into the model that the optimizer holds: `model.load_state_dict(best.state_dict())`.

    Why: `model = best` gives the name to another module. The optimizer goes on with the parameters that it was given,
    which no loss uses any more; those of the other module get gradients and are never updated. Values that are loaded
    go into the parameters themselves, and the optimizer's averages and a scheduler stay with them.

    When not: where the other module is of another shape, or is to stay as it is; or where the training is to start
    afresh: then make the optimizer anew behind it.
    """

    kinds = ("stray-optimizer",)
    effects = ("adds-gradient",)
    examples = (
        Example(
            """\
import copy
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for n, x in enumerate(torch.randn(4, 4, 3)):
    if n == 1:
        best = copy.deepcopy(net)
    elif n == 2:
        net = best
    loss = (net(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stray-optimizer
""",
            """\
import copy
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for n, x in enumerate(torch.randn(4, 4, 3)):
    if n == 1:
        best = copy.deepcopy(net)
    elif n == 2:
        net.load_state_dict(best.state_dict())
    loss = (net(x) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stray-optimizer
""",
            effect="adds-gradient",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        seen: set[cst.Assign] = set()
        for view, statement in _replacing(conflict, project):
            source = _module(view, statement.value)
            target = view.code(statement.targets[0].target).strip()
            if source is None or statement in seen or _is_one(view, source, target, conflict):
                continue
            if len(seen) < PLACES:
                seen.add(statement)
                loaded = cst.parse_statement(f"{target}.load_state_dict({source}.state_dict())")
                assert isinstance(loaded, cst.SimpleStatementLine)
                summary = f"load the values into `{target}`, which the optimizer holds"
                # (in the middle of a training this is the habit; before it begins, the optimizer comes later)
                rank = 0 if conflict.pattern == "replaced-later" else 1
                yield Proposal(summary, HELD, {view.path: (exchange(statement, loaded.body[0]),)}, rank)


def _replacing(conflict: Conflict, project: Project) -> Iterator[tuple[View, cst.Assign]]:
    """The statements that may have given the name of a module that the optimizer holds to another. (The other one may
    be known by its first name: `best`.)"""
    new = conflict.ref.name if conflict.ref is not None else ""
    made = conflict.label("made")
    held = [o for o in project.graph.optimizers.values() if made is not None and o.stack == made.stack]
    within = new.partition(".")[2]
    old = (r.name for o in held for r in o.refs if within and r.name.partition(".")[2] == within)
    for name in dict.fromkeys((new, *old)):
        for path in sorted(project.files):
            view = project.view(path)
            for statement, behind in replacing(view, name) if view is not None and name else ():
                if view is not None and behind:
                    yield view, statement


def _is_one(view: View, source: str, target: str, conflict: Conflict) -> bool:
    """Whether both names may hold the module that the optimizer has (`model = first` before it is made, `first = model`
    at any time): nothing is loaded into itself."""
    made = conflict.label("made")
    for node in view.parents:
        for bound in node.targets if isinstance(node, cst.Assign) else ():
            names = (view.code(bound.target).strip(), view.code(node.value))  # type: ignore[attr-defined]
            early = made is None or made.at.file != view.path or view.span(node).start.line < made.at.line
            if names == (source, target) or (names == (target, source) and early):
                return True
    return False


def _module(view: View, value: cst.BaseExpression) -> str | None:
    """How the module is read whose values are meant: another name's, or a copy's or a file's; not one made anew."""
    if isinstance(value, cst.Subscript) or (dotted(value) or "None") != "None":
        return view.code(value)
    if isinstance(value, cst.Call) and function_of(value) == "deepcopy" and len(value.args) == 1:
        return _module(view, value.args[0].value)
    return view.code(value) if isinstance(value, cst.Call) and dotted(value.func) == "torch.load" else None
