"""What is known of a script as it is (Baseline) and of a candidate (After): runs, and the faults they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from gradfix.detect import Conflict
from gradfix.prove import words
from gradfix.prove.compare import difference
from gradfix.prove.cured import Left
from gradfix.prove.effects import Impose
from gradfix.prove.measured import Measured, read
from gradfix.run import Outcome
from gradfix.tape import Failure, Note, Tape

CLEAN = ("finished", "steps")


@dataclass(frozen=True)
class Baseline:
    """The script as it is: its recorded run, whose gradients are those of the program as written, and its
    plain run, whose gradients (or error) are what PyTorch gives."""

    files: Mapping[str, str]
    outcome: Outcome
    plain: Outcome
    conflicts: tuple[Conflict, ...]
    base: Impose = field(default_factory=dict)  # what lets the script run that else would reach no backward
    _imposed: dict[str, Future[Outcome]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def tape(self) -> Tape:
        """The recorded run's events; an empty tape where there was none."""
        return self.outcome.tape or Tape(())

    @property
    def failure(self) -> Failure | None:
        """What plain PyTorch raised on the script as it is."""
        return self.plain.failure

    @property
    def lines(self) -> tuple[str, ...]:
        """What the recorder could not watch, as sentences."""
        return tuple(dict.fromkeys(e.text for e in self.tape.events if isinstance(e, Note)))

    @cached_property
    def oracle(self) -> Measured:
        """The exact gradients of the program as written."""
        return read(self.outcome.measurement)

    @cached_property
    def measured(self) -> Measured:
        """What plain PyTorch computes."""
        return read(self.plain.measurement)

    @cached_property
    def names(self) -> words.Names:
        return words.Names.of(self.tape)

    @cached_property
    def sound(self) -> bool:
        """Whether plain PyTorch runs it to the end and gives the exact gradients."""
        return self.plain.ended in (*CLEAN, "exit") and difference(self.measured, self.oracle) is None


@dataclass(frozen=True)
class After:
    """A candidate: its plain run, and its recorded one."""

    plain: Outcome
    recorded: Outcome
    left: Left
    base: Impose = field(
        default_factory=dict
    )  # what lets it run on where another missing gradient would end it
    stopped: bool = False  # by the clock, before it came as far as the run before

    @cached_property
    def measured(self) -> Measured:
        """The plain run, unless another fault that was there before ends it or spoils its gradients in silence."""
        spoilt = self.plain.failure or any(c.kind == "silent-overwrite" for c in self.left.others)
        return read((self.recorded if spoilt else self.plain).measurement)

    @cached_property
    def oracle(self) -> Measured:
        return read(self.recorded.measurement)

    @property
    def clocked(self) -> bool:
        """Whether the clock ended a run of it, wherever that was: how many steps each has is chance."""
        return "timeout" in (self.plain.ended, self.recorded.ended)

    @property
    def short(self) -> bool:
        """Whether it is judged as far as it came."""
        return self.stopped or self.broken_off

    @property
    def broken_off(self) -> bool:
        """Whether it ends at another call of an old PyTorch's, which is still to be cured."""
        return any(isinstance(c.event, Failure) and c.kind == "legacy-api" for c in self.left.others)


@dataclass(frozen=True)
class Equal:
    """Two runs in which nothing differs: the script as it is, and the candidate, as far as they were compared."""

    before: Measured
    now: Measured


def joined(known: Sequence[Conflict], found: Sequence[Conflict]) -> tuple[Conflict, ...]:
    """The `known` faults and those `found` that are others."""
    return (*known, *(c for c in found if not any(alike(c, k) for k in known)))


def met(first: Sequence[Conflict], later: Sequence[Conflict]) -> tuple[Conflict, ...]:
    """The `first` faults and the missing gradients among the `later`: what else shows where one of several is put
    there comes of the others."""
    return joined(first, [c for c in later if c.kind == "missing-grad"])


def alike(one: Conflict, other: Conflict) -> bool:
    """Whether two runs of one text show the same fault."""
    made, was = one.label("made"), other.label("made")
    return one.kind == other.kind and one.at == other.at and (made and made.at) == (was and was.at)
