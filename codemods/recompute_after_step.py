"""Run what an optimizer's step has made stale once more, behind the step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import gather
from gradfix.rewrite.cached import cached
from gradfix.rewrite.calls import backward_call, drop_retain
from gradfix.rewrite.rerun import DRAW, LATER, Plan, plan, shared_losses, stale
from gradfix.rewrite.statements import shown, touches


class RecomputeAfterStep(Codemod):
    """Compute the later loss behind the step that changes the parameters it rests on.

    Why: `optD.step()` overwrites the weights that D's output saved for its backward. The generator's loss has
    to be computed from an output of the updated D: move the statements that only it needs behind the step,
    and run those that the discriminator's loss needs too once more (`D(fake)` again), which is the order of
    the GAN, DDPG and SAC papers.

    When not: where the loss is meant to see the parameters of before the step; then take both gradients
    first (`backward-inputs`). What is run again counts twice in BatchNorm statistics and draws its random
    numbers anew.
    """

    kinds = ("stale-saved-tensor", "freed-graph", "silent-overwrite")
    effects = ("later-parameters", "new-draw")

    examples = (
        Example(
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    fake = G(torch.randn(4, 2))
    loss_d = D(fake.detach()).mean()
    loss_g = -D(fake).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()  # conflict: stale-saved-tensor
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
""",
            """\
import torch

G, D = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
opt_g, opt_d = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
for _ in range(2):
    fake = G(torch.randn(4, 2))
    loss_d = D(fake.detach()).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()  # conflict: stale-saved-tensor
    loss_g = -D(fake).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
""",
            effect="later-parameters",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        if conflict.backward is None:
            return
        found = plan(project, conflict.backward)
        if found is not None:
            # (a function that gives several losses is better split)
            later = 6 * any(shared_losses(project, u.node) is not None for u in found.kept)
            for proposal in _behind(found):
                yield replace(proposal, rank=proposal.rank + later)
        yield from _cached(conflict, project)


def _behind(found: Plan) -> Iterator[Proposal]:
    effect = DRAW if found.draws() else LATER
    step = shown(found.view, found.step.node)
    drops = [(v, [e]) for v, e in found.drops()]
    idle = "; drop the idle retain_graph"
    if not found.kept:
        summary = f"move {_said(found)} behind `{step}`"
        yield Proposal(
            f"{summary}{idle if drops else ''}", effect, gather((found.view, found.edits()), *drops), 0
        )
        if drops:
            yield Proposal(summary, effect, gather((found.view, found.edits())), 1)
        return
    cuts = [(v, [e]) for v, e in found.cuts()]
    for inline in (True, False) if found.can_inline() else (False,):
        edits = (found.view, found.edits(inline))
        place = f"where it is read after `{step}`" if inline else f"after `{step}`"
        summary = f"compute {_said(found)} again {place}"
        rank = 0 if inline or not found.can_inline() else 3
        if cuts:
            said = f"{summary}, and detach what the earlier loss takes{idle if drops else ''}"
            yield Proposal(said, effect, gather(edits, *cuts, *drops), rank)
        if drops:
            yield Proposal(f"{summary}{idle}", effect, gather(edits, *drops), rank + 1)
        yield Proposal(summary, effect, gather(edits), rank + 2)


def _said(found: Plan) -> str:
    every = dict.fromkeys(w for u in found.again for w in sorted(u.writes))
    bound = [w for w in every if touches({w}, found.read_later)] or list(every)
    return ", ".join(f"`{w}`" for w in bound)


def _cached(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """The stale output waits in an attribute that another method reads: compute it again there."""
    assert conflict.backward is not None
    records, _ = stale(project, conflict.backward)
    place = cached(project, records, conflict.backward)
    if place is None:
        return
    summary = f"compute `{place.name}` again where the later loss reads it"
    ways = ((summary, place.inline()), (f"compute `{place.name}` again before the later loss", place.again()))
    earlier = backward_call(project, conflict.earlier) if conflict.earlier else None
    drop = (earlier[0], [drop_retain(earlier[1])]) if earlier else (place.view, [])
    for rank, (said, edits) in enumerate(w for w in ways if w[1]):
        if earlier and drop_retain(earlier[1]):
            dropped = f"{said}; drop the idle retain_graph"
            yield Proposal(dropped, LATER, gather((place.view, edits), drop), 2 * rank)
        yield Proposal(said, LATER, gather((place.view, edits)), 2 * rank + 1)
