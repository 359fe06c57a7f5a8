"""Whether a fault is gone after a rewrite that moved lines, and which faults are new."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gradfix.alike import kept_to_compare
from gradfix.detect import Conflict
from gradfix.graph import Graph
from gradfix.prove.lines import Lines, on_disk
from gradfix.tape import Backward, Cut, Record, Step, Tape
from gradfix.wording import quote


@dataclass(frozen=True, slots=True)
class Left:
    """Faults after: `still`, that should be gone (as they were before); of error severity `new` ones, and
    `others` (as they were before, too). `gone` are the ones before that should be, and are; `doubtful` counts the
    warnings."""

    still: tuple[Conflict, ...]
    new: tuple[Conflict, ...]
    others: tuple[Conflict, ...]
    gone: tuple[Conflict, ...] = ()
    doubtful: int = 0


def left(
    after: Sequence[Conflict], before: Sequence[Conflict], cured: Sequence[Conflict], lines: Lines
) -> Left:
    """What is left of the faults `before`, of which `cured` should be gone."""
    # what was taken for a consequence of a fault may be one of its own, which shows once that fault is gone
    known = [*before, *(c for b in before for c in b.also)]
    still: list[Conflict] = []
    new: list[Conflict] = []
    others: list[Conflict] = []
    for conflict in after:
        # the exact place first: two faults may be needed by one backward, one step may cause two, and a helper that
        # steps for several losses has them all
        ways = (_same_stacks, _same_place_and_need, _same_place_at_fault, _same_need)
        matches = (_first(conflict, [*cured, *known], way, lines) for way in ways)
        match = next((m for m in matches if m is not None), None)
        if match is not None and any(match is c for c in cured):
            still.append(match)
        elif conflict.severity == "error":
            # a script for an old PyTorch fails at one call after the other
            further = conflict.kind == "legacy-api" and all(c.kind == "legacy-api" for c in cured)
            (new if match is None and not further else others).append(match or conflict)
    gone = tuple(c for c in cured if not any(c is x for x in still))
    doubtful = sum(c.severity == "warning" for c in after)
    return Left(_once(still), tuple(new), _once(others), gone, doubtful)


def still_made(left: Left, after: Sequence[Conflict], lines: Lines) -> list[list[object]]:
    """[file, line] of where the values were made, before, through which the fault that is still there comes about."""
    kinds = {c.kind for c in left.still}
    stacks = {x.stack for c in after if c.kind in kinds for x in c.labels if x.role == "made" and x.stack}
    found = {(s[-1].file, line) for s in stacks for line in lines.origin(s[-1])}
    return [list(x) for x in sorted(found)]


def _once(conflicts: Sequence[Conflict]) -> tuple[Conflict, ...]:
    return tuple({id(c): c for c in conflicts}.values())


def _first(
    after: Conflict,
    before: Sequence[Conflict],
    alike: Callable[[Conflict, Conflict, Lines], bool],
    lines: Lines,
) -> Conflict | None:
    return next((b for b in before if _one_fault(b, after) and alike(after, b, lines)), None)


def _one_fault(before: Conflict, after: Conflict) -> bool:
    """Whether two conflicts may be one fault: a target that has become a tensor of its own may now show that it has a
    graph."""
    return before.kind == after.kind and (before.pattern == "itself") is (after.pattern == "itself")


def _same_stacks(after: Conflict, before: Conflict, lines: Lines) -> bool:
    """The same places, reached by the same calls."""
    pairs = (
        (after.labels[k].stack, before.labels[n].stack)
        for k, n in ((after.primary, before.primary), (-1, -1))
    )
    alike = all(len(a) == len(b) and all(map(lines.same_place, a, b)) for a, b in pairs)
    return alike and _same_place_and_need(after, before, lines)


def _same_place_and_need(after: Conflict, before: Conflict, lines: Lines) -> bool:
    return _same_place_at_fault(after, before, lines) and _same_need(after, before, lines)


def _same_place_at_fault(after: Conflict, before: Conflict, lines: Lines) -> bool:
    made, was = after.label("made"), before.label("made")
    if (
        after.kind == "missing-grad"
        and made is not None
        and was is not None
        and not lines.same_place(made.at, was.at)
    ):
        return False  # one line may read the gradients of several
    return lines.same_place(after.at, before.at)


def _same_need(after: Conflict, before: Conflict, lines: Lines) -> bool:
    """The same backward trips, perhaps over another tensor: a later pass of the loop may show that."""
    return bool(after.labels and before.labels) and lines.same_place(
        after.labels[-1].at, before.labels[-1].at
    )


def stale_for_ever(before: Tape, after: Tape, conflicts: Sequence[Conflict], lines: Lines) -> str:
    """What to call a value made once, of stepped parameters, that later rounds use; "" where it is made again.

    Detached, it stays as it was while its parameters move on, even where all gradients agree."""
    graph = Graph(before)
    for conflict in conflicts:
        made = _made_once(conflict, graph, before)
        if made is None or _in_outer_loop(made, conflict, lines.before):
            continue
        if conflict.backward is not None and kept_to_compare(graph, made, conflict.backward):
            continue
        if conflict.backward is not None and _made_anew(graph, after, conflict.backward, lines):
            continue
        again = [
            e
            for e in after.events
            if isinstance(e, Record) and e.op == made.op and lines.same_stack(e.stack, made.stack)
        ]
        first = _first_step(after)
        once = again and first is not None and all(e.time < first for e in again)
        if once or len(again) == 1 or (not again and _without_graph(after, made, lines)):
            name = (made.output.name if made.output else "") or (conflict.ref.name if conflict.ref else "")
            code = quote(made.stack[-1], lines.before) if made.stack else ""
            return f"`{name or code}`" if name or code else "a value that is made once"
    return ""


def _made_anew(before: Graph, after: Tape, backward: Backward, lines: Lines) -> bool:
    """Whether what `backward` walks now takes in all the parameters that it did, and each of them behind the last step
    before it."""
    graph = Graph(after)
    now = [e for e in after.events if isinstance(e, Backward) and lines.same_stack(e.stack, backward.stack)]
    for again in now:
        steps = [s.time for s in graph.steps if s.time < again.time]
        taking = [
            r for n in graph.walk(again) if (r := graph.records.get(n)) and any(p < 0 for p in r.parents)
        ]
        if (
            not steps
            or any(r.time < steps[-1] for r in taking)
            or _leaves(graph, again) < _leaves(before, backward)
        ):
            return False
    return bool(now)


def _leaves(graph: Graph, backward: Backward) -> int:
    """How many leaves the nodes that `backward` walks take in."""
    parents = (p for n in graph.walk(backward) if (r := graph.records.get(n)) for p in r.parents)
    return len({p for p in parents if p < 0})


def _made_once(conflict: Conflict, graph: Graph, tape: Tape) -> Record | None:
    """The conflict's node, if it was made once (or at one place several times, of one parameter after the other),
    before the first step and the first backward that needs it, and a stepped parameter feeds it."""
    record = conflict.record
    if conflict.kind != "freed-graph" or record is None or not record.stack:
        return None
    stepped = {ref.storage for e in tape.events if isinstance(e, Step) for ref in e.refs}
    first = _first_step(tape)
    if first is None or record.time > first or not graph.reaches(record.node) & stepped:
        return None
    needed = conflict.backward.stack if conflict.backward is not None else ()
    walks = (e.time for e in tape.events if isinstance(e, Backward) and e.stack == needed)
    last = min(first, next(walks, first))
    alike = [e for e in tape.events if isinstance(e, Record) and (e.stack, e.op) == (record.stack, record.op)]
    return record if len(alike) == 1 or all(e.time < last for e in alike) else None


def _first_step(tape: Tape) -> int | None:
    return next((e.time for e in tape.events if isinstance(e, Step)), None)


def _in_outer_loop(made: Record, conflict: Conflict, files: Mapping[str, str]) -> bool:
    """Whether a loop holds both the making and the backward: the bound ended the run before it came around."""
    needed = conflict.backward.stack if conflict.backward is not None else ()
    for there, here in zip(made.stack, needed, strict=False):
        text = files.get(there.file) or on_disk(there.file)
        if there.file != here.file or text is None:
            return False
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.For, ast.While)) and node.body and node.end_lineno is not None:
                inside = range(node.body[0].lineno, node.end_lineno + 1)
                if there.line in inside and here.line in inside:
                    return True
        if there != here:
            return False
    return False


def _without_graph(after: Tape, made: Record, lines: Lines) -> bool:
    """Whether the value is now made where no graph is kept."""
    return any(
        isinstance(e, Cut) and e.how == "no_grad" and e.stack and all(map(lines.same, e.stack, made.stack))
        for e in after.events
    )
