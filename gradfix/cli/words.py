"""Words of the command line that several commands take."""

from __future__ import annotations

from gradfix.cli.options import known
from gradfix.verdict import HELD


def codemods(given: list[str] | None) -> tuple[str, ...]:
    """Names of codemods, given again or with commas."""
    if not given:
        return ()
    from gradfix.registry import catalogue

    return known("codemod", given, [about.name for about in catalogue()])


def verdicts(given: list[str] | None) -> tuple[str, ...]:
    """Names of verdicts."""
    named = known("verdict", given, [*HELD, "untried"])
    # who takes what nobody tried takes what was proved
    return tuple(dict.fromkeys((*HELD, *named))) if "untried" in named else named
