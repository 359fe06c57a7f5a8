"""How much of a script is recorded: more, where the text shows a fault that a short run did not come to, or parameters
got no gradient in it; less, where a run went on until its time was over and had shown everything long before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gradfix import unproved
from gradfix.asked import asked
from gradfix.detect import Conflict
from gradfix.detect.starved import starving
from gradfix.prove import Baseline
from gradfix.prove.runs import alike
from gradfix.result import Settings
from gradfix.tape import Backward, Event, Optimizer, Step, Tape

FURTHER = 32  # times as many steps
PATIENCE = 30.0  # seconds that they may take
_PASSING = (Backward, Step)  # events of every pass


def behind(
    first: Baseline, entry: Path, script: str, texts: Mapping[str, str], settings: Settings
) -> list[Conflict]:
    """The faults that the text shows behind the first steps: all of them, where those show none; else those of a
    backward or a step that was not reached."""
    if first.outcome.ended != "steps":
        return []
    found = [f.conflict for f in unproved.certain(entry, script, settings) if f.conflict.severity != "note"]
    if not _faults(first, texts, settings):
        return found
    reached = {_place(e) for e in first.tape.events if isinstance(e, _PASSING)}
    return [c for c in found if any(_place(e) not in reached for e in _passing(c))]


def longer(settings: Settings) -> Settings:
    """What to record with to come to them."""
    return replace(settings, steps=FURTHER * settings.steps, timeout=min(PATIENCE, settings.timeout))


def enough(
    again: Baseline, first: Baseline, shown: list[Conflict], texts: Mapping[str, str], settings: Settings
) -> Settings | None:
    """As few steps of a long run as come to the faults `shown` by the text, or, where it shows none of those, to the
    first that the `first` run does not, with what comes of it; None where that shows no other, either."""
    tape, known = again.tape, _faults(first, texts, settings)
    found = [c for c in _faults(again, texts, settings) if not any(alike(c, k) for k in known)]
    if not found:
        return None
    told = {(c.kind, c.at.file, c.at.line) for c in shown}
    expected = [c for c in found if (c.kind, c.at.file, c.at.line) in told]
    counts = [_steps_before(tape, _when(c)) for c in expected or found]
    return replace(settings, steps=max(settings.steps, (max if expected else min)(counts) + 2))


def starved(first: Baseline, texts: Mapping[str, str], settings: Settings) -> frozenset[str]:
    """The parameters that the faults of a run, which was ended after so many steps, say to get no gradient in any: they
    may be left out in a first phase alone."""
    told = {starving(c) for c in _faults(first, texts, settings)} if first.outcome.ended == "steps" else set()
    return frozenset(told - {""})


def fed(some: frozenset[str], again: Baseline) -> frozenset[str]:
    """Those of `some` of which a longer run no longer says so."""
    if len(again.oracle.steps) == 0 or again.outcome.ended not in ("steps", "finished", "timeout"):
        return frozenset()
    return some - {starving(c) for c in again.conflicts}


def said(first: Settings, now: Settings) -> str:
    """What the person is told of it."""
    return (
        f"the text shows a fault that the first {first.steps} steps do not come to, so {now.steps} steps of every "
        "optimizer were recorded."
    )


def hurried(settings: Settings, *ran: Baseline) -> Settings:
    """`settings` for what comes after the runs `ran`: where one took all of its time, that gets as much, together."""
    if all(each.outcome.ended != "timeout" for each in ran):
        return settings
    return replace(settings, until=min(settings.until, time.monotonic() + settings.timeout))


def calls_enough(first: Baseline, texts: Mapping[str, str], settings: Settings) -> int | None:
    """How many steps of all optimizers together show every fault of a run that went on until its time was over, since
    an optimizer has not stepped in it, or all have done; None where that ended it otherwise, shows none, or has too few
    steps behind them."""
    found = _faults(first, texts, settings)
    if first.outcome.ended != "timeout" or not found:
        return None
    made = [e for e in first.tape.events if isinstance(e, Step)]
    in_all, last = Counter(e.optimizer for e in made), max(map(_when, found))
    seen, after = Counter[int](), Counter[int]()
    for n, step in enumerate(made, 1):
        seen[step.optimizer] += 1
        after[step.optimizer] += step.time > last
        # a pass more than shows them; or, at the end, what there is
        more = 1 if n < len(made) else 0
        if all(seen[k] >= min(settings.steps, in_all[k]) and after[k] > more for k in in_all):
            return n
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


def _passing(conflict: Conflict) -> list[Event]:
    return [e for e in (conflict.backward, conflict.earlier, conflict.event) if isinstance(e, _PASSING)]


def _place(event: Event) -> tuple[type[Event], str, int]:
    at = event.at
    return (type(event), at.file, at.line) if at is not None else (type(event), "", 0)


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
