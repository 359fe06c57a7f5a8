"""Run what an optimizer's step has made stale once more, behind the step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Project
from gradfix.rewrite.boundary import detach, frame, gather, meeting
from gradfix.rewrite.cached import cached
from gradfix.rewrite.calls import backward_call, drop_retain
from gradfix.rewrite.carried import entries, made_outside
from gradfix.rewrite.drawn import draws
from gradfix.rewrite.handed import named
from gradfix.rewrite.rerun import DRAW, LATER, ONCE, Plan, earlier, entering
from gradfix.rewrite.returned import shared_losses
from gradfix.rewrite.stale import plan, stale
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    line_of,
    names,
    put_after,
    shown,
    touches,
    unit_in,
    units,
)
from gradfix.tape import Backward, Step
from gradfix.verdict import Effect

ASCENDED = Effect("later-parameters", "the later loss is computed with the parameters as the write left them")


class RecomputeAfterStep(Codemod):
    """Compute the later loss behind the step that changes the parameters it rests on.

    Why: `optD.step()` overwrites the weights that D's output saved for its backward. The generator's loss has
    to be computed from an output of the updated D: move the statements that only it needs behind the step,
    and run those that the discriminator's loss needs too once more (`D(fake)` again), which is the order of
    the GAN, DDPG and SAC papers. The same where the script itself moves the parameters between two backwards of one
    pass (sharpness-aware minimisation).

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
                by_hand = conflict.pattern == "write" and proposal.effect == LATER
                effect = ASCENDED if by_hand else proposal.effect
                yield replace(proposal, effect=effect, rank=proposal.rank + later, idea="behind the step")
        yield from _cached(conflict, project)
        yield from _handed_on(conflict.backward, project)


def _behind(found: Plan) -> Iterator[Proposal]:
    effect = DRAW if found.draws() else LATER
    step = shown(found.view, found.behind.node)
    drops = found.drops()
    idle = "; drop the idle retain_graph"
    if not found.kept:
        summary = f"move {_said(found)} behind `{step}`"
        yield Proposal(
            f"{summary}{idle if drops else ''}", effect, gather((found.view, found.edits()), *drops), 0
        )
        if drops:
            yield Proposal(summary, effect, gather((found.view, found.edits())), 1)
        return
    once = replace(found, named=named(found))
    for inline in (True, False) if found.can_inline() else (False,):
        rank = 0 if inline or not found.can_inline() else 3
        cuts = [(v, [e]) for v, e in once.cuts()]
        if cuts:
            said = (
                f"{_again(once, inline, step)}, and detach what the earlier loss takes{idle if drops else ''}"
            )
            drawn = DRAW if once.draws() else LATER
            yield Proposal(said, drawn, gather((once.view, once.edits(inline)), *cuts, *drops), rank)
        edits, summary = (found.view, found.edits(inline)), _again(found, inline, step)
        if drops:
            yield Proposal(f"{summary}{idle}", effect, gather(edits, *drops), rank + 1)
        yield Proposal(summary, effect, gather(edits), rank + 2)


def _again(found: Plan, inline: bool, step: str) -> str:
    """What is done, in words."""
    made = "".join(f"make `{name}` once; " for name in found.named.values())
    if not inline:
        return f"{made}compute {_said(found)} again after `{step}`"
    name, call = found.inlined()
    moved = _bound(found.moved)
    besides = f", and move {moved} there" if moved else ""
    return f"{made}put `{call}` where `{name}` is read after `{step}`{besides}"


def _bound(some: Iterable[Unit]) -> str:
    return ", ".join(dict.fromkeys(f"`{w}`" for u in some for w in sorted(u.writes)))


def _said(found: Plan) -> str:
    every = dict.fromkeys(w for u in found.again for w in sorted(u.writes))
    bound = [w for w in every if touches({w}, found.read_later)] or list(every)
    return ", ".join(f"`{w}`" for w in bound)


def _cached(conflict: Conflict, project: Project) -> Iterator[Proposal]:
    """The stale output waits in an attribute that another method reads: compute it again there."""
    assert conflict.backward is not None
    records, _ = stale(project, conflict.backward)
    place = cached(project, records, conflict.backward.stack)
    if place is None:
        return
    summary = f"compute {place.said} again where the later loss reads {'it' if place.alone else 'them'}"
    ways = ((summary, place.inline()), (f"compute {place.said} again before the later loss", place.again()))
    before = (*earlier(project, conflict.backward),)
    taken = entering(project, before, place.view, [place.source.node])
    cuts = [(f.view, [detach(f.value)]) for f in taken]
    calls = [c for b in before if (c := backward_call(project, b)) is not None]
    drops = [(view, edits) for view, call in calls if (edits := drop_retain(view, call))]
    idle = "; drop the idle retain_graph" if drops else ""
    for rank, (said, edits) in enumerate(w for w in ways if w[1]):
        plain = (place.view, edits)
        if cuts:
            cut = f"{said}, and detach what the earlier loss takes{idle}"
            yield Proposal(cut, LATER, gather(plain, *cuts, *drops), 3 * rank, idea=place.said)
        if drops:
            yield Proposal(f"{said}{idle}", LATER, gather(plain, *drops), 3 * rank + 1, idea=place.said)
        yield Proposal(said, LATER, gather(plain), 3 * rank + 2, idea=place.said)


def _handed_on(backward: Backward, project: Project) -> Iterator[Proposal]:
    """What a pass computes last and the next one begins with (the value of the state it starts from): once more
    behind the step."""
    edges = [e for e in entries(project, backward) if not made_outside(project, e.producer, backward)]
    since = max((e.producer.time for e in edges), default=-1)
    steps = [e for e in project.tape.events if isinstance(e, Step) and since < e.time < backward.time]
    depth = meeting(steps[-1].stack, backward.stack) if steps else -1
    place = frame(project, steps[-1].stack, depth) if steps and depth >= 0 else None
    if place is None:
        return
    view, node = place
    made = [frame(project, e.producer.stack, depth) for e in edges]
    found = {id(s): s for m in made if m and m[0] is view and (s := view.small_statement(m[1])) is not None}
    block = block_of(view, node)
    index = unit_in(view, block, node) if block is not None else None
    if len(found) != 1 or None in made or block is None or index is None or view.loop(node) is None:
        return
    (small,) = found.values()
    both = names(small)
    plain = isinstance(small, cst.Assign) and isinstance(small.value, cst.Call)
    if not plain or touches(both.reads, both.writes) or ONCE.search(view.code(small)):
        return
    after = units(block)[index]
    said = ", ".join(f"`{w}`" for w in sorted(both.writes))
    summary = f"compute {said} again after `{shown(view, after.node)}`, for the next pass"
    effect = DRAW if draws(project, view, small) else LATER
    yield Proposal(summary, effect, gather((view, [put_after(after, line_of(small))])), 2)
