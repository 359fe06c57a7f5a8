"""See :class:`CloneWeight`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from gradfix.codemod import NONE, Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Insert, Project, Replace, View
from gradfix.rewrite.blocks import method
from gradfix.rewrite.liveness import dotted
from gradfix.rewrite.statements import Names, block_of, names, touches, walk
from gradfix.rewrite.tensors import is_leaf, is_renormalised

Found = tuple[View, cst.CSTNode]


class CloneWeight(Codemod):
    """Use a clone of a weight beside a lookup that renormalises it, or a write of the program's own.

    Why: `nn.Embedding(max_norm=...)` scales the rows it looks up in place, every time it is called. Where the
    weight itself was used before (`table.weight @ W.t()`), that use has saved it: `table.weight.clone()`
    saves a copy, and the gradient still reaches the table. It is what the documentation of nn.Embedding
    advises. So for a codebook that the forward pass itself moves towards its inputs.

    When not: where the use is meant to see the scaled rows: then it comes after the lookup (shown as an
    alternative: what is computed from the weight changes by the scaling).
    """

    kinds = ("stale-saved-tensor", "silent-overwrite")
    effects = ("none", "moved-write")
    examples = (
        Example(
            """\
import torch
from torch import nn

table = nn.Embedding(3, 4, max_norm=1.0)
W = torch.ones(2, 4, requires_grad=True)
a = table.weight @ W.t()
b = table(torch.tensor([0, 2])) @ W.t()  # conflict: stale-saved-tensor
(a.sum() + b.sum()).backward()
""",
            """\
import torch
from torch import nn

table = nn.Embedding(3, 4, max_norm=1.0)
W = torch.ones(2, 4, requires_grad=True)
a = table.weight.clone() @ W.t()
b = table(torch.tensor([0, 2])) @ W.t()  # conflict: stale-saved-tensor
(a.sum() + b.sum()).backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if _written_by_hand(conflict, project):
            yield from _where_bound(conflict, project)
        if not is_renormalised(conflict):
            return
        edits: dict[str, tuple[Edit, ...]] = {}
        done: list[cst.CSTNode] = []
        code = ""
        for one in (conflict, *conflict.also):
            for site in reversed(one.record.stack) if one.record is not None else ():
                found = project.node(site)
                nodes = [n for n in _weights(*found) if not any(n is d for d in done)] if found else []
                if found and nodes:
                    view = found[0]
                    done += nodes
                    code = code or view.code(nodes[0])
                    edits[view.path] = (*edits.get(view.path, ()), *(Replace(n, _cloned) for n in nodes))
                    break
        if edits:
            yield Proposal(f"use a clone: `{code}.clone()`", NONE, edits)
        yield from _lookup_first(conflict, project)


def _written_by_hand(conflict: Conflict, project: Project) -> bool:
    """Whether the program itself writes into the weight (a codebook that follows its inputs)."""
    write = conflict.write
    return write is not None and write.optimizer is None and is_leaf(project, write.ref.storage)


def _where_bound(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """``w = codes.weight.clone()``: where the name is bound that the formula reads, once for all of its reads."""
    written = (
        [names(node).reads for _, node in project.frames(conflict.write.stack)] if conflict.write else []
    )
    for view, node in reversed(list(project.frames(conflict.record.stack)) if conflict.record else ()):
        function = view.function(node)
        body = function.body if isinstance(function, cst.FunctionDef) else view.module
        read = names(node).reads
        for unit in walk(body):
            bound = unit.node
            if not isinstance(bound, cst.Assign) or not unit.names.binds & read:
                continue
            if any(touches(w, unit.names.binds) for w in written):
                continue  # it is written by this very name
            weights = list(_attributes(bound.value))
            if weights and isinstance(bound.value, (cst.Attribute, cst.Call)):
                edits = tuple(Replace(n, _cloned) for n in weights)
                code = view.code(weights[0])
                yield Proposal(f"use a clone: `{code}.clone()`", NONE, {view.path: edits}, 2)
                return


def _cloned(now: cst.CSTNode) -> cst.CSTNode:
    return method(cast(cst.BaseExpression, now), "clone")


def _weights(view: View, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Every ``….weight`` in `node` that is used as a value, else a name that was bound to one."""
    named = list(_attributes(node))
    if named:
        yield from named
        return
    for name in _names(node):
        if _is_weight(view, name.value):
            yield name


def _attributes(node: cst.CSTNode) -> Iterator[cst.Attribute]:
    if isinstance(node, cst.Attribute) and node.attr.value == "weight":
        yield node
        return
    for child in node.children:
        yield from _attributes(child)


def _names(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, cst.Name):
        yield node
    elif isinstance(node, cst.Attribute):
        yield from _names(node.value)
    else:
        for child in node.children:
            yield from _names(child)


def _is_weight(view: View, name: str) -> bool:
    """Whether the name is bound to a weight, or to a view of one."""
    return any(
        any(dotted(t.target) == name for t in node.targets) and any(True for _ in _attributes(node.value))
        for node in view.parents
        if isinstance(node, cst.Assign)
    )


def _lookup_first(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """The lookup, and with it the scaling, before the use."""
    for used, lookup in _frames(conflict, project):
        view, use = used
        _, look = lookup
        block = block_of(view, use)
        first, second = view.statement(use), view.statement(look)
        body = list(getattr(block, "body", ()))
        if first is None or second is None or first not in body or second not in body:
            continue
        i, j = body.index(first), body.index(second)
        if i < j and _may_pass(names(second), [names(x) for x in body[i:j]]):
            moved = second.with_changes(leading_lines=[x for x in second.leading_lines if x.comment])
            edits = (Insert(first, before=(moved,)), Replace(second, lambda _: cst.RemoveFromParent()))
            what = " ".join(view.code(use).split())
            effect = Effect("moved-write", f"`{what[:60]}` sees the renormalised weight")
            yield Proposal("look up first", effect, {view.path: edits}, 1)
            return


def _frames(conflict: Conflict, project: Project) -> Iterator[tuple[Found, Found]]:
    """Pairs of nodes, of the use and of the lookup, in the same file, innermost first."""
    uses = list(project.frames(conflict.record.stack))[::-1] if conflict.record else []
    lookups = list(project.frames(conflict.write.stack))[::-1] if conflict.write else []
    for used in uses:
        for lookup in lookups:
            if used[0] is lookup[0]:
                yield used, lookup


def _may_pass(moved: Names, passed: list[Names]) -> bool:
    return not any(
        touches(moved.reads, p.writes) or touches(moved.writes, p.reads) or touches(moved.writes, p.writes)
        for p in passed
    )
