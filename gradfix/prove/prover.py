"""Prover: runs before and after, with what the effect means imposed, and says what that came to."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from gradfix.detect import Conflict, detect
from gradfix.prove import words
from gradfix.prove.compare import (
    Difference,
    Likeness,
    Measured,
    aligned,
    difference,
    head,
    likeness,
    read,
)
from gradfix.prove.cured import Lines, left, stale_for_ever
from gradfix.prove.doubts import cancelled, drift, idle, unmoved, weak, zeros
from gradfix.prove.effects import Attempt, Impose, attempts, kept_sites
from gradfix.prove.runs import CLEAN, After, Baseline, joined, met
from gradfix.run import Outcome, Run
from gradfix.run.zygote import Zygote
from gradfix.tape import Tape
from gradfix.verdict import Effect, Status, Verdict
from gradfix.wording import shortened

HIDDEN = 4  # missing gradients that hide one behind the other
WORKERS = 4  # runs at once, over all candidates


class Refusal(Exception):
    """A verdict that needs no more runs."""

    def __init__(self, status: Status, reason: str, failed: str = "") -> None:
        super().__init__(reason)
        self.verdict = Verdict(status, reason, {"failed": failed} if failed else {})


class Prover:
    """Proves candidates of one script. Thread-safe."""

    def __init__(self, zygote: Zygote, template: Run) -> None:
        self.zygote = zygote
        self.template = template
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="gradfix-run")
        self.lock = threading.Lock()
        self.runs: dict[
            tuple[object, ...], Future[Outcome]
        ] = {}  # a candidate that is applied is the next baseline

    def baseline(self, files: Mapping[str, str]) -> Baseline:
        """Run the script as it is (`files` over the disk), recorded and plain. Raises InterpreterError."""
        plain = self._start(files)
        recorded = self._start(files, record=True).result()
        tape = recorded.tape
        return Baseline(dict(files), recorded, plain.result(), detect(tape) if tape else ())

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
            verdict = self._compare(baseline, files, after, effects, conflicts)
            if verdict.status != "rejected":
                name = stale_for_ever(baseline.tape, after.recorded.tape or Tape(()), conflicts, lines)
                if name:
                    reason = (
                        f"`{name}` is made of parameters that are stepped, and never again: it goes stale"
                    )
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
        outcome = self._imposed(baseline, base)
        if not read(outcome.measurement).passes:
            return baseline
        found = detect(outcome.tape) if outcome.tape else ()
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
        if not baseline.oracle.passes:
            said = f": {before.failure.type}: {shortened(before.failure.message)}" if before.failure else ""
            raise Refusal("untried", f"the script as it is reaches no backward to compare with{said}")
        infinite = words.infinite(baseline.oracle, baseline.names)
        if infinite:
            said = f"{infinite} in the script as it is, and what is not finite proves nothing"
            begun = [b for b in baseline.oracle.backwards[:1] if math.isfinite(b.value)]
            less = (
                "; a smaller --steps may end the run before that" if begun and self.template.steps > 1 else ""
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
        outcome, first = self._imposed(baseline, {}), baseline.oracle
        second = read(outcome.measurement)
        if "timeout" in (
            outcome.ended,
            baseline.outcome.ended,
        ):  # neither needs to have come as far as the other
            second, first = head(second, first), head(first, second)
        found = difference(second, first)
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
        self._begin(baseline, {})  # the second run before, needed at the end
        plain = self._start(files).result()
        _trust(plain)
        # (a limit that the run before was far from is no excuse: what hangs is no cure)
        near = 4 * baseline.outcome.seconds > self.template.timeout
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
            raise Refusal("rejected", f"the fault is still there: {rest.still[0].message}")
        mixed = next((c for c in found if _mixes(c, conflicts, lines)), None)
        worse = rest.new[0] if rest.new else mixed if baseline.plain.failure is not None else None
        if worse is not None:
            numbers = words.alike(likeness(read(recorded.measurement), baseline.oracle), baseline.names)
            said = (
                f"a new fault: {worse.message}" if rest.new else f"runs, and trains wrongly: {worse.message}"
            )
            raise Refusal("rejected", f"{said}; {numbers}" if numbers else said)
        after = After(plain, recorded, rest, base)
        ended = rest.others and (after.broken_off or recorded.ended in ends)
        if failed and not ended:
            raise _failure(plain)
        came, went = after.measured.passes, baseline.oracle.passes
        if "timeout" in (plain.ended, recorded.ended) and came < went:
            if not _tells(after.measured, baseline.oracle):
                raise Refusal(
                    "untried",
                    f"stopped by the time limit at {came} of the {went} steps before; see --timeout",
                )
            after = replace(after, stopped=True)
        if not plain.failure and not rest.others:
            self._is_deterministic(baseline)
            mine, exact = after.measured, after.oracle
            if after.stopped:
                mine, exact = head(mine, exact), head(exact, mine)
            unlike = difference(mine, exact)
            if unlike is not None and unlike.what != "nothing":
                said = words.differs(unlike, words.Names.of(recorded.tape or Tape(())))
                raise Refusal("rejected", f"plain PyTorch does not give its exact gradient: {said}")
        return after

    def _run_on(self, files: Mapping[str, str], on: bool) -> tuple[Outcome, tuple[Conflict, ...], Impose]:
        """A recorded run and the faults it shows, with what was imposed on it: where a missing gradient ends it, and
        it is to go `on`, the gradient is there."""
        recorded = self._start(files, record=True).result()
        _trust(recorded)
        found = first = detect(recorded.tape) if recorded.tape else ()
        sites: list[Any] = []
        for _ in range(HIDDEN):
            more = [s for s in kept_sites(found) if s not in sites]
            if not on or recorded.ended != "failed" or not more:
                break
            sites += more
            recorded = self._start(files, record=True, impose={"keep": sites}).result()
            now = detect(recorded.tape) if recorded.tape else ()
            found = joined(met(first, found), now)
        return recorded, found, {"keep": sites} if sites else {}

    def _compare(
        self,
        baseline: Baseline,
        files: Mapping[str, str],
        after: After,
        effects: Sequence[Effect],
        conflicts: Sequence[Conflict],
    ) -> Verdict:
        names, oracle = baseline.names, baseline.oracle
        like = likeness(after.measured, oracle)
        exact = words.exact(conflicts)
        measured: dict[str, object] = {"optimizers": words.numbers(like, names), "passes": oracle.passes}
        zero = zeros(after.measured)
        if zero:
            measured["zero"] = zero
        if after.left.others:
            measured["remaining"] = len(after.left.others)
        if after.left.doubtful:
            measured["warnings"] = after.left.doubtful
        cut_short = baseline.outcome.ended not in (*CLEAN, "exit")
        if after.broken_off and not after.measured.passes:
            said = f"gets further, to no step yet; still to cure: {after.left.others[0].message}"
            return Verdict("intended", said, measured)
        first: Difference | None = None
        claimed: Attempt | None = None
        for attempt in attempts(effects, conflicts, baseline.tape, oracle):
            found, before, now = self._try(baseline, files, after, attempt, cut_short)
            if found is None:
                problem = weak(attempt, before, now, after.measured, baseline.oracle, names)
                if problem:
                    return Verdict("rejected", problem, measured)
                lost = "cut-round" in attempt.effects and idle(baseline.tape, baseline.oracle, after.measured)
                if lost:
                    said = f"the cut ends the training of {names.parameters(*lost)}"
                    return Verdict("rejected", f"{said}: only the next pass reads what they make", measured)
                dead = {"later-parameters", "new-draw"} & set(attempt.effects) and cancelled(
                    after.measured, names
                )
                if dead:
                    said = (
                        f"the gradient of {names.parameters(*dead)} is zero at every step, as it was before"
                    )
                    return Verdict("untried", f"{said}: that proves nothing of them", measured)
                unknown = unmoved(effects, conflicts, baseline.oracle, after.measured)
                if unknown:
                    return Verdict("untried", unknown, measured)
                if attempt.fresh:
                    measured["fresh"] = True
                measured["imposed"] = dict(attempt.before or {}) and sorted(attempt.before or {})
                return self._accepted(baseline, after, attempt, conflicts, like, measured, cut_short)
            if attempt.effects and claimed is None:
                first, claimed = found, attempt  # of what the effect leaves unexplained
            first = first or found
        assert first is not None
        said = words.differs(first, names)
        numbers = words.alike(like, names, exact)
        if claimed is not None and claimed.before:  # two comparisons, which may well say different things
            said = f"{words.imposed(claimed.effects)}, {said}"
            numbers = numbers and f"compared as it runs: {numbers}"
        if any(e.kind == "changes-value" for e in effects):
            return Verdict(
                "untried", f"changes a value on purpose, which nothing proves: {numbers or said}", measured
            )
        reason = said if not numbers or first.what in ("lost", "steps", "finite") else f"{said}; {numbers}"
        return Verdict("rejected", reason, measured)

    def _try(
        self, baseline: Baseline, files: Mapping[str, str], after: After, attempt: Attempt, cut_short: bool
    ) -> tuple[Difference | None, Measured, Measured]:
        """(the first difference or None, what was measured before, after)."""
        run = None
        if attempt.after is not None:
            run = self._start(files, record=bool(after.left.others), impose={**after.base, **attempt.after})
        before = baseline.oracle
        if attempt.before is not None:
            before = read(self._imposed(baseline, attempt.before).measurement)
        now = read(run.result().measurement) if run is not None else after.measured
        if cut_short:
            now = head(now, before)
        if after.short:
            before = head(before, now)
            now = head(now, before)
        if attempt.terms.gains:
            now = aligned(now, _kept(baseline.names, words.Names.of(after.recorded.tape or Tape(()))))
        found = difference(now, before, attempt.terms)
        if found is not None and "draws" in (attempt.after or {}):
            keys = {k for k in {*now.draws, *before.draws} if now.draws.get(k) != before.draws.get(k)}
            if keys and not (attempt.after or {})["draws"]:
                return self._try(baseline, files, after, attempt.with_constant_draws(sorted(keys)), cut_short)
        return found, before, now

    def _accepted(
        self,
        baseline: Baseline,
        after: After,
        attempt: Attempt,
        conflicts: Sequence[Conflict],
        like: Mapping[int, Likeness],
        measured: dict[str, object],
        cut_short: bool,
    ) -> Verdict:
        names = baseline.names
        rest = ""
        if after.left.others:
            rest = f"; still to cure: {after.left.others[0].message}"
        drifted = [] if after.short else drift(after.measured, baseline.oracle)
        passes = (after.measured if after.short else baseline.oracle).passes
        unit = "step" if baseline.oracle.steps else "backward"
        over = f"over {passes} {unit}{'s' * (passes != 1)}"
        if cut_short:
            restored = "shims" in baseline.base  # (it can get no further than the old calls do)
            if after.measured.passes <= passes and not after.short and not restored:
                return Verdict("rejected", f"gets no further than before ({passes} {unit}s)", measured)
            reason = f"equal as far as the script could run before ({over.removeprefix('over ')})"
            return Verdict("intended", reason + rest, measured)
        as_leaf = any(how == "leaf" for *_, how in baseline.base.get("keep", ()))
        if as_leaf or "shims" in baseline.base or "retain" in baseline.base:
            old = "as it ran on the PyTorch it was written for"
            reason = (
                f"equal {over} to the script {old if 'shims' in baseline.base else 'run as if it had leaves'}"
            )
            return Verdict("intended", "; ".join([reason, *drifted]) + rest, measured)
        if attempt.effects:
            said = (
                words.alike(like, names, words.exact(conflicts))
                or f"equal {over} {words.imposed(attempt.effects)}"
            )
            if "draws" in (attempt.after or {}) and after.measured.drawn != baseline.oracle.drawn:
                # (gradients of other random numbers: their cosine says nothing of the effect)
                said = f"equal {over} with the same random numbers and parameters"
            return Verdict("intended", "; ".join([said, *drifted]) + rest, measured)
        if "keep" in baseline.base:
            return Verdict("proved", f"the gradient is kept now; all others equal {over}{rest}", measured)
        if not baseline.sound:
            exact = words.exact(conflicts, "through" in (attempt.before or {}))
            reason = f"every gradient equal to {exact} {over}"
            return Verdict("proved", "; ".join([reason, *drifted]) + rest, measured)
        if set(after.measured.retained) - set(baseline.oracle.retained):
            return Verdict("proved", f"the gradient is kept now; all others equal {over}{rest}", measured)
        if all(c.severity == "note" for c in conflicts):
            if drifted:
                return Verdict("rejected", "; ".join(drifted), measured)
            return Verdict("preserved", f"every gradient equal {over}{rest}", measured)
        measured["idle"] = True
        return Verdict("rejected", f"trains exactly as before {over}: it cures nothing", measured)

    # ---- runs

    def _start(
        self, files: Mapping[str, str], record: bool = False, impose: Impose | None = None
    ) -> Future[Outcome]:
        """A run of `files`, or the one there was."""
        if impose is not None:
            return self._run(files, record, impose)
        key = (record, *sorted(files.items()))
        with self.lock:
            if key not in self.runs:
                self.runs[key] = self._run(files, record)
            return self.runs[key]

    def _run(
        self, files: Mapping[str, str], record: bool = False, impose: Impose | None = None
    ) -> Future[Outcome]:
        run = replace(self.template, files=dict(files), record=record, measure=True, impose=impose)
        return self.pool.submit(self.zygote.run, run)

    def _begin(self, baseline: Baseline, impose: Impose) -> Future[Outcome]:
        """A recorded run before with `impose`, begun once; {} is the script once more."""
        impose = {**baseline.base, **impose}
        key = json.dumps(impose, sort_keys=True)
        with self.lock:
            if key not in baseline._imposed:
                baseline._imposed[key] = self._run(baseline.files, record=True, impose=impose or None)
            return baseline._imposed[key]

    def _imposed(self, baseline: Baseline, impose: Impose) -> Outcome:
        return self._begin(baseline, impose).result()


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


def _kept(before: words.Names, after: words.Names) -> dict[int, list[int]]:
    """Per optimizer, where the parameters it had before are after; only for those that have more now."""
    found = {}
    for k, event in before.optimizers.items():
        now = after.optimizers.get(k)
        if now is not None and len(now.refs) > len(event.refs):
            place = {ref.name: j for j, ref in enumerate(now.refs) if ref.name}
            if all(ref.name in place for ref in event.refs):
                found[k] = [place[ref.name] for ref in event.refs]
    return found


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
        return Refusal("rejected", f"it fails: {outcome.failure.type}: {message}", outcome.failure.type)
    return Refusal("rejected", outcome.detail or f"it ends otherwise than before: {outcome.ended}")
