"""See :class:`NoGradWrite`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, Replace, View
from gradfix.rewrite.blocks import copy, method, of_torch, under
from gradfix.rewrite.boundary import returns
from gradfix.rewrite.liveness import dotted, first_use, reads, scope_of
from gradfix.rewrite.spelling import (
    descendants,
    drop_keyword,
    fills,
    is_inplace_call,
    small_statements,
    undone_data_everywhere,
    without_grad,
    writes_data,
)
from gradfix.rewrite.statements import every_parameter, names
from gradfix.rewrite.tensors import accumulates
from gradfix.rewrite.writes import Write, to_leaf_view, write_at, write_of
from gradfix.tape import GradRead, Mutate

Belongs = Callable[[cst.CSTNode], bool]

LEAF = Effect("adds-gradient", "the updated tensor is the leaf and gets the gradient")


class NoGradWrite(Codemod):
    """Change a leaf under `with torch.no_grad():`.

    Why: a leaf that requires grad (a weight, an image that is optimised) may not be written in place while
    autograd watches; an update by hand, an initialisation, clipping or an averaged copy is not part of the
    graph and says so with `no_grad`. Writing through `.data` does the same unwatched: should the tensor have
    been saved for a backward, nobody notices; under `no_grad` PyTorch does. `w = w - lr * w.grad` makes a new
    tensor that is no leaf and has no `.grad` the next time round: `w -= lr * w.grad` under `no_grad` keeps
    the leaf.

    When not: where the value written is to be differentiated (a running sum of losses: make it a plain
    tensor), and between a forward and its backward, where the write comes too early (move it after the step).
    """

    kinds = ("leaf-write", "data-attribute", "missing-grad", "cut-graph")
    effects = ("none", "adds-gradient")
    examples = (
        Example(
            """\
import torch

w = torch.zeros(2, requires_grad=True)
for _ in range(3):
    loss = (w - 1).pow(2).sum()
    loss.backward()
    w -= 0.1 * w.grad  # conflict: leaf-write
    w.grad = None
""",
            """\
import torch

w = torch.zeros(2, requires_grad=True)
for _ in range(3):
    loss = (w - 1).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad  # conflict: leaf-write
    w.grad = None
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.kind == "leaf-write":
            yield from _leaf(conflict, project)
        elif conflict.kind == "data-attribute":
            yield from _data(conflict, project)
        else:
            yield from _rebound(conflict, project)


def _leaf(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    write = write_of(conflict, project)
    small = write.small if write else _small_at(conflict, project)
    if small is None:
        return
    view = cast(View, project.view(conflict.at.file))
    if write is not None and write.name and accumulates(project, write):
        return
    if write is not None and to_leaf_view(write, conflict) and _expanded(conflict, project):
        return
    if write is not None and _transforms(write, conflict, project):
        return
    refused = _refused(view, project)
    run = _run(view, small, lambda s: s is small or s in refused)
    edits = _wrapped(view, run)
    yield Proposal(_summary(view, run), NONE, {view.path: edits})
    if write is not None and (later := _track_afterwards(view, write.name, small, run)):
        yield Proposal(f"`{write.name}` requires grad only after this", NONE, {view.path: later}, 2)


def _transforms(write: Write, conflict: Conflict, project: Project) -> bool:
    """Whether a function writes into what it is given, in pass after pass, and its caller goes on with what it gives
    back under another name: ``out = normalized(image)`` is hardly meant to make the image another one each time."""
    function = write.view.function(write.node)
    stack = conflict.write.stack if conflict.write is not None else ()
    found = project.node(stack[-2]) if len(stack) > 1 else None
    if not isinstance(function, cst.FunctionDef) or found is None or not isinstance(found[1], cst.Call):
        return False
    steps = [s.time for s in project.graph.steps]
    times = [e.time for e in project.tape.events if isinstance(e, Mutate) and e.stack == stack]
    if not times or not any(times[0] < step < times[-1] for step in steps):
        return False
    own = frozenset(p.name.value for p in every_parameter(function)) - {"self"}
    given_back = [r.value for r in returns(function) if r.value is not None]
    if not any(own & names(value).reads for value in given_back):
        return False
    call, small = found[1], found[0].small_statement(found[1])
    handed = {dotted(a.value) for a in call.args}
    bound = set(names(small).writes) if small is not None else set[str]()
    return not (isinstance(small, cst.Expr) and small.value is call) and not bound & handed


def _expanded(conflict: Conflict, project: Project) -> bool:
    """Whether the view that is written has more elements than its parameter: each would be written several times."""
    ref = conflict.ref
    owned = (r for o in project.graph.optimizers.values() for r in o.refs)
    return ref is not None and any(
        r.storage == ref.storage and math.prod(r.shape) < math.prod(ref.shape) for r in owned
    )


def _small_at(conflict: Conflict, project: Project) -> cst.BaseSmallStatement | None:
    found = project.node(conflict.at)
    return found[0].small_statement(found[1]) if found else None


def _summary(view: View, run: Sequence[cst.BaseSmallStatement]) -> str:
    code = " ".join(view.code(run[0]).rstrip("; ").split())
    more = f" and {len(run) - 1} more" if len(run) > 1 else ""
    return f"under no_grad: `{code if len(code) < 60 else code[:57] + '...'}`{more}"


def _refused(view: View, project: Project) -> set[cst.CSTNode]:
    """The small statements in which a plain run would have been refused a write to a leaf; and those that update by its
    ``.grad`` what should be one."""
    found: set[cst.CSTNode] = set()
    for event in project.tape.events:
        at = event.at
        if isinstance(event, Mutate) and "leaf Variable" in event.refused and at and at.file == view.path:
            node = view.at(at)
            small = view.small_statement(node) if node is not None else None
            written = write_at(project, at)
            if small is not None and not (written and written.name and accumulates(project, written)):
                found.add(small)
        elif isinstance(event, GradRead) and at and at.file == view.path:
            read = view.at(at)
            small = view.small_statement(read) if read is not None else None
            if (
                read is not None
                and isinstance(small, cst.AugAssign)
                and dotted(read) == f"{dotted(small.target)}.grad"
            ):
                found.add(small)
    return found


def _run(view: View, small: cst.BaseSmallStatement, belongs: Belongs) -> list[cst.BaseSmallStatement]:
    """The neighbouring small statements around `small` that belong with it: whole lines, or part of its one
    line."""
    holder = view.parents[small]
    line = list(getattr(holder, "body", ()))
    here = _stretch(line, line.index(small), belongs)
    if len(here) < len(line) or not isinstance(holder, cst.SimpleStatementLine):
        return here
    lines = list(getattr(view.parents[holder], "body", ()))
    whole = _stretch(
        lines,
        lines.index(holder),
        lambda x: isinstance(x, cst.SimpleStatementLine) and all(belongs(s) for s in x.body),
    )
    return [s for x in whole for s in x.body]


def _stretch(items: list[Any], at: int, belongs: Belongs) -> list[Any]:
    """The neighbours of `items[at]`, and itself, that belong together."""
    first = last = at
    while first > 0 and belongs(items[first - 1]):
        first -= 1
    while last + 1 < len(items) and belongs(items[last + 1]):
        last += 1
    return items[first : last + 1]


def _wrapped(view: View, run: Sequence[cst.BaseSmallStatement]) -> tuple[Edit, ...]:
    """The run under no_grad: the loop around it where it is the loop's whole body, whole lines, or a part of
    one."""
    if without_grad(view, run[0]):
        return ()
    context = of_torch(view, "no_grad")
    holder = view.parents[run[0]]
    if isinstance(holder, cst.SimpleStatementLine) and len({id(view.parents[s]) for s in run}) == 1:
        lines: list[cst.CSTNode] = list(run) if len(run) < len(holder.body) else [holder]
    elif isinstance(holder, cst.SimpleStatementLine):
        lines = list(dict.fromkeys(view.parents[s] for s in run))
    else:
        lines = list(run)
    while (loop := _loop_of(view, lines)) is not None:
        lines = [loop]
    return (*under(view, context.expression, lines), *context.edits)


def _loop_of(view: View, lines: Sequence[cst.CSTNode]) -> cst.For | None:
    """The for loop over tensors at hand (no call but parameters(), zip and the like) whose body is just
    `lines`."""
    body = view.parents[lines[0]]
    if isinstance(lines[0], cst.BaseSmallStatement) and isinstance(body, cst.SimpleStatementLine):
        return None
    loop = view.parents.get(body)
    if not isinstance(loop, cst.For) or loop.body is not body or loop.orelse or len(body.body) != len(lines):
        return None
    calls = _calls(loop.iter)
    harmless = {
        "parameters",
        "named_parameters",
        "zip",
        "enumerate",
        "list",
        "modules",
        "children",
        "values",
        "items",
    }
    return loop if all(_name(c) in harmless for c in calls) else None


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    if isinstance(node, cst.Call):
        yield node
    for child in node.children:
        yield from _calls(child)


def _name(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else dotted(call.func)


def _track_afterwards(
    view: View, name: str, small: cst.BaseSmallStatement, run: Sequence[cst.BaseSmallStatement]
) -> tuple[Edit, ...]:
    """The statement (or keyword) that makes `name` require grad moved behind the writes, where nothing
    between them uses the tensor."""
    if not name or len(run) > 1:
        return ()
    holder = view.parents[small]
    block = getattr(view.parents[holder], "body", ())
    if not isinstance(holder, cst.SimpleStatementLine) or len(holder.body) > 1:
        return ()
    before = list(block[: list(block).index(holder)])
    for i in range(len(before) - 1, -1, -1):
        line = before[i]
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            if name in reads(line):
                return ()
            continue
        statement = line.body[0]
        if _tracks(statement, name):
            moved = line.with_changes(leading_lines=())
            return (Replace(line, lambda _: cst.RemoveFromParent()), Insert(holder, after=(moved,)))
        if isinstance(statement, cst.Assign) and any(dotted(t.target) == name for t in statement.targets):
            plain = drop_keyword(statement.value, "requires_grad")
            if plain is None:
                return ()
            after = cst.SimpleStatementLine([cst.Expr(method(_expression(name), "requires_grad_"))])
            return (Replace(statement.value, partial(_other, plain)), Insert(holder, after=(after,)))
        if first_use([line], name) is not None:
            return ()
    return ()


def _other(new: cst.CSTNode, _: cst.CSTNode) -> cst.CSTNode:
    return new


def _expression(name: str) -> cst.BaseExpression:
    return cst.parse_expression(name)


def _tracks(statement: cst.BaseSmallStatement, name: str) -> bool:
    """``w.requires_grad = True`` or ``w.requires_grad_()``."""
    if isinstance(statement, cst.Assign):
        return any(dotted(t.target) == f"{name}.requires_grad" for t in statement.targets)
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        return dotted(statement.value.func) == f"{name}.requires_grad_"
    return False


# -- .data ---------------------------------------------------------------------------------------------


def _data(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    small = _small_at(conflict, project)
    if small is None:
        return
    view = cast(View, project.view(conflict.at.file))
    if not writes_data(small):
        return
    if _harmless(small):  # torch.nn.init is under no_grad already, a gradient has no graph
        edits: tuple[Edit, ...] = (Replace(small, undone_data_everywhere),)
        yield Proposal(f"without .data: `{view.code(small)}`", NONE, {view.path: edits})
        return
    run = _run(view, small, lambda s: writes_data(s) and not _harmless(s))
    edits = (*(Replace(s, _plain) for s in run), *_wrapped(view, run))
    yield Proposal(_summary(view, run), NONE, {view.path: edits})


def _harmless(small: cst.CSTNode) -> bool:
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        if fills(small.value):
            return True
        root: cst.BaseExpression = small.value
        while is_inplace_call(root):
            root = cast(cst.Attribute, cast(cst.Call, root).func).value
        return isinstance(root, cst.Attribute) and dotted(root.value).endswith(".grad")
    return False


def _plain(now: cst.CSTNode) -> cst.CSTNode:
    """The statement without ``.data``; ``p.data = v`` becomes ``p.copy_(v)``."""
    if isinstance(now, cst.Assign) and len(now.targets) == 1:
        target = now.targets[0].target
        if isinstance(target, cst.Attribute) and target.attr.value == "data":
            value = cast(cst.BaseExpression, undone_data_everywhere(now.value))
            call = method(
                copy(target.value),
                "copy_",
                value.with_changes(lpar=[], rpar=[]) if _one_line(value) else value,
            )
            return cst.Expr(call, semicolon=now.semicolon)
    return undone_data_everywhere(now)


def _one_line(value: cst.BaseExpression) -> bool:
    return "\n" not in cst.Module([]).code_for_node(value)


# -- w = w - lr * w.grad ---------------------------------------------------------------------------------


def _rebound(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """Updates that bind a new tensor where the leaf was to be changed."""
    view = project.view(conflict.at.file)
    if view is None:
        return
    name = ""
    if conflict.kind == "missing-grad":
        found = project.node(conflict.at)
        node = found[1] if found else None
        node = node.value if isinstance(node, cst.Expr) else node
        if not isinstance(node, cst.Attribute) or node.attr.value != "grad":
            return
        name = _kept_in(node.value)
    for small in small_statements(view.module):
        bound = _update(small)
        if not bound or (name and bound != name) or (not name and not without_grad(view, small)):
            continue
        if name and scope_of(view, small) is not scope_of(view, cast(cst.CSTNode, view.at(conflict.at))):
            continue
        run = _run(view, small, lambda s: bool(_update(s)))
        edits = (*(Replace(s, _in_place) for s in run), *_cleared(view, run), *_wrapped(view, run))
        shown = _in_place(small)
        code = view.module.code_for_node(shown).rstrip("; ")
        effect = LEAF if conflict.kind == "missing-grad" else NONE
        yield Proposal(f"change the leaf under no_grad: `{code}`", effect, {view.path: edits})
        return


def _cleared(view: View, run: Sequence[cst.BaseSmallStatement]) -> tuple[Edit, ...]:
    """``w.grad = None`` after the updates, where nothing clears it: each new tensor began without a gradient."""
    holder = view.parents[run[-1]]
    code = view.module.code
    missing = [
        name
        for name in map(_update, run)
        if not re.search(rf"\b{re.escape(name)}\.grad(\.data)?(\s*=\s*None|\.zero_\(|\.fill_\()", code)
    ]
    whole = isinstance(holder, cst.SimpleStatementLine) and holder.body[-1] is run[-1]
    if not missing or not whole or "zero_grad(" in code:
        return ()
    lines = tuple(cast(cst.CSTNode, cst.parse_statement(f"{name}.grad = None")) for name in missing)
    return (Insert(holder, after=lines),)


def _kept_in(node: cst.CSTNode) -> str:
    """``w``, ``self.w``, ``params["w"]``, ``params[k]``: what a tensor is called, or where it is kept; "" for anything
    else."""
    if isinstance(node, cst.Attribute):
        inner = _kept_in(node.value)
        return f"{inner}.{node.attr.value}" if inner else ""
    if isinstance(node, cst.Subscript):
        inner = _kept_in(node.value)
        return f"{inner}[{', '.join(map(cst.Module([]).code_for_node, node.slice))}]" if inner else ""
    return node.value if isinstance(node, cst.Name) else ""


def _update(small: cst.CSTNode) -> str:
    """``w`` where the statement is ``w = <something of w and w.grad>``."""
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        name = _kept_in(small.targets[0].target)
        read = {_kept_in(n) for n in descendants(small.value)}
        value = small.value
        arithmetic = isinstance(value, cst.BinaryOperation)
        if name and arithmetic and name in read and f"{name}.grad" in read and f"{name}.detach" not in read:
            return name
    return ""


def _in_place(now: cst.CSTNode) -> cst.CSTNode:
    assign = cast(cst.Assign, now)
    target, value = assign.targets[0].target, cast(cst.BinaryOperation, assign.value)
    name = _kept_in(target)
    operators: dict[type[cst.CSTNode], type[cst.BaseAugOp]] = {
        cst.Add: cst.AddAssign,
        cst.Subtract: cst.SubtractAssign,
    }
    operator = operators.get(type(value.operator))
    if operator is not None and _kept_in(value.left) == name:
        right = cast(cst.BaseExpression, undone_data_everywhere(value.right))
        return cst.AugAssign(target, operator(), right, semicolon=assign.semicolon)
    plain = cast(cst.BaseExpression, undone_data_everywhere(value))
    return cst.Expr(method(copy(target), "copy_", plain), semicolon=assign.semicolon)
