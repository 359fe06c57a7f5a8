"""What `gradfix explain` knows: a page for every kind and codemod, and which fault a PyTorch error or
traceback shows.

Light: no torch; libcst only where a codemod is asked about.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradfix.detect import KINDS

if TYPE_CHECKING:
    from gradfix.codemod import Codemod

PAGES = Path(__file__).parent / "report" / "kinds"


def names() -> list[str]:
    """Everything that has a page."""
    return [*KINDS, *(m.name() for m in _codemods())]


def page(name: str) -> str | None:
    """The page of a kind or a codemod, in Markdown; None where there is none."""
    if name in KINDS:
        return _kind_page(name)
    return next((_codemod_page(m) for m in _codemods() if m.name() == name), None)


def nearest(name: str, among: list[str]) -> str:
    """`, did you mean X?`, or nothing."""
    close = get_close_matches(name.lower().replace("_", "-"), among, 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


@cache
def why(kind: str) -> str:
    """The one sentence that says what this kind of fault is."""
    parts = (PAGES / f"{kind}.md").read_text(encoding="utf-8").split("\n\n")
    return " ".join(parts[1].split())


def _kind_page(kind: str) -> str:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8").rstrip()
    answers = [f"- `{m.name()}`: {summary(m)}" for m in _codemods() if kind in m.kinds]
    listing = "\n".join(answers) or "None yet: it is reported only."
    title, _, body = text.partition("\n")
    return f"{title} ({KINDS[kind]})\n{body}\n\n## Codemods that answer it\n\n{listing}\n"


def _codemod_page(mod: type[Codemod]) -> str:
    # the sections of the docstring's fixed form stand out
    body = re.sub(r"^(Why|When not):", r"**\1:**", mod.DESCRIPTION, flags=re.M)
    kinds = ", ".join(f"`{k}`" for k in mod.kinds)
    effects = ", ".join(f"`{e}`" for e in mod.effects)
    out = [f"# {mod.name()}", body, f"Answers: {kinds}.", f"Effects it may have: {effects}."]
    for example in mod.examples[:1]:
        out += ["## Before", f"```python\n{example.before.strip()}\n```"]
        out += ["## After", f"```python\n{example.after.strip()}\n```"]
    return "\n\n".join(out) + "\n"


def summary(mod: type[Codemod]) -> str:
    """The first paragraph of a codemod's docstring, in one line."""
    return " ".join(mod.DESCRIPTION.split("\n\n")[0].split())


def _codemods() -> list[type[Codemod]]:
    from gradfix.codemod import codemods

    return list(codemods())
