"""One line a fault, as editors and terminals make it clickable: path:line:col: kind severity: message [cure
verdict]."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradfix.report import Line, View, shown
from gradfix.report.layout import wording
from gradfix.report.places import message, place
from gradfix.report.places import shown as written

if TYPE_CHECKING:
    from gradfix.result import Diagnosis, Result


def render(result: Result, view: View) -> Iterator[Line]:
    """The lines of one result."""
    for diagnosis in shown(result):
        conflict = diagnosis.conflict
        at = place(conflict.at, diagnosis, result)
        where = written(at, result, view.paths)
        said = message(diagnosis, result)
        likely = " (likely)" if diagnosis.evidence == "likely" else ""
        text = f"{where}: {conflict.kind} {conflict.severity}{likely}: {said}{_cure(diagnosis)}"
        yield Line(wording(text, view.glyphs))


def _cure(diagnosis: Diagnosis) -> str:
    if diagnosis.status == "cured" and diagnosis.cures:
        return f" [{diagnosis.cures[0].codemod} {diagnosis.cures[0].verdict.status}]"
    if diagnosis.status == "left" and diagnosis.cures:
        first = diagnosis.cures[0]
        return f" [{first.codemod} untried]" if first.verdict.status == "untried" else " [left]"
    return ""
