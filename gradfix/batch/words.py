"""Numbers in words, for every report of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sentence(totals: Mapping[str, Any]) -> str:
    """The totals in words."""
    ended = totals["ended"]
    parts = [
        f"{totals['repositories']} repositories: {counts(ended)}"
        + (f", {totals['waiting']} waiting" if totals["waiting"] else "")
    ]
    parts.append(f"{totals['files']} files, {totals['runs']} scripts run")
    cured = f"{totals['faults']} faults and {totals['notes']} notes found, {totals['cured']} of them cured"
    parts.append(cured + (f" ({counts(totals['verdicts'])})" if totals["verdicts"] else ""))
    if totals["crashes"]:
        parts.append(
            f"{totals['crashes']} files that gradfix could not follow, a fault of its own: see report.json"
        )
    seconds = totals["seconds"]
    parts.append(f"a repository took {seconds['median']:.1f} s (median), {seconds['p95']:.1f} s (p95)")
    return "; ".join(parts) + "."


def counts(given: Mapping[str, int]) -> str:
    """``3 proved, 1 intended``."""
    return ", ".join(f"{n} {what}" for what, n in given.items()) or "none"
