"""What reports of a batch keep of a Result: plain words, numbers and drawn source, without its texts and events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.batch.steps import numbers
from gradfix.batch.values import Entry, Fault, Mark, Tried
from gradfix.fingerprint import fingerprint
from gradfix.report import View, full
from gradfix.report.diff import unified
from gradfix.report.places import Paths, labelled, message, place
from gradfix.wording import quote

if TYPE_CHECKING:
    from rich.text import Text

    from gradfix.result import Cure, Diagnosis, Result

WIDTH = 110  # columns of the drawn source
CURES = 4  # of a fault, best first
_VERSION = re.compile(r"\bversion (\d+)")


def fault(diagnosis: Diagnosis, result: Result, root: Path) -> Fault:
    """A diagnosis of `result`; paths relative to `root`."""
    conflict = diagnosis.conflict
    paths = Paths(root)
    at = place(conflict.at, diagnosis, result)
    ran = result.ended not in ("", "read")
    return Fault(
        fingerprint(conflict, {**result.sources, **diagnosis.sources}),
        conflict.kind,
        conflict.severity,
        diagnosis.evidence,
        paths.show(at.path),
        at.line,
        message(diagnosis, result),
        diagnosis.status,
        paths.show(str(result.entry)) if ran else "",
        result.wall if ran else "",
        tuple(_marks(diagnosis, result, paths)),
        tuple(_cure(c, paths) for c in diagnosis.cures[:CURES]),
        _drawn(diagnosis, result, paths),
    )


def remarks(result: Result, name: str, root: Path) -> Entry:
    """How the run of an entry went."""
    said = [*result.lines, *([f"Held back: {result.held_back}."] if result.held_back else ())]
    problem = result.problem.message if result.problem else ""
    failure = result.failure
    return Entry(
        name,
        result.ended,
        result.wall,
        round(result.seconds, 3),
        f"{failure.type}: {failure.message}"[:500] if failure else "",
        problem.replace(f"{root}/", ""),
        tuple(line.replace(f"{root}/", "") for line in said),
    )


def _marks(diagnosis: Diagnosis, result: Result, paths: Paths) -> list[Mark]:
    out = []
    for label in diagnosis.conflict.labels:
        at = place(label.at, diagnosis, result)
        said = labelled(label, diagnosis, result)
        version = _VERSION.search(said)
        code = quote(label.at, {**result.sources, **diagnosis.sources})
        number = int(version[1]) if version else None
        out.append(Mark(label.role, said, paths.show(at.path), at.line, code, number))
    return out


def _cure(cure: Cure, paths: Paths) -> Tried:
    files = {path: (cure.before[path], text) for path, text in cure.after.items() if path in cure.before}
    return Tried(
        cure.codemod,
        cure.summary,
        cure.effect.kind,
        cure.effect.words,
        cure.verdict.status,
        cure.verdict.reason,
        numbers(cure.verdict.measured),
        "".join(f"{line}\n" for line in unified(files, paths)),
    )


def _drawn(diagnosis: Diagnosis, result: Result, paths: Paths) -> tuple[tuple[tuple[str, str], ...], ...]:
    """The fault in its source as `fix` prints it, in rows of (text, style)."""
    view = View(paths, WIDTH, action="run", diff=False)
    return tuple(tuple(_segments(line)) for line in full.excerpt(diagnosis, result, view))


def _segments(text: Text) -> list[tuple[str, str]]:
    """A line cut where its style changes."""
    styles = [str(text.style)] * len(text.plain)
    for span in text.spans:
        styles[span.start : span.end] = [str(span.style)] * (min(span.end, len(styles)) - span.start)
    out: list[tuple[str, str]] = []
    for character, style in zip(text.plain, styles, strict=True):
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + character, style)
        else:
            out.append((character, style))
    return out
