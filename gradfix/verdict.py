"""What a rewrite means to change (its effect) and what was measured of it (its verdict)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from gradfix.dataclass import dataclass

EffectKind = Literal[
    "none",
    "later-parameters",
    "new-draw",
    "cut-round",
    "cut-own-loss",
    "cut-target",
    "moved-write",
    "own-memory",
    "straight-through",
    "adds-gradient",
    "restored",
    "changes-value",
]

Status = Literal["proved", "preserved", "intended", "rejected", "untried"]

HELD: tuple[Status, ...] = ("proved", "preserved", "intended")  # verdicts of a cure that may be applied


@dataclass(frozen=True, slots=True)
class Effect:
    """The one change to the training that a rewrite means to have (DESIGN section 5); the prover imposes it on the
    run before and then asks for equality. `words` say it to the person, as a clause after "after this,"."""

    kind: EffectKind
    words: str = ""


GAINS = Effect(
    "adds-gradient", "what the optimizer steps gets its gradient; every other gradient is as before"
)
TERM = Effect(
    "adds-gradient", "this term of the loss trains what it is computed from; the others do as before"
)
NONE = Effect("none")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was measured of one candidate. `reason` is one sentence for the person ("G's gradient cosine 0.9998 to the
    exact one, D's equal"); `measured` the numbers behind it (JSON values)."""

    status: Status
    reason: str
    measured: Mapping[str, object] = field(default_factory=dict)
