"""See :class:`OutOfPlace`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace
from gradfix.rewrite.anew import (
    BINARY,
    ONLY_IN_PLACE,
    binary,
    bound_anew,
    chained,
    out_of_place_function,
    value_of,
)
from gradfix.rewrite.blocks import (
    assignment,
    copy,
    in_parentheses,
    method,
)
from gradfix.rewrite.held import held_elsewhere, outlives
from gradfix.rewrite.hooked import handed_back
from gradfix.rewrite.liveness import dotted, live_after, reads, sharing
from gradfix.rewrite.rows import iterated, rows, through_index
from gradfix.rewrite.spelling import (
    chain,
    chain_root,
    function_of,
    undone_data,
    undone_data_everywhere,
)
from gradfix.rewrite.statements import reads_of, stored
from gradfix.rewrite.tensors import detached_alias, is_leaf, is_list, of_container
from gradfix.rewrite.writes import Write, may_rebind, to_leaf_view, write_of
from gradfix.tape import Stack
from gradfix.wording import name

FLOWS = Effect("adds-gradient", "the write is part of the graph and the gradient flows through it")

# Writes whose derivative is zero or undefined: whoever hides them behind .data wants the identity's gradient.
_STRAIGHT_THROUGH = ("copy_", "round_", "sign_", "floor_", "ceil_", "trunc_")


class OutOfPlace(Codemod):
    """Write the result to a new tensor and bind the name anew, instead of overwriting what backward still
    needs.

    Why: many ops keep their input or their result for the backward pass (`exp`, `tanh`, a product, a
    convolution). An in-place write (`y += a`, `y.clamp_(0, 1)`, `F.relu(y, inplace=True)`, `out=y`) destroys
    it; PyTorch notices and refuses the backward, or, behind `.data`, notices nothing and the gradient is
    wrong. `y = y + a` computes the same value and leaves the old tensor to those who saved it.

    When not: where somebody else holds the same storage and is meant to see the write (a view, an alias, the
    caller of a function, another object, what `state_dict()` gave): then save a copy where it is read. Where the
    tensor is a parameter that an optimizer holds, and for writes into a part of a tensor: then clone before the
    write.
    """

    kinds = ("stale-saved-tensor", "silent-overwrite", "leaf-write", "forbidden-view-write", "cut-graph")
    effects = ("none", "adds-gradient")
    examples = (
        Example(
            """\
import torch

w = torch.ones(3, requires_grad=True)
y = w.exp()
y += 1  # conflict: stale-saved-tensor
y.sum().backward()
""",
            """\
import torch

w = torch.ones(3, requires_grad=True)
y = w.exp()
y = y + 1  # conflict: stale-saved-tensor
y.sum().backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write = write_of(conflict, project)
        if write is None or (conflict.write is not None and conflict.write.optimizer is not None):
            return
        if conflict.kind == "cut-graph":
            yield from _second_order(write, conflict, project)
            return
        if conflict.write is not None and conflict.write.how == "alias":
            element = _rebuilt(write)
            if element is not None:
                yield _of_list(write, *element, NONE)
            for anew, edits in () if element else _statements(write, conflict, project, any_name=True):
                why = f"leave {name(conflict.write.ref, 'the leaf')} as it is"
                yield _proposal(write, anew, NONE, 0, edits, why)
            return
        leaf = conflict.write is not None and is_leaf(project, conflict.write.ref.storage)
        leaf = leaf and not to_leaf_view(write, conflict)
        if leaf and (write.hidden or "." in write.name or _optimized(conflict, project)):
            return
        rank = (
            2 if leaf else int(conflict.kind == "leaf-write" or outlives(write.view, write.node, write.name))
        )
        effect = FLOWS if write.hidden else NONE
        if write.hidden and (statement := _straight_through(write)) and _rebinds(write, conflict, project):
            yield _proposal(write, statement, NONE, rank, (), "keep its gradient")
            return
        for statement, edits in _statements(write, conflict, project):
            if leaf and _cuts(cast(cst.Assign, statement).value, write.name):
                continue  # what is bound anew would not require grad
            if (back := handed_back(write, conflict)) is not None:
                yield _proposal(write, statement, effect, rank, (*edits, back), "hand it back from the hook")
            yield _proposal(write, statement, effect, rank, edits)
        if conflict.kind == "forbidden-view-write":
            for statement, edits in bound_anew(write):
                for made, more in rows(write, statement):
                    said = f"out of place: `{_short(write.view.module.code_for_node(made))}`"
                    yield Proposal(said, NONE, {write.view.path: (*more, *edits)}, rank)
            yield from _one_row_each(write, rank)
        if (built := _rebuilt(write)) is not None and not leaf and not _items_held(write, conflict, project):
            yield _of_list(write, *built, effect, rank)
        if (edit := _dropped(write, conflict, project)) is not None:
            old = write.view.code(edit.node)
            yield Proposal(f"`{_short(old)}` out of place", NONE, {write.view.path: (edit,)}, rank)


def _second_order(write: Write, conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """The update as a part of the graph, nothing of it behind ``.data``."""
    if conflict.pattern != "second-order":
        return
    for statement, edits in _statements(write, conflict, project):
        whole = cast(cst.BaseSmallStatement, undone_data_everywhere(statement))
        yield _proposal(write, whole, FLOWS, 0, edits)
    if (built := _rebuilt(write)) is not None:
        line = cast(cst.BaseStatement, undone_data_everywhere(built[1]))
        yield _of_list(write, Replace(built[0].node, lambda _: line), line, FLOWS)


def _of_list(write: Write, edit: Replace, made: cst.BaseStatement, effect: Effect, rank: int = 0) -> Proposal:
    """The list made anew, in place of a loop that writes to its elements."""
    bare = made.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())
    code = _short(write.view.module.code_for_node(bare))
    return Proposal(f"out of place: `{code}`", effect, {write.view.path: (edit,)}, rank)


def _one_row_each(write: Write, rank: int) -> Iterator[Proposal]:
    """The write to each row through its index, which autograd takes for a write to the whole."""
    for said, edits in through_index(write):
        yield Proposal(said, NONE, {write.view.path: edits}, rank + 1)


def _cuts(value: cst.BaseExpression, name: str) -> bool:
    made = function_of(value) if isinstance(value, cst.Call) else ""
    return made.endswith("_like") or name not in reads(value)


def _optimized(conflict: Conflict, project: Project) -> bool:
    assert conflict.write is not None
    storage = conflict.write.ref.storage
    return any(r.storage == storage for o in project.graph.optimizers.values() for r in o.refs)


def _proposal(
    write: Write,
    statement: cst.BaseSmallStatement,
    effect: Effect,
    rank: int,
    edits: tuple[Edit, ...],
    why: str = "",
) -> Proposal:
    small = cast(cst.BaseSmallStatement, write.small)
    code = _short(write.view.module.code_for_node(statement))
    summary = f"out of place: `{code}`" + (f", to {why}" if why else "")
    replaced = Replace(small, lambda now: statement.with_changes(semicolon=getattr(now, "semicolon", None)))
    return Proposal(summary, effect, {write.view.path: (replaced, *edits)}, rank)


def _short(code: str) -> str:
    text = " ".join(code.split())
    return text if len(text) <= 60 else text[:57] + "..."


def _rebinds(write: Write, conflict: Conflict, project: Project) -> bool:
    if not write.name or write.of_receiver:
        return False
    if to_leaf_view(write, conflict) or conflict.pattern == "detached-view":  # (its memory stays as it is)
        return True
    if conflict.kind == "forbidden-view-write":  # it has never been made: no caller counts on seeing it
        loop = write.view.loop(write.node)
        if isinstance(loop, cst.For) and write.name in stored(loop.target) and not _read_behind(write, loop):
            return False  # what the loop goes through would stay as it was
        shared = sharing(write.view, write.node, write.name)
        return not any(live_after(write.view, write.node, alias) for alias in shared.names)
    if detached_alias(write.view, write.node, write.name):
        return True
    return may_rebind(write.view, write.node, write.name, _stack(conflict), project)


def _read_behind(write: Write, loop: cst.For) -> bool:
    """Whether the body takes the name's value behind the write, and does not only write to it again."""
    view = write.view
    end = view.span(write.small or write.node).end
    for read in reads_of(loop.body, write.name):
        start = view.span(read).start
        if (start.line, start.column) >= (end.line, end.column) and not any(
            isinstance(n, cst.AssignTarget) for n in view.ancestors(read)
        ):
            return True
    return False


def _stack(conflict: Conflict) -> Stack:
    return conflict.write.stack if conflict.write else ()


def _statements(
    write: Write, conflict: Conflict, project: Project, any_name: bool = False
) -> Iterator[tuple[cst.BaseSmallStatement, tuple[Edit, ...]]]:
    """Statements that bind the written name to a new tensor, in place of a write that is a statement; with `any_name`
    whoever else holds the tensor."""
    item = any_name and isinstance(write.target, cst.Subscript)
    container = isinstance(write.node, cst.AugAssign) and of_container(write, project)
    if container and not any_name and held_elsewhere(write.name, _stack(conflict), project):
        return
    if isinstance(write.node, cst.AugAssign) and (item or container):
        operator = BINARY[type(write.node.operator)]()
        yield assignment(write.node.target, binary(write.node.target, operator, write.node.value)), ()
        return
    if any_name or _rebinds(write, conflict, project):
        yield from bound_anew(write)


def _straight_through(write: Write) -> cst.BaseSmallStatement | None:
    """``h = h + (value - h).detach()`` for ``h.data.copy_(value)``, ``h.data = value`` and roundings."""
    if isinstance(write.node, cst.Assign) and write.form == "data" and len(write.node.targets) == 1:
        value = write.node.value
    elif write.form == "method" and write.alone and write.whole:
        call = cast(cst.Call, write.node)
        name = function_of(call)
        if name not in _STRAIGHT_THROUGH or call.func.value is not chain_root(call):  # type: ignore[attr-defined]
            return None
        value = call.args[0].value if name == "copy_" and call.args else chained(call, copy(write.root))
    else:
        return None
    root = cast(cst.BaseAssignTargetExpression, write.root)
    value = copy(undone_data(value, dotted(root)))
    change = cst.BinaryOperation(
        value if not isinstance(value, cst.IfExp | cst.Lambda | cst.Comparison) else in_parentheses(value),
        cst.Subtract(),
        copy(root),
        lpar=[cst.LeftParen()],
        rpar=[cst.RightParen()],
    )
    return assignment(root, cst.BinaryOperation(copy(root), cst.Add(), method(change, "detach")))


def _rebuilt(write: Write) -> tuple[Replace, cst.BaseStatement] | None:
    """``ps = [p - g for p, g in zip(ps, gs)]`` for a loop that only writes into the elements of a list."""
    view, small = write.view, write.small
    line = view.parents.get(small) if small is not None else None
    loop = view.loop(write.node)
    block = view.parents.get(line) if line is not None else None
    alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
    if not isinstance(loop, cst.For) or loop.body is not block or len(loop.body.body) != 1 or not alone:
        return None
    if not write.whole or loop.orelse or (isinstance(block, cst.IndentedBlock) and block.header.comment):
        return None
    value = value_of(write)
    source = iterated(loop, write.name)
    if value is None or source is None or not is_list(view, loop, dotted(source)):
        return None
    built = cst.ListComp(value, cst.CompFor(loop.target, loop.iter))
    assert isinstance(line, cst.SimpleStatementLine)
    new = cst.SimpleStatementLine(
        [assignment(cast(cst.BaseAssignTargetExpression, source), built)],
        leading_lines=(*loop.leading_lines, *line.leading_lines),
        trailing_whitespace=line.trailing_whitespace,
    )
    return Replace(loop, lambda _: new), new


def _items_held(write: Write, conflict: Conflict, project: Project) -> bool:
    """Whether the elements of the list that a loop goes through are held elsewhere, too."""
    loop = write.view.loop(write.node)
    source = iterated(loop, write.name) if isinstance(loop, cst.For) else None
    return source is not None and held_elsewhere(dotted(source), _stack(conflict), project)


def _dropped(write: Write, conflict: Conflict, project: Project) -> Replace | None:
    """An in-place call in the middle of an expression loses its underscore (or its ``inplace=True``)."""
    if not isinstance(write.node, cst.Call) or write.alone or write.form == "out" or write.hidden:
        return None
    call = write.node
    name = write.name
    if write.form == "function":
        plain: cst.CSTNode | None = out_of_place_function(write, call)
        if plain is None:
            return None
        new = cast(cst.BaseExpression, plain)
    else:
        names = {cast(cst.Attribute, c.func).attr.value for c in chain(call)}
        if names & ONLY_IN_PLACE:
            return None
        new = chained(call, chain_root(call))
    small = write.small
    bound = isinstance(small, cst.Assign) and any(dotted(t.target) == name for t in small.targets)
    if not name or bound or not live_after(write.view, call, name):
        return Replace(call, lambda _: new)
    if (
        write.whole
        and isinstance(small, cst.Assign)
        and small.value is call
        and _rebinds(write, conflict, project)
    ):
        more = cst.AssignTarget(cast(cst.BaseAssignTargetExpression, copy(write.root)))
        whole = small.with_changes(targets=[*small.targets, more], value=new)
        return Replace(small, lambda _: whole)
    return None
