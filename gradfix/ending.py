"""What a run's end has to say: why there is no report (a Problem), and what a report leaves out (remarks)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gradfix import wording
from gradfix.detect import detect
from gradfix.messages import recognise
from gradfix.prove import Baseline
from gradfix.result import Problem, Settings
from gradfix.run import Outcome
from gradfix.source import split_lines
from gradfix.tape import Backward, Failure, Note, Optimizer, Site, Step, Tape

UNWATCHED = (
    "torch.func",
    "is not watched",
)  # words of the recorder's notes on code that it does not see at all
ELSEWHERE = ("the others train", "in processes")  # of those, on training that is not this run's
PERHAPS = "might train"  # ... on what is known of only where a run came to no backward
LESS = "less work (the script's own arguments go after --)"
BROKEN_OFF = ("tampered", "killed", "memory")
QUOTED = 300  # characters of an error's message inside a sentence


def problem(entry: Path, first: Baseline, faults: bool) -> Problem | None:
    """Why there is nothing to say of the script at `entry`, or None. `faults`: some were found and asked for."""
    outcome, failure = first.outcome, first.failure
    if outcome.ended in BROKEN_OFF:
        said = f"{entry}: {outcome.detail.rstrip('.')}{_smaller(outcome)}"
        return Problem(_with(said, outcome.missed), _last(outcome.stderr))
    if faults:
        return None
    if failure is not None and failure.autograd:
        return None if first.conflicts else _unexplained(entry, failure)
    if failure is not None:
        return Problem(_with(f"{entry} {_not_autograds(failure)}", outcome.missed), failure.traceback)
    watched = outcome.failure
    if watched is not None and outcome.ended == "failed" and not reached_backward(first.tape):
        said = f"{watched.type}: {_short(watched.message)}".removesuffix(": ")
        why = "fails while it is recorded, and not without that, so nothing was seen of its training"
        return Problem(f"{entry} {why}: {said}", watched.traceback)
    missed = _missed(first.tape)
    if missed:
        advice = "; call the training itself, in one process and one thread, to have it checked"
        return Problem(f"{entry}: no backward() was reached. {missed[0].rstrip('.')}{advice}.")
    if outcome.ended in ("timeout", "exit") and not reached_backward(first.tape):
        advice = f"; a longer --timeout may get it there, or {LESS}"
        usage = " (the script's own arguments go after --)" if "usage:" in outcome.stderr else ""
        more = advice if outcome.ended == "timeout" else usage
        why = outcome.detail.rstrip(".")
        sentence = f"{entry}: {why}, and no backward() was reached before that{more}."
        return Problem(_with(sentence, outcome.missed), _last(outcome.stderr))
    return None


def nothing_recorded(entry: Path, outcome: Outcome) -> Problem | None:
    """Why a tape of this run of `entry` would have nothing to say, or None."""
    run = Baseline({}, outcome, outcome, detect(outcome.tape) if outcome.tape else ())
    if outcome.tape is None:
        said = f"{entry}: nothing was recorded ({(outcome.detail or outcome.ended).rstrip('.')})"
        return Problem(said, _last(outcome.stderr))
    why = None if run.conflicts or reached_backward(outcome.tape) else problem(entry, run, False)
    return why and Problem(f"{why.message.rstrip('.')}. Nothing was recorded", why.detail)


def died(entry: Path, outcome: Outcome) -> str:
    """How a run ended that broke off; nothing where it did not."""
    failure = outcome.failure
    if failure is not None:
        at = f" in line {failure.at.line}" if failure.at is not None else ""
        said = f"{failure.type}: {_short(failure.message)}".removesuffix(": ")
        return f"{entry} ended{at} with {said}"
    return f"{entry}: {outcome.detail.rstrip('.')}" if outcome.ended in BROKEN_OFF else ""


def _smaller(outcome: Outcome) -> str:
    """What to do where memory ran out, or may have."""
    if outcome.ended == "memory":
        return f"; {LESS} may fit" if "--steps" in outcome.detail else f"; fewer --steps or {LESS} may fit"
    killed = outcome.ended == "killed" and outcome.status == -signal.SIGKILL
    return f"; where it is memory, fewer --steps or {LESS} may fit" if killed else ""


def remarks(
    first: Baseline, last: Baseline, settings: Settings, faults: bool, sources: Mapping[str, str]
) -> Iterator[str]:
    """Sentences that qualify the report: what was not seen, what else is wrong. `last` is the script as it is left."""
    failure = first.failure
    told = failure is not None and any(
        c.kind == "legacy-api" and isinstance(c.event, Failure) for c in first.conflicts
    )
    cured = last.failure is None  # with the faults, this went away
    if (
        faults
        and failure is not None
        and not failure.autograd
        and not (told or cured or _of_none(first, failure))
    ):
        at = f" in {wording.line(failure.at, sources)}" if failure.at is not None else ""
        yield f"the script also {_not_autograds(failure, at)}"
    if first.outcome.ended == "timeout":
        yield from unstepped(first.tape, settings, sources)
    if faults or first.outcome.ended in ("finished", "steps"):
        yield from first.outcome.missed
    yield from (n.text for n in _notes(first.tape) if _matters(n, first))


def _of_none(first: Baseline, failure: Failure) -> bool:
    """Whether the script fails on the None that it read for a gradient."""
    read = any(c.kind == "missing-grad" and c.pattern == "read" for c in first.conflicts)
    return read and failure.type in ("TypeError", "AttributeError") and "None" in failure.message


def _missed(tape: Tape) -> list[str]:
    """What is to be said of training elsewhere where the run itself reached no backward."""
    if reached_backward(tape):
        return []
    return [n.text for n in _notes(tape) if any(words in n.text for words in (*ELSEWHERE, PERHAPS))]


def minor(first: Baseline) -> Iterator[str]:
    """What the recorder noted and no fault of this run can hide behind."""
    yield from (n.text for n in _notes(first.tape) if not _matters(n, first))


def _with(sentence: str, missed: Sequence[str]) -> str:
    return ". ".join([sentence.rstrip("."), *missed])


def reached_backward(tape: Tape) -> bool:
    """Whether the run came to a backward at all."""
    return any(isinstance(e, Backward) for e in tape.events)


def _not_autograds(failure: Failure, at: str = "") -> str:
    said = f"{failure.type}: {_short(failure.message)}".removesuffix(": ")
    stdin = failure.type == "EOFError" and "reading a line" in failure.message
    hint = " (it reads standard input, which is empty here)" if stdin else ""
    return f"fails{at} for a reason that is not autograd's, so gradfix leaves it alone: {said}{hint}"


def _unexplained(entry: Path, failure: Failure) -> Problem:
    finding = recognise(f"{failure.type}: {failure.message}")
    said = f"{failure.type}: {_short(failure.message)}"
    if finding is not None and finding.advice:
        sentence = f"{entry} fails with an autograd error that gradfix has no cure for: {said}"
        return Problem(sentence, f"{failure.traceback.rstrip()}\n{finding.advice}")
    sentence = f"{entry} fails with an autograd error whose cause the recorded run does not show: {said}"
    return Problem(sentence, failure.traceback)


def unstepped(tape: Tape, settings: Settings, sources: Mapping[str, str]) -> Iterator[str]:
    """Which optimizers had not made their steps when the time was over, and what to do. One that is made anew in
    every pass counts as one."""
    steps: dict[object, int] = {}
    shown: dict[object, str] = {}
    of: dict[int, object] = {}
    for event in tape.events:
        if isinstance(event, Optimizer):
            place = of.setdefault(event.optimizer, event.at or event.optimizer)
            steps.setdefault(place, 0)
            made = f" (made in {wording.line(event.at, sources)})" if event.at is not None else ""
            name = event.name or _assigned(event.at, sources)
            shown[place] = (f"`{name}`" if name else event.kind) + made
        elif isinstance(event, Step) and event.optimizer in of:
            steps[of[event.optimizer]] += 1
    never = [shown[p] for p, n in steps.items() if not n]
    after = f"when the run was stopped after {settings.timeout:g} s"
    if never:
        what = "nothing is known of the training it does" if len(never) == 1 else "that training was not seen"
        yield (
            f"{wording.listed(never)} had not stepped yet {after}: {what}. Give it more time "
            f"(--timeout {max(10 * settings.timeout, 600):g}), or less to do before that step "
            "(the script's own arguments go after --)."
        )
    few = [f"{shown[p]} had made {n}" for p, n in steps.items() if 0 < n < settings.steps]
    if few and not never:
        yield (
            f"{wording.listed(few)} of {settings.steps} steps {after}. "
            "--timeout gives it longer, --steps asks for fewer."
        )


def _assigned(at: Site | None, sources: Mapping[str, str]) -> str:
    """What the statement at `at` assigns to: an optimizer has no name on the tape before its first step."""
    lines = split_lines(sources.get(at.file, "")) if at is not None else []
    target = (
        re.match(r"\s*([\w.]+)\s*=(?!=)", lines[at.line - 1]) if at and 0 < at.line <= len(lines) else None
    )
    return target[1] if target else ""


def _notes(tape: Tape) -> list[Note]:
    return list({e.text: e for e in reversed(tape.events) if isinstance(e, Note)}.values())[::-1]


def _matters(note: Note, first: Baseline) -> bool:
    """Whether a fault of this run may hide behind what the recorder did not keep: code it does not watch, or an
    autograd error that nothing on the tape explains."""
    if note.text in _missed(first.tape):  # the problem says it
        return False
    if any(words in note.text for words in UNWATCHED) and PERHAPS not in note.text:
        return True
    failure = first.failure
    errors = any(c.severity == "error" for c in first.conflicts)
    return failure is not None and failure.autograd and not errors


def _short(text: str) -> str:
    line = text.strip().split("\n")[0]
    return wording.shortened(line, QUOTED)


def _last(text: str, lines: int = 12) -> str:
    return "\n".join(text.rstrip().split("\n")[-lines:])
