"""How much of a script is recorded: more, where the text shows a fault that a short run did not come to; less, where a
run went on until its time was over and had shown everything long before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradfix import unproved
from gradfix.asked import asked
from gradfix.detect import Conflict
from gradfix.prove import Baseline
from gradfix.prove.runs import alike
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


def hurried(settings: Settings, *ran: Baseline) -> Settings:
    """`settings` for what comes after the runs `ran`: where one took all of its time, that gets as much, together."""
    if all(each.outcome.ended != "timeout" for each in ran):
        return settings
    return replace(settings, until=min(settings.until, time.monotonic() + settings.timeout))


def calls_enough(first: Baseline, texts: Mapping[str, str], settings: Settings) -> int | None:
    """How many steps of all optimizers together show every fault of a run that went on until its time was over, since
    an optimizer has not stepped in it; None where that ended it otherwise, shows none, or needs all of its steps."""
    found = _faults(first, texts, settings)
    if first.outcome.ended != "timeout" or not found:
        return None
    made = [e for e in first.tape.events if isinstance(e, Step)]
    in_all, last = Counter(e.optimizer for e in made), max(map(_when, found))
    seen, after = Counter[int](), Counter[int]()
    for n, step in enumerate(made, 1):
        seen[step.optimizer] += 1
        after[step.optimizer] += step.time > last
        if all(seen[k] >= min(settings.steps, in_all[k]) and after[k] > 1 for k in in_all):
            return n if n < len(made) else None
    return None


def shows(run: Baseline, long: Baseline, texts: Mapping[str, str], settings: Settings) -> bool:
    """Whether `run` shows the faults of the `long` one, and no other."""
    mine, all_ = _faults(run, texts, settings), _faults(long, texts, settings)
    return len(mine) == len(all_) and all(any(alike(c, k) for k in mine) for c in all_)


def out_of_time(settings: Settings) -> str:
    """What the person is told where not every cure could be tried."""
    return (
        f"a run of the script took all of its {settings.timeout:g} s, and what comes after it gets as much, together: "
        "not every cure was tried. --timeout gives it longer."
    )


def _faults(baseline: Baseline, texts: Mapping[str, str], settings: Settings) -> list[Conflict]:
    return [c for c in baseline.conflicts if c.severity != "note" and asked(c, settings, texts)]


def _when(conflict: Conflict) -> int:
    events = (conflict.backward, conflict.event, conflict.write, conflict.earlier)
    return max((e.time for e in events if e is not None), default=0)


def _steps_before(tape: Tape, time: int) -> int:
    """How often every optimizer that there was had stepped, at some time before: a run of as many steps ends there."""
    done = Counter[int]()
    most = 0
    for event in tape.events:
        if event.time < time and isinstance(event, Optimizer | Step):
            done[event.optimizer] += isinstance(event, Step)
            most = max(most, min(done.values()))
    return most
