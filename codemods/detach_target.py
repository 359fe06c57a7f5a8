"""See :class:`DetachTarget`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.detect.returns import beginning
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.boundary import detach
from gradfix.rewrite.dropped import detached_name, dropped, kept
from gradfix.rewrite.liveness import dotted, sharing
from gradfix.rewrite.spelling import descendants
from gradfix.rewrite.statements import Unit, take_away
from gradfix.tape import Cut, Record, Stack
from gradfix.wording import briefly

TARGET = Effect(
    "cut-target", "the target (or weight) is a constant for its loss; all other gradients are as before"
)
OPERANDS = 4  # of a loss that are tried


class DetachTarget(Codemod):
    """Detach the value that a loss takes as its target, or as the weight of a log-probability.

    Why: `r + gamma * value(next)` and an advantage are what a prediction is judged by, not what is to be
    trained. With their graph in the loss, the target moves towards the prediction and the policy's loss
    trains the critic. So are the probabilities that a policy had when it acted: with their graph in the ratio
    `exp(new - old)`, they take from the policy the gradient that the new ones give it. `.detach()` returns a new
    tensor: as a statement of its own it does nothing.

    When not: where the gradient of the target is meant (residual gradients, a pathwise estimator). A program that names
    the residual gradient, in the function it is in or at the head of the file, is not told of it.
    """

    kinds = ("attached-target",)
    effects = ("cut-target",)
    examples = (
        Example(
            """\
import torch

value = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(value.parameters(), 0.1)
for s, following, r in zip(torch.randn(3, 5, 3), torch.randn(3, 5, 3), torch.randn(3, 5, 1)):
    bootstrap = value(following)
    loss = torch.nn.functional.mse_loss(value(s), r + 0.9 * bootstrap)  # conflict: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

value = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(value.parameters(), 0.1)
for s, following, r in zip(torch.randn(3, 5, 3), torch.randn(3, 5, 3), torch.randn(3, 5, 1)):
    bootstrap = value(following).detach()
    loss = torch.nn.functional.mse_loss(value(s), r + 0.9 * bootstrap)  # conflict: attached-target
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="cut-target",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "itself":
            return  # without a graph it would still be the same tensor
        if conflict.pattern == "ratio":
            each = dict.fromkeys(_before_the_ratio(conflict, project))
            for rank, (view, expression, kept_as) in enumerate(each):
                said = f"detach `{briefly(view.code(expression))}`{kept_as}"
                yield Proposal(said, TARGET, {view.path: (detach(expression),)}, rank)
            return
        lost = _dropped(conflict, project)
        if lost is not None:
            view, unit, name = lost
            summary = f"keep what `{name}.detach()` returns"
            yield Proposal(summary, TARGET, {view.path: (kept(unit, name),)})
            if conflict.pattern == "dropped":
                return
        uses = _uses(conflict)
        made = [] if conflict.pattern == "advantage" and len(uses) == 1 else list(_made(conflict, project))
        begins = beginning(project.graph, conflict.record.node) if conflict.record is not None else None
        if conflict.pattern == "return" and begins is not None:
            within = {id(n) for _, e in made for n in descendants(e)}
            first = [
                (v, e) for v, e in _made(replace(conflict, record=begins), project) if id(e) not in within
            ]
            made = [*first, *made]
        places = [*dict.fromkeys((*made, *(_operands(project, uses[0]) if uses else ())))]
        for rank, (view, expression) in enumerate(places, 1 if lost else 0):
            code = " ".join(view.code(expression).split())
            said = f"`{code}`" if len(code) < 40 else "the target"
            edits: dict[str, list[Edit]] = {view.path: [detach(expression)]}
            if (view, expression) not in made:
                for other, again in _again(project, uses[1:], expression, code):
                    edits.setdefault(other.path, []).append(detach(again))
            if lost and lost[0] is view:
                edits[view.path] += take_away(lost[1], view)
            yield Proposal(f"detach {said}", TARGET, {p: tuple(e) for p, e in edits.items()}, rank)


def _uses(conflict: Conflict) -> list[Stack]:
    """Where the value goes into losses: a ratio's and a clipped ratio's product with one weight are two."""
    same = (c for c in (conflict, *conflict.also) if c.kind == conflict.kind)
    return [*dict.fromkeys(used.stack for c in same if (used := c.label("used")) is not None)]


def _again(
    project: Project, uses: Sequence[Stack], expression: cst.BaseExpression, code: str
) -> Iterator[tuple[View, cst.BaseExpression]]:
    """The operands that say `code`, like `expression`, in the other places."""
    for stack in uses:
        for view, operand in _operands(project, stack):
            if operand is not expression and " ".join(view.code(operand).split()) == code:
                yield view, operand
                break


def _before_the_ratio(conflict: Conflict, project: Project) -> Iterator[tuple[View, cst.BaseExpression, str]]:
    """Where the old probability of a ratio is kept under a name of its own (with words for that), where it is made, and
    where the ratio takes it."""
    used, compared = conflict.label("used"), conflict.event
    found = project.node(used.stack[-1]) if used is not None and used.stack else None
    if found is None or not isinstance(compared, Record) or conflict.record is None:
        return
    view, node = found
    operand = node.right if isinstance(node, cst.BinaryOperation) else None
    if isinstance(node, cst.Call) and node.args:  # torch.sub(new, old), new.sub(old)
        operand = node.args[-1].value
    name = dotted(operand) if operand is not None else None
    if operand is not None and name:
        for statement in sharing(view, operand, name).views[:1]:
            if isinstance(statement, cst.Assign) and dotted(statement.value):
                yield view, statement.value, f", kept as `{name}`"
    if len(set(compared.parents)) > 1:  # (else it is the new one as well)
        for place, made in _made(conflict, project):
            yield place, made, ""
    if operand is not None:
        yield view, operand, ""


def _dropped(conflict: Conflict, project: Project) -> tuple[View, Unit, str] | None:
    """A ``name.detach()`` that is a statement of its own, of the value or of what is made of it for the loss."""
    above = _above(conflict, project)
    for event in project.tape.events:
        if not isinstance(event, Cut) or event.how != "detach" or event.node not in above or not event.stack:
            continue
        found = project.node(event.stack[-1])
        name = detached_name(found[0].small_statement(found[1]) or found[1]) if found else None
        if found is not None and name:
            units = dropped(found[0], found[1], name)
            here = found[0].small_statement(found[1])
            return next(((found[0], u, name) for u in units if u.node is here), None)
    return None


def _above(conflict: Conflict, project: Project) -> set[int]:
    """The target's node, and the nodes that lead from it to the loss."""
    used = conflict.label("used")
    if conflict.record is None or conflict.backward is None or used is None:
        return set()
    found = {conflict.record.node}
    for node in sorted(conflict.backward.nodes):
        record = project.graph.records.get(node)
        if record is not None and record.stack != used.stack and not found.isdisjoint(record.parents):
            found.add(node)
    return found


def _made(conflict: Conflict, project: Project) -> Iterator[tuple[View, cst.BaseExpression]]:
    """Where the target's value is made, outermost frame first: all that the statement binds to a name, else
    the chain of calls and indices."""
    used = conflict.label("used")
    record = conflict.record
    if record is None or used is None:
        return
    for depth, site in enumerate(record.stack):
        if depth < len(used.stack) and site == used.stack[depth] and depth + 1 < len(record.stack):
            continue  # the whole pass is made in this call
        found = project.node(site)
        if found is None or not isinstance(found[1], cst.BaseExpression):
            continue
        view, node = found
        assert isinstance(node, cst.BaseExpression)
        top = _chain_top(view, node)
        small = view.small_statement(node)
        unpacked = isinstance(small, cst.Assign) and isinstance(small.targets[0].target, cst.Tuple)
        if isinstance(small, cst.Assign) and unpacked and not isinstance(small.value, cst.Tuple):
            yield from _parts(conflict, project, depth, small)
            if small.value is top:
                continue  # several values have no detach() together
        if (
            isinstance(small, cst.Assign)
            and isinstance(small.targets[0].target, cst.Name | cst.Attribute)
            and small.value is not top
        ):
            yield view, top
            yield view, small.value
        else:
            yield view, top


def _parts(
    conflict: Conflict, project: Project, depth: int, small: cst.Assign
) -> Iterator[tuple[View, cst.BaseExpression]]:
    """Where the target's value is read first on its way to the loss, under a name that `small` unpacks it to."""
    assert conflict.record is not None
    target = small.targets[0].target
    assert isinstance(target, cst.Tuple)
    names = {dotted(e.value) for e in target.elements} - {None}
    for number in sorted(_above(conflict, project) - {conflict.record.node}):
        stack = project.graph.records[number].stack
        here = stack[depth] if stack[:depth] == conflict.record.stack[:depth] and len(stack) > depth else None
        found = project.node(here) if here is not None else None
        reads = descendants(found[1]) if found is not None else ()
        read = next(
            (n for n in reads if isinstance(n, cst.Name | cst.Attribute) and dotted(n) in names), None
        )
        if found is not None and read is not None:
            yield found[0], read
            return


def _chain_top(view: View, node: cst.BaseExpression) -> cst.BaseExpression:
    """``net(x).max(1)[0]`` of the ``net(x).max(1)`` in it."""
    while True:
        above = view.parents.get(node)
        inner = above.func if isinstance(above, cst.Call) else getattr(above, "value", None)
        if not isinstance(above, cst.Attribute | cst.Subscript | cst.Call) or inner is not node:
            return node
        node = above


def _operands(project: Project, stack: Stack) -> list[tuple[View, cst.BaseExpression]]:
    """The operands of the product or the loss, those that a name holds first."""
    found = project.node(stack[-1]) if stack else None
    if found is None:
        return []
    view, node = found
    first: list[cst.BaseExpression] = []
    if isinstance(node, cst.BinaryOperation):
        first += [node.right, node.left]
    elif isinstance(node, cst.Call):
        first += [a.value for a in reversed(node.args)]
    inner = [
        n
        for n in descendants(node)
        if isinstance(n, cst.Name | cst.Attribute)
        and dotted(n)
        and isinstance(view.parents[n], cst.BinaryOperation | cst.Arg | cst.UnaryOperation)
    ]
    every = [x for x in (*first, *inner) if not isinstance(x, cst.BaseNumber | cst.BaseString)]
    return [(view, x) for x in dict.fromkeys(every)][:OPERANDS]
