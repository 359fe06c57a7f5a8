"""What `gradfix explain` knows: a page for every kind and codemod, and which fault a PyTorch error or
traceback shows.

Light: neither torch nor libcst.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from gradfix.registry import About, catalogue
from gradfix.suppress import REPORTED

PAGES = Path(__file__).parent / "report" / "kinds"


def names() -> list[str]:
    """Everything that has a page."""
    return [*REPORTED, *(about.name for about in catalogue())]


def page(name: str) -> str | None:
    """The page of a kind or a codemod, in Markdown; None where there is none."""
    if name in REPORTED:
        return _kind_page(name)
    return next((_codemod_page(about) for about in catalogue() if about.name == name), None)


@cache
def why(kind: str) -> str:
    """The one sentence that says what this kind of fault is."""
    parts = (PAGES / f"{kind}.md").read_text(encoding="utf-8").split("\n\n")
    return " ".join(parts[1].split())


def _kind_page(kind: str) -> str:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8").rstrip()
    answers = [f"- `{about.name}`: {about.summary}" for about in catalogue() if kind in about.kinds]
    listing = "\n".join(answers) or "None yet: it is reported only."
    title, _, body = text.partition("\n")
    return f"{title} ({REPORTED[kind]})\n{body}\n\n## Codemods that answer it\n\n{listing}\n"


def _codemod_page(about: About) -> str:
    # the sections of the docstring's fixed form stand out
    body = re.sub(r"^(Why|When not):", r"**\1:**", about.description, flags=re.M)
    kinds = ", ".join(f"`{k}`" for k in about.kinds)
    effects = ", ".join(f"`{e}`" for e in about.effects)
    out = [f"# {about.name}", body, f"Answers: {kinds}.", f"Effects it may have: {effects}."]
    for before, after in about.examples[:1]:
        out += ["## Before", f"```python\n{before.strip()}\n```"]
        out += ["## After", f"```python\n{after.strip()}\n```"]
    return "\n\n".join(out) + "\n"
