"""See :class:`RetainGrad`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, View
from gradfix.rewrite.blocks import line, method
from gradfix.rewrite.liveness import binds, dotted, reads, scope_of
from gradfix.rewrite.spelling import function_of, names_in_place, small_statements
from gradfix.tape import GradRead, Stack


class RetainGrad(Codemod):
    """Keep the gradient of a tensor that is not a leaf: `h.retain_grad()` before the backward.

    Why: autograd fills `.grad` of leaves only; of everything computed on the way, `.grad` is None (with a
    warning). `retain_grad()` asks for it, after the tensor is made and before the backward.

    When not: where the tensor was meant to be a leaf (a parameter converted or scaled after `requires_grad`,
    a weight updated by `w = w - lr * w.grad`): make it one.
    """

    kinds = ("missing-grad",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(2, requires_grad=True)
h = w * 3
h.sum().backward()
print(h.grad)  # conflict: missing-grad
""",
            """\
import torch

w = torch.ones(2, requires_grad=True)
h = w * 3
h.retain_grad()
h.sum().backward()
print(h.grad)  # conflict: missing-grad
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = project.node(conflict.event.stack[-1]) if _read(conflict) and conflict.event else None
        if found is None:
            return
        view, node = found
        small = view.small_statement(node) or node
        edits: dict[str, tuple[Edit, ...]] = {}
        done: set[str] = set()
        for event in project.tape.events:
            if not isinstance(event, GradRead) or not event.stack or event.stack[-1].file != view.path:
                continue
            other = view.at(event.stack[-1])
            if other is None or (view.small_statement(other) or other) is not small:
                continue
            record = project.graph.records.get(event.node) if event.node is not None else None
            for name in _names(other) - done:
                for path, edit in _retained(project, view, small, name, record.stack if record else ()):
                    edits[path] = (*edits.get(path, ()), edit)
                    done.add(name)
        if edits:
            names = ", ".join(f"`{n}`" for n in sorted(done))
            yield Proposal(f"retain the gradient of {names}", NONE, edits, 1)


def _read(conflict: Conflict) -> bool:
    return conflict.pattern == "read" and isinstance(conflict.event, GradRead)


def _names(node: cst.CSTNode) -> set[str]:
    """``h`` of every ``h.grad`` in `node`."""
    found: set[str] = set()
    if isinstance(node, cst.Attribute) and node.attr.value == "grad" and dotted(node.value):
        found.add(dotted(node.value))
    for child in node.children:
        found |= _names(child)
    return found


def _retained(
    project: Project, view: View, small: cst.CSTNode, name: str, made: Stack
) -> Iterator[tuple[str, Edit]]:
    """``name.retain_grad()`` after the statement that binds it last before the backward; where the tensor is
    made in another function under another name, there."""
    scope = scope_of(view, small)
    if _updated(scope, name):
        return
    binding = _binding(view, scope, small, name)
    if binding is not None:
        yield view.path, _after(view, binding, name)
        return
    frames = list(project.frames(made))
    backward = _backward(view, small) if "." in name else None
    inside = any(v is view and view.statement(n) is backward for v, n in frames)  # f(x).backward()
    # (where the tensor is made, a forward without gradients would refuse)
    if backward is not None and not inside:
        new = cst.Expr(method(cst.parse_expression(name), "retain_grad"))
        yield view.path, Insert(backward, before=(line(new),))
        return
    for other, node in reversed(frames):
        statement = other.small_statement(node)
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target = dotted(statement.targets[0].target)
            if target:
                yield other.path, _after(other, statement, target)
                return


def _updated(scope: cst.CSTNode, name: str) -> bool:
    """Whether the tensor is updated by its own gradient (``name -= lr * name.grad``, ``name.sub_(…)``, or bound anew):
    a leaf was meant."""
    own, gradient = {name, f"{name}.data"}, f"{name}.grad"
    for small in small_statements(scope):
        changed: cst.CSTNode | None = None
        given: cst.CSTNode = small
        if isinstance(small, cst.AugAssign):
            changed, given = small.target, small.value
        elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
            func = small.value.func
            if isinstance(func, cst.Attribute) and names_in_place(func.attr.value):
                changed = func.value
        if changed is not None and dotted(changed) in own and gradient in reads(given):
            return True
        if isinstance(small, cst.Assign) and name in binds(small) and {name, gradient} <= reads(small.value):
            return True
    return False


def _binding(view: View, scope: cst.CSTNode, read: cst.CSTNode, name: str) -> cst.BaseSmallStatement | None:
    """The last statement before the backward before `read` that binds `name`."""
    before = []
    for statement in small_statements(scope):
        if statement is read:
            break
        if scope_of(view, statement) is scope:
            before.append(statement)
    backward = [i for i, s in enumerate(before) if _runs_backward(s)]
    until = before[: backward[-1]] if backward else before
    return next((s for s in reversed(until) if name in binds(s) and not isinstance(s, cst.AugAssign)), None)


def _backward(view: View, read: cst.CSTNode) -> cst.SimpleStatementLine | None:
    """The line of the last backward before `read`, in the block `read` is in."""
    holder = view.parents[read]
    lines = list(getattr(view.parents[holder], "body", ()))
    before = lines[: lines.index(holder)] if holder in lines else []
    return next(
        (x for x in reversed(before) if isinstance(x, cst.SimpleStatementLine) and _runs_backward(x)), None
    )


def _runs_backward(node: cst.CSTNode) -> bool:
    if isinstance(node, cst.Call) and function_of(node) in ("backward", "grad"):
        return True
    return any(_runs_backward(child) for child in node.children)


def _after(view: View, statement: cst.BaseSmallStatement, name: str) -> Edit:
    new = cst.Expr(method(cst.parse_expression(name), "retain_grad"))
    holder = view.parents[statement]
    alone = isinstance(holder, cst.SimpleStatementLine) and holder.body[-1] is statement
    return Insert(holder, after=(line(new),)) if alone else Insert(statement, after=(new,))
