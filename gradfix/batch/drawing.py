"""Small pictures for the page: what happened to a tensor over time, and gradients before and after. SVG text."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 760
COLOURS = {
    "saved": "#2da44e",
    "made": "#2da44e",
    "overwritten": "#cf222e",
    "freed": "#cf222e",
    "cut": "#cf222e",
    "needed": "#0969da",
}
OTHER = "#9a6700"
MOST = 6  # optimizers with a plot of their own


def timeline(marks: Sequence[Mapping[str, Any]]) -> str:
    """What happened to the tensor, from left to right: a dot each, the version of the tensor on the way to the next."""
    if not marks:
        return ""
    room = WIDTH / len(marks)
    at = [room * (n + 0.5) for n in range(len(marks))]
    parts = []
    version = 0
    for n, mark in enumerate(marks):
        version = mark["version"] or version
        if n + 1 < len(marks):
            parts.append(_line(at[n], at[n + 1], 30, COLOURS.get(mark["role"], OTHER)))
            if version:
                parts.append(_text((at[n] + at[n + 1]) / 2, 24, f"version {version}"))
    for x, mark in zip(at, marks, strict=True):
        colour = COLOURS.get(mark["role"], OTHER)
        parts.append(
            f'<circle cx="{x:.0f}" cy="30" r="6" fill="{colour}"><title>{_safe(mark["text"])}</title></circle>'
        )
        parts.append(_text(x, 14, mark["role"], bold=True))
        where = f"line {mark['line']}"
        parts.append(_text(x, 52, _short(mark["code"], int(room / 7)) or where))
        parts.append(_text(x, 68, f"{mark['path']}:{mark['line']}" if room > 160 else where))
    said = " → ".join(mark["role"] for mark in marks)
    return _svg("timeline", WIDTH, 76, said, parts)


def gradients(measured: Mapping[str, Any]) -> str:
    """For every optimizer, the gradient before (an arrow to the right) and after (turned by the angle between them, as
    long as the ratio of their norms): both from one point, so that what changed is seen."""
    optimizers = measured.get("optimizers")
    if not isinstance(optimizers, Mapping):
        return ""
    parts, shown = [], 0
    for name, numbers in list(optimizers.items())[:MOST]:
        drawn = _arrows(shown * 180, name, numbers)
        if drawn:
            parts += drawn
            shown += 1
    return _svg("gradients", max(shown, 1) * 180, 84, "gradients before and after", parts) if shown else ""


def _arrows(left: int, name: str, numbers: Mapping[str, Any]) -> list[str]:
    cosine, ratio = numbers.get("cosine"), numbers.get("norm_ratio")
    if not isinstance(cosine, int | float) or not isinstance(ratio, int | float):
        return []
    angle = math.acos(max(-1.0, min(1.0, cosine)))
    length = 100 / max(1.0, ratio)
    x, y = left + 20, 56
    after = (x + length * ratio * math.cos(angle), y - min(46.0, length * ratio * math.sin(angle)))
    return [
        f'<line x1="{x}" y1="{y}" x2="{x + length:.1f}" y2="{y}" stroke="#8889" stroke-width="5"/>',
        f'<line x1="{x}" y1="{y}" x2="{after[0]:.1f}" y2="{after[1]:.1f}" stroke="#0969da" stroke-width="2"/>',
        f'<circle cx="{after[0]:.1f}" cy="{after[1]:.1f}" r="3" fill="#0969da"/>',
        _text(left + 8, 78, f"{_short(name, 12)} cos {cosine:.4g}, norm ×{ratio:.3g}", anchor="start"),
    ]


def _line(x: float, end: float, y: int, colour: str) -> str:
    return (
        f'<line x1="{x + 7:.0f}" y1="{y}" x2="{end - 9:.0f}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        f'<path d="M{end - 14:.0f} {y - 4} L{end - 8:.0f} {y} L{end - 14:.0f} {y + 4}" fill="none" stroke="{colour}"/>'
    )


def _text(x: float, y: int, text: str, anchor: str = "middle", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}"{weight}>{_safe(text)}</text>'


def _svg(kind: str, width: int, height: int, said: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{_safe(said)}">{"".join(parts)}</svg>'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
