"""The last lines of a check: how much was read, what was found, what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gradfix.report import faults, shown
from gradfix.report.layout import command
from gradfix.suppress import REPORTED

if TYPE_CHECKING:
    from gradfix.baseline import Baseline
    from gradfix.report.places import Paths
    from gradfix.result import Result


def statistics(results: Sequence[Result]) -> Iterator[str]:
    """How often each kind was found, the commonest first."""
    counts = Counter(d.conflict.kind for r in results for d in shown(r))
    width = len(str(max(counts.values(), default=0)))
    for kind, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count:>{width}}  {kind} ({REPORTED[kind]})"


def closing(results: Sequence[Result], paths: Paths, baseline: Baseline | None = None) -> str:
    """The last line. `baseline` is what known faults were left out by."""
    found = [d for r in results for d in faults(r)]
    noted = [d for r in results for d in shown(r) if d.conflict.severity == "note"]
    files = {r.entry for r in results}
    said = _said(len(found), len(noted), len(files))
    if not said and any(r.problem for r in results):
        said = "No faults found in what could be read."
    new = "new " if baseline is not None and baseline.hidden else ""
    parts = [said or f"No {new}faults found{f' in {len(files)} files' if len(files) > 1 else ''}."]
    unsure = sum(r.withheld for r in results)
    if unsure:
        parts.append(f"{counted(unsure, 'fault')} only likely: --evidence likely shows {_them(unsure)}.")
    hidden = sum(d.status == "note" for r in results for d in r.diagnoses)
    if hidden:
        parts.append(f"{counted(hidden, 'note')} not shown: --notes shows {_them(hidden)}.")
    faulty = [r for r in results if faults(r)]
    if faulty:
        name = command([paths.show(str(faulty[0].entry))]) if len(faulty) == 1 else "SCRIPT"
        parts.append(f"To try cures and prove them: gradfix fix {name}")
    return " ".join(filter(None, (*parts[:1], known(baseline), *parts[1:])))


def known(baseline: Baseline | None) -> str:
    """What a baseline kept out of the report, and what it knows in vain."""
    if baseline is None:
        return ""
    parts = (
        [f"{counted(baseline.hidden, 'fault')} known from {baseline.file} not shown."]
        if baseline.hidden
        else []
    )
    gone = baseline.gone()
    if gone:
        are = "is" if gone == 1 else "are"
        parts.append(f"{gone} that it knows {are} gone: --update-baseline forgets {_them(gone)}.")
    return " ".join(parts)


def _said(found: int, noted: int, files: int) -> str:
    counts = [counted(found, "fault")] if found else []
    counts += [counted(noted, "note")] if noted else []
    where = f" in {files} files" if files > 1 else ""
    return f"Found {' and '.join(counts)}{where}." if counts else ""


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _them(number: int) -> str:
    return "it" if number == 1 else "them"
