"""What became of the cures that a repository's result holds: applied, or only shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gradfix.batch.state import State
from gradfix.batch.values import Fault, Had, RepoResult

Effects = Mapping[str, tuple[str, str]]  # by effect: what came of it, and the sentence

UNAPPLIED = "not applied"  # a cure that was chosen, and nothing was done with it
SHOWN = "only shown"  # one that was not: its verdict is not accepted
DONE, PART, REFUSED = "done", "part", "refused"  # what came of an effect
KINDS = {"write": "written", "branch": "on a branch", "diff": "in a patch"}  # what says most first


def applied(effects: Effects) -> list[str]:
    """Where a result's cures are, in words: ``written``, ``on branch cured``, ``in a patch``."""
    done = [effect for effect, (came, _) in effects.items() if came in (DONE, PART)]
    return [
        f"on {effect}" if kind == "branch" else said
        for kind, said in KINDS.items()
        for effect in done
        if effect.partition(" ")[0] == kind
    ]


def refused(effects: Effects) -> list[str]:
    """What was asked for and not had."""
    return [effect for effect, (came, _) in effects.items() if came == REFUSED]


def outcome(fault: Fault, effects: Effects) -> str:
    """What became of a fault's cure; "" where there is none."""
    if fault.status == "cured":
        return ", ".join(x for x in applied(effects) if not (fault.held and _on_branch(x))) or UNAPPLIED
    return SHOWN if any(cure.verdict != "rejected" for cure in fault.cures) else ""


def outcomes(faults: Iterable[tuple[Fault, Effects]]) -> dict[str, int]:
    """How many faults have come to what, each counted once, as what says most of it."""
    found = Counter(_kind(outcome(fault, effects)) for fault, effects in faults)
    return {said: found[said] for said in (*KINDS.values(), UNAPPLIED, SHOWN) if found[said]}


def _kind(said: str) -> str:
    first = said.partition(", ")[0]
    return KINDS["branch"] if _on_branch(first) else first


def _on_branch(said: str) -> bool:
    return said.startswith("on branch ")


def earlier(state: State, name: str, result: RepoResult | None) -> dict[str, list[Had]]:
    """The cures that earlier calls have applied to a repository and that its present result does not speak of: by where
    they are, in words. A second look at what was written finds nothing left to cure."""
    now = {step.had for step in result.steps} if result is not None else set()
    effects = state.effects(name)
    places = {KINDS["write"]: state.written(name).cures}
    places |= {f"on branch {branch}": made.cures for branch, made in state.branches(name).items()}
    done = set(applied(effects))
    found = {
        place: [cure for cure in cures if place not in done or cure not in now]
        for place, cures in places.items()
    }
    return {place: cures for place, cures in found.items() if cures}
