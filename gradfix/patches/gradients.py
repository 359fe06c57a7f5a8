"""What a change makes of the gradients that training uses: two readings of a program, compared.

Every way of a gradient from a loss to a parameter is counted, pass by pass of every backward and step by step of every
optimizer. What differs is told by what it is (a way into an earlier pass is lost, a gradient is cleared before a step
has used it, …) and by how many places of the program show it: so it can be compared with what the same change does to
another program. No names and no numbers of lines are in it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradfix.graph import Graph
from gradfix.read import Reading
from gradfix.tape import Backward, GradUse, GradWrite, Mutate, Ref, Site, Stack, Step, Tape, Zero

CLEARED = "a gradient is cleared before a step has used it"
KEPT = "a step uses a gradient that was cleared before it"
GONE, NEW = "a backward pass is gone", "there is another backward pass"
EARLIER = " through what earlier passes made"
PASS = {  # what a backward gives a parameter, before and after
    "less": "a backward pass gives a parameter less of its gradient",
    "lost": "a backward pass gives a parameter no gradient any more",
    "more": "a backward pass gives a parameter more than its gradient",
    "gained": "a backward pass gives a parameter a gradient that got none",
}
STEP = {
    "less": "a step uses less of the gradients that were gathered for it",
    "lost": "a step uses no gradient any more of those that were gathered for it",
    "more": "a step uses more gradients than it did",
    "gained": "a step uses gradients that it did not",
}

READ = {
    "less": "less is in a gradient that is read by hand",
    "lost": "nothing is left in a gradient that is read by hand",
    "more": "more is in a gradient that is read by hand",
    "gained": "there is something in a gradient that is read by hand, and was not",
}
USED = ", and an earlier step has used them"
WRITTEN = ("", ", written to by hand since", ", written to by hand again and again since")

Texts = Mapping[str, str]  # by path
Ways = Mapping[str, int]  # by parameter
Gathered = Counter[tuple[str, str]]  # by parameter and by what is to be said of them, the ways of a gradient
Changes = dict[str, dict[Site, None]]  # what differs, and the places that show it


def changes(before: Sequence[Reading], after: Sequence[Reading], old: Texts, new: Texts) -> Changes:
    """What differs from the readings `before`, of the texts `old`, to those `after`, of `new`: by what it is, the
    backwards or steps that show it, as they lie in the text before."""
    found: Changes = {what: {} for what in (CLEARED, KEPT)}  # what says most comes first
    then: dict[str, list[Reading]] = defaultdict(list)
    for reading in after:
        then[reading.entry].append(reading)
    for reading in before:
        if then[reading.entry]:
            a = _Gradients.of(reading.tape, old)
            b = _Gradients.of(then[reading.entry].pop(0).tape, new)
            for what, place in (*_of_passes(a, b), *_of_uses(a, b)):
                found.setdefault(what, {})[place] = None
    return {what: places for what, places in found.items() if places}


def _of_passes(a: _Gradients, b: _Gradients) -> Iterator[tuple[str, Site]]:
    for key, passes in a.passes.items():
        if key not in b.passes:
            yield GONE, passes[0].place
        others = b.passes.get(key, [])
        known = [use for each in (*passes, *others) for use in each.uses.items()]
        # (what became of those at the end of a reading does not show)
        unused = {leaf for leaf, use in known if use == "cleared"} - {
            leaf for leaf, use in known if use == "used"
        }
        for one, other in zip(passes, others, strict=False):
            for leaf in sorted(one.own.keys() | other.own.keys()):
                was, now = one.uses.get(leaf, ""), other.uses.get(leaf, "")
                if (was, now) in (("used", "cleared"), ("cleared", "used")):
                    yield CLEARED if was == "used" else KEPT, one.place
                idle = " (no step uses it)" if leaf in unused else ""
                own = _differ(one.own.get(leaf, 0), other.own.get(leaf, 0))
                older = _differ(one.older.get(leaf, 0), other.older.get(leaf, 0))
                if own:
                    yield f"{PASS[own]}{idle}", one.place
                if older:
                    yield f"{PASS[older]}{EARLIER}{idle}", one.place
    yield from ((NEW, passes[0].place) for key, passes in b.passes.items() if key not in a.passes)


def _of_uses(a: _Gradients, b: _Gradients) -> Iterator[tuple[str, Site]]:
    for key, uses in a.uses.items():
        words = STEP if key[0] == "step" else READ
        others = b.uses.get(key, [(place, Counter()) for place, _ in uses])
        for (place, one), (_, other) in zip(uses, others, strict=False):
            yield from ((f"{words[said]}{kind}", place) for said, kind in _of_use(one, other))


def _of_use(one: Gathered, other: Gathered) -> Iterator[tuple[str, str]]:
    """What differs in the gradients of one use, and what is to be said of those. How often they were written to counts
    only where that is not the same before and after: what is lost is lost, clipped or not."""
    bases: dict[tuple[str, str], set[str]] = {}
    for leaf, kind in one.keys() | other.keys():
        written = max((w for w in WRITTEN if kind.endswith(w)), key=len)
        bases.setdefault((leaf, kind.removesuffix(written)), set()).add(written)
    for (leaf, base), every in sorted(bases.items()):
        both = {w: (one[leaf, base + w], other[leaf, base + w]) for w in every}
        differ = {w: said for w, (old, new) in both.items() if (said := _differ(old, new))}
        if len({said in ("less", "lost") for said in differ.values()}) > 1:
            yield from ((said, base + w) for w, said in sorted(differ.items()))
        elif differ:
            yield _differ(*(sum(side) for side in zip(*both.values(), strict=True))), base


def _differ(before: int, after: int) -> str:
    if before == after:
        return ""
    if not before or not after:
        return "gained" if after else "lost"
    return "more" if after > before else "less"


@dataclass(frozen=True, slots=True)
class _Pass:
    """One backward. By parameter, the ways to it that lie in this pass of the loop (`own`), those that lead through an
    `older` one, and what became of its gradient."""

    place: Site
    own: Ways
    older: Ways
    uses: Mapping[str, str]


@dataclass(slots=True)
class _Gradients:
    """The passes of every backward, by the calls that lead to it, and what uses gradients, optimizers' steps and reads
    by hand: how many ways the gradients came, by parameter and by what is to be said of how they were gathered."""

    passes: dict[tuple[str, ...], list[_Pass]] = field(default_factory=dict)
    uses: dict[tuple[str, ...], list[tuple[Site, Gathered]]] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape, texts: Texts) -> _Gradients:
        graph, names = Graph(tape), _Names(texts)
        called = _Leaves(graph)
        found = cls()
        by_time: dict[int, _Pass] = {}
        for backward in graph.backwards:
            if not backward.accumulates or not backward.stack:
                continue
            own, older = _ways(graph, backward, called)
            uses = {called(r): _use(graph, r.storage, backward) for r in backward.accumulates}
            each = by_time[backward.time] = _Pass(backward.stack[-1], own, older, uses)
            found.passes.setdefault(names.of(backward.stack), []).append(each)
        for number in graph.optimizers:
            last = -1
            for step in graph.steps_of(number):
                if step.stack:
                    gathered = _sum(graph, step.time, last, step.refs, by_time, called)
                    found.uses.setdefault(("step", str(number)), []).append((step.stack[-1], gathered))
                last = step.time
        for event in tape.events:
            if isinstance(event, GradUse) and event.stack:
                gathered = _sum(graph, event.time, -1, [event.ref], by_time, called)
                found.uses.setdefault(("read", *names.of(event.stack)), []).append(
                    (event.stack[-1], gathered)
                )
        return found


def _sum(
    graph: Graph, time: int, last: int, refs: Sequence[Ref], passes: Mapping[int, _Pass], called: _Leaves
) -> Gathered:
    """What is in the gradients of `refs` at a time; some of it since before the `last` step."""
    gathered: Gathered = Counter()
    for ref in refs:
        leaf = called(ref)
        for filled, written in _filled(graph, ref.storage, time):
            said = f"{USED if filled < last else ''}{WRITTEN[min(written, 2)]}"
            each = passes.get(filled)
            if each is not None:
                gathered[leaf, said] += each.own.get(leaf, 0)
                gathered[leaf, f"{EARLIER}{said}"] += each.older.get(leaf, 0)
    return gathered


def _ways(graph: Graph, backward: Backward, called: _Leaves) -> tuple[Ways, Ways]:
    """How many ways lead from the roots of `backward` to each parameter: in this pass alone, and through what an
    earlier one made."""
    previous = graph.previous(backward)
    since = previous.time if previous is not None else -1
    walk, filled = graph.walk(backward), {r.storage: called(r) for r in backward.accumulates}
    every: Counter[int] = Counter(backward.roots)
    own: Counter[int] = Counter(backward.roots)
    for node in sorted(walk, reverse=True):
        record = graph.records.get(node)
        if record is None or not every[node]:
            continue
        if record.time <= since:
            own[node] = 0
        for parent in record.parents:
            every[parent] += every[node]
            own[parent] += own[node]
    ways = {leaf: every[~storage] for storage, leaf in filled.items()}
    within = {leaf: own[~storage] for storage, leaf in filled.items()}
    return within, {leaf: count - within[leaf] for leaf, count in ways.items()}


def _use(graph: Graph, storage: int, backward: Backward) -> str:
    """What becomes of what `backward` added to a gradient: whether a step (or a write by hand) used it before it was
    cleared; "" where neither shows."""
    end, cleared = graph.tape.events[-1].time + 1, False
    for event in graph.history.get(storage, ()):
        if event.time <= backward.time:
            continue
        if isinstance(event, Step):
            return "used"
        if isinstance(event, Zero) or (isinstance(event, GradWrite) and event.assigned):
            end, cleared = event.time, True
            break
    owned = storage in graph.owners
    written = (w for w in graph.writes.get(storage, ()) if isinstance(w, Mutate) and not owned)
    if any(backward.time < w.time < end for w in written):
        return "used"
    return "cleared" if cleared else ""


def _filled(graph: Graph, storage: int, time: int) -> list[tuple[int, int]]:
    """The backwards whose gradients a parameter has at a time: when they were, and how often what they gave was
    written to by hand since."""
    found: list[tuple[int, int]] = []
    for event in graph.history.get(storage, ()):
        if event.time >= time:
            break
        if isinstance(event, Backward):
            found.append((event.time, 0))
        elif isinstance(event, Zero) or (isinstance(event, GradWrite) and event.assigned):
            found.clear()
        elif isinstance(event, GradWrite):
            found = [(time, written + 1) for time, written in found]
    return found


class _Leaves:
    """What parameters are called in both readings: by their place in an optimizer, else by their name."""

    def __init__(self, graph: Graph) -> None:
        self._known: dict[int, str] = {}
        for number, optimizer in graph.optimizers.items():
            for n, ref in enumerate(optimizer.refs):
                self._known.setdefault(ref.storage, f"{number}.{n}")

    def __call__(self, ref: Ref) -> str:
        return self._known.setdefault(ref.storage, ref.name or f"#{len(self._known)}")


class _Names:
    """Stacks by what is called in each of their frames, as the texts say it: lines may come and go. Of several that
    say the same, each has a number."""

    def __init__(self, texts: Texts) -> None:
        self._lines = {path: text.split("\n") for path, text in texts.items()}
        self._known: dict[tuple[str, ...], dict[Stack, None]] = {}

    def of(self, stack: Stack) -> tuple[str, ...]:
        said = tuple(map(self._said, stack))
        known = self._known.setdefault(said, {})
        known.setdefault(stack)
        return (*said, str(list(known).index(stack)))

    def _said(self, site: Site) -> str:
        lines = self._lines.get(site.file)
        if lines is None or not 0 < site.line <= len(lines):
            return f"{site.file}:{site.line}:{site.column}"
        line = lines[site.line - 1]
        end = site.end_column if site.end_line == site.line else len(line)
        return f"{site.file}: {site.function}: {line[site.column : end].partition('(')[0]}"
