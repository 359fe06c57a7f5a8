"""See :class:`ZeroNotNone`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from gradfix.codemod import Codemod, Effect, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project
from gradfix.rewrite.calls import with_arguments
from gradfix.rewrite.spelling import function_of
from gradfix.tape import Zero

OLD = Effect("restored", "gradients are cleared to zero, as before PyTorch 2.0")


class ZeroNotNone(Codemod):
    """Have `zero_grad()` set gradients to zero, with `set_to_none=False`.

    Why: until PyTorch 2.0 it did so unasked. Today it sets `.grad` to None, and code that goes through the
    gradients of all parameters fails at those that the next backward does not reach. Adam and momentum move
    a parameter whose gradient is zero, and pass over one that has none: so it matters for every call that
    clears it.

    When not: where the parameter is not meant to be trained by this loss at all: pass over those whose `.grad`
    is None.
    """

    kinds = ("legacy-api",)
    effects = ("restored",)
    examples = (
        Example(
            """\
import torch

body, head, other = (torch.nn.Linear(3, 3) for _ in range(3))
parameters = [p for m in (body, head, other) for p in m.parameters()]
optimizer = torch.optim.SGD(parameters, 0.1)
for x in torch.randn(4, 4, 3):
    for part in (head, other):
        optimizer.zero_grad()
        part(body(x)).pow(2).mean().backward()
        if part is other:
            norm = sum(p.grad.pow(2).sum() for p in parameters)  # conflict: legacy-api
        optimizer.step()
""",
            """\
import torch

body, head, other = (torch.nn.Linear(3, 3) for _ in range(3))
parameters = [p for m in (body, head, other) for p in m.parameters()]
optimizer = torch.optim.SGD(parameters, 0.1)
for x in torch.randn(4, 4, 3):
    for part in (head, other):
        optimizer.zero_grad(set_to_none=False)
        part(body(x)).pow(2).mean().backward()
        if part is other:
            norm = sum(p.grad.pow(2).sum() for p in parameters)  # conflict: legacy-api
        optimizer.step()
""",
            effect="restored",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.pattern != "cleared" or conflict.ref is None:
            return
        zeros = [e for e in project.tape.events if isinstance(e, Zero)]
        its = [e for e in zeros if any(r.storage == conflict.ref.storage for r in e.refs)]
        last = conflict.label("zero")
        ways = (
            ("where this gradient is cleared", its),
            ("in the call before", [e for e in its if last is not None and e.stack == last.stack]),
            ("in every call", zeros),
        )
        for rank, (where, some) in enumerate(ways):
            edits = _edits(some, project)
            if edits:
                yield Proposal(f"`zero_grad(set_to_none=False)` {where}", OLD, edits, rank)


def _edits(zeros: Iterable[Zero], project: Project) -> dict[str, tuple[Edit, ...]]:
    """The edits of the calls that these events come of, each once."""
    calls: dict[tuple[str, cst.CSTNode], Edit] = {}
    for stack in dict.fromkeys(e.stack for e in zeros):
        view = project.view(stack[-1].file) if stack else None
        call = view.call_at(stack[-1]) if view is not None else None
        if view is not None and call is not None and function_of(call) == "zero_grad" and not call.args:
            calls[view.path, call] = with_arguments(call, {"set_to_none": cst.Name("False")})
    return {path: tuple(e for (p, _), e in calls.items() if p == path) for path, _ in calls}
