"""One entry script from its run to its Result: the arrows of the design, in order.

Apart from pipeline.py so that the zygote can be importing torch while this module's own imports (libcst) load.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from gradfix import choose, ending, late, suppress, unproved, wording
from gradfix.asked import asked
from gradfix.codemod import codemods
from gradfix.detect import Conflict
from gradfix.discover import project_root
from gradfix.edit import Project, unparsed
from gradfix.fingerprint import fingerprint
from gradfix.merit import Candidate
from gradfix.prove import Baseline, Prover, Runner, Verdict
from gradfix.result import Cure, Diagnosis, Problem, Result, Settings
from gradfix.run.zygote import Zygote
from gradfix.source import Source, SourceError, readable

_Recorded = tuple[Prover, Baseline, Mapping[str, str]]


def repair(
    entry: Path,
    settings: Settings,
    text: str | None,
    say: Callable[[str], None],
    zygote: Zygote,
    siblings: Mapping[str, str],
) -> Result:
    """Run, find, cure and prove; see gradfix.pipeline.fix."""
    started = time.monotonic()
    try:
        source = Source.read(entry) if text is None else None
        script = source.text if source is not None else str(text)
        if source is not None:
            source.check()
    except SourceError as problem:
        return Result(entry, problem=Problem(problem.sentence, problem.detail))
    served = source is None or source.kind == "notebook"  # what is not on the disk as Python would read it
    overlay = dict(siblings) | ({str(entry): script} if served else {})
    root = project_root(entry)
    with ExitStack() as open_:

        def recorded(how: Settings, calls: int | None = None) -> _Recorded:
            """The script as it is, recorded as `how` says, and the texts of it that ran."""
            template = replace(how.template(entry, root, overlay), calls=calls)
            runner = open_.enter_context(closing(Runner(zygote, template, how.until)))
            baseline = (prover := Prover(runner)).baseline(overlay)
            ran = {path: text for path, text in siblings.items() if path in baseline.tape.sources}
            return prover, baseline, readable(baseline.tape.sources, root, {**ran, str(entry): script})

        say("recording a run")
        prover, baseline, texts = recorded(settings)
        remarks: tuple[str, ...] = ()
        in_time = settings
        settings = late.hurried(settings, baseline)
        shown = late.behind(baseline, entry, script, texts, settings)
        if shown:
            say("the text shows a fault that the first steps did not come to: recording more of them")
            _, again, seen = recorded(late.longer(settings))
            settings = late.hurried(settings, again)
            enough = late.enough(again, baseline, shown, seen, settings)
            if enough is not None:
                remarks = (late.said(settings, enough),)
                settings = enough
                prover, baseline, texts = recorded(settings)
        if starved := late.starved(baseline, texts, settings):
            say("some parameters get no gradient: recording more steps")
            _, again, _ = recorded(late.longer(settings))
            settings = late.hurried(settings, again)
            prover.passing = late.fed(starved, again)
            baseline = prover.without_passing(baseline)
        prover.runner.until = settings.until
        ended = baseline.outcome.ended
        calls = late.calls_enough(baseline, texts, settings) if settings.repair else None
        if calls is not None:
            say("every fault shows early: recording no more than that")
            short = recorded(settings, calls)
            if late.shows(short[1], baseline, texts, settings):
                remarks = (*ending.unstepped(baseline.tape, settings, texts), *remarks)
                prover, baseline, texts = short
        files = {path: text for path, text in texts.items() if settings.edits(path)}
        if not settings.repair:
            return _result(entry, settings, [(baseline, texts)], (), _Kept((baseline, texts)), started)
        project = Project(baseline.tape, files)

        def met(now: Baseline, known: Mapping[str, str]) -> Mapping[str, str]:
            more = readable(now.tape.sources, root, {**texts, **known})
            return {path: t for path, t in more.items() if path in known or settings.edits(path)}

        wanted = choose.Wanted(
            met=met,
            asked=lambda c, now: (
                asked(c, settings, {**texts, **now}) and (c.severity != "note" or settings.notes)
            ),
            codemods=[m for m in codemods() if not settings.codemods or m.name() in settings.codemods],
            accept=settings.accepted(raised(baseline)),
            granted=lambda c, now: (
                bool(settings.granted) and fingerprint(c, {**texts, **now}) in settings.granted
            ),
            hinted=lambda c, now: (
                settings.hints.get(fingerprint(c, {**texts, **now}), "") if settings.hints else ""
            ),
            late=lambda: time.monotonic() > prover.runner.until,
        )
        done, states, kept = _cured(prover, project, baseline, wanted, say)
        result = _result(entry, settings, [(baseline, texts), *states[1:]], done, kept, started)
        if prover.runner.until < in_time.until and time.monotonic() > prover.runner.until:
            remarks = (*remarks, *((late.out_of_time(settings),) if _left(result) else ()))
        result = replace(result, ended=ended, lines=(*result.lines, *remarks))
    if result.problem is None or result.diagnoses:
        return result
    return _read_instead(result, settings, script)


def _read_instead(ran: Result, settings: Settings, script: str) -> Result:
    """What the text shows of a script whose run came to nothing."""
    assert ran.problem is not None
    shown = unproved.from_text(ran.entry, settings, script, ran.problem)
    if not shown.diagnoses:
        return ran
    return replace(
        shown,
        failure=ran.failure,
        wall=ran.wall,
        seconds=ran.seconds,
        lines=(*ran.lines, *shown.lines),
        minor=ran.minor,
        output=ran.output,
    )


def _left(result: Result) -> bool:
    """Whether a fault of `result` has no cure yet."""
    return any(d.status == "left" for d in result.diagnoses)


def raised(first: Baseline) -> bool:
    """Whether plain PyTorch fails on the script as it is."""
    return first.failure is not None


def _cure(candidate: Candidate, verdict: Verdict, before: Mapping[str, str]) -> Cure:
    proposal = candidate.proposal
    old = {path: before[path] for path in candidate.texts}
    return Cure(proposal.codemod, proposal.summary, proposal.effect, verdict, old, candidate.texts)


_State = tuple[Baseline, Mapping[str, str]]  # the runs of some texts, and the texts


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is left of the rounds' cures once they are proved together: the state to report, how many of the rounds
    led to it, the verdict on it, and why it is not that of the last round."""

    state: _State
    rounds: int = 0
    verdict: Verdict | None = None
    held_back: str = ""


def _cured(
    prover: Prover, project: Project, baseline: Baseline, wanted: choose.Wanted, say: Callable[[str], None]
) -> tuple[list[choose.Round], list[_State], _Kept]:
    """Every round, the state after each, and what is left of them; where that is nothing, once more with the next best
    cure of one of them."""
    done: list[choose.Round] = []
    states: list[_State] = [(baseline, project.files)]
    for round_, now, last in choose.rounds(project, baseline, prover, wanted, say):
        done.append(round_)
        states.append((last, now.files))
    kept = _kept(prover, done, states, wanted)
    again = choose.otherwise(done, wanted) if not kept.rounds and not wanted.late() else None
    if again is None:
        return done, states, kept
    number, round_ = again
    files = dict(round_.before) | dict(round_.tried[0].candidate.texts)
    start = prover.baseline(files)
    others, after = [*done[:number], round_], [*states[: number + 1], (start, files)]
    project = Project(start.tape, wanted.met(start, files))
    for later, now, last in choose.rounds(project, start, prover, wanted, say):
        others.append(later)
        after.append((last, now.files))
    better = _kept(prover, others, after, wanted)
    return (others, after, better) if better.rounds else (done, states, kept)


def _kept(
    prover: Prover, rounds: Sequence[choose.Round], states: Sequence[_State], wanted: choose.Wanted
) -> _Kept:
    """The longest run of rounds, from the first on, whose cures hold together."""
    held_back = ""
    for count in range(len(rounds), 0, -1):
        applied = [r for r in rounds[:count] if r.applied]
        if not rounds[count - 1].applied and count < len(rounds):
            continue  # the same texts as one round before
        if not applied:
            break
        effects = [r.tried[0].candidate.proposal.effect for r in applied]
        alone = count == 1
        (first, _), state = states[0], states[count]
        verdict = rounds[0].tried[0].verdict if alone else prover.prove_whole(first, state[1], effects)
        same = _same(rounds[:count])
        if verdict.status in ("rejected", "untried") and 0 < same < count:
            later = [r.tried[0].candidate.proposal.effect for r in rounds[same:count] if r.applied]
            verdict = prover.prove_whole(states[same][0], state[1], later)
        if verdict.measured.get("unlike") and _step_by_step(states[0], applied):
            said = (
                "each cure was measured on the script as the one before had left it: a fault showed only then"
            )
            verdict = replace(verdict, status="intended", reason=said)
        if verdict.measured.get("remaining"):
            return _Kept(states[0], held_back=held_back or "a script that still fails is no repair")
        if any(verdict.status in wanted.accepts(r.conflict, r.before) for r in applied):
            return _Kept(state, count, verdict, held_back)
        held_back = held_back or f"together they are {verdict.status}: {verdict.reason}"
    return _Kept(states[0], held_back=held_back)


def _same(rounds: Sequence[choose.Round]) -> int:
    """How many of the first rounds have left every gradient as it was: what the others' cures do to the script as those
    have left it, they do to the script as it was first."""
    for n, round_ in enumerate(rounds):
        if round_.applied and round_.tried[0].verdict.status not in ("proved", "preserved"):
            return n
    return len(rounds)


def _step_by_step(start: _State, applied: Sequence[choose.Round]) -> bool:
    """Whether cures that are not equal to the first run with all that they mean to do are so one after the other, where
    one of the faults was not to be seen in that run: what its cure means to do can't be imposed on it."""
    baseline, files = start
    project = Project(baseline.tape, files)
    seen = {choose.identity(c, project) for c in baseline.conflicts}
    verdicts = [r.tried[0].verdict for r in applied]
    return any(r.identity not in seen for r in applied) and not any(v.measured.get("short") for v in verdicts)


def _result(
    entry: Path,
    settings: Settings,
    states: Sequence[_State],
    rounds: Sequence[choose.Round],
    kept: _Kept,
    started: float,
) -> Result:
    (first, _), (last, final) = states[0], kept.state
    files = {path: t for _, texts in reversed(states) for path, t in texts.items()}  # each as it was first
    changed = {path: (files[path], text) for path, text in final.items() if text != files[path]}
    withdrawn = [r for r in rounds if _comes_to_nothing(r)]
    now = Project(last.tape, final)
    still = {choose.identity(c, now) for c in last.conflicts}
    # (what had no cure of its own may have gone with another's)
    gone = [r for r in rounds if not r.applied and r.identity not in still]
    diagnoses = [
        replace(_diagnosis(r, n < kept.rounds, files), along=tuple(_along(states[n : n + 2], r, settings)))
        for n, r in enumerate(rounds)
        if r not in withdrawn and r not in gone
    ]
    tried = {r.identity for r in rounds}
    for conflict in last.conflicts:
        asked_for = asked(conflict, settings, {**files, **final})
        if asked_for and choose.identity(conflict, now) not in tried:
            note = conflict.severity == "note" and not settings.notes
            diagnoses.append(Diagnosis(conflict, (), "note" if note else "left", final))
    diagnoses.sort(key=lambda d: choose.gravity(d.conflict))
    found = any(d.conflict.severity != "note" for d in diagnoses)
    return Result(
        entry,
        tuple(diagnoses),
        changed,
        dict(files),
        kept.verdict,
        kept.held_back,
        problem=ending.problem(entry, first, found),
        failure=first.failure,
        ended=first.outcome.ended,
        wall=first.outcome.wall,
        seconds=time.monotonic() - started,
        rounds=len(rounds),
        lines=(
            *ending.remarks(first, last, settings, found, files),
            *_spared(diagnoses, settings),
            *_unrewritten(diagnoses, final),
            *_misspelt(files),
        ),
        minor=(*ending.minor(first), *(_withdrawn(done, files) for done in withdrawn)),
        trained=ending.reached_backward(first.tape),
        output=first.outcome.stdout + first.outcome.stderr,
        torch=first.tape.torch,
    )


def _along(states: Sequence[_State], done: choose.Round, settings: Settings) -> Iterator[Conflict]:
    """The other notes that the cure of a note took away. `states` are those before and after it."""
    if not done.applied or done.conflict.severity != "note":
        return
    (before, old), (after, new) = states
    was, now = Project(before.tape, old), Project(after.tape, new)
    left = Counter(choose.identity(c, now) for c in after.conflicts)
    left[done.identity] += 1
    for conflict in before.conflicts:
        identity = choose.identity(conflict, was)
        if left[identity]:
            left[identity] -= 1
        elif conflict.severity == "note" and asked(conflict, settings, {**old, **new}):
            yield conflict


def _comes_to_nothing(done: choose.Round) -> bool:
    """Whether what was only likely to be a fault was taken away, and the script trained exactly as before. (Where
    another cure was applied, it did not.)"""
    idle = any(t.verdict.measured.get("idle") for t in done.tried)
    return done.conflict.severity == "warning" and not done.applied and idle


def _withdrawn(done: choose.Round, sources: Mapping[str, str]) -> str:
    conflict = done.conflict
    said = f"{conflict.kind} in {wording.line(conflict.at, sources)} is not reported: {conflict.message}"
    return f"{said}; but without that the script trains exactly as it does."


def _spared(diagnoses: list[Diagnosis], settings: Settings) -> list[str]:
    """Which files hold faults and are not among those to be edited."""
    files = {d.conflict.at.file for d in diagnoses if not settings.edits(d.conflict.at.file)}
    names = wording.listed([os.path.relpath(path) for path in sorted(files)]) if files else ""
    return [f"{names}: not among the files to be edited, so no cure was looked for there."] if files else []


def _unrewritten(diagnoses: Iterable[Diagnosis], files: Mapping[str, str]) -> list[str]:
    """Which files hold faults that are left, and are nothing that can be rewritten."""
    left = {d.conflict.at.file for d in diagnoses if d.status == "left" and not d.cures}
    why = {path: unparsed(files[path]) for path in sorted(left) if path in files}
    return [
        f"{os.path.relpath(path)}: {said}, so no cure was looked for there."
        for path, said in why.items()
        if said
    ]


def _misspelt(files: Mapping[str, str]) -> list[str]:
    """The comments to gradfix that say nothing it knows."""
    return [
        f"{os.path.relpath(path)}:{wrong.at.line}: {wrong.message}"
        for path, text in files.items()
        for wrong in suppress.complaints(path, text)
    ]


def _diagnosis(done: choose.Round, kept: bool, files: Mapping[str, str]) -> Diagnosis:
    cures = tuple(_cure(t.candidate, t.verdict, done.before) for t in done.tried)
    moved = {path: text for path, text in done.before.items() if text != files.get(path)}
    return Diagnosis(done.conflict, cures, "cured" if done.applied and kept else "left", moved)
