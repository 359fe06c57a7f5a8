"""See :class:`LoadInPlace`."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View, exchange
from gradfix.rewrite.blocks import copy, method, neighbours, of_torch, under
from gradfix.rewrite.replaced import replacing
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import block_of, dotted, units
from gradfix.tape import Ref

HELD = Effect(
    "adds-gradient", "the optimizer goes on with the model it was given; every other gradient is as before"
)
PLACES = 3  # statements that may have replaced it


class LoadInPlace(Codemod):
    """Load the values into the model that the optimizer holds: `model.load_state_dict(best.state_dict())`.

    Why: `model = best` gives the name to another module. The optimizer goes on with the parameters that it was given,
    which no loss uses any more; those of the other module get gradients and are never updated. Values that are loaded
    go into the parameters themselves, and the optimizer's averages and a scheduler stay with them. The same for a
    single parameter that is made anew of the same shape, `layer.gain = nn.Parameter(torch.ones(8))`: the values are
    copied into the one there is, under `no_grad`.

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
        yield from _copied(conflict, project)


def _copied(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """The values of parameters that are made anew, copied into those that the optimizer holds."""
    shaped, seen = _of_one_shape(conflict, project), set[cst.CSTNode]()
    for view, statement in _replacing(conflict, project, False):
        block = block_of(view, statement)
        if statement in seen or block is None or _given(statement, shaped) is None:
            continue
        body, context = units(block), of_torch(view, "no_grad")
        edits, names, lines = list[Edit](context.edits), list[str](), list[int]()
        for n, unit in enumerate(body):
            value = _given(unit.node, shaped)
            alone = sum(u.line is unit.line for u in body) == 1
            if value is None or not isinstance(unit.node, cst.Assign) or not alone:
                continue
            target = unit.node.targets[0].target
            edits.append(exchange(unit.node, cst.Expr(method(copy(target), "copy_", value))))
            names.append(f"`{view.code(target).strip()}`")
            lines.append(n)
        seen |= {body[n].node for n in lines}
        if not lines:
            continue
        for run in neighbours(lines):
            edits += under(view, context.expression, [body[n].line for n in run])
        said = f"copy the values into {', '.join(names)}, which the optimizer holds"
        rank = 0 if conflict.pattern == "replaced-later" else 1
        yield Proposal(said, HELD, {view.path: tuple(edits)}, rank)


def _of_one_shape(conflict: Conflict, project: Project) -> frozenset[str]:
    """The last names of parameters that took the place of one of the optimizer's and are of its shape."""
    made, graph = conflict.label("made"), project.graph
    held = {o.optimizer: o for o in graph.optimizers.values() if made is not None and o.stack == made.stack}
    old = [r for o in held.values() for r in o.refs]
    old += [r for s in graph.steps if s.optimizer in held for r in (*s.refs, *s.without)]
    shapes = {(_called(r), r.shape) for r in old}
    new = [r for b in graph.backwards for r in b.accumulates if r.storage not in graph.owners and r.name]
    every = {_called(r) for r in new}
    agreeing = {_called(r) for r in new if (_called(r), r.shape) in shapes}
    return frozenset(n.rpartition(".")[2] for n in agreeing) - {
        n.rpartition(".")[2] for n in every - agreeing
    }


def _called(ref: Ref) -> str:
    return ref.name.removeprefix("self.")


def _given(node: cst.CSTNode, shaped: Collection[str]) -> cst.BaseExpression | None:
    """The value of ``layer.gain = nn.Parameter(value)`` where that is one of the parameters."""
    value = node.value if isinstance(node, cst.Assign) and len(node.targets) == 1 else None
    if (
        not isinstance(node, cst.Assign)
        or not isinstance(value, cst.Call)
        or function_of(value) != "Parameter"
    ):
        return None
    target, given = node.targets[0].target, value.args[:1]
    plain = isinstance(target, cst.Attribute) and target.attr.value in shaped
    frozen = any(isinstance(a.value, cst.Name) and a.value.value == "False" for a in value.args)
    return given[0].value if plain and given and not frozen and not given[0].star else None


def _replacing(
    conflict: Conflict, project: Project, modules: bool = True
) -> Iterator[tuple[View, cst.Assign]]:
    """The statements that may have given the name of a module that the optimizer holds to another, or that of a
    parameter itself. (The other one may be known by its first name: `best`.)"""
    new = conflict.ref.name if conflict.ref is not None else ""
    made = conflict.label("made")
    held = [o for o in project.graph.optimizers.values() if made is not None and o.stack == made.stack]
    within = new.partition(".")[2]
    old = (r.name for o in held for r in o.refs if within and r.name.partition(".")[2] == within)
    for name in dict.fromkeys((new, *old)):
        for path in sorted(project.files):
            view = project.view(path)
            for statement, behind in replacing(view, name) if view is not None and name else ():
                if view is not None and modules == bool(behind):
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
