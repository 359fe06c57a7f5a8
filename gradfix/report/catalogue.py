"""The catalogue of kinds and codemods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from gradfix import registry
from gradfix.explain import why
from gradfix.report.layout import fold
from gradfix.suppress import REPORTED


def document() -> dict[str, Any]:
    """Kinds and codemods as JSON values."""
    mods = registry.catalogue()
    return {
        "kinds": [
            {"kind": k, "severity": s, "why": why(k), "codemods": [m.name for m in mods if k in m.kinds]}
            for k, s in REPORTED.items()
        ],
        "codemods": [
            {
                "name": m.name,
                "description": m.summary,
                "kinds": [*m.kinds],
                "effects": [*m.effects],
            }
            for m in mods
        ],
    }


def render(width: int) -> Iterator[Text]:
    """The same for people."""
    width = min(width, 100)
    value = document()
    styles = {"error": "red", "warning": "yellow", "note": "cyan"}
    yield Text("Kinds of fault", style="bold")
    for kind in value["kinds"]:
        yield Text.assemble(
            "  ", (kind["kind"], f"bold {styles[kind['severity']]}"), f" ({kind['severity']})"
        )
        yield from (Text(f"      {line}") for line in fold(kind["why"], width - 6))
    yield Text()
    yield Text("Codemods", style="bold")
    for mod in value["codemods"]:
        yield Text.assemble("  ", (mod["name"], "bold"), f" ({', '.join(mod['kinds'])})")
        yield from (Text(f"      {line}") for line in fold(mod["description"], width - 6))
    if not value["codemods"]:
        yield Text("  none is installed")
    yield Text()
    yield Text("gradfix explain NAME tells more of any of them.")
