"""report.html: one page that needs nothing beside it. jinja2 makes it (extra ``gradfix[batch]``)."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from gradfix.batch.drawing import gradients, timeline
from gradfix.batch.summary import by_faults
from gradfix.batch.words import counts, sentence
from gradfix.report.layout import safe
from gradfix.run import walls

# How a run ended, in words.
ENDED = {
    "": "it was not judged",
    "steps": "every optimizer made its steps",
    "finished": "to its end",
    "exit": "it left early",
    "failed": "it failed",
    "read": "it came to nothing, and its text was read instead",
    "timeout": "its time was over",
    "memory": "it used up its memory",
    "killed": "it was killed",
    "tampered": "what it said of itself was no record",
}
_COLOURS = ("red", "yellow", "blue", "cyan", "green")


def page(document: Mapping[str, Any]) -> str | None:
    """The page of a report.json's document; None where jinja2 is not installed."""
    try:
        from jinja2 import Environment
        from markupsafe import Markup
    except ImportError:
        return None
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=False)
    environment.filters |= {
        "counts": counts,
        "code": lambda text: Markup(_code(text)),
        "css": _css,
        "ended": lambda how: ENDED.get(how, how),
        "diffclass": _diff_class,
        "timeline": lambda fault: Markup(timeline(fault["marks"])),
        "gradients": lambda measured: Markup(gradients(measured)),
    }
    template = environment.from_string(_own("page.html.j2"))
    totals = document["totals"]
    made = template.render(
        totals=totals,
        sentence=sentence(totals),
        groups=document["groups"],
        repositories=[_repository(r) for r in sorted(document["repositories"], key=by_faults)],
        walls="; ".join(walls.words(name) for name in totals["walls"]),
        most=max(totals["kinds"].values(), default=1),
        gradfix=document["gradfix"],
        style=Markup(_own("page.css")),
        script=Markup(_own("page.js")),
    )
    return "\n".join(safe(line) for line in made.split("\n"))


def _own(name: str) -> str:
    return (files("gradfix.batch") / "page" / name).read_text(encoding="utf-8")


def _repository(repo: Mapping[str, Any]) -> dict[str, Any]:
    faults = repo.get("faults", [])
    verdicts: dict[str, int] = {}
    for step in repo.get("steps", []):
        verdicts[step["verdict"]] = verdicts.get(step["verdict"], 0) + 1
    errors = sum(f["severity"] != "note" for f in faults)
    return {
        "sentence": "",
        "commit": "",
        "remarks": [],
        "crashes": [],
        "entries": [],
        **repo,
        "faults": faults,
        "errors": errors,
        "notes": len(faults) - errors,
        "cured": sum(f["status"] == "cured" for f in faults),
        "verdicts": verdicts,
        "outcomes": dict(Counter(f["outcome"] for f in faults if f["outcome"])),
        "worth": bool(
            faults or any(repo.get(what) for what in ("sentence", "remarks", "entries", "earlier", "refused"))
        ),
    }


def _code(text: str) -> str:
    """Backticks as <code>; everything else as text."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _css(style: str) -> str:
    """The classes of one of rich's styles."""
    found = ["s-bold"] if "bold" in style else []
    found += [f"s-{'blue' if c == 'cyan' else c}" for c in _COLOURS if c in style]
    return " ".join(found)


def _diff_class(line: str) -> str:
    if line.startswith(("+++", "---")):
        return "s-bold"
    return {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "")
