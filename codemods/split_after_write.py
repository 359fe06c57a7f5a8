"""See :class:`SplitAfterWrite`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.liveness import reads, sharing
from gradfix.rewrite.spelling import function_of
from gradfix.rewrite.statements import Unit, block_of, lifted, line_of, put_after, take_away, unit_in, units
from gradfix.rewrite.writes import write_of
from gradfix.tape import ViewUse

_SPLITS = frozenset(
    ["split", "split_with_sizes", "chunk", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit"]
)


class SplitAfterWrite(Codemod):
    """Take the views of unbind, split or chunk behind the write to the tensor that they are views of.

    Why: one node makes all outputs of such a function, so autograd can't tell what a write to the tensor behind it
    does to each, and refuses whatever reads one afterwards. Views that are taken after the write see the same memory,
    and know its history.

    When not: where the views are meant to keep what they were before the write: then they need a clone.
    """

    kinds = ("forbidden-view-write",)
    effects = ("none",)
    examples = (
        Example(
            """\
import torch

w = torch.ones(2, 3, requires_grad=True)
h = w * 2
first, second = h.unbind()
h[0, 0] = 1.0  # conflict: forbidden-view-write
(first.tanh() * second).sum().backward()
""",
            """\
import torch

w = torch.ones(2, 3, requires_grad=True)
h = w * 2
h[0, 0] = 1.0  # conflict: forbidden-view-write
first, second = h.unbind()
(first.tanh() * second).sum().backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        write = write_of(conflict, project)
        if write is None or not write.name or not isinstance(conflict.event, ViewUse):
            return
        view = write.view
        names = {write.name} | sharing(view, write.node, write.name).names
        block = block_of(view, write.node)
        while block is not None and view.function(block) is view.function(write.node):
            at = unit_in(view, block, write.node)
            body = units(block)
            for number in reversed(range(at or 0)):
                if _splits(body[number].node, names):
                    edits = _behind(view, body, number, at or 0)
                    if edits:
                        code = view.code(body[number].node).strip()
                        yield Proposal(f"behind the write: `{code}`", NONE, {view.path: edits})
                    return
            block = block_of(view, block)


def _splits(node: cst.CSTNode, names: set[str]) -> bool:
    """Whether a statement binds the outputs of a split of one of `names`."""
    value = node.value if isinstance(node, cst.Assign) else None
    return isinstance(value, cst.Call) and function_of(value) in _SPLITS and bool(reads(value) & names)


def _behind(view: View, body: tuple[Unit, ...], split: int, write: int) -> tuple[Edit, ...]:
    """The unit `split` behind the unit `write`; once more, where what it binds is read in between; no edits where
    what it reads is bound anew there."""
    unit, until = body[split], body[split + 1 : write + 1]
    if any(u.names.binds & (unit.names.reads | unit.names.binds) for u in until):
        return ()
    if any(reads(u.node) & unit.names.binds for u in until):
        copy = line_of(unit.node)
        return (put_after(body[write], copy),)
    return (*take_away(unit, view), put_after(body[write], lifted(unit)))
