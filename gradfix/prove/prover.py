"""Prover: runs before and after, with what the effect means imposed, and says what that came to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradfix.detect import Conflict, describe, detect
from gradfix.detect.starved import starving
from gradfix.prove import words
from gradfix.prove.accept import Trial, accepted, doubted
from gradfix.prove.alike import now_constant
from gradfix.prove.compare import Difference, difference, likeness
from gradfix.prove.cured import left, stale_for_ever, still_made
from gradfix.prove.effects import PUT_IN, Attempt, Impose, attempts
from gradfix.prove.lines import Lines
from gradfix.prove.measured import Measured, head, read
from gradfix.prove.places import beside, kept_sites
from gradfix.prove.runner import Runner
from gradfix.prove.runs import CLEAN, After, Baseline, Equal, joined, met
from gradfix.run import Outcome
from gradfix.tape import Optimizer, Tape
from gradfix.verdict import Effect, Status, Verdict
from gradfix.wording import shortened

HIDDEN = 4  # missing gradients that hide one behind the other


class Refusal(Exception):
    """A verdict that needs no more runs."""

    def __init__(self, status: Status, reason: str, **measured: object) -> None:
        super().__init__(reason)
        self.verdict = Verdict(status, reason, measured)


class Prover:
    """Proves candidates of one script. Thread-safe."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.passing: frozenset[str] = frozenset()  # parameters without a gradient that get one later on

    def baseline(self, files: Mapping[str, str]) -> Baseline:
        """Run the script as it is (`files` over the disk), recorded and plain. Raises InterpreterError."""
        plain = self.runner.start(files)
        recorded = self.runner.start(files, record=True).result()
        tape = recorded.tape
        if tape is not None and recorded.ended == "steps":
            self.runner.making = max(self.runner.making, _places_of_making(tape))
        found = Baseline(dict(files), recorded, plain.result(), self._faults(tape))
        return replace(found, conflicts=self._spoilt(found))

    def _faults(self, tape: Tape | None) -> tuple[Conflict, ...]:
        """What a tape shows, but for what is known to pass."""
        return tuple(c for c in detect(tape) if starving(c) not in self.passing) if tape is not None else ()

    def without_passing(self, baseline: Baseline) -> Baseline:
        """The same, without the faults that are known to pass."""
        kept = tuple(c for c in baseline.conflicts if starving(c) not in self.passing)
        return replace(baseline, conflicts=kept)

    def _spoilt(self, baseline: Baseline) -> tuple[Conflict, ...]:
        """Its faults, without hidden writes that several make right together: what plain PyTorch computes is the exact
        gradient once all are taken as part of the graph (a mask after a softmax, and what renormalises it)."""
        hidden = [
            c for c in baseline.conflicts if c.kind == "silent-overwrite" and c.pattern in ("data", "detach")
        ]
        through = beside(hidden, baseline.tape)
        if len(through) < 2 or baseline.plain.failure is not None:
            return baseline.conflicts
        taken = read(self.runner.imposed(baseline, {"through": through}).measurement)
        if not taken.passes or difference(baseline.measured, taken) is not None:
            return baseline.conflicts
        return tuple(c for c in baseline.conflicts if c not in hidden)

    def prove(
        self, baseline: Baseline, files: Mapping[str, str], effect: Effect, conflict: Conflict
    ) -> Verdict:
        """What the texts `files` are worth as a cure of `conflict` that means to have `effect`."""
        return self._verdict(baseline, files, (effect,), (conflict,))

    def prove_whole(self, baseline: Baseline, files: Mapping[str, str], effects: Sequence[Effect]) -> Verdict:
        """What several cures are worth together, all their effects imposed at once; faults may be left."""
        return self._verdict(baseline, files, tuple(effects), baseline.conflicts, whole=True)

    # ---- one verdict

    def _verdict(
        self,
        baseline: Baseline,
        files: Mapping[str, str],
        effects: Sequence[Effect],
        conflicts: Sequence[Conflict],
        whole: bool = False,
    ) -> Verdict:
        try:
            baseline = self._runnable(baseline, effects, conflicts)
            self._can_judge(baseline)
            lines = Lines(baseline.files, files)
            after = self._run_after(baseline, files, conflicts, lines, whole)
            gone = after.left.gone
            conflicts = tuple(c for c in gone if c.severity != "note") or gone
            verdict = self._compare(Trial(files, baseline, after, effects, conflicts))
            if verdict.status != "rejected":
                tape = after.recorded.tape or Tape(())
                name = stale_for_ever(baseline.tape, tape, conflicts, lines)
                reason = (
                    f"{name} is made of parameters that are stepped, and never again: it goes stale"
                    if name
                    else now_constant(baseline.tape, tape, lines)
                )
                if reason:
                    return replace(verdict, status="rejected", reason=reason)
            self._is_deterministic(baseline)
            return verdict
        except Refusal as refusal:
            return refusal.verdict

    def _runnable(
        self, baseline: Baseline, effects: Sequence[Effect], conflicts: Sequence[Conflict]
    ) -> Baseline:
        """The script with what its cure says it lacked, where it comes to no end without: an old PyTorch's calls,
        leaves, the gradients it reads."""
        kinds = {e.kind for e in effects}
        if baseline.base:
            return baseline
        if "restored" in kinds:
            zeros = any(c.pattern == "cleared" for c in conflicts)
            return self._with_base(baseline, {"shims": True, **({"zeros": True} if zeros else {})})
        if "adds-gradient" in kinds and not baseline.oracle.passes:
            return self._with_base(baseline, {"retain": True})
        known: list[Any] = []
        now = baseline
        for _ in range(HIDDEN):  # one missing gradient may hide the next
            sites = kept_sites((*conflicts, *now.conflicts))
            if now.outcome.ended != "failed" or all(s in known for s in sites):
                break
            known += [s for s in sites if s not in known]
            now = self._with_base(
                replace(baseline, conflicts=met(baseline.conflicts, now.conflicts)), {"keep": known}
            )
        return now

    def _with_base(self, baseline: Baseline, base: Impose) -> Baseline:
        """The baseline run with `base` imposed for good; as it is where that brings it to no backward."""
        outcome = self.runner.imposed(baseline, base)
        if not read(outcome.measurement).passes:
            return baseline
        found = self._faults(outcome.tape)
        return replace(
            baseline,
            outcome=outcome,
            conflicts=joined(baseline.conflicts, found),
            base=dict(base),
            _imposed={},
        )

    def _can_judge(self, baseline: Baseline) -> None:
        before = baseline.outcome
        _trust(before, baseline.plain)
        if not baseline.base:
            self._agrees(baseline)
        if before.ended in ("timeout", "killed", "memory") and not baseline.oracle.passes:
            raise Refusal(
                "untried", f"the script as it is could not be run to a first backward: {before.ended}"
            )
        fails = [b.raised for b in baseline.oracle.backwards if b.accumulates]
        if not baseline.oracle.passes or (fails and all(fails)):
            said = f": {before.failure.type}: {shortened(before.failure.message)}" if before.failure else ""
            raise Refusal("untried", f"the script as it is reaches no backward to compare with{said}")
        infinite = words.infinite(baseline.oracle, baseline.names)
        if infinite:
            said = f"{infinite} in the script as it is, and what is not finite proves nothing"
            begun = [b for b in baseline.oracle.backwards[:1] if math.isfinite(b.value)]
            less = (
                "; a smaller --steps may end the run before that"
                if begun and self.runner.template.steps > 1
                else ""
            )
            raise Refusal("untried", f"{said}{less}")

    def _agrees(self, baseline: Baseline) -> None:
        """The first loss is computed before any fault can tell: a script whose losses differ behaves otherwise when
        it is watched."""
        seen, plain = baseline.oracle.backwards[:1], baseline.measured.backwards[:1]
        if not seen or not plain or math.isclose(seen[0].value, plain[0].value, rel_tol=0.01, abs_tol=1e-6):
            return
        if math.isfinite(seen[0].value) and math.isfinite(plain[0].value):
            self._is_deterministic(baseline)
            said = f"{seen[0].value:.4g} in the recorded run, {plain[0].value:.4g} in the plain one"
            raise Refusal("untried", f"tampered: the first loss of the script as it is is {said}")

    def _is_deterministic(self, baseline: Baseline) -> None:
        outcome, first = self.runner.imposed(baseline, {}), baseline.oracle
        second = read(outcome.measurement)
        if "timeout" in (
            outcome.ended,
            baseline.outcome.ended,
        ):  # neither needs to have come as far as the other
            second, first = head(second, first), head(first, second)
        # (a loss whose backward raised counts in what is judged, and not in what it is judged by)
        found = difference(second, first) if second != first else None
        if found is not None and found.what != "nothing":
            said = words.differs(found, baseline.names)
            raise Refusal("untried", f"not deterministic: two runs of the script as it is differ ({said})")

    def _run_after(
        self,
        baseline: Baseline,
        files: Mapping[str, str],
        conflicts: Sequence[Conflict],
        lines: Lines,
        whole: bool,
    ) -> After:
        self.runner.begin(baseline, {})  # the second run before, needed at the end
        # (a limit that the run before was far from is no excuse: what hangs is no cure)
        near = 4 * baseline.outcome.seconds > self.runner.template.timeout
        ran = self.runner.start(files)
        if near:
            self.runner.start(files, record=True)  # beside the plain one: time is short
        plain = ran.result()
        _trust(plain)
        ends = (*CLEAN, baseline.outcome.ended, *(("timeout",) if near else ()))
        failed = plain.ended not in ends
        more = whole or any(
            c.severity == "error" and (c not in conflicts or c.also or c.kind == "legacy-api")
            for c in baseline.conflicts
        )
        if failed and not more:
            raise _failure(plain)
        recorded, found, base = self._run_on(files, bool(baseline.base))
        rest = left(found, baseline.conflicts, conflicts, lines)
        if whole and rest.gone:  # some were cured, the errors among the others are said to be left
            more_left = tuple(c for c in rest.still if c.severity == "error")
            rest = replace(rest, still=(), others=(*more_left, *rest.others))
        if rest.still:
            said = describe(rest.still[0], lines.texts_before())  # its places are those of the run before
            raise Refusal(
                "rejected", f"the fault is still there: {said}", still=still_made(rest, found, lines)
            )
        mixed = next((c for c in found if _mixes(c, conflicts, lines)), None)
        worse = rest.new[0] if rest.new else mixed if baseline.plain.failure is not None else None
        if worse is not None:
            numbers = words.alike(likeness(read(recorded.measurement), baseline.oracle), baseline.names)
            said = f"{'a new fault' if rest.new else 'runs, and trains wrongly'}: {describe(worse, files)}"
            shown = {"uncovered": [worse.kind, worse.at.file, worse.at.line]} if rest.new else {}
            raise Refusal("rejected", f"{said}; {numbers}" if numbers else said, **shown)
        after = After(plain, recorded, rest, base)
        ended = rest.others and (after.broken_off or recorded.ended in ends)
        if failed and not ended:
            raise _failure(plain)
        came, went = after.measured.passes, baseline.oracle.passes
        if after.clocked and came < went:
            if not _tells(after.measured, baseline.oracle):
                raise Refusal(
                    "untried",
                    f"stopped by the time limit at {came} of the {went} steps before; see --timeout",
                )
            after = replace(after, stopped=True)
        if not plain.failure and not rest.others:
            self._is_deterministic(baseline)
            mine, exact = after.measured, after.oracle
            if after.stopped or (after.clocked and _tells(mine, exact)):
                mine, exact = head(mine, exact), head(exact, mine)
            unlike = difference(mine, exact)
            if unlike is not None and unlike.what != "nothing":
                said = words.differs(unlike, words.Names.of(recorded.tape or Tape(())))
                raise Refusal("rejected", f"plain PyTorch does not give its exact gradient: {said}")
        return after

    def _run_on(self, files: Mapping[str, str], on: bool) -> tuple[Outcome, tuple[Conflict, ...], Impose]:
        """A recorded run and the faults it shows, with what was imposed on it: where a missing gradient ends it, and
        it is to go `on`, the gradient is there."""
        recorded = self.runner.start(files, record=True).result()
        _trust(recorded)
        found = first = self._faults(recorded.tape)
        sites: list[Any] = []
        for _ in range(HIDDEN):
            more = [s for s in kept_sites(found) if s not in sites]
            if not on or recorded.ended != "failed" or not more:
                break
            sites += more
            recorded = self.runner.start(files, record=True, impose={"keep": sites}).result()
            now = self._faults(recorded.tape)
            found = joined(met(first, found), now)
        return recorded, found, {"keep": sites} if sites else {}

    def _compare(self, trial: Trial) -> Verdict:
        names, after = trial.baseline.names, trial.after
        if after.broken_off and not after.measured.passes:
            said = (
                f"gets further, to no step yet; still to cure: {describe(after.left.others[0], trial.files)}"
            )
            return Verdict("intended", said, trial.measured)
        first: Difference | None = None
        claimed: Attempt | None = None
        doubt: Verdict | None = None
        for attempt in attempts(trial.effects, trial.conflicts, trial.baseline.tape, trial.baseline.oracle):
            found = self._try(trial, attempt)
            if isinstance(found, Equal):
                own = doubted(trial, attempt, found)
                if own is None:
                    return accepted(trial, attempt)
                doubt = doubt or own
                if not attempt.frozen:
                    return doubt
                continue  # where parameters move, another way may show more
            if attempt.effects and claimed is None:
                first, claimed = found, attempt  # of what the effect leaves unexplained
            first = first or found
        if doubt is not None:
            return doubt
        assert first is not None
        said = words.differs(first, names)
        numbers = words.alike(trial.like, names, words.exact(trial.conflicts))
        if claimed is not None and claimed.before:  # two comparisons, which may well say different things
            said = f"{words.imposed(claimed.effects)}, {said}"
            numbers = numbers and f"compared as it runs: {numbers}"
        if any(e.kind == "changes-value" for e in trial.effects):
            reason = f"changes a value on purpose, which nothing proves: {numbers or said}"
            return Verdict("untried", reason, trial.measured)
        reason = said if not numbers or first.what in ("lost", "steps", "finite") else f"{said}; {numbers}"
        told = (
            {"mute": True} if first.what == "nothing" else {"unlike": True}
        )  # (mute: nothing trains, before or after)
        return Verdict("rejected", reason, {**trial.measured, **told})

    def _try(self, trial: Trial, attempt: Attempt) -> Difference | Equal:
        """The first difference, with what `attempt` imposes on either side."""
        baseline, after = trial.baseline, trial.after
        run = None
        if attempt.after is not None:
            impose = {**after.base, **attempt.after}
            if impose.get("through") == PUT_IN:
                impose["through"] = Lines(baseline.files, trial.files).put_in()
            run = self.runner.start(trial.files, record=bool(after.left.others), impose=impose)
        before = baseline.oracle
        if attempt.before is not None:
            before = read(self.runner.imposed(baseline, attempt.before).measurement)
        now = read(run.result().measurement) if run is not None else after.measured
        if trial.cut_short:
            now = head(now, before)
        if after.short or (trial.cut_short and after.clocked and _tells(now, before)):
            before = head(before, now)
            now = head(now, before)
        whole = now
        if attempt.terms.gains:
            now = trial.held_before(now)
        found = difference(now, before, attempt.terms, whole)
        if found is None:
            return Equal(before, now)
        if "draws" in (attempt.after or {}):
            keys = {k for k in {*now.draws, *before.draws} if now.draws.get(k) != before.draws.get(k)}
            weaker = attempt.with_constant_draws(sorted(keys)) if keys else None
            if weaker is not None:
                return self._try(trial, weaker)
        return found


def _places_of_making(tape: Tape) -> int:
    """In how many lines optimizers were made. (One may be told of again, when it has more groups.)"""
    first = {e.optimizer: e.at for e in reversed(tape.events) if isinstance(e, Optimizer)}
    return len({(at.file, at.line) for at in first.values() if at is not None})


def _tells(came: Measured, before: Measured) -> bool:
    """Whether a run that the clock stopped came far enough to be judged: every optimizer has stepped twice, so that a
    later pass has seen what the steps of one before had made."""
    done = {k: sum(bool(s.updates) for s in steps) for k, steps in came.by_optimizer.items()}
    return bool(before.steps) and all(done.get(k, 0) > 1 for k in before.by_optimizer)


def _trust(*outcomes: Outcome) -> None:
    """Raise the refusal of a run whose word is not its own."""
    for outcome in outcomes:
        if outcome.ended == "tampered":
            raise Refusal("untried", outcome.detail)


def _mixes(conflict: Conflict, cured: Sequence[Conflict], lines: Lines) -> bool:
    """Whether the cure of an error has only made room for a gradient that lands where it should not: the same
    backward now runs, and another optimizer steps with what it leaves."""
    return conflict.kind == "mixed-gradient" and any(
        lines.same(a.at, b.at)
        for c in cured
        for a in conflict.labels
        for b in c.labels
        if b.role in ("needed", "freed")
    )


def _failure(outcome: Outcome) -> Refusal:
    if outcome.failure is not None:
        message = shortened(" ".join(outcome.failure.message.split()))
        return Refusal(
            "rejected", f"it fails: {outcome.failure.type}: {message}", failed=outcome.failure.type
        )
    return Refusal("rejected", outcome.detail or f"it ends otherwise than before: {outcome.ended}")
