"""The report for programs: one document, described in schema.json and docs/json.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

from gradfix.notebook import locate, written
from gradfix.report import View
from gradfix.report.diff import unified
from gradfix.report.places import Place, callers, cell, labelled, message, place
from gradfix.source import split_lines

if TYPE_CHECKING:
    from gradfix.result import Cure, Diagnosis, Problem, Result


def document(results: Sequence[Result], view: View, stopped: Problem | None = None) -> str:
    """The JSON text of all results; `stopped` says why there are no more."""
    problems = [_problem(r, view) for r in results if r.problem]
    if stopped:
        problems.append({"path": None, "message": stopped.message, "detail": stopped.detail})
    value: dict[str, Any] = {
        "diagnostics": [diagnostic(d, r, view) for r in results for d in r.diagnoses],
        "changes": [_change(r, path, view) for r in results for path in sorted(r.files)],
        "problems": problems,
        "runs": [_run(r, view) for r in results if r.ended],
    }
    return json.dumps(value, ensure_ascii=False, indent=2)


def _run(result: Result, view: View) -> dict[str, Any]:
    return {
        "path": view.paths.show(str(result.entry)),
        "ended": result.ended,
        "wall": result.wall or None,
        "seconds": round(result.seconds, 3),
    }


def _problem(result: Result, view: View) -> dict[str, Any]:
    assert result.problem is not None
    path = view.paths.show(str(result.entry))
    said = result.problem.message.replace(str(result.entry), path)
    return {"path": path, "message": said, "detail": result.problem.detail}


def diagnostic(diagnosis: Diagnosis, result: Result, view: View) -> dict[str, Any]:
    """One fault as the document has it."""
    conflict = diagnosis.conflict
    primary = conflict.labels[conflict.primary]
    at = place(primary.at, diagnosis, result)
    related = []
    for label, caller in zip(conflict.labels, callers(conflict.labels), strict=True):
        related.append(
            _related(
                label.role,
                labelled(label, diagnosis, result),
                place(label.at, diagnosis, result),
                result,
                view,
            )
        )
        if caller is not None:
            words = f"called here: {label.text}"
            related.append(_related("call", words, place(caller, diagnosis, result), result, view))
    return {
        "kind": conflict.kind,
        "severity": conflict.severity,
        "evidence": diagnosis.evidence,
        "path": view.paths.show(at.path),
        **_at(at, result),
        "message": message(diagnosis, result),
        "related": related,
        "cures": [cure_value(c, view) for c in diagnosis.cures],
        "status": diagnosis.status,
    }


def _related(role: str, said: str, at: Place, result: Result, view: View) -> dict[str, Any]:
    return {
        "role": role,
        "path": view.paths.show(at.path),
        **_at(at, result),
        "message": said,
    }


def _change(result: Result, path: str, view: View) -> dict[str, Any]:
    """The whole change of one file, all cures together."""
    old, new = result.files[path]
    name = view.paths.show(path)
    diff = "".join(f"{line}\n" for line in unified({path: (old, new)}, view.paths))
    verdict = result.verdict.status if result.verdict else None
    return {"path": name, "verdict": verdict, "edits": edits(name, old, new), "diff": diff}


def cure_value(cure: Cure, view: View) -> dict[str, Any]:
    """One cure as the document has it."""
    files = {path: (cure.before[path], text) for path, text in cure.after.items() if path in cure.before}
    return {
        "codemod": cure.codemod,
        "summary": cure.summary,
        "effect": {"kind": cure.effect.kind, "words": cure.effect.words},
        "verdict": cure.verdict.status,
        "reason": cure.verdict.reason,
        "measured": {k: plain(v) for k, v in cure.verdict.measured.items()},
        "edits": [
            e for path, (old, new) in sorted(files.items()) for e in edits(view.paths.show(path), old, new)
        ],
        "diff": "".join(f"{line}\n" for line in unified(files, view.paths)),
    }


def plain(value: object) -> object:
    """A number JSON has: it knows no NaN and no infinity."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def edits(path: str, old: str, new: str) -> list[dict[str, Any]]:
    """Whole lines to replace, from the last to the first so that they can be applied one after the other."""
    a, b = split_lines(old), split_lines(new)
    out = []
    for tag, i, end, j, stop in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        text = "\n".join(b[j:stop])
        if path.endswith(".ipynb"):
            text = written(text)
        if end < len(a):
            span = _points(i + 1, 1, end + 1, 1)
            text += "\n" if stop > j else ""
        elif i:  # to the end of the file: its last line has no newline to take along
            span = _points(i, len(a[i - 1]) + 1, len(a), len(a[-1]) + 1)
            text = ("\n" if stop > j else "") + text
        else:
            span = _points(1, 1, len(a), len(a[-1]) + 1)
        found = locate(old, i) if path.endswith(".ipynb") else None
        if found:  # lines count within the cell
            for end_ in span.values():
                end_["line"] += found[1] - i
        out.append({"path": path, "cell": found[0] if found else None, "range": span, "text": text})
    return out[::-1]


def _at(p: Place, result: Result) -> dict[str, Any]:
    """The cell, in a notebook, and the range, whose lines count within it."""
    found = cell(p, result)
    line, end_line = p.line, p.end_line
    if found:
        line, end_line = found[1], found[1] + p.end_line - p.line
    return {
        "cell": found[0] if found else None,
        "range": _points(line, p.column + 1, end_line, p.end_column + 1),
    }


def _points(line: int, column: int, end_line: int, end_column: int) -> dict[str, Any]:
    return {"start": {"line": line, "column": column}, "end": {"line": end_line, "column": end_column}}
