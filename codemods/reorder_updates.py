"""See :class:`ReorderUpdates`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import libcst as cst

from gradfix.codemod import NONE, Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, View
from gradfix.rewrite.behind import along, beside, harmless, leaves, may_read
from gradfix.rewrite.boundary import OWN, cleared, gather
from gradfix.rewrite.calls import caller_says, says, with_arguments
from gradfix.rewrite.literals import put_in_order
from gradfix.rewrite.passes import inputs_of, named_inputs, trained
from gradfix.rewrite.statements import (
    Unit,
    lifted,
    put_after,
    stored,
    take_away,
    touches,
)
from gradfix.rewrite.updates import Update, Updates, updates_of


class ReorderUpdates(Codemod):
    """Run one network's update before another that overwrites what it needs.

    Why: a function that clears, differentiates and steps (`self.update(optimizer, loss)`) leaves its caller one
    choice, the order. The loss that reaches a network's parameters has to be differentiated before these are stepped.
    Where each loss reaches the other's network, `inputs=` keeps the later backward to its own parameters, and away
    from those that have been stepped.

    So it does where a helper steps in every n-th pass alone, and each loss would be mixed with the other's gradient.

    When not: where the later loss is meant to see the updated network (`recompute-after-step`).
    """

    kinds = ("stale-saved-tensor", "freed-graph", "silent-overwrite")
    effects = ("none", "cut-own-loss")

    examples = (
        Example(
            """\
import torch

actor, critic = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
opt_a, opt_c = torch.optim.SGD(actor.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stale-saved-tensor


for obs, action, value in zip(torch.randn(2, 4, 3), torch.randn(2, 4, 2), torch.randn(2, 4, 1)):
    actor_loss = -critic(actor(obs)).mean()
    critic_loss = (critic(action) - value).pow(2).mean()
    update(opt_c, critic_loss)
    update(opt_a, actor_loss)
""",
            """\
import torch

actor, critic = torch.nn.Linear(3, 2), torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 1))
opt_a, opt_c = torch.optim.SGD(actor.parameters(), 0.1), torch.optim.SGD(critic.parameters(), 0.1)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # conflict: stale-saved-tensor


for obs, action, value in zip(torch.randn(2, 4, 3), torch.randn(2, 4, 2), torch.randn(2, 4, 1)):
    actor_loss = -critic(actor(obs)).mean()
    critic_loss = (critic(action) - value).pow(2).mean()
    update(opt_a, actor_loss)
    update(opt_c, critic_loss)
""",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = updates_of(project, conflict)
        if found is None:
            return
        mixed = _mixed(project, found.updates)
        for rank, restricted in enumerate((False, True)):
            order = _order(project, found.updates, restricted)
            if order is None or (order == found.updates and not restricted):
                continue
            moved = _moved(project, found, order)
            if moved is None:
                continue
            for inputs in _restrictions(project, order) if restricted else ((),):
                calls = _calls(project, order, inputs, restricted)
                first = next((u for u, v in zip(order, found.updates, strict=True) if u is not v), None)
                verb = "take" if found.literals else "run"
                said = f"{verb} `{found.shown(first)}` first" if first is not None else ""
                if inputs:
                    said += f"{', ' if said else ''}restrict each backward to the parameters it trains"
                # (a helper is not rewritten for what can be detached, or be made behind the step)
                effect = OWN if mixed and inputs else NONE
                yield Proposal(
                    said, effect, gather(*calls, (found.view, moved)), rank, last_resort=restricted
                )
            if not mixed:
                return


def _mixed(project: Project, updates: Sequence[Update]) -> bool:
    """Whether what the loss of one update gives the parameters of another is still there when these are stepped: a
    helper that accumulates over several passes clears nothing in between."""
    stepped = [(u, {r.storage for s in u.steps for r in s.refs}) for u in updates]
    theirs = [(u, set().union(*(some for v, some in stepped if v is not u)) - own) for u, own in stepped]
    return not all(
        cleared(project.graph, u.event, {r.storage for r in u.event.accumulates} & some) for u, some in theirs
    )


def _order(project: Project, updates: Sequence[Update], restricted: bool) -> tuple[Update, ...] | None:
    """The updates in an order in which none overwrites what a later one needs, as near as can be to the one they are
    in; None where there is none."""
    needs = {id(u): _needs(project, u, restricted) for u in updates}
    rest, found = list(updates), list[Update]()
    while rest:
        ready = (
            u
            for u in rest
            if not any(
                {r.storage for s in u.steps for r in s.refs} & needs[id(v)] for v in rest if v is not u
            )
        )
        chosen = next(ready, None)
        if chosen is None:
            return None
        rest.remove(chosen)
        found.append(chosen)
    return tuple(found)


def _walked(project: Project, update: Update, restricted: bool) -> set[int]:
    """The nodes that its backward walks; `restricted`, those on the way to the parameters it trains."""
    graph = project.graph
    wanted = {r.storage for s in update.steps for r in s.refs}
    return {n for n in graph.walk(update.event) if not restricted or graph.reaches(n) & wanted}


def _needs(project: Project, update: Update, restricted: bool) -> set[int]:
    """The storages whose values its backward reads."""
    records = project.graph.records
    walked = _walked(project, update, restricted)
    return {ref.storage for n in walked if n in records for ref in records[n].saves}


def _moved(project: Project, found: Updates, order: Sequence[Update]) -> list[Edit | None] | None:
    """Put behind the update that comes before it now whatever came before that; None where it can't be."""
    body, edits = found.body, list[Edit | None]()
    if found.literals:
        return [e for some in found.literals for e in put_in_order(some, [u.first for u in order])]
    fixed = {n for u in found.updates for n in range(u.first, u.last + 1)}
    loop = found.view.loop(body[found.updates[0].first].node)
    bound = {w for u in body for w in u.writes if "." not in w}
    bound |= stored(loop.target) if isinstance(loop, cst.For) else set()
    anchor, last, behind = None, -1, list[cst.BaseStatement]()
    for n, update in enumerate(order):
        if not any(v.first > update.first for v in order[:n]):  # it stays where it is
            if behind:
                edits.append(put_after(body[last], *behind))
            anchor, last, behind = update, update.last, []
            continue
        assert anchor is not None
        going = along(body, update.first, anchor.last, {update.first}, fixed - {update.first}, bound)
        if update.first != update.last or going is None or _leaves_behind(found, update, anchor, going):
            return None
        sooner = [v for v in order[:n] if v.first > update.first]
        seen = [body[k].node for k in going if not harmless(body[k].node, bound)]
        if any(_sees(project, found.view, node, update, v) for node in seen for v in sooner):
            return None
        if any(
            _takes_along(project, found, a, b, bound) for v in sooner for a, b in ((update, v), (v, update))
        ):
            return None
        for index in (update.first, *going):
            edits += take_away(body[index], found.view)
            line = lifted(body[index])
            spaced = not behind and all(map(_spaced, (body[update.first], body[anchor.first])))
            behind.append(_below_a_gap(line) if spaced else line)
        last = _paragraph(project, found, (update, *sooner), (update.first, *going), last)
    if behind:
        edits.append(put_after(body[last], *behind))
    return edits


def _sees(project: Project, view: View, node: cst.CSTNode, moved: Update, sooner: Update) -> bool:
    """Whether a statement between two updates may read what `sooner` steps, which it saw before that step."""
    own, others = (
        [r.name for s in u.steps for r in project.graph.optimizers[s.optimizer].refs] for u in (sooner, moved)
    )
    return may_read(project, view, node, own, others)


def _takes_along(
    project: Project, found: Updates, update: Update, other: Update, bound: Collection[str]
) -> bool:
    """Whether what stands in an update's statements, and is no part of it, may read what the other one steps."""
    units, events = found.body[update.first : update.last + 1], (update.event, *update.steps)
    return any(_sees(project, found.view, n, update, other) for n in beside(project, units, events, bound))


def _paragraph(
    project: Project, found: Updates, updates: Sequence[Update], moving: Sequence[int], last: int
) -> int:
    """The last of the statements right behind `last` that belong to the update there, and may come before those in
    `moving`."""
    body, moved = found.body, updates[0]
    fixed = {n for u in found.updates for n in range(u.first, u.last + 1)}
    for n in range(last + 1, len(body)):
        unit = body[n]
        above = getattr(unit.line, "leading_lines", (None,))
        if above or n in fixed or leaves(unit.node) or unit.line is body[n - 1].line:
            return n - 1
        for m in moving:
            own, other = body[m].reads | body[m].writes, body[m].writes
            if touches(unit.writes, own) or touches(other, unit.reads):
                return n - 1
        if not any(_belongs(project, found, unit, v, moved) for v in updates[1:]):
            return n - 1
    return len(body) - 1


def _belongs(project: Project, found: Updates, unit: Unit, update: Update, other: Update) -> bool:
    """Whether a statement goes by what `update` steps or gives, and not by what the other one steps."""
    reads = touches(found.body[update.last].writes, unit.reads)
    own = reads or _sees(project, found.view, unit.node, other, update)
    return own and not _sees(project, found.view, unit.node, update, other)


def _spaced(unit: Unit) -> bool:
    above: Sequence[cst.EmptyLine] = getattr(unit.line, "leading_lines", ())
    return bool(above) and above[0].comment is None


def _below_a_gap(line: cst.BaseStatement) -> cst.BaseStatement:
    above = getattr(line, "leading_lines", ())
    return line.with_changes(leading_lines=(cst.EmptyLine(indent=False), *above))


def _leaves_behind(found: Updates, update: Update, anchor: Update, going: Collection[int]) -> bool:
    """Whether something that goes along with an update belongs to another."""
    return any(
        v.first <= n <= v.last for n in going for v in found.updates if v is not update and v is not anchor
    )


def _restrictions(
    project: Project, order: Sequence[Update]
) -> Iterator[tuple[tuple[View, cst.Call, cst.BaseExpression], ...]]:
    """`inputs` for each backward's call, as it may be said for all that are made there."""
    calls = {id(u.call): [v for v in order if v.call is u.call] for u in order}
    ways: list[list[cst.BaseExpression]] = []
    for some in calls.values():
        events = [v.event for v in some]
        if says(some[0].call, "inputs"):
            continue
        if len(some) == 1:
            own = inputs_of(project, some[0].view, some[0].call, trained(project, events[0], events))
            ways.append([own] if own is not None else [])
        else:
            steps = [s for v in some for s in v.steps]
            ways.append(list(named_inputs(project, some[0].view, some[0].call, steps)))
    asked = [some[0] for some in calls.values() if not says(some[0].call, "inputs")]
    for n in range(max(map(len, ways), default=0)):
        if all(ways):
            yield tuple(
                (u.view, u.call, way[min(n, len(way) - 1)]) for u, way in zip(asked, ways, strict=True)
            )


def _calls(
    project: Project,
    order: Sequence[Update],
    inputs: Sequence[tuple[View, cst.Call, cst.BaseExpression]],
    restricted: bool,
) -> list[tuple[View, list[Edit | None]]]:
    """The backward calls with `inputs`, and with `retain_graph` where a later one walks the same nodes: as the call of
    the function around says, where it may."""
    put: dict[int, dict[str, cst.BaseExpression]] = {id(u.call): {} for u in order}
    callers: list[tuple[View, list[Edit | None]]] = []
    for n, update in enumerate(order):
        later = (w for v in order[n + 1 :] for w in _walked(project, v, restricted))
        shared = _walked(project, update, restricted).intersection(later)
        kept = update.event.retain and says(update.call, "retain_graph")
        if kept or not any(project.graph.records[k].saves for k in shared):
            continue
        said = caller_says(project, update.event, "retain_graph")
        alone = [u.event.stack[-2:-1] for u in order].count(update.event.stack[-2:-1]) == 1
        if said is not None and alone and not any(v.first > update.first for v in order[:n]):
            callers.append((said[0], [said[1]]))
        else:
            put[id(update.call)]["retain_graph"] = cst.Name("True")
    for _, call, expression in inputs:
        put[id(call)]["inputs"] = expression
    calls = {id(u.call): (u.view, u.call) for u in order}
    callers += [(view, [with_arguments(call, put[key])]) for key, (view, call) in calls.items() if put[key]]
    return callers
