"""SARIF 2.1.0 (OASIS): what GitHub's code scanning and other viewers take, with the cures as fixes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from gradfix import __version__
from gradfix.baseline import fingerprints
from gradfix.explain import page, why
from gradfix.report import View, shown
from gradfix.report.json import cure_value, diagnostic, edits
from gradfix.source import Source, SourceError
from gradfix.suppress import REPORTED

if TYPE_CHECKING:
    from gradfix.result import Cure, Diagnosis, Problem, Result

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
BASE = "SRCROOT"


def document(results: Sequence[Result], view: View, stopped: Problem | None = None) -> str:
    """The JSON text of all results."""
    kinds = list(dict.fromkeys(d.conflict.kind for r in results for d in shown(r)))
    names = fingerprints(results, view.paths.cwd)
    problems = [(r.problem, view.paths.show(str(r.entry)), str(r.entry)) for r in results if r.problem]
    said = [(p.message.replace(entry, name), p.detail) for p, name, entry in problems]
    said += [(stopped.message, stopped.detail)] if stopped else []
    run = {
        "tool": {
            "driver": {"name": "gradfix", "version": __version__, "rules": [_rule(kind) for kind in kinds]}
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {BASE: {"uri": f"{view.paths.cwd.as_uri()}/"}},
        "invocations": [
            {
                "executionSuccessful": not said,
                "toolExecutionNotifications": [
                    {"level": "error", "message": {"text": "\n".join(filter(None, each))}} for each in said
                ],
            }
        ],
        "results": [
            _result(d, r, view, kinds.index(d.conflict.kind), names[id(d)]) for r in results for d in shown(r)
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2)


def _rule(kind: str) -> dict[str, Any]:
    return {
        "id": kind,
        "shortDescription": {"text": why(kind)},
        "help": {"text": why(kind), "markdown": page(kind) or ""},
        "defaultConfiguration": {"level": REPORTED[kind]},
    }


def _result(diagnosis: Diagnosis, result: Result, view: View, rule: int, fingerprint: str) -> dict[str, Any]:
    value = diagnostic(diagnosis, result, view)
    best = value["cures"][0] if value["cures"] else None
    out = {
        "ruleId": value["kind"],
        "ruleIndex": rule,
        "level": value["severity"],
        "message": {"text": value["message"]},
        "locations": [_location(value)],
        "relatedLocations": [
            {"id": number, **_location(each), "message": {"text": each["message"]}}
            for number, each in enumerate(value["related"])
        ],
        "partialFingerprints": {"gradfixSpans/v1": fingerprint},
        "fixes": [fix for cure in diagnosis.cures for fix in _fixes(cure, result, view)],
        "properties": {
            "evidence": value["evidence"],
            "status": value["status"],
            "verdict": best["verdict"] if best else None,
            "measured": best["measured"] if best else {},
        },
    }
    return {key: each for key, each in out.items() if each != []}


def _location(at: dict[str, Any]) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(at["path"])}
    if at["cell"] is None:
        physical["region"] = _region(at["range"])
        return {"physicalLocation": physical}
    # a line of a cell is no line of the file: the format knows no cells
    name = f"cell {at['cell']}, line {at['range']['start']['line']}"
    return {"physicalLocation": physical, "logicalLocations": [{"name": name, "kind": "module"}]}


def _region(span: dict[str, Any]) -> dict[str, int]:
    start, end = span["start"], span["end"]
    return {
        "startLine": start["line"],
        "startColumn": start["column"],
        "endLine": end["line"],
        "endColumn": end["column"],
    }


def _artifact(path: str) -> dict[str, str]:
    if Path(path).is_absolute():
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(Path(path).as_posix()), "uriBaseId": BASE}


def _newline(path: str) -> str:
    """The line ending of the file: whoever applies a fix takes its text as it is."""
    try:
        return Source.read(Path(path)).newline
    except (SourceError, OSError):  # standard input, or gone
        return "\n"


def _fixes(cure: Cure, result: Result, view: View) -> Iterator[dict[str, Any]]:
    """The cure as edits of the files as they are; one that rests on another cure has none to show."""
    changed = sorted(path for path in cure.after if path in cure.before)
    if any(path.endswith(".ipynb") or cure.before[path] != result.sources.get(path) for path in changed):
        return
    value = cure_value(cure, view)
    words = f": {value['effect']['words']}" if value["effect"]["words"] else ""
    yield {
        "description": {"text": f"{cure.codemod} ({cure.verdict.status}): {cure.summary}{words}"},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(view.paths.show(path)),
                "replacements": [
                    {
                        "deletedRegion": _region(edit["range"]),
                        "insertedContent": {"text": edit["text"].replace("\n", _newline(path))},
                    }
                    for edit in reversed(edits(path, cure.before[path], cure.after[path]))
                ],
            }
            for path in changed
        ],
        "properties": {key: value[key] for key in ("codemod", "verdict", "reason", "effect", "measured")},
    }
