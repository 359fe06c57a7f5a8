"""See :class:`CloneBeforeWrite`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, Replace, View, exchange
from gradfix.rewrite.blocks import assignment, copy, line, method
from gradfix.rewrite.boundary import returns
from gradfix.rewrite.held import holders_of, outlives
from gradfix.rewrite.hooked import handed_back
from gradfix.rewrite.liveness import (
    dotted,
    live_after,
    locals_of,
    parameters,
    reads,
    scope_of,
    shared_with,
    sharing,
    target_names,
)
from gradfix.rewrite.passed import Passed, passed
from gradfix.rewrite.saved import operands_of, reads_of, what_was_saved
from gradfix.rewrite.shown import only_shown
from gradfix.rewrite.spelling import descendants, function_of, peeled, undone_data, unused
from gradfix.rewrite.tensors import detached_alias, element_of, is_leaf, of_container
from gradfix.rewrite.writes import Write, may_rebind, to_leaf_view, write_of
from gradfix.tape import Cut, Stack

_OF_TENSORS = frozenset(
    ("numpy", "asarray", "array")
)  # calls that make an array of a tensor, perhaps sharing memory
_OF_ARRAYS = frozenset(("from_numpy", "as_tensor", "frombuffer"))  # ... and a tensor of an array
FLOWS = Effect("adds-gradient", "the write is part of the graph and the gradient flows through it")

KEPT = Effect("changes-value", "who reads the input behind the Function reads it as it was before")
ALIAS = Effect(
    "own-memory", "the loss takes the values as they were computed: what is written stays with the alias"
)
# what a custom Function writes into, and what a copy of it changes
OWN = {"grad-output": ("a gradient", NONE), "input-changed": ("an input", KEPT)}


class CloneBeforeWrite(Codemod):
    """Write into a copy, so that what backward needs stays as it was saved.

    Why: an index write (`h[:, 0] = 1`, `out[idx] += v`, `h.scatter_(...)`) changes part of a tensor, and there is
    no short way to say it out of place. `h = h.clone()` before it gives the write a tensor of its own; autograd
    follows the clone and the write. Where a buffer is filled step by step (`states[t + 1] = cell(x, states[t])`),
    what was saved is the view that was read: `states[t].clone()`. What lives in an attribute (a running centre, a
    queue) may be held by others, who are to see the write: there, too, a copy is read. A detached alias (`c =
    out.detach()`) shares its memory: `c = out.detach().clone()`. Where the alias is only shown or measured, this
    is meant even if the loss takes the tensor behind the write: it takes the values as they were computed then. So
    do an array (`out.detach().numpy()`) and the tensor that torch.from_numpy makes of one share it. The gradient
    that a custom Function's backward, or a tensor's hook, is given belongs to other branches, too:
    `grad_output.clone()`.

    When not: where a whole tensor is overwritten (out of place says it shorter), where a name that is read
    later is meant to see the write, and for a parameter: its clone is not what the optimizer steps. (A view of one that
    takes what the model computes, or is expanded over a batch, is no parameter: it is written in a copy.)
    """

    kinds = ("stale-saved-tensor", "silent-overwrite", "forbidden-view-write", "leaf-write")
    effects = ("none", "adds-gradient", "changes-value", "own-memory")
    examples = (
        Example(
            """\
import torch

w = torch.ones(4, requires_grad=True)
h = torch.tanh(w)
h[0] = 1.0  # conflict: stale-saved-tensor
h.sum().backward()
""",
            """\
import torch

w = torch.ones(4, requires_grad=True)
h = torch.tanh(w)
h = h.clone()
h[0] = 1.0  # conflict: stale-saved-tensor
h.sum().backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write = write_of(conflict, project)
        shown = _is_shown(write, conflict, project)
        if not shown or not _read_behind(conflict, project):
            yield from cls._ways(conflict, project, write, NONE)
            return
        for proposal in cls._ways(conflict, project, write, ALIAS):
            # (what keeps the tensor's new value is what the program says, and nobody means)
            yield proposal if proposal.effect is ALIAS else replace(proposal, last_resort=True)

    @classmethod
    def _ways(
        cls, conflict: Conflict, project: Project, write: Write | None, alone: Effect
    ) -> Iterator[Proposal]:
        """Every way; `alone` is the effect of those that leave the write to an alias."""
        if conflict.pattern == "hook-gradient" and write is not None:
            yield from _hooked(write)
        if conflict.pattern in OWN and write is not None:
            yield from _own(conflict, project, write)
        if (
            conflict.write is None
            or conflict.write.optimizer is not None
            or conflict.pattern == "detached-view"
        ):
            return
        if conflict.write.how == "numpy":
            yield from _arrays(conflict, project, write, alone)
            return
        if conflict.kind == "leaf-write":
            if write is not None and write.small is not None and to_leaf_view(write, conflict):
                new = assignment(cst.Name(write.name), method(cst.Name(write.name), "clone"))
                files = {write.view.path: _insert(write.view, write.small, new)}
                yield Proposal(f"write into a copy: `{write.name}.clone()`", NONE, files, 2)
            return
        if is_leaf(project, conflict.write.ref.storage):
            return
        for one in passed(conflict, project):
            yield from _at_caller(one, project)
        if write is None:
            yield from _at_module(conflict, project)
            return
        saved = _reads(conflict, project, write)
        # a new value behind autograd's back: what is cloned and then overwritten keeps no part in the graph
        behind = write.form == "data" or (write.hidden and write.whole and "copy_" in conflict.write.op)
        if behind or of_container(write, project):
            if saved and outlives(write.view, write.node, write.name):
                yield _saved_copies(saved, 0)
            if of_container(write, project):
                return
        alias = detached_alias(write.view, write.node, write.name) if write.name else None
        if alias is not None:
            yield _at_alias(write, alias, alone)
        if behind:
            return
        # an element of a buffer, or an attribute: it outlives the call, and others may hold it by another name
        buffer = bool(saved) and (
            isinstance(element_of(write), cst.Attribute)
            or any(isinstance(n, cst.Subscript) for _, n in saved)
        )
        rank = (
            1
            if alias is not None
            or buffer
            or (write.form in ("operator", "method", "function") and write.whole)
            else 0
        )
        edits = _before(write, conflict, project) or _from_previous(write, conflict, project)
        if edits is not None:
            code = f"{write.view.code(element_of(write))}.clone()"
            effect = FLOWS if write.hidden else NONE
            yield Proposal(f"write into a copy: `{code}`", effect, {write.view.path: edits}, rank)
            if (edits := _value_first(write)) is not None:
                said = f"write into a copy made behind the value's computation: `{code}`"
                yield Proposal(said, effect, {write.view.path: edits}, rank + 1)
        elif (back := handed_back(write, conflict)) is not None and (edits := _at_entry(write)):
            said = f"a copy for the hook, which hands it back: `{write.name}.clone()`"
            yield Proposal(said, NONE, {write.view.path: (*edits, back)}, rank)
        elif (edits := _before_view(write, conflict, project)) is not None:
            yield Proposal("clone before the view of it is taken", NONE, {write.view.path: edits}, 1)
        if saved:
            yield _saved_copies(saved, 0 if buffer else 2)


def _reads(conflict: Conflict, project: Project, write: Write) -> Sequence[tuple[View, cst.BaseExpression]]:
    """Where what is written was read into the graph: in the function of the write, or, where others have the tensor as
    well, anywhere."""
    if conflict.record is None or conflict.write is None:
        return ()
    view, scope = write.view, scope_of(write.view, write.node)
    here = [(view, n) for n in what_was_saved(conflict, project, view, write.node, write.name)]
    called = {write.name, *holders_of(conflict.write.stack, project)} - {""}
    local = isinstance(scope, cst.FunctionDef) and write.name in locals_of(scope)
    alone = local and all(each.isidentifier() for each in called)
    if (here or alone) and "." not in write.name:
        return here
    return reads_of(conflict, project, called) or here


def _is_shown(write: Write | None, conflict: Conflict, project: Project) -> bool:
    """Whether the write goes to an alias that is made for what is shown (`picture = out.detach()`)."""
    if conflict.write is None:
        return False
    if write is None and conflict.write.how == "numpy":  # by a function of NumPy's
        for view, call, _ in _exchanges(conflict, project, None):
            small = view.small_statement(call)
            name = dotted(small.targets[0].target) if isinstance(small, cst.Assign) else None
            if name and function_of(call) in _OF_TENSORS:
                return only_shown(name, call, view, conflict, project)
    if write is None or not write.name:
        return False
    view = write.view
    alias = conflict.write.how == "numpy" or detached_alias(view, write.node, write.name) is not None
    return alias and only_shown(write.name, write.node, view, conflict, project)


def _read_behind(conflict: Conflict, project: Project) -> bool:
    """Whether the loss takes the tensor behind the write."""
    write, backward = conflict.write, conflict.backward
    if write is None or backward is None:
        return True
    records = project.graph.records.values()
    made = {r.node for r in records if r.output is not None and r.output.storage == write.ref.storage}
    behind = (r for r in records if write.time < r.time < backward.time)
    return any(not made.isdisjoint(r.parents) for r in behind)


def _own(conflict: Conflict, project: Project, write: Write) -> Iterator[Proposal]:
    """A tensor of its own for the backward of a custom Function that writes into the gradient it was given, or for the
    forward of one that writes into its input."""
    words, effect = OWN[conflict.pattern]
    function, small = scope_of(write.view, write.node), write.small
    given = set(parameters(function)) if isinstance(function, cst.FunctionDef) else set()
    for each in descendants(function):
        if not isinstance(each, cst.Assign) or dotted(each.value) not in given or write.name in given:
            continue
        if any(dotted(t.target) == write.name for t in each.targets):
            edit = Replace(each.value, lambda now: method(cast(cst.BaseExpression, now), "clone"))
            said = f"{words} of its own: `{dotted(each.value)}.clone()`"
            yield Proposal(said, effect, {write.view.path: (edit,)})
            return
    if small is None or not write.name or "." in write.name or write.form == "data":
        return
    if may_rebind(write.view, write.node, write.name, conflict.labels[conflict.primary].stack, project):
        clone = assignment(cst.Name(write.name), method(cst.Name(write.name), "clone"))
        edits = (*_insert(write.view, small, clone), *_undone(write))
        said = f"{words} of its own: `{write.name}.clone()`"
        yield Proposal(said, effect, {write.view.path: edits}, 0 if not write.whole else 1)


def _hooked(write: Write) -> Iterator[Proposal]:
    """A copy for the hook of a tensor that writes into the gradient it is given, and hands back none, or another."""
    function, small = scope_of(write.view, write.node), write.small
    if small is None or not isinstance(function, cst.FunctionDef) or write.name not in parameters(function):
        return
    if write.view.enclosing(write.node, cst.Lambda) is not None:
        return
    clone = assignment(cst.Name(write.name), method(cst.Name(write.name), "clone"))
    edits = _insert(write.view, small, clone)
    if not returns(function):
        if not isinstance(function.body, cst.IndentedBlock):
            return
        edits += (Insert(function.body.body[-1], after=(line(cst.Return(cst.Name(write.name))),)),)
    said = f"a gradient of its own for the hook: `{write.name}.clone()`"
    yield Proposal(said, NONE, {write.view.path: edits}, 0 if not write.whole else 1)


def _at_caller(one: Passed, project: Project) -> Iterator[Proposal]:
    """A copy for the function that writes into what it is given, where the caller hands it over, or has it
    saved."""
    view, small = one.view, one.view.small_statement(one.call)
    if not one.read_on:
        code = view.code(one.given).strip()
        edit = Replace(one.given, lambda now: method(cast(cst.BaseExpression, now), "clone"))
        yield Proposal(f"hand over a copy: `{code}.clone()`", NONE, {view.path: (edit,)}, 1)
    elif small is not None and may_rebind(view, one.call, one.name, one.stack, project):
        clone = assignment(cst.Name(one.name), method(cst.Name(one.name), "clone"))
        summary = f"write into a copy: `{one.name}.clone()`"
        if "." not in one.name:
            yield Proposal(summary, NONE, {view.path: _insert(view, small, clone)}, 1)
    if one.result:
        yield _saved_copies([(view, cast(cst.BaseExpression, one.saving))], 2)
    else:
        names = {one.name} | sharing(view, one.call, one.name).names
        if operands := [(view, n) for n in operands_of(one.saving, names)]:
            yield _saved_copies(operands, 2)


def _at_module(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """A copy for an in-place module that is called with what its function reads again, and is to read as the module
    left it (a block's shortcut): out of place, the module would hand that back as it came."""
    event = conflict.write
    found = project.node(event.stack[-1]) if event is not None and event.module and event.stack else None
    if event is None or found is None:
        return
    view, call = found
    if not isinstance(call, cst.Call) or len(call.args) != 1:
        return
    name, small = dotted(call.args[0].value), view.small_statement(call)
    # (of a Sequential, the module that begins it)
    called = event.module.rstrip("0123456789.").rpartition(".")[2]
    if not name or "." in name or small is None or dotted(call.func).rpartition(".")[2] != called:
        return
    read = [n for n in descendants(small) if dotted(n) == name]
    if (len(read) > 1 or live_after(view, call, name)) and may_rebind(
        view, call, name, event.stack, project, True
    ):
        clone = assignment(cst.Name(name), method(cst.Name(name), "clone"))
        yield Proposal(
            f"write into a copy: `{name}.clone()`", NONE, {view.path: _insert(view, small, clone)}, 1
        )


def _arrays(conflict: Conflict, project: Project, write: Write | None, alone: Effect) -> Iterator[Proposal]:
    """Memory of its own for the tensor that an array was made of, for the array, or for the tensor made of an array."""
    assert conflict.write is not None
    leaf = is_leaf(project, conflict.write.ref.storage)
    for view, call, stack in _exchanges(conflict, project, write):
        code, small = " ".join(view.code(call).split()), view.small_statement(call)
        if function_of(call) in _OF_ARRAYS:
            edit = Replace(call, lambda n: method(cast(cst.BaseExpression, n), "clone"))
            yield Proposal(f"a tensor of its own: `{code}.clone()`", NONE, {view.path: (edit,)})
            if isinstance(small, cst.Assign) and small.value is call:  # (it may be made once, and refilled)
                called = frozenset().union(*(target_names(t.target) for t in small.targets))
                if reads := reads_of(conflict, project, called):
                    yield _saved_copies(reads, 1)
            continue
        if write is None or small is not write.small:
            edit = Replace(call, lambda n: method(cast(cst.BaseExpression, n), "copy"))
            yield Proposal(f"an array of its own: `{code}.copy()`", alone, {view.path: (edit,)})
        root = peeled(_exchanged(call))
        name = dotted(root)
        if leaf or not name or small is None:
            continue
        if may_rebind(view, call, name, stack, project):
            clone = assignment(cast(cst.BaseAssignTargetExpression, root), method(copy(root), "clone"))
            summary = f"write into a copy: `{name}.clone()`"
            yield Proposal(summary, NONE, {view.path: _insert(view, small, clone)}, 1)
        if saved := what_was_saved(conflict, project, view, call, name):
            yield _saved_copies([(view, n) for n in saved], 2)


def _exchanges(
    conflict: Conflict, project: Project, write: Write | None
) -> Iterator[tuple[View, cst.Call, Stack]]:
    """The calls that made an array of the tensor, or the tensor of an array, with the frames that led there."""
    assert conflict.write is not None
    storage = conflict.write.ref.storage
    cuts = [
        e for e in project.tape.events if isinstance(e, Cut) and e.how == "numpy" and e.ref.storage == storage
    ]
    seen: list[cst.CSTNode] = []
    for stack in dict.fromkeys([e.stack for e in (*cuts, conflict.write) if e.stack]):
        found = project.node(stack[-1])
        nodes = (found[1], *descendants(found[1])) if found else ()
        calls = [n for n in nodes if isinstance(n, cst.Call) and function_of(n) in _OF_TENSORS | _OF_ARRAYS]
        if found and calls and not any(calls[0] is x for x in seen):
            seen.append(calls[0])
            yield found[0], calls[0], stack
    if write is None or not write.name:
        return
    for node in descendants(scope_of(write.view, write.node)):
        if not isinstance(node, cst.Call) or function_of(node) not in _OF_ARRAYS or not node.args:
            continue
        if write.name in shared_with(node.args[0].value) and not any(node is x for x in seen):
            yield write.view, node, conflict.write.stack


def _exchanged(call: cst.Call) -> cst.BaseExpression:
    """``t`` of ``t.numpy()`` and ``np.asarray(t)``."""
    if function_of(call) == "numpy" or not call.args:
        return cast(cst.Attribute, call.func).value
    return call.args[0].value


def _at_alias(write: Write, alias: cst.Assign, effect: Effect) -> Proposal:
    value = alias.value
    plain = value.value if isinstance(value, cst.Attribute) and value.attr.value == "data" else None
    new = method(method(plain, "detach") if plain is not None else value, "clone")
    code = write.view.module.code_for_node(new)
    return Proposal(
        f"an alias with memory of its own: `{code}`",
        effect,
        {write.view.path: (Replace(value, lambda _: new),)},
    )


def _before(write: Write, conflict: Conflict, project: Project) -> tuple[Edit, ...] | None:
    """``h = h.clone()`` before the write, and the write to ``h`` itself where it went through ``.data``."""
    small = write.small
    if small is None or not write.name or write.of_receiver or conflict.write is None:
        return None
    if not may_rebind(write.view, write.node, write.name, conflict.write.stack, project):
        return None
    root = cast(cst.BaseAssignTargetExpression, element_of(write))
    clone = assignment(root, method(copy(root), "clone"))
    return (*_insert(write.view, small, clone), *_undone(write))


def _at_entry(write: Write) -> tuple[Edit, ...]:
    """``h = h.clone()`` before whatever a function does with its parameter: who gets it from here gets the copy."""
    function = scope_of(write.view, write.node)
    if not isinstance(function, cst.FunctionDef):
        return ()
    first = next((s for s in function.body.body if write.name in reads(s)), None)
    clone = assignment(cst.Name(write.name), method(cst.Name(write.name), "clone"))
    return (Insert(first, before=(line(clone),)),) if isinstance(first, cst.BaseStatement) else ()


def _from_previous(write: Write, conflict: Conflict, project: Project) -> tuple[Edit, ...] | None:
    """The same where a loop keeps what is written under another name for its next pass (``h_prev = h``), which is to be
    the state as it was: both are one tensor until the write gets a copy."""
    small, loops = (
        write.small,
        [n for n in write.view.ancestors(write.node) if isinstance(n, cst.For | cst.While)],
    )
    if small is None or write.form != "item" or not write.name or "." in write.name or conflict.write is None:
        return None
    kept = (
        (dotted(each.targets[0].target), loop)
        for loop in loops
        for each in descendants(loop.body)
        if isinstance(each, cst.Assign) and len(each.targets) == 1 and dotted(each.value) == write.name
    )
    names = {name for name, loop in kept if name and "." not in name and name in reads(loop.body)}
    view, stack = write.view, conflict.write.stack
    if not names or not may_rebind(view, write.node, write.name, stack, project, apart=names):
        return None
    clone = assignment(cst.Name(write.name), method(cst.Name(write.name), "clone"))
    return (*_insert(view, small, clone), *_undone(write))


def _value_first(write: Write) -> tuple[Edit, ...] | None:
    """``new_h = f(h[i])``, ``h = h.clone()``, ``h[i] = new_h``: where the value written is computed from the tensor
    itself, a clone before the whole statement would be what was saved, and be overwritten."""
    small = write.small
    if write.form != "item" or not isinstance(small, cst.Assign) or not write.alone or write.hidden:
        return None
    if write.name not in reads(small.value):
        return None
    root = cast(cst.BaseAssignTargetExpression, element_of(write))
    new = unused(write.view, f"new_{write.name.rpartition('.')[2]}")
    value = assignment(cst.Name(new), copy(small.value))
    clone = assignment(root, method(copy(root), "clone"))
    return (
        *_insert(write.view, small, value),
        *_insert(write.view, small, clone),
        exchange(small.value, cst.Name(new)),
    )


def _undone(write: Write) -> tuple[Edit, ...]:
    if not write.hidden or write.form == "data":
        return ()
    target, name = write.target, write.name
    return (Replace(target, lambda now: undone_data(cast(cst.BaseExpression, now), name)),)


def _insert(view: View, small: cst.BaseSmallStatement, new: cst.BaseSmallStatement) -> tuple[Edit, ...]:
    holder = view.parents[small]
    alone = isinstance(holder, cst.SimpleStatementLine) and holder.body[0] is small
    return (Insert(holder, before=(line(new),)),) if alone else (Insert(small, before=(new,)),)


def _before_view(write: Write, conflict: Conflict, project: Project) -> tuple[Edit, ...] | None:
    """``x = x.clone()`` before ``first = x[:, 0]``, for a write into ``first`` that ``x`` is to show."""
    if conflict.kind == "forbidden-view-write" or not write.name or conflict.write is None:
        return None
    views = sharing(write.view, write.node, write.name).views
    for statement in reversed(views):
        if isinstance(statement, cst.Assign):
            for name in sorted(shared_with(statement.value) - {write.name}):
                stack = conflict.write.stack
                small = cast(cst.BaseSmallStatement, statement)
                if "." not in name and may_rebind(write.view, statement, name, stack, project):
                    clone = assignment(cst.Name(name), method(cst.Name(name), "clone"))
                    return _insert(write.view, small, clone)
    return None


def _saved_copies(saved: Sequence[tuple[View, cst.BaseExpression]], rank: int) -> Proposal:
    edits: dict[str, tuple[Edit, ...]] = {}
    for view, each in saved:
        edit = Replace(each, lambda now: method(cast(cst.BaseExpression, now), "clone"))
        edits[view.path] = (*edits.get(view.path, ()), edit)
    code = " ".join(saved[0][0].code(saved[0][1]).split())
    short = code if len(code) < 50 else "…" + code[-40:]
    return Proposal(f"save a copy: `{short}.clone()`", NONE, edits, rank)
