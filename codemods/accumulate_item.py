"""Sum the loss as a number, and differentiate this pass's loss."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange, parenthesized
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of
from gradfix.rewrite.carried import sets_back
from gradfix.rewrite.spelling import descendants, last_name
from gradfix.rewrite.statements import Unit, body_of, dotted, line_of, names, put_before, walk
from gradfix.verdict import Effect

_ITEM_READ = re.compile(r"\]\.(?:item|detach|cpu)\(|\b(\w+)\.(?:item|detach|cpu)\(\).*\bfor \1 in\b")
_NUMBER = re.compile(r"[-+]?\d*\.?\d*(?:e[-+]?\d+)?")
ROUND = Effect("cut-round", "each pass differentiates its own loss; the sum is a number")


class AccumulateItem(Codemod):
    """Add `loss.item()` to the running sum and call `backward()` on the loss itself.

    Why: `total += loss` chains every pass's graph to the next: backward on the sum walks graphs that earlier
    backwards freed, and without a backward memory grows with every pass.

    When not: where several losses are meant to be differentiated together once, after the loop.
    """

    kinds = ("freed-graph", "stale-saved-tensor", "wasted-backward")
    effects = ("cut-round", "none")

    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    total += loss
    optimizer.zero_grad()
    total.backward()  # conflict: freed-graph
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    total += loss.item()
    optimizer.zero_grad()
    loss.backward()  # conflict: freed-graph
    optimizer.step()
""",
            effect="cut-round",
        ),
        Example(
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss  # conflict: wasted-backward
""",
            """\
import torch

net = torch.nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
total = 0.0
for x in torch.randn(3, 4, 3):
    loss = (net(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item()  # conflict: wasted-backward
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern == "running-sum":
            yield from _only_read(conflict, project)
        elif conflict.pattern == "kept-losses":
            yield from _listed(conflict, project)
        if conflict.kind == "wasted-backward":
            return
        found = backward_call(project, conflict.backward) if conflict.backward else None
        if found is None:
            return
        view, call = found
        name = dotted(loss_of(call))
        loop = view.loop(call)
        if name is None or loop is None:
            return
        for unit in walk(body_of(view, call)):
            added = _added(unit, name)
            if added is None or loop not in list(view.ancestors(unit.node)):
                continue
            others = [u for u in walk(loop.body) if name in u.writes and u.node is not unit.node]
            if not all(sets_back(u, name) and _at_times(view, u.node) for u in others):
                return  # bound anew in the pass: a loss of several terms, no running sum
            yield from _proposals(view, call, unit, name, added, project)
            return


def _only_read(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """A sum that no backward walks: its terms are taken in as numbers, at the place that adds them or, where that is a
    meter's ``update(val)``, at the call that hands over the loss."""
    if (handed := _handed_loss(conflict, project)) is not None:
        view, loss = handed
        summary = f"hand over the number of `{view.code(loss)}`"
        yield Proposal(summary, NONE, {view.path: (exchange(loss, _taken(loss, "item")),)})
        return
    found = project.node(conflict.at)
    small = found[0].small_statement(found[1]) if found else None
    if found is None or small is None:
        return
    view = found[0]
    unit = next((u for u in walk(body_of(view, small)) if u.node is small), None)
    target, terms = _terms(view, small)
    if unit is None or not terms:
        return
    name = target if "[" not in target else ""
    numbers = _read_as_number(view, small, unit, name, project) if name else _never_a_tensor(project)
    edits: list[Edit] = [Replace(n, lambda _, f=n.func: f.value.deep_clone()) for n in numbers or ()]  # type: ignore[misc]
    method = "detach" if numbers is None else "item"
    edits += [exchange(t, _taken(t, method)) for t in terms]
    said = "the value alone" if numbers is None else "a number"
    yield Proposal(f"add {said} to `{target}`", NONE, {view.path: tuple(edits)})


def _listed(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """``losses.append(loss)`` in a function that the backward's stack goes through: the number is kept, or the value
    alone where something takes the list's items for tensors."""
    found = backward_call(project, conflict.earlier) if conflict.earlier else None
    if found is None or conflict.earlier is None:
        return
    name = found[0].code(loss_of(found[1]))
    for own, node in reversed(tuple(project.frames(conflict.earlier.stack))):
        if found[1] not in (node, getattr(node, "value", None)):
            small = own.small_statement(node)
            bound = small.targets if isinstance(small, cst.Assign) and small.value is node else ()
            name = own.code(bound[0].target) if len(bound) == 1 else ""
        calls = [n for n in descendants(body_of(own, node)) if isinstance(n, cst.Call) and n.args]
        kept = [c for c in calls if last_name(c.func) == "append" and own.code(c.args[0].value) == name]
        if name and kept:
            lists = [own.code(c.func.value) for c in kept if isinstance(c.func, cst.Attribute)]
            method = "detach" if any(_of_tensors(project, x) for x in lists) else "item"
            said = "detached" if method == "detach" else "as a number"
            edits = tuple(exchange(c.args[0].value, _taken(c.args[0].value, method)) for c in kept)
            summary = f"keep `{name}` {said} in {' and '.join(f'`{x}`' for x in lists)}"
            yield Proposal(summary, NONE, {own.path: edits})
            return


def _of_tensors(project: Project, items: str) -> bool:
    """Whether a text takes what the list `items` holds for tensors: a function of torch's gets it, or its items'
    numbers are read."""
    taken = re.compile(r"torch\.\w+\([^()]*" + re.escape(items.split(".")[-1]))
    return _never_a_tensor(project) is None or any(taken.search(text) for text in project.files.values())


def _taken(term: cst.BaseExpression, method: str) -> cst.Call:
    return cst.Call(cst.Attribute(parenthesized(term.deep_clone()), cst.Name(method)))


def _never_a_tensor(project: Project) -> list[cst.Call] | None:
    """No calls to undo, where no text reads the number of a container's item; else None."""
    return None if any(_ITEM_READ.search(text) for text in project.files.values()) else []


def _handed_loss(conflict: Conflict, project: Project) -> tuple[View, cst.BaseExpression] | None:
    """The argument of a call around the addition that is the loss which a backward differentiates."""
    found = backward_call(project, conflict.earlier) if conflict.earlier else None
    if found is None or conflict.record is None:
        return None
    view, loss = found[0], found[0].code(loss_of(found[1]))
    for own, node in project.frames(conflict.record.stack[:-1]):
        call = node.value if isinstance(node, cst.Expr) else node
        given = [a.value for a in call.args] if isinstance(call, cst.Call) and own is view else []
        for argument in given:
            if view.code(argument) == loss:
                return view, argument
    return None


def _terms(view: View, small: cst.CSTNode) -> tuple[str, list[cst.BaseExpression]]:
    """What an addition is bound to, as the source says it, and the operands that it adds."""
    if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
        return view.code(small.target), [small.value]
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = view.code(small.targets[0].target)
        operands = list(_operands(small.value))
        own = [t for t in operands if not any(view.code(n) == target for n in (t, *descendants(t)))]
        return target, own if 0 < len(own) < len(operands) else []
    return "", []


def _operands(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Add):
        yield from _operands(node.left)
        yield from _operands(node.right)
    else:
        yield node


def _at_times(view: View, node: cst.CSTNode) -> bool:
    """Whether not every pass of the loop comes to the statement."""
    around = next((x for x in view.ancestors(node) if isinstance(x, (cst.If, cst.For, cst.While))), None)
    return isinstance(around, cst.If)


def _added(unit: Unit, name: str) -> cst.BaseExpression | None:
    """``x`` of ``total += x`` and ``total = total + x``."""
    node = unit.node
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign):
        return node.value if dotted(node.target) == name else None
    if isinstance(node, cst.Assign) and len(node.targets) == 1 and dotted(node.targets[0].target) == name:
        value = node.value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            if dotted(value.left) == name:
                return value.right
            if dotted(value.right) == name:
                return value.left
    return None


def _proposals(
    view: View, call: cst.Call, unit: Unit, name: str, added: cst.BaseExpression, project: Project
) -> Iterator[Proposal]:
    loss = loss_of(call)
    own: cst.BaseExpression = added.deep_clone()
    edits: list[Edit] = []
    if dotted(added) is None:
        taken = {n.value for n in view.parents if isinstance(n, cst.Name)}
        fresh = next(n for n in ("loss", "batch_loss", "pass_loss", "loss_now", "loss_") if n not in taken)
        own = cst.Name(fresh)
        bind = cst.Assign([cst.AssignTarget(own)], added.deep_clone())
        edits.append(put_before(unit, line_of(bind)))
    numbers = _read_as_number(view, call, unit, name, project)
    if numbers is not None:
        edits += [Replace(n, lambda _, f=n.func: f.value.deep_clone()) for n in numbers]  # type: ignore[misc]
    taken_as = "detach" if numbers is None else "item"
    value = cst.Call(cst.Attribute(parenthesized(own), cst.Name(taken_as)))
    edits += [Replace(added, lambda _: value), Replace(loss, lambda _: own)]
    said = "the value alone" if numbers is None else "a number"
    summary = f"add {said} to `{name}`, and differentiate the pass's own loss"
    yield Proposal(summary, ROUND, gather((view, edits)))


def _read_as_number(
    view: View, call: cst.CSTNode, unit: Unit, name: str, project: Project
) -> list[cst.Call] | None:
    """The calls of ``total.item()`` that go once `total` is a number; None where something may need a tensor, here or
    (a sum that is returned or kept) elsewhere."""
    scope = view.module if "." in name else body_of(view, call)
    inside = {id(n) for n in (scope, *descendants(scope))}
    methods: list[cst.Call] = []
    handed_on = False
    starts: list[str] = []
    for node in view.parents:
        if id(node) not in inside:
            continue
        if isinstance(node, cst.Assign) and any(dotted(t.target) == name for t in node.targets):
            starts += [view.code(node.value).strip()] * (node is not unit.node)
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node is not call:
            if dotted(node.func.value) == name:
                methods.append(node)
            kept = node.func.attr.value == "append"
            handed_on = handed_on or (kept and any(dotted(a.value) == name for a in node.args))
        if isinstance(node, cst.Return) and node.value is not None:
            handed_on = handed_on or name in names(node.value).reads
    if starts and all(s.startswith("torch.") for s in starts):
        return []  # a tensor it is, and stays
    plain = all(_NUMBER.fullmatch(s) for s in starts)
    items = [m for m in methods if view.code(m.func).endswith(".item") and not m.args]
    if not plain or items != methods:
        return None if methods else []
    elsewhere = sum(text.count(".item()") for text in project.files.values()) - len(items)
    return None if handed_on and elsewhere else items
