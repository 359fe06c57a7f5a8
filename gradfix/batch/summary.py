"""What a workspace comes to: totals, groups of one fault over many repositories, and every repository, as plain data.
The other reports are made of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradfix import __version__
from gradfix.batch.outcome import Effects, applied, earlier, outcome, outcomes, refused
from gradfix.batch.state import State
from gradfix.batch.values import Entry, Fault, RepoResult, Spec, dumps
from gradfix.verdict import HELD

Data = dict[str, Any]

REASON = 100  # characters of why a script came to nothing


def summary(state: State, specs: Iterable[Spec]) -> Data:
    """Everything but the repositories' own documents, which may be many: see repositories()."""
    specs = list(specs)
    results = [r for s in specs if (r := state.result(s.name)) is not None]
    decisions = state.decisions()
    effects = {s.name: state.effects(s.name) for s in specs}
    return {
        "gradfix": __version__,
        "totals": totals(specs, results, effects) | {"earlier": _earlier(state, specs)},
        "groups": groups(results, decisions, effects),
        "decisions": decisions,
    }


def totals(specs: list[Spec], results: list[RepoResult], effects: Mapping[str, Effects]) -> Data:
    """The numbers of a batch. `cured` are the faults that a cure was chosen for, `outcomes` says what became of it."""
    faults = [f for r in results for f in r.faults]
    errors = [f for f in faults if f.severity != "note"]
    seconds = sorted(r.seconds for r in results)
    steps = [s for r in results for s in r.steps]
    stopped = [e for r in results for e in r.entries if e.failure and e.problem]
    return {
        "repositories": len(specs),
        "ended": dict(Counter(r.ended for r in results)),
        "waiting": len(specs) - len(results),
        "files": sum(r.files for r in results),
        "lines": sum(r.lines for r in results),
        "crashes": sum(len(r.crashes) for r in results),
        "runs": sum(len(r.entries) for r in results),
        "stopped": dict(Counter(map(_reason, stopped)).most_common()),
        "faults": len(errors),
        "notes": len(faults) - len(errors),
        "cured": sum(f.status == "cured" for f in faults),
        "outcomes": outcomes((f, effects.get(r.name, {})) for r in results for f in r.faults),
        "refused": sum(bool(refused(effects.get(s.name, {}))) for s in specs),
        "earlier": {},
        "kinds": dict(Counter(f.kind for f in errors).most_common()),
        "noted": dict(Counter(f.kind for f in faults if f.severity == "note").most_common()),
        "verdicts": dict(Counter(s.verdict for s in steps).most_common()),
        "codemods": dict(Counter(s.codemod for s in steps).most_common()),
        "changed": sum(bool(r.changes) for r in results),
        "walls": dict(Counter(e.wall for r in results for e in r.entries if e.wall)),
        "seconds": {
            "median": seconds[len(seconds) // 2] if seconds else 0.0,
            "p95": seconds[min(len(seconds) - 1, int(len(seconds) * 0.95))] if seconds else 0.0,
            "sum": round(sum(seconds), 3),
        },
    }


def _earlier(state: State, specs: Iterable[Spec]) -> dict[str, int]:
    """How many cures earlier calls have applied that the results do not speak of."""
    found: Counter[str] = Counter()
    for spec in specs:
        for place, cures in earlier(state, spec.name, state.result(spec.name)).items():
            found["on a branch" if place.startswith("on ") else place] += len(cures)
    return dict(found)


def _reason(entry: Entry) -> str:
    """What a script failed with, as far as others may have failed with it too."""
    return entry.failure.split("\n")[0][:REASON]


def groups(
    results: Iterable[RepoResult], decisions: dict[str, str], effects: Mapping[str, Effects]
) -> list[Data]:
    """Faults that are copies of each other: notes behind the others, the most frequent first. `place` and `code` are
    those of one of them; `hint`: the cure that held most often, which says nothing of the next copy but where to
    begin."""
    found: dict[str, list[tuple[str, Fault]]] = {}
    for result in results:
        for fault in result.faults:
            found.setdefault(fault.fingerprint, []).append((result.name, fault))
    out = []
    for name, members in found.items():
        repo, first = members[0]
        best = [f.cures[0] for _, f in members if f.cures]
        held = Counter(c.codemod for c in best if c.verdict in HELD)
        out.append(
            {
                "fingerprint": name,
                "kind": first.kind,
                "severity": first.severity,
                "message": first.message,
                "place": f"{repo}: {first.path}:{first.line}",
                "code": _code(first),
                "faults": len(members),
                "repositories": sorted({repo for repo, _ in members}),
                "status": dict(Counter(f.status for _, f in members)),
                "outcomes": outcomes((f, effects.get(repo, {})) for repo, f in members),
                "verdicts": dict(Counter(c.verdict for c in best)),
                "hint": held.most_common(1)[0][0] if held else None,
                "decision": decisions.get(name),
            }
        )
    return sorted(out, key=lambda g: (g["severity"] == "note", -g["faults"], g["fingerprint"]))


def _code(fault: Fault) -> str:
    """The statement that a fault is reported at."""
    return next((m.code for m in fault.marks if (m.path, m.line) == (fault.path, fault.line)), "")


def repositories(state: State, specs: Iterable[Spec]) -> Iterator[Data]:
    """Every repository with all that is known of it."""
    attempts = state.attempts()
    for spec in specs:
        result = state.result(spec.name)
        data: Data = (
            json.loads(dumps(result)) if result is not None else {"name": spec.name, "ended": "waiting"}
        )
        for texts in ("originals", "raw", "fixes"):  # patches hold them
            data.pop(texts, None)
        for step in data.get("steps", ()):
            step["files"] = sorted(step.pop("texts"))
        effects = state.effects(spec.name)
        for fault, told in zip(result.faults if result else (), data.get("faults", ()), strict=True):
            told["outcome"] = outcome(fault, effects)
        yield data | {
            "place": spec.place,
            "attempts": attempts.get(spec.name, 0),
            "applied": applied(effects),
            "refused": refused(effects),
            "earlier": {
                place: [json.loads(dumps(cure)) for cure in cures]
                for place, cures in earlier(state, spec.name, result).items()
            },
            "effects": {e: {"result": result_, "said": said} for e, (result_, said) in effects.items()},
        }


def by_faults(repository: Data) -> tuple[int, int, str]:
    """Where a repository's document stands in a report: those with faults come first, then those with notes."""
    faults = repository.get("faults", ())
    errors = sum(f["severity"] != "note" for f in faults)
    return -errors, -len(faults), repository["name"]
