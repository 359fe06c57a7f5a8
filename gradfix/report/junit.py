"""JUnit's XML, which most CI servers show: a test case for every fault, and one that passes for a file without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gradfix.report import View, faults, shown
from gradfix.report.layout import safe
from gradfix.report.places import labelled, message, place
from gradfix.report.places import shown as written

if TYPE_CHECKING:
    from gradfix.result import Diagnosis, Problem, Result


def document(results: Sequence[Result], view: View, stopped: Problem | None = None) -> str:
    """The XML text of all results."""
    root = ElementTree.Element("testsuites", name="gradfix")
    suite = ElementTree.SubElement(root, "testsuite", name="gradfix")
    for result in results:
        name = view.paths.show(str(result.entry))
        for diagnosis in shown(result):
            _case(suite, diagnosis, result, view)
        if result.problem:
            _error(suite, name, result.problem, result.problem.message.replace(str(result.entry), name))
        elif not shown(result):
            ElementTree.SubElement(suite, "testcase", name="gradfix", classname=_dotted(name), file=name)
    if stopped:
        _error(suite, "gradfix", stopped, stopped.message)
    counts = {
        "tests": len(suite),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
    }
    for key, count in counts.items():
        suite.set(key, str(count))
        root.set(key, str(count))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode")


def _case(suite: ElementTree.Element, diagnosis: Diagnosis, result: Result, view: View) -> None:
    """A fault as a failure; a note, which decides nothing, as a test that passes and says it."""
    conflict = diagnosis.conflict
    at = place(conflict.at, diagnosis, result)
    where, name = safe(written(at, result, view.paths)), safe(view.paths.show(at.path))
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=f"{conflict.kind} {where}",
        classname=_dotted(name),
        file=name,
        line=str(at.line),
    )
    said = safe(message(diagnosis, result))
    lines = [f"{where}: {conflict.severity}: {said}"]
    for label in conflict.labels:
        spot = written(place(label.at, diagnosis, result), result, view.paths)
        lines.append(safe(f"{spot}: {labelled(label, diagnosis, result)}"))
    if diagnosis in faults(result):
        failure = ElementTree.SubElement(case, "failure", message=said, type=conflict.kind)
        failure.text = "\n".join(lines)
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)


def _error(suite: ElementTree.Element, name: str, problem: Problem, said: str) -> None:
    case = ElementTree.SubElement(suite, "testcase", name="gradfix", classname=_dotted(name))
    error = ElementTree.SubElement(case, "error", message=safe(said), type="problem")
    error.text = "\n".join(safe(line) for line in problem.detail.split("\n"))


def _dotted(name: str) -> str:
    """A file as CI servers group it: by packages."""
    path = Path(safe(name))
    return ".".join(part for part in path.with_suffix("").parts if part not in (path.anchor, ".", ".."))
