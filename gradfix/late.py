"""Faults behind the first steps: the text shows one that a short run did not come to, so a longer one is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradfix import unproved
from gradfix.asked import asked
from gradfix.detect import Conflict
from gradfix.prove import Baseline
from gradfix.result import Settings
from gradfix.tape import Optimizer, Step, Tape

FURTHER = 32  # times as many steps
PATIENCE = 30.0  # seconds that they may take


def longer(
    first: Baseline, entry: Path, script: str, texts: Mapping[str, str], settings: Settings
) -> Settings | None:
    """What to record with, where the first steps show no fault and the text does; else None."""
    if first.outcome.ended != "steps" or _faults(first, texts, settings):
        return None
    shown = unproved.certain(entry, script, settings)
    if not any(f.conflict.severity != "note" for f in shown):
        return None
    return replace(settings, steps=FURTHER * settings.steps, timeout=min(PATIENCE, settings.timeout))


def enough(again: Baseline, texts: Mapping[str, str], settings: Settings) -> Settings | None:
    """As few steps as show the first fault of a long run, with what comes of it; None where that shows none, either."""
    found, tape = _faults(again, texts, settings), again.tape
    if not found:
        return None
    return replace(settings, steps=max(settings.steps, min(_steps_before(tape, _when(c)) for c in found) + 2))


def said(first: Settings, now: Settings) -> str:
    """What the person is told of it."""
    return (
        f"the first {first.steps} steps show no fault; the text does, so {now.steps} steps of every optimizer were "
        "recorded."
    )


def _faults(baseline: Baseline, texts: Mapping[str, str], settings: Settings) -> list[Conflict]:
    return [c for c in baseline.conflicts if c.severity != "note" and asked(c, settings, texts)]


def _when(conflict: Conflict) -> int:
    events = (conflict.backward, conflict.event, conflict.write, conflict.earlier)
    return max((e.time for e in events if e is not None), default=0)


def _steps_before(tape: Tape, time: int) -> int:
    """How often the optimizer had stepped that had done so least."""
    known = {e.optimizer for e in tape.events if isinstance(e, Optimizer) and e.time < time}
    done = Counter(e.optimizer for e in tape.events if isinstance(e, Step) and e.time < time)
    return min((done[k] for k in known), default=0)
