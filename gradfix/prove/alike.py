"""A value that is compared with itself: made anew in each pass, an earlier one and a live one are the same. Their
difference is 0 for good and trains nothing, while every gradient agrees with that of standing parameters."""

from __future__ import annotations

from gradfix.prove.lines import Lines
from gradfix.tape import Alike, Record, Step, Tape
from gradfix.wording import at


def now_constant(before: Tape, after: Tape, lines: Lines) -> str:
    """Why a comparison of two values says nothing any more: in every pass they are equal, and each has a graph; or "".
    One that was like that before, too, is as it was written."""
    steps = [e.time for e in after.events if isinstance(e, Step)]
    made = {e.node: e.time for e in after.events if isinstance(e, Record)}
    apart = [e for e in before.events if isinstance(e, Alike) and e.nodes and e.apart]
    for event in after.events:
        if not isinstance(event, Alike) or event.apart or not event.stack:
            continue
        times = [made[n] for n in event.nodes if n in made]
        if not any(min(times, default=0) < step < max(times, default=0) for step in steps):
            continue
        if any(lines.same_stack(event.stack, b.stack) for b in apart):
            where = at("used", event.stack)
            return f"both sides of {where} are the same value now: their difference is always 0 and trains nothing"
    return ""
