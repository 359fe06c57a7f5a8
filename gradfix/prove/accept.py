"""What an equality is worth: why it proves less than it seems to, or the verdict it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradfix.detect import Conflict
from gradfix.prove import words
from gradfix.prove.compare import Likeness, likeness
from gradfix.prove.doubts import cancelled, drift, idle, unmoved, weak, zeros
from gradfix.prove.effects import Attempt
from gradfix.prove.measured import Measured, aligned, head, merged
from gradfix.prove.runs import CLEAN, After, Baseline, Equal
from gradfix.tape import Optimizer, Tape
from gradfix.verdict import Effect, Verdict


@dataclass(frozen=True)
class Trial:
    """A candidate that has run, beside the script as it is."""

    files: Mapping[str, str]
    baseline: Baseline
    after: After
    effects: Sequence[Effect]
    conflicts: Sequence[Conflict]  # those that are gone

    @property
    def cut_short(self) -> bool:
        """Whether the script as it is comes to no end of its own, so that less can be compared."""
        return self.baseline.outcome.ended not in (*CLEAN, "exit")

    @cached_property
    def like(self) -> Mapping[int, Likeness]:
        """How the gradients as they are now compare with the exact ones, nothing imposed, by optimizer."""
        return likeness(self.held_before(self.after.measured), self.baseline.oracle)

    def held_before(self, now: Measured) -> Measured:
        """Of a run after, what the optimizers held before: only for those that hold more now; where one is made anew
        for each model, of all of them as much as the one before has stepped."""
        after = words.Names.of(self.after.recorded.tape or Tape(()))
        if heirs := self._heirs(after.optimizers):
            now = head(merged(now, heirs), self.baseline.oracle)
        which = {}
        for k, event in self.baseline.names.optimizers.items():
            held = after.optimizers.get(k)
            if held is not None and len(held.refs) > len(event.refs):
                if [r.name for r in held.refs[: len(event.refs)]] == [r.name for r in event.refs]:
                    which[k] = list(range(len(event.refs)))  # the others were added behind
                    continue
                place = {ref.name: j for j, ref in enumerate(held.refs) if ref.name}
                if all(ref.name in place for ref in event.refs):
                    which[k] = [place[ref.name] for ref in event.refs]
        return aligned(now, which)

    def _heirs(self, after: Mapping[int, Optimizer]) -> dict[int, int]:
        """The optimizers that only the run after has, and the one before whose place they take: its parameters were
        replaced by theirs."""
        before = self.baseline.names.optimizers
        strays = {x.stack for c in self.conflicts if c.kind == "stray-optimizer" and (x := c.label("made"))}
        by_shape = {tuple(r.shape for r in e.refs): k for k, e in before.items() if e.stack in strays}
        found = (
            (k, by_shape.get(tuple(r.shape for r in e.refs))) for k, e in after.items() if k not in before
        )
        return {k: own for k, own in found if own is not None}

    @cached_property
    def measured(self) -> dict[str, object]:
        """What was measured about it, whatever the verdict."""
        names, oracle, left = self.baseline.names, self.baseline.oracle, self.after.left
        found: dict[str, object] = {"optimizers": words.numbers(self.like, names), "passes": oracle.passes}
        if zero := zeros(self.after.measured):
            found["zero"] = zero
        if left.others:
            found["remaining"] = len(left.others)
        if left.doubtful:
            found["warnings"] = left.doubtful
        return found


def doubted(trial: Trial, attempt: Attempt, equal: Equal) -> Verdict | None:
    """The verdict where `equal` runs prove less than they seem to."""
    baseline, names = trial.baseline, trial.baseline.names
    mine = trial.held_before(trial.after.measured) if attempt.terms.gains else trial.after.measured
    oracle, measured = baseline.oracle, trial.measured
    if problem := weak(attempt, equal.before, equal.now, mine, oracle, names):
        return Verdict("rejected", problem, measured)
    if "cut-round" in attempt.effects and (lost := idle(baseline.tape, oracle, mine)):
        said = f"the cut ends the training of {names.parameters(*lost)}"
        return Verdict("rejected", f"{said}: only the next pass reads what they make", measured)
    if {"later-parameters", "new-draw"} & set(attempt.effects) and (dead := cancelled(mine, names)):
        said = f"the gradient of {names.parameters(*dead)} is zero at every step, as it was before"
        return Verdict("untried", f"{said}: that proves nothing of them", measured)
    if unknown := unmoved(trial.effects, trial.conflicts, oracle, mine):
        return Verdict("untried", unknown, measured)
    return None


def accepted(trial: Trial, attempt: Attempt) -> Verdict:
    """The verdict of a candidate that is equal, without a doubt, to the script as it is with `attempt` imposed. What
    means to change a value is as good as it means to be where it changes no gradient, and no better."""
    verdict = _accepted(trial, attempt)
    changes = verdict.status != "rejected" and any(e.kind == "changes-value" for e in trial.effects)
    return replace(verdict, status="intended") if changes else verdict


def _accepted(trial: Trial, attempt: Attempt) -> Verdict:
    baseline, after = trial.baseline, trial.after
    measured = dict(trial.measured)
    if attempt.before:
        measured["imposed"] = sorted(attempt.before)
    if attempt.fresh:
        measured["fresh"] = True
    rest = f"; still to cure: {after.left.others[0].message}" if after.left.others else ""
    drifted = [] if after.short else drift(after.measured, baseline.oracle)
    passes = (after.measured if after.short else baseline.oracle).passes
    unit = "step" if baseline.oracle.steps else "backward"
    steps = f"{passes} {unit}{'s' * (passes != 1)}"
    over = f"over {steps}"
    if trial.cut_short:
        restored = "shims" in baseline.base  # (it can get no further than the old calls do)
        if after.measured.passes <= passes and not after.short and not restored:
            return Verdict("rejected", f"gets no further than before ({passes} {unit}s)", measured)
        said = f"equal as far as the script could run before ({steps}){rest}"
        return Verdict("intended", said, {**measured, "short": True})
    ran_as = _made_to_run(baseline)
    if ran_as:
        return Verdict("intended", "; ".join([f"equal {over} to {ran_as}", *drifted]) + rest, measured)
    if attempt.effects:
        return Verdict("intended", "; ".join([_as_intended(trial, attempt, over), *drifted]) + rest, measured)
    kept = set(after.measured.retained) - set(baseline.oracle.retained)
    if "keep" in baseline.base or (kept and baseline.sound):
        return Verdict("proved", f"the gradient is kept now; all others equal {over}{rest}", measured)
    if not baseline.sound:
        exact = words.exact(trial.conflicts, "through" in (attempt.before or {}))
        return Verdict(
            "proved", "; ".join([f"every gradient equal to {exact} {over}", *drifted]) + rest, measured
        )
    if any(c.severity != "note" for c in trial.conflicts):
        said = f"trains exactly as before {over}: it cures nothing"
        return Verdict("rejected", said, {**measured, "idle": True})
    if drifted:
        return Verdict("rejected", "; ".join(drifted), measured)
    return Verdict("preserved", f"every gradient equal {over}{rest}", measured)


def _made_to_run(baseline: Baseline) -> str:
    """What the script as it is was taken for, where it had to be given something to run at all; or ""."""
    if "shims" in baseline.base:
        return "the script as it ran on the PyTorch it was written for"
    as_leaf = any(how == "leaf" for *_, how in baseline.base.get("keep", ()))
    return "the script run as if it had leaves" if as_leaf or "retain" in baseline.base else ""


def _as_intended(trial: Trial, attempt: Attempt, over: str) -> str:
    """What equality under an effect came to, in numbers where there are some."""
    baseline, after = trial.baseline, trial.after
    if "draws" in (attempt.after or {}) and after.measured.drawn != baseline.oracle.drawn:
        # (gradients of other random numbers: their cosine says nothing of the effect)
        return f"equal {over} with the same random numbers and parameters"
    numbers = words.alike(trial.like, baseline.names, words.exact(trial.conflicts))
    return numbers or f"equal {over} {words.imposed(attempt.effects)}"
