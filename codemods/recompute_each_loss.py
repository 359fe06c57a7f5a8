"""Compute each loss of a loop behind the step that the one before has made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from gradfix.codemod import Codemod, Example, Proposal
from gradfix.detect import Conflict
from gradfix.edit import Edit, Project, Replace, View
from gradfix.rewrite.boundary import frame, gather, meeting
from gradfix.rewrite.calls import backward_call, drop_retain, with_arguments
from gradfix.rewrite.drawn import draws
from gradfix.rewrite.loops import AGAIN, bound, filled_in, passes
from gradfix.rewrite.rerun import DRAW, LATER, ONCE
from gradfix.rewrite.spelling import descendants, function_of, unused
from gradfix.rewrite.statements import (
    Unit,
    block_of,
    body_of,
    dotted,
    lifted,
    line_of,
    names,
    take_all_away,
    touches,
    unit_in,
    units,
    walk,
)
from gradfix.tape import Backward, Record

_PASSES, _LINES = 3, 4  # of a loop that is written out


class RecomputeEachLoss(Codemod):
    """Give each loss of a loop that steps with every one of them a forward pass of its own.

    Why: `for loss in (near, small): optimizer.zero_grad(); loss.backward(); optimizer.step()` differentiates the
    second loss through parameters that the first one's step has overwritten, and through a graph that its backward
    has freed. Each loss has to be computed when the step before it is done. A loop over two or three losses is
    written out; else the forward pass moves into it.

    When not: where one step with the sum of the losses is meant (that is another training, with fewer steps), or
    where each loss has an optimizer of its own (`step-after-loop`).
    """

    kinds = ("stale-saved-tensor", "freed-graph", "silent-overwrite")
    effects = ("later-parameters", "new-draw")

    examples = (
        Example(
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(2, 4, 3):
    y = net(x)
    near, small = (y - x).pow(2).mean(), y.abs().mean()
    for loss in (near, small):
        optimizer.zero_grad()
        loss.backward()  # conflict: freed-graph
        optimizer.step()
""",
            """\
import torch

net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(2, 4, 3):
    y = net(x)
    near, small = (y - x).pow(2).mean(), y.abs().mean()
    optimizer.zero_grad()
    near.backward()  # conflict: freed-graph
    optimizer.step()
    y = net(x)
    near, small = (y - x).pow(2).mean(), y.abs().mean()
    optimizer.zero_grad()
    small.backward()
    optimizer.step()
""",
            effect="later-parameters",
        ),
    )

    @classmethod
    def propose(cls, conflict: Conflict, project: Project) -> Iterator[Proposal]:
        found = _found(project, conflict.backward) if conflict.backward is not None else None
        if found is None or conflict.backward is None:
            return
        place = backward_call(project, conflict.backward)
        drop = drop_retain(*place) if place is not None else ()
        ways = [_elements(found), _indexed(found)] if found.dirty else [_in_head(found)]
        if found.dirty and found.short:
            ways = [_written_out(found, place[1] if place is not None and drop else None)]
        for rank, way in enumerate(ways, 1):
            if way is None:
                continue
            again, edits = way
            nodes: list[cst.CSTNode] = [*(u.node for u in again)] or [found.loop.iter]
            effect = DRAW if any(draws(project, found.view, n) for n in nodes) else LATER
            made = list(dict.fromkeys(f"`{w}`" for u in again for w in sorted(u.writes)))
            said = ", ".join(made) or "what the loop goes through"
            summary = f"compute {said} for each loss, behind the step of the one before"
            # (a loop that is written out is a new one: what is edited inside of it is lost)
            plain = gather((found.view, edits), (found.view, () if found.short else drop))
            yield Proposal(summary, effect, plain, rank)


@dataclass(frozen=True, slots=True)
class _Found:
    """A loop over losses, the units before it in its block, and which of those a step makes stale."""

    view: View
    loop: cst.For
    before: tuple[Unit, ...]
    behind: tuple[Unit, ...]
    dirty: tuple[Unit, ...]

    @property
    def short(self) -> bool:
        """Whether the loop is better written out."""
        several = passes(self.loop, self.items)
        body = units(self.loop.body)
        simple = all(isinstance(u.node, cst.BaseSmallStatement) for u in body)
        return bool(several) and len(several or ()) <= _PASSES and len(body) <= _LINES and simple

    @property
    def holder(self) -> Unit | None:
        """The statement that binds what the loop goes through, where that is all it does."""
        name = dotted(self.loop.iter)
        if name is None:
            return None
        found = [u for u in self.before if touches(u.writes, {name})]
        node = found[0].node if len(found) == 1 else None
        plain = isinstance(node, cst.Assign) and len(node.targets) == 1
        return found[0] if plain and isinstance(node, cst.Assign) and _binds(node, name) else None

    @property
    def items(self) -> cst.BaseExpression:
        """What the loop goes through: a list under a name as it was made."""
        node = self.holder.node if self.holder is not None else None
        return node.value if isinstance(node, cst.Assign) else self.loop.iter

    def needed(self, wanted: Collection[str]) -> tuple[Unit, ...]:
        """The stale units that `wanted` names are made by, in order."""
        names_, found = set(wanted), list[Unit]()
        for unit in reversed(self.before):
            if touches(unit.writes, names_):
                names_ |= unit.reads
                if unit in self.dirty:
                    found.insert(0, unit)
        return tuple(found)

    def read_elsewhere(self, unit: Unit, but: Sequence[Unit]) -> bool:
        """Whether what the unit binds is read outside the loop and the units `but`."""
        return _read((*self.before, *self.behind), unit, but)


def _read(by: Sequence[Unit], unit: Unit, but: Sequence[Unit]) -> bool:
    return any(touches(unit.writes, u.reads) for u in by if u is not unit and u not in but)


def _binds(node: cst.Assign, name: str) -> bool:
    return dotted(node.targets[0].target) == name


def _found(project: Project, backward: Backward) -> _Found | None:
    graph = project.graph
    previous = graph.previous(backward)
    steps = [s for s in graph.steps if previous is not None and previous.time < s.time < backward.time]
    if previous is None or not steps:
        return None
    depth = meeting(backward.stack, *(s.stack for s in steps))
    needed = frame(project, backward.stack, depth)
    if needed is None:
        return None
    view = needed[0]
    loop = view.loop(needed[1])
    block = block_of(view, loop) if loop is not None else None
    if not isinstance(loop, cst.For) or loop.orelse is not None or loop.asynchronous is not None:
        return None
    at = unit_in(view, block, loop) if block is not None else None
    if (
        block is None
        or at is None
        or any(isinstance(n, (cst.Break, cst.Continue)) for n in descendants(loop))
    ):
        return None
    body = units(block)
    stepped = {r.storage for s in steps for r in s.refs}
    origins: set[int] = set()
    for record in _old(project, backward, previous):
        takes_in = any(p < 0 and ~p in stepped for p in record.parents)
        if takes_in or any(r.storage in stepped for r in record.saves):
            if meeting(record.stack, backward.stack) != depth:
                return None
            made = frame(project, record.stack, depth)
            index = unit_in(view, block, made[1]) if made is not None and made[0] is view else None
            if (
                index is None
                or index > at
                or (index == at and made and unit_in(view, loop.body, made[1]) is not None)
            ):
                return None
            origins.add(index)
    if origins == {at}:  # what the loop goes through is computed in its head
        return (
            None if ONCE.search(view.code(loop.iter)) else _Found(view, loop, body[:at], body[at + 1 :], ())
        )
    dirty = _dirty(body[:at], origins, names(loop.iter).reads)
    return _Found(view, loop, body[:at], body[at + 1 :], dirty) if dirty else None


def _old(project: Project, backward: Backward, previous: Backward) -> Iterator[Record]:
    """What the backward walks that was made before its previous execution, and not anew since."""
    graph = project.graph
    for node in graph.walk(backward):
        record = graph.records.get(node)
        if record is not None and record.time < previous.time:
            yield record


def _dirty(before: Sequence[Unit], origins: Collection[int], wanted: Collection[str]) -> tuple[Unit, ...]:
    """The units behind the `wanted` names that rest on those of `origins`; none where one of them must not run
    twice."""
    needed: set[int] = set()
    names_ = set(wanted)
    for n in reversed(range(len(before))):
        if touches(before[n].writes, names_):
            needed.add(n)
            names_ |= before[n].reads
    found: list[Unit] = []
    made: set[str] = set()
    for n in sorted(needed):
        if n in origins or touches(before[n].reads, made):
            found.append(before[n])
            made |= before[n].writes
    code = cst.Module([]).code_for_node
    once = any(not isinstance(u.node, cst.Assign) or ONCE.search(code(u.node)) for u in found)
    return () if once or not set(origins) <= needed else tuple(found)


Way = tuple[tuple[Unit, ...], list[Edit]]


def _written_out(found: _Found, call: cst.Call | None) -> Way | None:
    """One pass after the other, the losses of the later ones computed there; the backward `call` keeps no graph any
    more."""
    several, holder, view = passes(found.loop, found.items), found.holder, found.view
    body = [_kept_no_more(u, call) if call is not None else u for u in units(found.loop.body)]
    own = bound(found.loop.target)
    written = frozenset().union(*(u.writes for u in body))
    if not several or touches(own, written) or any(touches(own, u.reads) for u in found.behind):
        return None
    reads = [frozenset().union(*(names(v).reads for v in one.values())) for one in several]
    wanted = [tuple(u for u in found.needed(r) if u is not holder) for r in reads]
    again = tuple(u for u in found.dirty if any(u in some for some in wanted[1:]))
    if not again:
        return None
    gone = [holder] if holder is not None and not found.read_elsewhere(holder, ()) else []
    # what only later losses are made of is computed there alone
    late = [u for u in again if u not in wanted[0]]
    while kept := [u for u in late if _read(found.before, u, (*late, *gone))]:
        late = [u for u in late if u not in kept]
    lines: list[cst.BaseStatement] = []
    for n, one in enumerate(several):
        if n:
            lines += [lifted(u) if u in late else line_of(u.node) for u in wanted[n]]
        lines += [filled_in(lifted(u), one) if n == 0 else line_of(filled_in(u.node, one)) for u in body]
    lines[0] = lines[0].with_changes(leading_lines=[*found.loop.leading_lines, *_above(lines[0])])
    edits = take_all_away((*gone, *late), view)
    edits.append(Replace(found.loop, lambda _: cst.FlattenSentinel(lines)))
    return again, edits


def _kept_no_more(unit: Unit, call: cst.Call) -> Unit:
    """The unit with the backward in it without its ``retain_graph=True``."""
    edit = with_arguments(call, drop=("retain_graph",))
    new = edit.build(call) if isinstance(edit, Replace) else call
    assert isinstance(new, cst.Call)
    node, line = unit.node.deep_replace(call, new), unit.line.deep_replace(call, new)
    assert isinstance(node, cst.BaseSmallStatement)
    assert isinstance(line, cst.SimpleStatementLine)
    return Unit(node, line, unit.names)


def _above(line: cst.BaseStatement) -> Sequence[cst.EmptyLine]:
    return line.leading_lines if isinstance(line, cst.SimpleStatementLine) else ()


def _elements(found: _Found) -> Way | None:
    """``losses = [f(y, k) for k in some]`` and a loop over it: the loop goes through `some` and computes each."""
    holder, made = found.holder, found.items
    if holder is None or not isinstance(made, cst.ListComp) or not isinstance(found.loop.target, cst.Name):
        return None
    each = made.for_in
    if each.ifs or each.inner_for_in is not None or each.asynchronous is not None:
        return None
    others = (u for u in walk(body_of(found.view, found.loop)) if u is not holder)
    own = bound(each.target)
    if not own or any(touches(own, u.reads | u.writes) for u in others):
        return None
    again = tuple(u for u in found.needed(names(made).reads) if u is not holder)
    gone = [holder] if not found.read_elsewhere(holder, ()) else []
    late = [u for u in again if not found.read_elsewhere(u, (*again, *gone))] if gone else []
    bare = made.elt.with_changes(lpar=[], rpar=[])
    value = cst.Assign([cst.AssignTarget(found.loop.target.deep_clone())], bare)
    first = [*(lifted(u) if u in late else line_of(u.node) for u in again), line_of(value)]
    target = each.target.deep_clone()
    head = {"target": target, "iter": each.iter.deep_clone()}
    edits = take_all_away((*gone, *late), found.view)
    return (*again, holder), [*edits, Replace(found.loop, lambda n: _with(n, first, head))]


def _indexed(found: _Found) -> Way | None:
    """The loop goes through the keys of a dictionary, or the places of a list, and each pass makes all of it anew."""
    loop, items, target = found.loop, found.loop.iter, found.loop.target
    head: dict[str, cst.BaseExpression] = {}
    if isinstance(items, cst.Call) and isinstance(items.func, cst.Attribute) and not items.args:
        held, pair = items.func.value, isinstance(target, cst.Tuple) and len(target.elements) == 2
        if function_of(items) != "items" or not pair or not isinstance(target, cst.Tuple):
            return None
        key, value = target.elements[0].value, target.elements[1].value
        head = {"target": key, "iter": held}
    elif dotted(items) is not None and isinstance(target, cst.Name):
        held, value, key = items, target, cst.Name(unused(found.view, "k"))
        head = {"target": key, "iter": cst.parse_expression(f"range(len({dotted(items)}))")}
    else:
        return None
    again = found.needed(names(held).reads)
    if not again or not isinstance(key, cst.Name) or dotted(held) is None:
        return None
    item = cst.parse_expression(f"{dotted(held)}[{key.value}]")
    assert isinstance(value, cst.BaseAssignTargetExpression)
    lines = [
        *(line_of(u.node) for u in again),
        line_of(cst.Assign([cst.AssignTarget(value.deep_clone())], item)),
    ]
    return again, [Replace(loop, lambda n: _with(n, lines, head))]


def _in_head(found: _Found) -> Way | None:
    """``for loss in losses(x)``: each pass calls it anew, and takes its own of what it gives."""
    loop, items, target = found.loop, found.loop.iter, found.loop.target
    numbered = isinstance(items, cst.Call) and function_of(items) == "enumerate" and len(items.args) == 1
    if (
        numbered
        and isinstance(items, cst.Call)
        and isinstance(target, cst.Tuple)
        and len(target.elements) == 2
    ):
        items, key, value = items.args[0].value, target.elements[0].value, target.elements[1].value
    else:
        key, value = cst.Name(unused(found.view, "k")), target
    if not isinstance(items, cst.Call) or not isinstance(key, cst.Name) or not isinstance(value, cst.Name):
        return None
    if function_of(items) in AGAIN:
        return None  # (it makes no losses, it goes through them)
    code = cst.Module([]).code_for_node
    head = {
        "target": cst.parse_expression(f"{key.value}, _"),
        "iter": cst.parse_expression(f"enumerate({code(items)})"),
    }
    item = cst.parse_expression(f"{code(items)}[{key.value}]")
    line = line_of(cst.Assign([cst.AssignTarget(value.deep_clone())], item))
    return (), [Replace(loop, lambda n: _with(n, [line], head))]


def _with(
    node: cst.CSTNode, first: Sequence[cst.BaseStatement], head: Mapping[str, cst.BaseExpression]
) -> cst.CSTNode:
    assert isinstance(node, cst.For)
    return node.with_changes(**head, body=node.body.with_changes(body=[*first, *node.body.body]))
