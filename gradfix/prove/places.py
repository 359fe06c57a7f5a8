"""Where in the program an effect is imposed on a run: places and lines that the conflicts and the tape speak of, as the
imposer knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gradfix.detect import Conflict
from gradfix.detect.averages import averages
from gradfix.detect.unstepped import step_behind
from gradfix.graph import Graph
from gradfix.tape import Backward, Cut, GradRead, Itself, Mutate, Record, Site, Stack, Tape, Zero

KINDS = ("freed-graph", "stale-saved-tensor")
_ALIASING = ("detach", "data", "numpy")


def stepping(conflicts: Sequence[Conflict], tape: Tape) -> list[list[Any]]:
    """[number, place]: which optimizers are to step behind the backward, or the clipping, called there."""
    never = [c for c in conflicts if c.pattern == "never-stepped" and isinstance(c.event, Zero)]
    found = {c.event.optimizer: step_behind(Graph(tape), c) for c in never if isinstance(c.event, Zero)}
    return [[n, _place(e.stack)] for n, e in found.items() if n is not None and e and e.stack]


def made_before(conflicts: Sequence[Conflict], tape: Tape) -> list[list[list[Any]]]:
    """Where values were made that a backward walks again in a later pass and that no pass makes anew."""
    records = {e.node: e for e in tape.events if isinstance(e, Record)}
    found: dict[Stack, None] = {}
    for conflict in conflicts:
        last = conflict.backward
        before = (
            [
                e
                for e in tape.events
                if isinstance(e, Backward) and e.stack == last.stack and e.time < last.time
            ]
            if last
            else []
        )
        if last is None or not before:
            continue
        walked = [records[n] for n in last.nodes if n in records]
        own = {r.stack for r in records.values() if before[-1].time < r.time < last.time}
        entered = {p for r in walked if r.time > before[-1].time for p in r.parents if p in records}
        old = [records[p] for p in entered if records[p].time < before[-1].time]
        if old and all(r.stack and r.stack not in own for r in old):
            found.update(dict.fromkeys(r.stack for r in old))
    return [_place(stack) for stack in found]


def stored_over(conflicts: Sequence[Conflict], tape: Tape) -> list[list[list[Any]]]:
    """Where each pass makes values of which a later one walks those of earlier passes, too: a list's that is never
    emptied."""
    graph, found = Graph(tape), dict[Stack, None]()
    for last in (c.backward for c in conflicts if c.kind in KINDS and c.backward is not None):
        begin = graph.pass_begin(last)
        walked = [r for n in last.nodes if (r := graph.records.get(n)) is not None]
        entered = {p for r in walked if r.time > begin for p in r.parents}
        old = {
            graph.records[p].stack for p in entered if p in graph.records and graph.records[p].time < begin
        }
        anew = {r.stack for r in walked if r.time > begin}
        found.update(dict.fromkeys(stack for stack in old & anew if stack))
    return [_place(stack) for stack in found]


def constants(conflicts: Sequence[Conflict], tape: Tape) -> list[dict[str, Any]]:
    """Where averages of parameters, which are constants to every pass, are made and read, and where they are updated:
    the places that a cut goes by, the most first. Nothing where the conflicts come by no averages."""
    found = averages(Graph(tape), conflicts)
    if found is None:
        return []
    ways = ([*found.updates, *found.outset, *found.readers], [*found.updates, *found.outset], found.updates)
    stacks = dict.fromkeys(tuple(dict.fromkeys(r.stack for r in some if r.stack)) for some in ways)
    return [{"places": [_place(stack) for stack in some]} for some in stacks]


def replayed(conflicts: Sequence[Conflict], tape: Tape) -> list[list[list[Any]]]:
    """Where values are made that are kept, and read again by passes that do not follow the one that made them: a
    replay buffer, as no state is that goes from each pass to the next. They are data to those passes, and so to the
    one that happens to read them while they are fresh. Places as those of made_before."""
    graph = Graph(tape)
    found: dict[Stack, None] = {}
    for last in (c.backward for c in conflicts if c.kind == "freed-graph" and c.backward is not None):
        passes = graph.passes(last)
        for older, old, now in zip(passes, passes[1:], passes[2:], strict=False):
            walked = [r for n in graph.walk(now) if (r := graph.records.get(n)) and r.time > old.time]
            entered = [graph.records[p] for r in walked for p in r.parents if p in graph.records]
            found.update((r.stack, None) for r in entered if r.time < older.time and r.stack)
    return [_place(stack) for stack in found]


def kept_sites(conflicts: Sequence[Conflict]) -> list[list[Any]]:
    """[file, line, how] of every line that made a tensor whose missing gradient is read: it is meant to be a
    ``leaf`` where that very line reads it (``w = w - lr * w.grad``), else to ``keep`` its gradient."""
    sites = set()
    for conflict in conflicts:
        record, event = conflict.record, conflict.event
        if conflict.kind == "missing-grad" and conflict.pattern == "read" and record and record.stack:
            site = record.stack[-1]
            read = event.stack[-1] if isinstance(event, GradRead) and event.stack else None
            own = read is not None and (read.file, read.line) == (site.file, site.line)
            for line in range(site.line, max(site.line, min(site.end_line, site.line + 12)) + 1):
                sites.add((site.file, line, "leaf" if own else "keep"))
    return [list(s) for s in sorted(sites)]


def lines_of(sites: Iterable[Site], most: int = 10_000) -> list[list[Any]]:
    """[file, line] of every line of these places, of `most` behind the first one."""
    lines = {
        (site.file, line)
        for site in sites
        for line in range(site.line, max(site.line, min(site.end_line, site.line + most)) + 1)
    }
    return [list(x) for x in sorted(lines)]


def alias_sites(conflicts: Sequence[Conflict], tape: Tape) -> list[list[Any]]:
    """[file, line] of where an alias was made of what a conflict's write overwrote, or what is compared with itself."""
    written = [(c.write.ref.storage, c.write.time) for c in conflicts if c.write is not None]
    written += [(c.event.ref.storage, c.event.time) for c in conflicts if isinstance(c.event, Itself)]
    sites = {
        (site.file, line)
        for storage, time in written
        for e in tape.events
        if isinstance(e, Cut) and e.how in _ALIASING and e.ref.storage == storage and e.time < time
        for site in e.stack[-1:]
        for line in range(site.line, max(site.line, min(site.end_line, site.line + 12)) + 1)
    }
    return [list(s) for s in sorted(sites)]


def compared_sites(conflicts: Sequence[Conflict]) -> list[list[Any]]:
    """[file, line] of where something is compared with itself, written into under its other name."""
    return lines_of((c.event.stack[-1] for c in conflicts if isinstance(c.event, Itself)), 12)


def beside(conflicts: Sequence[Conflict], tape: Tape) -> list[list[Any]]:
    """[file, line] of the other hidden writes into what these overwrite: a mask, and what is renormalised after it, are
    right together or not at all."""
    storages = {c.write.ref.storage for c in conflicts if isinstance(c.write, Mutate)}
    writes = (e for e in tape.events if isinstance(e, Mutate) and e.how in _ALIASING and e.stack)
    sites = {(e.stack[-1].file, e.stack[-1].line) for e in writes if e.ref.storage in storages}
    return [list(site) for site in sorted(sites)]


def through_sites(conflicts: Sequence[Conflict]) -> list[list[Any]]:
    """[file, line] of every place a conflict speaks of: where a `.data` that hides a write may stand."""
    stacks = [x.stack for c in conflicts for x in c.labels] + [c.write.stack for c in conflicts if c.write]
    return lines_of((site for stack in stacks for site in stack[-1:]), 12)


def _place(stack: Stack) -> list[list[Any]]:
    """A place as the imposer knows it: its frames' [file, first line, last line], outermost first."""
    return [[s.file, s.line, max(s.end_line, s.line)] for s in stack]
