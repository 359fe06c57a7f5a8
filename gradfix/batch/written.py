"""The reports that lie in a workspace: report.json, report.md, report.html, and a text for a pull request each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradfix.batch.delivery import save, uncommitted
from gradfix.batch.html import page
from gradfix.batch.outcome import DONE, earlier
from gradfix.batch.state import State
from gradfix.batch.summary import Data, by_faults, repositories, summary
from gradfix.batch.values import Fault, Had, RepoResult, Spec, Step
from gradfix.batch.words import code, counts, escaped, many, sentence, text
from gradfix.report.layout import safe

MOST = 200  # rows of a table in report.md; the rest is in report.json


def write(workspace: Path, state: State, specs: list[Spec]) -> None:
    """Bring every report up to date."""
    about = summary(state, specs)
    repos = list(repositories(state, specs))
    document = about | {"repositories": repos}
    save(workspace / "report.json", json.dumps(document, indent=1, sort_keys=True).encode("ascii"))
    save(workspace / "report.md", safe_text("\n".join(markdown(document)) + "\n"))
    made = page(document)
    if made is not None:
        save(workspace / "report.html", made.encode("utf-8"))
    for spec in specs:
        result = state.result(spec.name)
        file = workspace / "pull-requests" / f"{spec.name}.md"
        had = earlier(state, spec.name, result)
        if result is not None and result.committed:
            save(file, safe_text(pull_request(result, had)))
        elif not had:  # else the text is that of what was applied
            file.unlink(missing_ok=True)


def safe_text(text: str) -> bytes:
    """UTF-8, without what can't be said in it or would steer a terminal."""
    return "\n".join(safe(line) for line in text.split("\n")).encode("utf-8")


def markdown(document: Data) -> Iterator[str]:
    """The report for people who read it where the repositories are discussed."""
    totals = document["totals"]
    yield from ("# gradfix migrate", "")
    yield text(sentence(totals))
    found = [_found(r["name"], f) for r in document["repositories"] for f in r.get("faults", ()) if _error(f)]
    if found:
        yield from ("", "## Faults", "")
        yield from table(
            ["repository", "place", "fault", "what is wrong", "cure", "what became of it"], found
        )
    yield from (
        "",
        "## Groups",
        "",
        "The same fault in several places, names and numbers aside; notes come last.",
        "",
    )
    rows = [
        [
            g["fingerprint"],
            g["kind"],
            f"`{g['code']}`" if g["code"] else g["place"],
            g["faults"],
            len(g["repositories"]),
            g["hint"] or "",
            counts(g["verdicts"]),
            counts(g["outcomes"]),
        ]
        for g in document["groups"]
    ]
    head = [
        "fingerprint",
        "fault",
        "such as",
        "times",
        "repositories",
        "cure",
        "verdicts",
        "what became of it",
    ]
    yield from table(head, rows)
    if totals["stopped"]:
        yield from (
            "",
            "## Scripts that failed",
            "",
            "For reasons that are not autograd's; an interpreter that has what",
        )
        yield from ("they import (`--python`), or the data where they look for it, gets them further.", "")
        yield from table(["scripts", "reason"], [[n, why] for why, n in totals["stopped"].items()])
    yield from ("", "## Repositories", "")
    rows = [
        [
            r["name"],
            ", ".join([r["ended"], *(f"{effect} refused" for effect in r["refused"])]),
            sum(map(_error, r.get("faults", ()))),
            sum(not _error(f) for f in r.get("faults", ())),
            _cured(r),
            counts(_verdicts(r)),
            counts(_outcomes(r)),
            r.get("seconds", ""),
            _why(r),
        ]
        for r in sorted(document["repositories"], key=by_faults)
    ]
    head = ["repository", "", "faults", "notes", "cures", "verdicts", "what became of them", "s", ""]
    yield from table(head, rows)
    had = [
        [
            r["name"],
            place,
            cure["codemod"],
            ", ".join(cure["kinds"]),
            ", ".join(cure["files"]),
            cure["verdict"],
        ]
        for r in document["repositories"]
        for place, cures in r["earlier"].items()
        for cure in cures
    ]
    if had:
        yield from ("", "## Applied by earlier calls", "", "What these have cured is not found any more.", "")
        yield from table(["repository", "", "cure", "fault", "files", "verdict"], had)
    said = [[r["name"], each] for r in document["repositories"] for each in _remarks(r)]
    if said:
        yield from ("", "## Left out, and other remarks", "")
        yield from table(["repository", "remark"], said)


def table(head: list[str], rows: Iterable[list[Any]]) -> Iterator[str]:
    """A table of Markdown, its cells as text() takes them; what is beyond the first rows is counted."""
    rows = list(rows)
    yield f"| {' | '.join(head)} |"
    yield f"|{' --- |' * len(head)}"
    for row in rows[:MOST]:
        yield "| " + " | ".join(text(str(x)).replace("|", "\\|") for x in row) + " |"
    if rows[MOST:]:
        yield from ("", f"{len(rows) - MOST} more are in report.json.")


def pull_request(result: RepoResult, had: Mapping[str, Sequence[Had]] | None = None) -> str:
    """A title and a body, ready to be posted; `had` is what earlier calls have applied, by where it is."""
    steps = result.committed
    kinds = list(dict.fromkeys(k for s in steps for k in s.kinds))
    lines = [f"Fix {many(len(steps), 'autograd fault')} ({', '.join(kinds)})", ""]
    untold = [f for f in result.faults if f.status == "cured" and not f.held]
    for step in steps:
        for name in step.fingerprints:
            fault = _told_of(step, name, untold)
            if fault is not None:
                untold.remove(fault)
                said = text(fault.message)
                lines += [f"**{fault.kind}** in {code(fault.path)}, line {fault.line}: {said}.", ""]
                rows = ["".join(text for text, _ in row) for row in fault.shown]
                fence = "`" * max(3, *(len(x) + 1 for row in rows for x in re.findall("`+", row)), 3)
                lines += [fence, *map(escaped, rows), fence, ""]
        lines.append(f"Cure: {text(step.summary)} (`{step.codemod}`).")
        lines.append(f"Verdict: **{step.verdict}**. {text(step.reason[:1].upper() + step.reason[1:])}.")
        lines += [f"After this, {text(step.effect)}."] if step.effect else []
        lines.append("")
    ran = {e.path for e in result.entries if e.wall}
    runs = list(dict.fromkeys(s.entry for s in steps if s.entry in ran))
    if runs:
        lines.append(f"Measured by running {', '.join(map(code, runs))} before and after, for a few steps.")
    else:
        lines.append("Nothing was run: these changes are not proved.")
    before = [
        f"- {text(cure.summary)} (`{cure.codemod}`, {cure.verdict}) in {', '.join(map(code, cure.files))}"
        for place, cures in (had or {}).items()
        if place == "written"
        for cure in cures
    ]
    if before:
        lines += ["", "Written into the working tree before:", "", *before]
    left = [*result.remarks, *(f"{crash}: gradfix could not follow it." for crash in result.crashes)]
    left += [f"{lacks}." for lacks in (uncommitted(result),) if lacks]
    if left:
        lines += ["", "Not all of it was looked at, or there is more to say:", ""]
        lines += [*(f"- {text(each)}" for each in left), ""]
    lines.append("Found and changed by gradfix; please review it as any other patch.")
    return "\n".join(lines) + "\n"


def _told_of(step: Step, fingerprint: str, untold: Sequence[Fault]) -> Fault | None:
    """The fault that a step cured. Copies of one fault share a fingerprint; their cures may differ in words."""
    alike = [f for f in untold if f.fingerprint == fingerprint]
    same = [f for f in alike if f.cures and f.cures[0].summary in step.summary]
    return next(iter(same or alike), None)


def _error(fault: Data) -> bool:
    return bool(fault["severity"] != "note")


def _found(repo: str, fault: Data) -> list[str]:
    """A row of the faults."""
    cure = next((f"{c['codemod']} ({c['verdict']})" for c in fault["cures"]), "none")
    place = f"{fault['path']}:{fault['line']}"
    return [repo, place, fault["kind"], fault["message"], cure, fault["outcome"] or ""]


def _cured(repo: Data) -> int:
    return sum(f["status"] == "cured" for f in repo.get("faults", ()))


def _outcomes(repo: Data) -> dict[str, int]:
    found: dict[str, int] = {}
    for fault in repo.get("faults", ()):
        if fault["outcome"]:
            found[fault["outcome"]] = found.get(fault["outcome"], 0) + 1
    return found


def _verdicts(repo: Data) -> dict[str, int]:
    out: dict[str, int] = {}
    for step in repo.get("steps", ()):
        out[step["verdict"]] = out.get(step["verdict"], 0) + 1
    return out


def _remarks(repo: Data) -> list[str]:
    """What was left out of a repository, or is to be known of it."""
    return [
        *repo.get("remarks", ()),
        *(f"{x}: gradfix could not follow it." for x in repo.get("crashes", ())),
    ]


def _why(repo: Data) -> str:
    said = [repo.get("sentence", "")]
    said += [f"{effect}: {e['said']}" for effect, e in repo["effects"].items() if e["result"] != DONE]
    return "; ".join(s for s in said if s)
