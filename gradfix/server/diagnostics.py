"""Results of a reading as diagnostics of the documents they are about, with the places they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lsprotocol import types

from gradfix.explain import page, why
from gradfix.report import shown
from gradfix.report.places import callers, labelled, message, place
from gradfix.result import Diagnosis, Result
from gradfix.server.documents import Buffer, on_disk
from gradfix.tape import Site

SOURCE = "gradfix"
SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}


@dataclass(frozen=True, slots=True)
class Told:
    """A fault as an editor shows it: in the document `uri`, where `line` is that of the whole text."""

    uri: str
    line: int
    diagnostic: types.Diagnostic
    diagnosis: Diagnosis
    result: Result

    @property
    def identity(self) -> tuple[str, Site]:
        """What a second reading of the same text finds again."""
        return self.diagnosis.conflict.kind, self.diagnosis.conflict.at


def told(results: Sequence[Result], buffer: Buffer) -> Iterator[Told]:
    """The faults that show in `buffer`: those of its own lines, and those of other files that it leads to, where it
    does."""
    for result in results:
        for diagnosis in shown(result):
            site = _here(diagnosis, buffer)
            if site is None:
                continue
            at = place(site, diagnosis, result)
            uri, span = buffer.range(at.line, at.column, at.end_line, at.end_column)
            likely = " (likely)" if diagnosis.evidence == "likely" else ""
            diagnostic = types.Diagnostic(
                span,
                f"{message(diagnosis, result)}{likely}",
                severity=SEVERITY[diagnosis.conflict.severity],
                code=diagnosis.conflict.kind,
                source=SOURCE,
                related_information=list(_related(diagnosis, result, buffer)),
            )
            yield Told(uri, at.line, diagnostic, diagnosis, result)


def hover(told: Told, verdicts: Sequence[str] = ()) -> str:
    """What a fault is, and what was measured of its cures, in Markdown."""
    known = "".join(f"\n- {line}" for line in verdicts)
    kind = told.diagnosis.conflict.kind
    return f"**{kind}**: {why(kind)}{known}\n\n---\n\n{page(kind) or ''}"


def _here(diagnosis: Diagnosis, buffer: Buffer) -> Site | None:
    """The reported place, or the nearest call that leads to it from this file."""
    stack = diagnosis.conflict.labels[diagnosis.conflict.primary].stack
    return next((site for site in reversed(stack) if site.file == str(buffer.path)), None)


def _related(
    diagnosis: Diagnosis, result: Result, buffer: Buffer
) -> Iterator[types.DiagnosticRelatedInformation]:
    labels = diagnosis.conflict.labels
    for label, caller in zip(labels, callers(labels), strict=True):
        words = labelled(label, diagnosis, result)
        for site, said in ((label.at, words), (caller, f"called here: {words}")):
            if site is not None:
                at = place(site, diagnosis, result)
                file = buffer
                if at.path != str(buffer.path):
                    file = on_disk(at.path, result.sources.get(at.path, ""), buffer.codec)
                uri, span = file.range(at.line, at.column, at.end_line, at.end_column)
                yield types.DiagnosticRelatedInformation(types.Location(uri, span), said)
