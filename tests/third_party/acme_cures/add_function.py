"""See :class:`AddFunction`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project, exchange, parse_small


class AddFunction(Codemod):
    """Add with `torch.add` instead of `+=`.

    Why: `y += 1` writes into the tensor that the op before it saved; `torch.add` makes a new one.

    When not: where somebody else is meant to see the write.
    """

    kinds = ("stale-saved-tensor",)
    examples = (
        Example(
            """\
import torch

x = torch.ones(3, requires_grad=True)
y = x.exp()
y += 1  # conflict: stale-saved-tensor
y.sum().backward()
""",
            """\
import torch

x = torch.ones(3, requires_grad=True)
y = x.exp()
y = torch.add(y, 1)  # conflict: stale-saved-tensor
y.sum().backward()
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = project.node(conflict.at)
        if found is None:
            return
        view, node = found
        statement = view.small_statement(node)
        if not isinstance(statement, cst.AugAssign) or not isinstance(statement.operator, cst.AddAssign):
            return
        name, value = view.code(statement.target), view.code(statement.value)
        new = parse_small(f"{name} = torch.add({name}, {value})")
        yield Proposal("add with `torch.add`", NONE, {view.path: (exchange(statement, new),)})
