"""A Result's cures in the order in which they were applied, each with the texts it left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradfix.batch.values import Step
from gradfix.fingerprint import fingerprint

if TYPE_CHECKING:
    from gradfix.result import Cure, Diagnosis, Result

Name = Callable[[str], str]  # of a file, by its path


def steps(result: Result, name: Name) -> list[Step]:
    """One Step a cure; a single one where the order can't be told."""
    if not result.files:
        return []
    now = {path: old for path, (old, _) in result.files.items()}
    left = [d for d in result.diagnoses if d.status == "cured"]
    out = []
    while left:
        following = next((d for d in left if _follows(d.cures[0], now)), None)
        if following is None:
            break
        left.remove(following)
        now |= following.cures[0].after
        out.append(_step([following], following.cures[0].after, result, name))
    end = {path: new for path, (_, new) in result.files.items()}
    if left or now != end:
        cured = [d for d in result.diagnoses if d.status == "cured"]
        return [_step(cured, end, result, name)]
    return out


def _follows(cure: Cure, now: dict[str, str]) -> bool:
    return all(now.get(path) == text for path, text in cure.before.items())


def _step(cured: list[Diagnosis], texts: dict[str, str] | object, result: Result, name: Name) -> Step:
    cures = [d.cures[0] for d in cured]
    assert isinstance(texts, dict)
    whole = result.verdict if len(cured) > 1 and result.verdict is not None else cures[0].verdict
    return Step(
        "+".join(dict.fromkeys(c.codemod for c in cures)),
        tuple(dict.fromkeys(d.conflict.kind for d in cured)),
        tuple(fingerprint(d.conflict, {**result.sources, **d.sources}) for d in cured),
        "; ".join(dict.fromkeys(c.summary for c in cures)),
        "; ".join(dict.fromkeys(c.effect.words for c in cures if c.effect.words)),
        whole.status,
        whole.reason,
        name(str(result.entry)),
        {name(path): text for path, text in texts.items()},
        numbers(whole.measured),
    )


def numbers(value: object) -> dict[str, object]:
    """What was measured as JSON has it, which knows neither NaN nor infinity."""
    out = _plain(value)
    assert isinstance(out, dict)
    return out


def _plain(value: object) -> object:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
