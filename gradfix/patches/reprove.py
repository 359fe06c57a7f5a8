"""A fix proved once more, in the tree it was placed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from gradfix import ending
from gradfix.discover import project_root
from gradfix.patches.values import Fix
from gradfix.prove import Prover, Runner, Verdict
from gradfix.result import Settings
from gradfix.run.zygote import Zygote
from gradfix.source import Source, SourceError
from gradfix.suppress import REPORTED
from gradfix.verdict import Effect
from gradfix.wording import listed


def reprove(
    fix: Fix,
    root: Path,
    before: Mapping[str, str],
    after: Mapping[str, str],
    settings: Settings,
    zygote: Zygote,
    say: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """What `fix` is worth where its files hold `before` and would hold `after`. The script runs in `zygote`."""
    entry = root / fix.entry
    try:
        source = Source.read(entry)
    except SourceError as problem:
        return Verdict("untried", problem.sentence)
    script = {str(entry): before.get(str(entry), source.text)}
    old, new = {**script, **before}, {**script, **after}
    prover = Prover(Runner(zygote, settings.template(entry, project_root(entry), old)))
    say("recording a run")
    first = prover.baseline(old)
    kinds = {c.kind for c in fix.cures}
    if not any(c.kind in kinds for c in first.conflicts):
        why = ending.problem(entry, first, faults=False)
        if why is not None:
            said = why.message.replace(f"{root}/", "").rstrip(".")
            return Verdict("untried", f"a run does not show whether the fault is there: {said}")
        return Verdict("untried", f"a run of {fix.entry} does not show the fault any more")
    say("proving it")
    verdict = prover.prove_whole(first, new, [Effect(c.effect.kind, c.effect.words) for c in fix.cures])
    if verdict.status in ("rejected", "untried"):
        return verdict
    was, now = (Counter(c.kind for c in b.conflicts) for b in (first, prover.baseline(new)))
    still = {k for k in kinds if now[k] >= was[k] > 0}
    fresh = {k for k, n in (now - was).items() if n and REPORTED.get(k) == "error"}
    if still or fresh:
        return Verdict("rejected", f"a run still shows {listed(sorted(still | fresh))}", verdict.measured)
    return verdict
