"""GitLab's code quality report: one JSON list, shown in a merge request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.baseline import fingerprints
from gradfix.report import View, shown
from gradfix.report.places import cell, message, place

if TYPE_CHECKING:
    from gradfix.result import Problem, Result

SEVERITY = {"error": "critical", "warning": "major", "note": "minor"}


def document(results: Sequence[Result], view: View, stopped: Problem | None = None) -> str:
    """The JSON text of all results. The format has no place for what could not be read: standard error has."""
    names = fingerprints(results, view.paths.cwd)
    out = []
    for result in results:
        for diagnosis in shown(result):
            conflict = diagnosis.conflict
            at = place(conflict.at, diagnosis, result)
            found = cell(at, result)
            said = message(diagnosis, result)
            spot = (
                {"line": at.line, "column": at.column + 1},
                {"line": at.end_line, "column": at.end_column + 1},
            )
            out.append(
                {
                    "description": f"cell {found[0]}, line {found[1]}: {said}" if found else said,
                    "check_name": conflict.kind,
                    "fingerprint": names[id(diagnosis)],
                    "severity": SEVERITY[conflict.severity],
                    "location": {
                        "path": Path(view.paths.show(at.path)).as_posix(),
                        "positions": {"begin": {"line": 1}, "end": {"line": 1}}
                        if found
                        else {"begin": spot[0], "end": spot[1]},
                    },
                }
            )
    return json.dumps(out, ensure_ascii=False, indent=2)
