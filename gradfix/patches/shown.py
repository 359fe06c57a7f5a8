"""What the text alone shows of a change: the program is read before it and after, and not run."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import Path

from gradfix.examine import findings, read_text
from gradfix.graph import Graph
from gradfix.patches.gradients import GONE, NEW, changes
from gradfix.read import Reading
from gradfix.read.watched import Kinds as Values
from gradfix.read.watched import Watch, spanned
from gradfix.source import Source, SourceError
from gradfix.tape import Backward, Clip, Cut, End, Event, GradWrite, Mutate, Site

BACKWARD = "backward"
DTYPE = "a tensor gets another dtype"
HOOKED = "gradients reach a hook, or a Function's own backward, in other passes"

Texts = Mapping[str, str]  # by path
Kinds = tuple[tuple[str, ...], ...]
GRADIENT, PARAMETER, CALL, ELSE = "a gradient", "a parameter", "a call", "something else"
Done = Mapping[int, frozenset[str]]  # by line: what is written there, and whether more is done


@dataclass(frozen=True, slots=True)
class Shown:
    """What the text alone shows of a change: how many `faults` by kind, and how far the reader came (`reading`, as a
    Fix has it), before and after; what becomes of `gradients`, with the places that show it; the `kinds` of values that
    its lines use, by path (a Fix says more of them), with the `names` they have here; the files that the entry came to
    (`used`); and what is `done` in each line of the changed files, before and after."""

    faults: Mapping[str, tuple[int, int]]
    reading: Mapping[str, tuple[int, int]]
    gradients: Mapping[str, tuple[str, ...]]
    kinds: Mapping[str, Kinds]
    names: Mapping[str, Kinds]
    used: frozenset[str]
    done: Mapping[str, tuple[Done, Done]]


def shown(entry: Path, before: Texts, after: Texts) -> Shown:
    """What shows in the text of the program `entry`, and of the files that change. A text is what is on the disk where
    it is not given."""
    lines = {path: _changed(before[path], after[path]) for path in before.keys() & after.keys()}
    old = _Read.of(entry, before, {path: sides[0] for path, sides in lines.items()})
    new = _Read.of(entry, after, {path: sides[1] for path, sides in lines.items()})
    places: dict[str, dict[str, None]] = {}
    for key, readings in old.readings.items():
        for what, sites in changes(readings, new.readings.get(key, ()), before, after).items():
            places.setdefault(what, {}).update(dict.fromkeys(f"line {site.line}" for site in sites))
    for (path, name), known in old.dtypes.items():
        if new.dtypes.get((path, name), known) != known:
            places.setdefault(DTYPE, {})[f"`{name}`"] = None
    if new.hooked and (passes := {*places.get(GONE, ()), *places.get(NEW, ())}):
        places[HOOKED] = dict.fromkeys(passes)
    return Shown(
        {kind: (old.faults[kind], new.faults[kind]) for kind in sorted(old.faults | new.faults)},
        {
            what: (old.far[what], new.far[what])
            for what in sorted(old.far | new.far)
            if old.far[what] != new.far[what]
        },
        {what: tuple(some) for what, some in places.items()},
        {path: old.kinds[path] + new.kinds[path] for path in lines},
        {path: old.names[path] + new.names[path] for path in lines},
        old.used,
        {path: (old.done(path), new.done(path)) for path in lines},
    )


@dataclass(slots=True)
class _Read:
    """What the readings of one side of a change come to."""

    faults: Counter[str] = field(default_factory=Counter)
    far: Counter[str] = field(default_factory=Counter)
    readings: dict[tuple[str, bool], tuple[Reading, ...]] = field(default_factory=dict)
    kinds: dict[str, Kinds] = field(default_factory=dict)
    names: dict[str, Kinds] = field(default_factory=dict)
    hooked: bool = False
    dtypes: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    used: frozenset[str] = frozenset()

    @classmethod
    def of(cls, entry: Path, texts: Texts, lines: Mapping[str, frozenset[int]]) -> _Read:
        found = cls()
        seen: set[tuple[str, Site]] = set()
        watch = Watch(lines)
        for path in dict.fromkeys([str(entry), *texts]):
            try:
                text = texts[path] if path in texts else Source.read(path).text
                readings = read_text(Path(path), text, texts, watch=watch)
                seen |= {(f.conflict.kind, f.conflict.at) for f in findings(Path(path), text, readings)}
                turned = read_text(Path(path), text, texts, watch=Watch(closely=True))
            except SourceError:
                continue
            found.readings |= {(path, False): readings, (path, True): turned}
            if path == str(entry):
                found.used = frozenset(file for r in readings for file in r.tape.sources)
            for each in readings:
                found.far[BACKWARD] += sum(isinstance(e, Backward) for e in each.tape.events)
                found.far["failed"] += sum(isinstance(e, End) and e.how == "failed" for e in each.tape.events)
                found.far.update({f"not know: {origin}": count for origin, count in each.unknowns})
        found.faults = Counter(kind for kind, _ in seen)
        found.dtypes, found.hooked = watch.dtypes, watch.hooked
        for path, some in lines.items():
            kinds = list(_kinds(texts[path], path, some, watch))
            found.names[path] = tuple(map(tuple, kinds))
            found.kinds[path] = tuple(tuple(", ".join(sorted(k - {""})) for k in x.values()) for x in kinds)
        return found

    def done(self, path: str) -> Done:
        """By line of a file, what its statements write themselves (GRADIENT, PARAMETER: one that an optimizer steps);
        CALL where that is in a function that they call, ELSE for anything else that a tape tells but cuts."""
        found: dict[int, set[str]] = {}
        for (_, closely), readings in self.readings.items():
            for each in readings if closely else ():
                owners = Graph(each.tape).owners
                for event in each.tape.events:
                    for site in event.stack if isinstance(event, Event) else ():
                        if site.file == path and not isinstance(event, Cut):
                            said = _doing(event, owners) if site is event.stack[-1] else CALL
                            found.setdefault(site.line, set()).add(said)
        return {line: frozenset(said) for line, said in found.items()}


def _doing(event: Event, owners: Container[int]) -> str:
    if isinstance(event, GradWrite | Clip):
        return GRADIENT
    owned = isinstance(event, Mutate) and event.optimizer is None and event.ref.storage in owners
    return PARAMETER if owned else ELSE


def _changed(old: str, new: str) -> tuple[frozenset[int], frozenset[int]]:
    """The lines, from 1, in which two texts differ."""
    steps = SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False).get_opcodes()
    changed = [step for step in steps if step[0] != "equal"]
    return (
        frozenset(n + 1 for _, i, end, _, _ in changed for n in range(i, end)),
        frozenset(n + 1 for _, _, _, j, stop in changed for n in range(j, stop)),
    )


def _kinds(text: str, path: str, lines: frozenset[int], watch: Watch) -> Iterator[Values]:
    """Of each statement in these lines, in the order of the text, the kinds of values that its names have."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    statements = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and not lines.isdisjoint(spanned(n))]
    for each in sorted(statements, key=lambda n: (n.lineno, n.col_offset)):
        yield watch.kinds.get((path, each.lineno, each.col_offset), {})
