"""What to impose on a run so that a declared effect should make before and after agree.

Cuts are derived from the run before, never freely declared: a cut that may be anywhere explains any partial
loss of gradient (in a prototype it accepted 32 wrong repairs).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from gradfix.detect import Conflict
from gradfix.detect.opposed import meant_for, sides
from gradfix.detect.targets import target_edges
from gradfix.graph import Graph
from gradfix.prove.compare import Terms
from gradfix.prove.measured import Measured
from gradfix.prove.places import (
    alias_sites,
    beside,
    compared_sites,
    constants,
    lines_of,
    made_before,
    replayed,
    stepping,
    stored_over,
    through_sites,
)
from gradfix.tape import (
    Backward,
    Cut,
    Mutate,
    Optimizer,
    Record,
    Stack,
    Step,
    Tape,
    Unbounded,
)
from gradfix.tape import Terms as Summed
from gradfix.verdict import Effect, EffectKind

Impose = Mapping[str, Any]

PUT_IN = "put in"  # the lines that a cure put in
MIXED = 3  # silent overwrites of which each is tried by either reading


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to ask for equality: what is imposed before and after (None: nothing), and on what terms.

    `frozen` says that parameters stand still, so that the comparison alone does not show that they are live.
    """

    effects: tuple[EffectKind, ...] = ()
    before: Impose | None = None
    after: Impose | None = None
    terms: Terms = field(default_factory=Terms)
    frozen: bool = False
    fresh: bool = False  # gradients are cut off that flow within one pass, too
    starves: bool = False  # what the cut gradient trained is to be trained by none

    def with_constant_draws(self, keys: Sequence[str]) -> Attempt | None:
        """The same, the draws of `keys` depending on the round alone; where they do already, not even on that (what is
        drawn behind a step counts to the next round); None where they are alike everywhere."""
        known = (self.after or {}).get("draws", {})
        if "everywhere" in known:
            return None
        more = {"draws": {"constant": sorted(keys), **({"everywhere": True} if known else {})}}
        return Attempt(
            self.effects,
            {**(self.before or {}), **more},
            {**(self.after or {}), **more},
            self.terms,
            self.frozen,
            self.fresh,
            self.starves,
        )


def attempts(
    effects: Sequence[Effect], conflicts: Sequence[Conflict], tape: Tape, before: Measured
) -> Iterator[Attempt]:
    """The attempts for `effects` together, the strongest claim first: that nothing changed."""
    yield Attempt()
    kinds = tuple(dict.fromkeys(e.kind for e in effects if e.kind not in ("none", "changes-value")))
    # the write taken as an op of the graph: masking after a softmax is right by this reading only. Each of several
    # faults may be cured by this reading or by the other
    hidden = [c for c in conflicts if c.kind == "silent-overwrite" and c.pattern != "numpy"][:MIXED]
    for count in range(len(hidden), 0, -1):
        for some in combinations(hidden, count):
            yield Attempt(before={"through": through_sites(some) + beside(some, tape)})
    if not kinds:
        return
    ways = [tuple(_ways(kind, conflicts, tape, before)) for kind in kinds]
    for chosen in list(product(*ways))[:8]:
        yield _together(kinds, chosen)


def _together(kinds: tuple[EffectKind, ...], chosen: Sequence[Attempt]) -> Attempt:
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for attempt in chosen:
        before.update(attempt.before or {})
        after.update(attempt.after or {})
    terms = Terms(
        cut=any(a.terms.cut for a in chosen),
        losses=all(a.terms.losses for a in chosen),
        gains=any(a.terms.gains for a in chosen),
        still=any(a.terms.still for a in chosen),
        ends=all(a.terms.ends for a in chosen),
    )
    frozen, fresh = any(a.frozen for a in chosen), any(a.fresh for a in chosen)
    return Attempt(kinds, before or None, after or None, terms, frozen, fresh, any(a.starves for a in chosen))


def _ways(kind: EffectKind, conflicts: Sequence[Conflict], tape: Tape, before: Measured) -> Iterator[Attempt]:
    lengths = rounds(before)
    counted: dict[str, Any] = {"rounds": list(lengths)}
    if kind in ("later-parameters", "new-draw"):
        # what a clip or an ascent makes of the parameters is a change of theirs, as the step's is
        for clips in ({}, {"clips": True}) if before.steps and _clips(tape) else ({},):
            for steps in dict.fromkeys((lengths, _steps_a_making(lengths, conflicts, tape))):
                own: dict[str, Any] = {"rounds": list(steps), **clips}
                if max(steps, default=1) > 1:
                    # updates put off to the round's end: parameters still move, so a frozen copy or lr=0 shows
                    moving = {"null": "rounds", "draws": {}, **own}
                    yield Attempt(
                        before=moving, after=moving, terms=Terms(still=True), frozen=steps != lengths
                    )
                still = {"null": "steps" if before.steps else "writes", "draws": {}, **own}
                yield Attempt(before=still, after=still, terms=Terms(still=True), frozen=True)
    elif kind == "cut-round":
        constant = constants(conflicts, tape)
        for where in constant or ({},):
            for limit in ("step", "backward"):
                yield Attempt(before={"cut": limit, **counted, **where}, terms=Terms(cut=True, losses=False))
        if constant:  # cut off from the passes before alone, they would be no constants
            return
        places = made_before(conflicts, tape)
        if places:
            yield Attempt(before={"cut": "places", "places": places}, terms=Terms(cut=True, losses=False))
        lists = stored_over(conflicts, tape)
        if lists:  # what else is stored with it is no longer there, either: rewards, which a mean is taken of
            yield Attempt(before={"cut": "step", "emptied": lists, **counted}, terms=Terms(cut=True))
        stored = replayed(conflicts, tape)
        if stored:
            yield Attempt(before={"cut": "places", "places": stored}, terms=Terms(cut=True), fresh=True)
    elif kind == "cut-own-loss":
        for schedule in own_loss(before, tape):
            yield Attempt(before={"own": schedule}, terms=Terms(cut=True))
        known = of_conflicts(conflicts, tape)
        if any(own is not None for own in known):
            yield Attempt(before={"own": known}, terms=Terms(cut=True))
        summed = own_summands(conflicts, tape)
        if summed:
            yield Attempt(before={"summands": summed}, terms=Terms(cut=True))
    elif kind == "cut-target":
        edges = [list(edge) for c in conflicts for edge in target_edges(Graph(tape), c)]
        if edges:
            upkept = any(c.pattern == "kept-up" for c in conflicts)
            yield Attempt(before={"edges": edges}, terms=Terms(cut=True), starves=upkept)
    elif kind == "moved-write":
        for write in moved_writes(conflicts, tape):
            yield Attempt(before={"write": write}, after={"write": write})
    elif kind == "own-memory":
        made, themselves = alias_sites(conflicts, tape), compared_sites(conflicts)
        if made:
            yield Attempt(before={"apart": made})
        elif themselves:
            yield Attempt(before={"selves": themselves})
    elif kind == "straight-through" and any(c.pattern == "quantized" for c in conflicts):
        yield Attempt(after={"through": PUT_IN})
    elif kind == "adds-gradient":
        still = {"null": "steps", **counted}
        if before.steps:
            yield Attempt(before=still, after=still, terms=Terms(gains=True, still=True), frozen=True)
        else:  # a leaf that is updated by hand
            yield Attempt(terms=Terms(gains=True))
        sites = through_sites(conflicts)
        yield Attempt(before={"through": sites or True})
        if any(c.pattern == "computed-term" for c in conflicts):
            yield Attempt(before={"through": sites, "arrays": True})
        unrecorded = [c for c in conflicts if c.pattern == "constant-term" and _is_unrecorded(c)]
        if unrecorded:
            yield Attempt(before={"recorded": _cut_lines(unrecorded)})
        if copies := [c for c in conflicts if c.pattern == "updated-copies"]:
            imposed = {"adapted": _cut_lines(copies)}
            yield Attempt(before=imposed)
            drawn = {"draws": {}, **counted}  # (a copy that is built anew draws its first weights)
            yield Attempt(before={**imposed, **drawn}, after=drawn)
        if any(c.pattern == "uncalled" for c in conflicts):
            yield Attempt(before={"uncalled": True})
        if due := stepping(conflicts, tape):
            yield Attempt(before={"step": due})
        clearings = list(_clearings(conflicts, tape, before))
        yield from clearings
        if (
            before.steps and len(conflicts) > 1
        ):  # one cure gives a gradient, another clears those of earlier passes
            gains = Terms(gains=True, still=True)
            for way in clearings[:2]:
                yield Attempt(before={**still, **(way.before or {})}, after=still, terms=gains, frozen=True)
        gradients = [c for c in conflicts if c.kind in ("freed-graph", "cut-graph")]
        around = [c.earlier for c in gradients]
        around += [c.backward for c in gradients if c.pattern != "plain-gradient"]
        calls = Graph(tape).plain_gradients(*around)
        if calls:
            yield Attempt(before={"create": [[s.file, s.line] for s in calls]})
    elif kind == "restored":
        yield Attempt()  # the run before is the restored one


def _cut_lines(conflicts: Sequence[Conflict]) -> list[list[Any]]:
    """[file, line] of the places where these conflicts leave the graph."""
    return lines_of(label.stack[-1] for c in conflicts for label in c.labels if label.role == "cut")


def _is_unrecorded(conflict: Conflict) -> bool:
    return isinstance(conflict.event, Cut) and conflict.event.how == "no_grad"


def _clearings(conflicts: Sequence[Conflict], tape: Tape, before: Measured) -> Iterator[Attempt]:
    """Gradients cleared as the cures of `conflicts` do."""
    if any(c.pattern == "never-cleared-leaf" for c in conflicts):
        # (what is left at the end may be cleared, or not)
        yield Attempt(before={"clear": "leaves"}, terms=Terms(ends=False))
    else:
        never = {
            c.event.optimizer for c in conflicts if c.pattern == "never-cleared" and isinstance(c.event, Step)
        }
        if never and any(s.optimizer not in never for s in before.steps):
            yield Attempt(before={"clear": sorted(never)})  # the others may do without, too
        yield Attempt(before={"clear": True})
        if never and _left_out(before):
            yield Attempt(before={"clear": "passes"})
    between = [c.event for c in conflicts if c.pattern == "cleared-between" and c.event and c.event.stack]
    if late := lines_of(event.stack[-1] for event in between):
        yield Attempt(before={"gather": late})
        yield Attempt(before={"once": late})
    if any(c.pattern == "never-cleared" for c in conflicts):  # what another loss left there since goes, too
        for schedule in own_loss(before, tape):
            yield Attempt(before={"clear": True, "own": schedule}, terms=Terms(cut=True))


def _left_out(before: Measured) -> bool:
    """Whether a step is left out now and then: where passes are gathered for a step, all but the last have as many."""
    passes = [0]
    for what, _ in before.order:
        if what == "b":
            passes[-1] += 1
        elif what == "s":
            passes.append(0)
    return len(set(passes[:-2])) > 1


def _clips(tape: Tape) -> bool:
    """Whether the script writes into parameters by hand once a backward has given them gradients."""
    trained: set[int] = set()
    for event in tape.events:
        if isinstance(event, Backward):
            trained.update(ref.storage for ref in event.accumulates)
        elif isinstance(event, Mutate) and event.optimizer is None and event.ref.storage in trained:
            return True
    return False


def rounds(before: Measured) -> tuple[int, ...]:
    """How many steps each round has; the last number goes for all that come behind. Empty where the steps
    do not repeat."""
    return _rounds([s.optimizer for s in before.steps])


def _rounds(steps: Sequence[int]) -> tuple[int, ...]:
    used = set(steps)
    if length := _period(steps, len(steps) // 2) or (len(steps) if len(steps) == len(used) else 0):
        return (length,)
    # training in several phases: a later one begins with an optimizer that has not stepped before
    for at in sorted(steps.index(k) for k in used)[1:]:
        length = _period(steps[:at], at // 2)
        then = _rounds(steps[at:]) if length else ()
        if then and sum(then) < len(steps) - at:  # (one round alone may be the end of a longer one)
            whole, rest = divmod(at, length)
            return (*[length] * whole, *([rest] if rest else []), *then)
    length = _period(steps, len(steps) - 1)
    return (length,) if length else ()


def _period(steps: Sequence[int], most: int) -> int:
    """After how many steps they repeat, every optimizer having stepped; 0 where they do not after `most`."""
    used = set(steps)
    for length in range(len(used), most + 1):
        head = steps[:length]
        if set(head) == used and all(k == head[i % length] for i, k in enumerate(steps)):
            return length
    return 0


def _steps_a_making(lengths: tuple[int, ...], conflicts: Sequence[Conflict], tape: Tape) -> tuple[int, ...]:
    """The optimizers' steps between two makings of what the steps made stale, where these are several whole rounds (a
    loop that steps with each of its losses); else a round's."""
    if len(lengths) != 1:
        return lengths
    (length,) = lengths
    steps = [e.time for e in tape.events if isinstance(e, Step)]
    for made in (c.record for c in conflicts if c.record is not None):
        times = (e.time for e in tape.events if isinstance(e, Record) and e.stack == made.stack)
        done = list(dict.fromkeys(bisect_left(steps, time) for time in times))
        count = done[1] - done[0] if len(done) > 1 else 0
        if count > length and count % length == 0:
            return (count,)
    return lengths


def own_loss(before: Measured, tape: Tape) -> Iterator[list[list[int] | None]]:
    """The readings of what each backward is for: by time, then by what steps behind the same backward in any pass,
    where gradients are accumulated and stepped with now and then."""
    by_time = own_loss_by_time(before)
    if any(own is not None for own in by_time):
        yield by_time
    stacks = [e.stack for e in tape.events if isinstance(e, Backward)]
    if len(stacks) != len(before.backwards):
        return
    behind: dict[Stack, dict[int, None]] = {stack: {} for stack in stacks}
    last: Stack | None = None
    for what, k in before.order:
        if what == "b" and before.backwards[k].accumulates:
            last = stacks[k]
        elif what == "s" and last is not None:
            behind[last][k] = None
    by_place = [list(behind[stack]) or None for stack in stacks]
    if by_place != by_time and all(
        own for own, b in zip(by_place, before.backwards, strict=True) if b.accumulates
    ):
        yield by_place


def of_conflicts(conflicts: Sequence[Conflict], tape: Tape) -> list[list[int] | None]:
    """The reading that the conflicts have: the backwards of attacks, which are there for the gradient of an input, feed
    no optimizer; of two losses that pull apart, each feeds what it is there for."""
    graph = Graph(tape)
    own: dict[Stack, frozenset[int]] = {}
    for c in conflicts:
        own |= meant_for(graph, c)
        if c.pattern == "attack" and c.earlier is not None:
            own[c.earlier.stack] = frozenset()
    backwards = (e for e in tape.events if isinstance(e, Backward))
    return [sorted(own[e.stack]) if e.stack in own else None for e in backwards]


def own_loss_by_time(before: Measured) -> list[list[int] | None]:
    """For each backward, the optimizers it is meant for: those that step before the next backward.

    Where several backwards come before several steps, each is meant for the optimizer whose gradients were
    cleared right before it, else they go in the order of the steps. None: nothing stepped after it.
    """
    schedule: list[list[int] | None] = [None] * len(before.backwards)
    group: list[tuple[int, list[int]]] = []  # backwards without steps yet, with what was cleared before each
    cleared: list[int] = []
    stepped: list[int] = []

    def settle() -> None:
        if stepped and group:
            distinct = list(dict.fromkeys(stepped))
            by_clearing = [c[0] for _, c in group if len(c) == 1]
            if len(group) == 1:
                schedule[group[0][0]] = distinct
            elif len(group) == len(distinct) == len(by_clearing) and set(by_clearing) == set(distinct):
                for (b, _), k in zip(group, by_clearing, strict=True):
                    schedule[b] = [k]
            elif len(group) == len(distinct):
                for (b, _), k in zip(group, distinct, strict=True):
                    schedule[b] = [k]
            else:
                for b, _ in group:
                    schedule[b] = distinct
        group.clear()
        stepped.clear()

    for what, k in before.order:
        if what == "b" and before.backwards[k].accumulates:
            if stepped:
                settle()
            group.append((k, list(dict.fromkeys(cleared))))
            cleared.clear()
        elif what == "z":
            cleared.append(k)
        elif what == "s":
            stepped.append(k)
    settle()
    return schedule


def own_summands(conflicts: Sequence[Conflict], tape: Tape) -> dict[str, list[list[Any]]]:
    """The backwards of a sum of losses that are there for different optimizers, by their number: each summand as
    [node, optimizers]."""
    graph = Graph(tape)
    found: dict[str, list[list[Any]]] = {}
    for conflict in conflicts:
        event, backward = conflict.event, conflict.backward
        if conflict.pattern != "opposed" or not isinstance(event, Summed | Unbounded) or backward is None:
            continue
        for number, b in enumerate(graph.backwards):
            its = sides(graph, b, event) if b.stack == backward.stack else ()
            if its:
                found[str(number)] = [[node, sorted(optimizers)] for node, optimizers in its]
    return found


def moved_writes(conflicts: Sequence[Conflict], tape: Tape) -> Iterator[dict[str, Any]]:
    """The conflicting write as the imposer knows it: op, and the parameters (else the shape) it writes to."""
    for conflict in conflicts:
        write = conflict.write
        if write is None:
            continue
        places = _places(tape)
        like = [
            e.ref
            for e in tape.events
            if isinstance(e, Mutate) and e.op == write.op and e.stack == write.stack and e.optimizer is None
        ]
        params = sorted({place for ref in like for place in places.get(ref.storage, ())})
        op = write.op.partition(".")[0] + "." + write.op.partition(".")[2].partition(".")[0]
        if params:
            yield {"op": op, "parameters": [list(p) for p in params]}
        elif not any(isinstance(e, Record) and _makes(e, write) for e in tape.events):
            # (where a value of the graph is written is what the program computes)
            yield {"op": op, "shape": list(write.ref.shape)}


def _makes(record: Record, write: Mutate) -> bool:
    """Whether the op computed the tensor that is written; a view of a leaf did not."""
    own = record.output is not None and record.output.storage == write.ref.storage
    return own and ~write.ref.storage not in record.parents


def _places(tape: Tape) -> dict[int, list[tuple[int, int]]]:
    """storage -> where the optimizers hold it."""
    found: dict[int, list[tuple[int, int]]] = {}
    for event in tape.events:
        if isinstance(event, Optimizer):
            for j, ref in enumerate(event.refs):
                if (event.optimizer, j) not in found.setdefault(ref.storage, []):
                    found[ref.storage].append((event.optimizer, j))
    return found
