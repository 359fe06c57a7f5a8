"""What `gradfix apply` came to: for people, a line each, and for programs (docs/patches.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from gradfix.report import Line
from gradfix.report.diff import unified
from gradfix.report.json import edits, plain
from gradfix.report.layout import safe
from gradfix.report.places import Paths

if TYPE_CHECKING:
    from gradfix.patches.apply import Applied
    from gradfix.patches.values import Fix

STYLES = {"placed": "bold green", "already": "dim", "refused": "bold red"}


def full(done: Applied, root: Path, written: bool, diff: bool) -> Iterator[Text | Line]:
    """One fix: what became of it, what was measured of it, and its diff. All of it is somebody else's words, and may
    reach a terminal through a pipe: the exact diff is in the document."""
    yield Text.assemble((_word(done, written), STYLES[done.status]), f": {_tame(_named(done.fix))}")
    for said in _said(done):
        yield Text(f"   = {_tame(said)}")
    if diff and done.files:
        yield Text("")
        yield from (Line(safe(line)) for line in _diff(done, root))
    yield Text("")


def concise(done: Applied, root: Path, written: bool, diff: bool) -> Iterator[Text | Line]:
    """One fix, one line."""
    why = done.why or f"{done.fix.verdict} where it was made"
    yield Line(_tame(f"{', '.join(f.path for f in done.fix.files)}: {_word(done, written)}: {why}"))


def closing(results: Sequence[Applied], written: bool) -> str:
    """The last line."""
    count = {status: sum(r.status == status for r in results) for status in STYLES}
    if not results:
        return "There is no fix in it."
    said = f"{len(results)} fix{'' if len(results) == 1 else 'es'}: {count['placed']} "
    said += "written" if written else "placed"
    said += f", {count['already']} there already" if count["already"] else ""
    said += f", {count['refused']} refused" if count["refused"] else ""
    return f"{said}." + (" Write with --write." if count["placed"] and not written else "")


def document(results: Sequence[Applied], root: Path, written: bool, problem: str = "") -> str:
    """The JSON text of all."""
    value = {
        "fixes": [_fix(r, root, written) for r in results],
        "problems": [{"message": problem}] if problem else [],
    }
    return json.dumps(value, ensure_ascii=True, indent=2)


def _fix(done: Applied, root: Path, written: bool) -> dict[str, Any]:
    fix = done.fix
    names = {path: Path(path).relative_to(root).as_posix() for path in done.files}
    return {
        "entry": fix.entry,
        "files": [f.path for f in fix.files],
        "kinds": sorted({c.kind for c in fix.cures}),
        "codemods": sorted({c.codemod for c in fix.cures}),
        "status": done.status,
        "written": written and done.status == "placed",
        "why": done.why or None,
        "seen": done.seen or None,
        "made": {"verdict": fix.verdict, "reason": fix.reason},
        "here": None
        if done.verdict is None
        else {
            "verdict": done.verdict.status,
            "reason": done.verdict.reason,
            "measured": plain(dict(done.verdict.measured)),
        },
        "lines": [
            {"path": path, "from": was, "to": now or None}
            for path, some in done.lines.items()
            for was, now in some
        ],
        "edits": [e for path, (old, new) in sorted(done.files.items()) for e in edits(names[path], old, new)],
        "diff": "".join(f"{line}\n" for line in _diff(done, root)),
    }


def _tame(text: str) -> str:
    """One line that steers no terminal."""
    return safe(text.replace("\n", " "))


def _said(done: Applied) -> Iterator[str]:
    fix = done.fix
    for cure in fix.cures:
        yield f"{cure.codemod} ({cure.kind}): {cure.summary}"
    yield f"{fix.verdict} where it was made: {fix.reason}"
    if done.verdict is not None:
        yield f"{done.verdict.status} here: {done.verdict.reason}"
    if done.why:
        yield f"refused: {done.why}"
    yield from _moved(done)
    if done.seen:
        yield done.seen


def _word(done: Applied, written: bool) -> str:
    if done.status == "already":
        return "applied already"
    return "written" if written and done.status == "placed" else done.status


def _named(fix: Fix) -> str:
    files = [f.path for f in fix.files]
    return ", ".join(files) + ("" if fix.entry in files else f" (of {fix.entry})")


def _moved(done: Applied) -> Iterator[str]:
    """Where the lines went that are not where they were."""
    for path, lines in done.lines.items():
        moved = [f"line {was} is line {now} now" for was, now in lines if now and now != was]
        if moved:
            yield f"{path}: {', '.join(moved)}."


def _diff(done: Applied, root: Path) -> Iterator[str]:
    return unified(done.files, Paths(root))
