"""Sum the loss as a number, and differentiate this pass's loss."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View, exchange, parenthesized
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.calls import backward_call, loss_of, taken_as
from gradfix.rewrite.carried import sets_back
from gradfix.rewrite.numbers import needs_tensor, parameters_of
from gradfix.rewrite.spelling import descendants, function_of, last_name
from gradfix.rewrite.statements import (
    Unit,
    body_of,
    dotted,
    line_of,
    named,
    names,
    put_before,
    walk,
)
from gradfix.tape import Stack
from gradfix.verdict import Effect

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
        name = named(view, loss_of(call))
        loop = view.loop(call)
        if not name or (loop is None and not _kept(name)):
            return
        for unit in walk(body_of(view, call)):
            added = _added(view, unit, name)
            around_it = list(view.ancestors(unit.node)) if loop is not None else [view.loop(unit.node)]
            if added is None or loop not in around_it:
                continue
            around = loop.body if loop is not None else body_of(view, call)
            others = [u for u in walk(around) if _binds(view, u, name) and u.node is not unit.node]
            if not all(sets_back(u, name) and _at_times(view, u.node) for u in others):
                return  # bound anew in the pass: a loss of several terms, no running sum
            yield from _proposals(view, call, unit, name, added, project)
            return


def _kept(name: str) -> bool:
    """Whether what has that name outlives a function's call."""
    return "." in name or "[" in name


def _binds(view: View, unit: Unit, name: str) -> bool:
    """Whether the statement binds the name, or the entry that has it."""
    if "[" not in name:
        return name in unit.writes
    targets = [t.target for t in unit.node.targets] if isinstance(unit.node, cst.Assign) else []
    targets += [unit.node.target] if isinstance(unit.node, cst.AugAssign) else []
    return any(named(view, t) == name for t in targets)


def _only_read(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """A sum that no backward walks: its terms are taken in as numbers, at the place that adds them or, where that is a
    meter's ``update(val)``, at the call that hands over the loss."""
    if (loss := _handed_loss(conflict, project)) is not None:
        yield _handed(project, [loss])
        return
    handed = _handed_terms(conflict, project)
    if handed:
        yield _handed(project, handed)
    found = project.node(conflict.at)
    small = found[0].small_statement(found[1]) if found else None
    if found is None or small is None:
        return
    view = found[0]
    unit = next((u for u in walk(body_of(view, small)) if u.node is small), None)
    target, terms = _terms(view, small)
    if unit is None or not terms:
        return
    numbers = _read_as_number(view, small, unit, target, project)
    edits: list[Edit] = [Replace(n, lambda _, f=n.func: f.value.deep_clone()) for n in numbers or ()]  # type: ignore[misc]
    method = "detach" if numbers is None else "item"
    edits += [exchange(t, _taken(t, method)) for t in terms]
    said = "the value alone" if numbers is None else "a number"
    yield Proposal(f"add {said} to `{target}`", NONE, {view.path: tuple(edits)}, int(bool(handed)))


def _listed(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """``losses.append(loss)`` in a function that the backward's stack goes through: the number is kept, or the value
    alone where something takes the list's items for tensors. A call that hands the loss to a logger hands over its
    number."""
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
        kept = [
            (c, e)
            for c in calls
            if last_name(c.func) in ("append", "appendleft")
            for e in _held(c.args[0].value)
            if own.code(e) == name
        ]
        line = own.span(node).start.line
        handed = [
            a.value
            for c in calls
            if isinstance(own.parents[c], cst.Expr) and own.span(c).start.line > line
            for a in c.args
            if own.code(a.value) == name and not a.star and all(a.value is not e for _, e in kept)
        ]
        if name and kept:
            lists = [own.code(c.func.value) for c, _ in kept if isinstance(c.func, cst.Attribute)]
            held = [(own, c.func.value) for c, _ in kept if isinstance(c.func, cst.Attribute)]
            method = "detach" if needs_tensor(project, held) else "item"
            said = "detached" if method == "detach" else "as a number"
            edits = tuple(exchange(e, _taken(e, method)) for _, e in kept)
            summary = f"keep `{name}` {said} in {' and '.join(f'`{x}`' for x in lists)}"
            yield Proposal(summary, NONE, {own.path: edits})
            if handed:
                besides = _handed(project, [(own, e) for e in handed])
                both = (*edits, *besides.edits[own.path])
                yield Proposal(f"{summary}, {besides.summary}", NONE, {own.path: both}, 1)
            return
        if name and handed:
            yield _handed(project, [(own, e) for e in handed])


def _held(node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """What is put into a list: the elements of the tuple or dictionary that an argument is, else itself."""
    if isinstance(node, (cst.Tuple, cst.List, cst.Dict)):
        yield from (e.value for e in node.elements)
    else:
        yield node


def _taken(term: cst.BaseExpression, method: str) -> cst.Call:
    return cst.Call(cst.Attribute(parenthesized(term.deep_clone()), cst.Name(method)))


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


def _handed(project: Project, some: Sequence[tuple[View, cst.BaseExpression]]) -> Proposal:
    """Arguments handed over as numbers; as values alone where something takes them for tensors."""
    called = [view.enclosing(value, cst.Call) for view, value in some]
    taken = [p for c in called if c is not None for p in parameters_of(project, function_of(c))]
    method = "detach" if needs_tensor(project, taken) else "item"
    said = " and ".join(dict.fromkeys(f"`{view.code(value)}`" for view, value in some))
    edits = gather(*((view, [exchange(value, _taken(value, method))]) for view, value in some))
    return Proposal(f"hand over the {'value' if method == 'detach' else 'number'} of {said}", NONE, edits)


def _handed_terms(conflict: Conflict, project: Project) -> list[tuple[View, cst.BaseExpression]]:
    """The arguments of all calls around the addition that its function adds up: numbers there, where the function may
    be handed numbers elsewhere. Nothing where one of them does not show."""
    if conflict.record is None:
        return []
    stacks = {
        r.stack[-2:]: r.stack
        for r in project.graph.records.values()
        if r.stack[-1:] == conflict.record.stack[-1:]
    }
    found = [_handed_term(stack, project) for stack in stacks.values()]
    return list({id(f[1]): f for f in found if f is not None}.values()) if None not in found else []


def _handed_term(stack: Stack, project: Project) -> tuple[View, cst.BaseExpression] | None:
    outer, inner = (project.node(site) for site in stack[-2:]) if len(stack) > 1 else (None, None)
    small = inner[0].small_statement(inner[1]) if inner else None
    function = inner[0].function(small) if inner and small else None
    call = outer[1].value if outer and isinstance(outer[1], cst.Expr) else outer[1] if outer else None
    if outer is None or inner is None or small is None or not isinstance(call, cst.Call):
        return None
    if not isinstance(function, cst.FunctionDef):
        return None
    read = frozenset[str]().union(*(names(t).reads for t in _terms(inner[0], small)[1]))
    for argument in call.args:
        taken = taken_as(call, argument.value, function, inner[0])
        if taken in read and named(outer[0], argument.value):
            return outer[0], argument.value
    return None


def _terms(view: View, small: cst.CSTNode) -> tuple[str, list[cst.BaseExpression]]:
    """What an addition is bound to, as the source says it, and the operands that it adds."""
    if isinstance(small, cst.AugAssign) and isinstance(small.operator, cst.AddAssign):
        return view.code(small.target), [small.value]
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = view.code(small.targets[0].target)
        operands = list(_operands(small.value))
        own = [t for t in operands if not any(_holds(view, n, target) for n in (t, *descendants(t)))]
        return target, own if 0 < len(own) < len(operands) else []
    return "", []


def _holds(view: View, node: cst.CSTNode, target: str) -> bool:
    """Whether the expression reads `target`: as it is said, or ``sums[k]`` as ``sums.get(k, 0)``."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and function_of(node) == "get":
        return [f"{view.code(node.func.value)}[{view.code(a.value)}]" for a in node.args[:1]] == [target]
    return view.code(node) == target


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


def _added(view: View, unit: Unit, name: str) -> cst.BaseExpression | None:
    """``x`` of ``total += x`` and ``total = total + x``."""
    node = unit.node
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.AddAssign):
        return node.value if named(view, node.target) == name else None
    if (
        isinstance(node, cst.Assign)
        and len(node.targets) == 1
        and named(view, node.targets[0].target) == name
    ):
        value = node.value
        if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
            if named(view, value.left) == name:
                return value.right
            if named(view, value.right) == name:
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
    scope = view.module if _kept(name) else body_of(view, call)
    inside = {id(n) for n in (scope, *descendants(scope))}
    methods: list[cst.Call] = []
    starts: list[str] = []
    for node in view.parents:
        if id(node) not in inside:
            continue
        if isinstance(node, cst.Assign) and any(named(view, t.target) == name for t in node.targets):
            starts += [view.code(node.value).strip()] * (node is not unit.node)
        called = node.func if isinstance(node, cst.Call) and node is not call else None
        if isinstance(called, cst.Attribute) and named(view, called.value) == name:
            methods.append(cst.ensure_type(node, cst.Call))
    if starts and all(s.startswith("torch.") for s in starts):
        return []  # a tensor it is, and stays
    plain = all(_NUMBER.fullmatch(s) for s in starts)
    items = [m for m in methods if view.code(m.func).endswith(".item") and not m.args]
    if methods and (not plain or items != methods):
        return None
    own = [m.func for m in items] + ([call.func] if isinstance(call, cst.Call) else [])
    target = unit.node.targets[0].target if isinstance(unit.node, cst.Assign) else None
    target = unit.node.target if isinstance(unit.node, cst.AugAssign) else target
    return None if target is None or needs_tensor(project, [(view, target)], own) else items
