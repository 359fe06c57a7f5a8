"""Gathering conflicts: the same fault met again is the same conflict, consequences go into `also`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import field, replace

from gradfix import wording
from gradfix.dataclass import dataclass
from gradfix.detect.conflict import KINDS, Conflict, Label, Severity
from gradfix.graph import Graph
from gradfix.tape import Backward, Event, Mutate, Record, Ref, Stack

Found = Iterator[
    tuple[Hashable, Event, Conflict | None]
]  # (the fault's key, the event it was met at, itself)

MOST_ALSO = 64  # consequences kept; a tape of a long run has thousands that say the same


@dataclass(slots=True)
class Findings:
    """Conflicts by the key of their fault, in the order they were met."""

    _found: dict[Hashable, tuple[int, Conflict]] = field(default_factory=dict)
    _also: dict[Hashable, list[Conflict]] = field(default_factory=dict)

    def add(self, key: Hashable, time: int, conflict: Conflict | None) -> None:
        """Keep `conflict`, met at `time`; where its fault is known already, as one of its consequences."""
        if conflict is None:
            return
        if key not in self._found:
            self._found[key] = (time, conflict)
            self._also[key] = []
        else:
            self.fold(key, conflict)

    def fold(self, key: Hashable, conflict: Conflict | None) -> None:
        """Put `conflict` among the consequences of the fault `key`, unless it says nothing new."""
        if conflict is None or key not in self._found:
            return
        also = self._also[key]
        known = (self._found[key][1], *also)
        if len(also) < MOST_ALSO and all(_places(conflict) != _places(k) for k in known):
            also.append(conflict)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._found

    def conflicts(self) -> Iterable[tuple[int, Conflict]]:
        """(time, conflict) of every fault, consequences in place."""
        for key, (time, conflict) in self._found.items():
            yield time, replace(conflict, also=tuple(self._also[key]))


def _places(conflict: Conflict) -> Hashable:
    return (
        conflict.kind,
        conflict.ref and conflict.ref.name,
        tuple((x.role, x.stack) for x in conflict.labels),
    )


def make(
    kind: str,
    pattern: str,
    message: str,
    labels: Iterable[tuple[str, Stack, str]],
    point: str,
    severity: Severity | None = None,
    ref: Ref | None = None,
    record: Record | None = None,
    write: Mutate | None = None,
    backward: Backward | None = None,
    earlier: Backward | None = None,
    event: Event | None = None,
) -> Conflict | None:
    """A conflict that points at its first label of the role `point`. Labels at places outside the user's
    files are left out; None where no label is left, since there is nothing to show."""
    shown = tuple(Label(*x) for x in dict.fromkeys(labels) if x[1])
    if not shown:
        return None
    primary = next((i for i, x in enumerate(shown) if x.role == point), 0)
    return Conflict(
        kind,
        severity or KINDS[kind],
        message,
        shown,
        primary,
        pattern,
        ref,
        record,
        write,
        backward,
        earlier,
        event,
    )


def optimizer_words(graph: Graph, number: int) -> str:
    """The optimizer's name in backticks, or words that tell it by the place of its step."""
    optimizer, steps = graph.optimizers.get(number), graph.steps_of(number)
    if optimizer is not None and optimizer.name:
        return f"`{optimizer.name}`"
    return f"the optimizer of {wording.at('step', steps[0].stack)}" if steps else "an optimizer"
