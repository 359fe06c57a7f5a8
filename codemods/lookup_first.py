"""See :class:`LookupFirst`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Insert, Project, Replace
from gradfix.statements import Names, block_of, names, touches
from gradfix.tensors import is_renormalised


class LookupFirst(Codemod):
    """Look up in an embedding with `max_norm` before its weight is used.

    Why: the lookup renormalises rows of the weight in place. Done first, the later use sees (and saves) the
    weight as it stays.

    When not: where the use is meant to see the weight as it was before the lookup: what it computes changes.
    Clone the weight then.
    """

    kinds = ("stale-saved-tensor",)
    effects = ("changes-value",)
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
b = table(torch.tensor([0, 2])) @ W.t()  # conflict: stale-saved-tensor
a = table.weight @ W.t()
(a.sum() + b.sum()).backward()
""",
            "changes-value",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if not is_renormalised(conflict):
            return
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
                effect = Effect("changes-value", f"`{what[:60]}` sees the renormalised weight")
                yield Proposal("look up first", effect, {view.path: edits}, 1)
                return


def _frames(conflict: Conflict, project: Project):  # type: ignore[no-untyped-def]
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
