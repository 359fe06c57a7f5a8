"""One workflow command a fault, which GitHub shows as an annotation of the line in a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gradfix.report import Line, View, shown
from gradfix.report.layout import safe
from gradfix.report.places import cell, labelled, message, place
from gradfix.report.places import shown as written

if TYPE_CHECKING:
    from gradfix.result import Diagnosis, Result

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def render(result: Result, view: View) -> Iterator[Line]:
    """The lines of one result."""
    for diagnosis in shown(result):
        conflict = diagnosis.conflict
        at = place(conflict.at, diagnosis, result)
        where = {"file": view.paths.show(at.path)}
        if cell(at, result) is None:  # a line of a cell is no line of the notebook's file
            where |= {"line": str(at.line), "endLine": str(at.end_line)}
            if at.line == at.end_line:  # else GitHub takes no columns
                where |= {"col": str(at.column + 1), "endColumn": str(at.end_column + 1)}
        where["title"] = f"gradfix ({conflict.kind})"
        fields = ",".join(f"{key}={_escaped(safe(value), ':,')}" for key, value in where.items())
        said = "\n".join(safe(line) for line in _said(diagnosis, result, view))
        yield Line(f"::{LEVELS[conflict.severity]} {fields}::{_escaped(said)}")


def _said(diagnosis: Diagnosis, result: Result, view: View) -> Iterator[str]:
    likely = "likely: " if diagnosis.evidence == "likely" else ""
    yield f"{likely}{message(diagnosis, result)}"
    for label in diagnosis.conflict.labels:
        where = written(place(label.at, diagnosis, result), result, view.paths)
        yield f"{where}: {labelled(label, diagnosis, result)}"


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
