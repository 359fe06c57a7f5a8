"""See :class:`LegacyBetas`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, exchange
from gradfix.rewrite.blocks import copy

OLD = Effect("restored", "the optimizer is made as it was")


class LegacyBetas(Codemod):
    """Give Adam's betas as floats: `betas=(0.0, 0.9)`.

    Why: `betas=(0, 0.9)`, as many GANs have it, was taken as it is. Adam may hold its betas in tensors today, and
    refuses two numbers of which one is an int.

    When not: never; the numbers are the same.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.1, betas=(0, 0.9))  # conflict: legacy-api
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            """\
import torch

net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters(), 0.1, betas=(0.0, 0.9))  # conflict: legacy-api
for x in torch.randn(3, 4, 3):
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        view = project.view(conflict.at.file)
        refused = view.call_at(conflict.at) if view is not None else None
        if refused is None or "betas" not in conflict.message:
            return
        edits: dict[str, tuple[Edit, ...]] = {}
        first = _betas(refused, True)
        for path in sorted(project.files):  # (those of other optimizers are refused behind it)
            other = project.view(path)
            calls = [n for n in other.parents if isinstance(n, cst.Call)] if other is not None else []
            found = ((c, _betas(c, c.func.deep_equals(refused.func))) for c in calls)
            given = [
                (betas, c is refused or (other is view and first is not None and betas.deep_equals(first)))
                for c, betas in found
                if betas is not None
            ]
            edits[path] = tuple(e for betas, named in given for e in _as_floats(betas, named))
        if any(edits.values()):
            yield Proposal("give the betas as floats", OLD, {p: e for p, e in edits.items() if e})


def _betas(call: cst.Call, by_place: bool) -> cst.BaseExpression | None:
    """What is given as betas, by name or as the third argument."""
    named = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "betas"), None)
    third = call.args[2] if by_place and len(call.args) > 2 else None
    return third.value if named is None and third is not None and third.keyword is None else named


def _as_floats(betas: cst.BaseExpression, names: bool) -> Iterator[Edit]:
    """Where an int stands, its float; where none does, what the `names` hold."""
    numbers = betas.elements if isinstance(betas, cst.Tuple | cst.List) else ()
    values = [e.value for e in numbers if isinstance(e, cst.Element)]
    if any(isinstance(v, cst.Integer) for v in values):
        yield from (exchange(v, cst.Float(f"{v.value}.0")) for v in values if isinstance(v, cst.Integer))
    elif values and names:
        for v in values:
            if not isinstance(v, cst.Float):
                yield exchange(v, cst.Call(cst.Name("float"), [cst.Arg(copy(v))]))
    elif names:
        call = cst.Call(cst.Name("map"), [cst.Arg(cst.Name("float")), cst.Arg(copy(betas))])
        yield exchange(betas, cst.Call(cst.Name("tuple"), [cst.Arg(call)]))
