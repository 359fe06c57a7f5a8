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
MOST = 3  # optimizers with a plot of their own
BESIDE, LONG = 270, 100  # pixels from plot to plot, and of the longer arrow


def timeline(marks: Sequence[Mapping[str, Any]]) -> str:
    """What happened to the tensor, from left to right: a dot each, the version of the tensor on the way to the next."""
    if not marks:
        return ""
    room = WIDTH / len(marks)
    at = [room * (n + 0.5) for n in range(len(marks))]
    parts = []
    version = None
    for n, mark in enumerate(marks):
        version = version if mark["version"] is None else mark["version"]
        if n + 1 < len(marks):
            parts.append(_line(at[n], at[n + 1], 30, COLOURS.get(mark["role"], OTHER)))
            if version is not None:
                parts.append(_text((at[n] + at[n + 1]) / 2, 24, f"version {version}"))
    for x, mark in zip(at, marks, strict=True):
        colour = COLOURS.get(mark["role"], OTHER)
        parts.append(
            f'<circle cx="{x:.0f}" cy="30" r="6" fill="{colour}"><title>{_safe(mark["text"])}</title></circle>'
        )
        parts.append(_text(x, 14, mark["role"], bold=True))
        where = f"line {mark['line']}"
        parts.append(_text(x, 52, _short(mark["code"], int(room / 7)) or where))
        parts.append(
            _text(x, 68, _end(f"{mark['path']}:{mark['line']}", int(room / 7)) if room > 160 else where)
        )
    said = " → ".join(mark["role"] for mark in marks)
    return _svg("timeline", WIDTH, 76, said, parts)


def gradients(measured: Mapping[str, Any]) -> str:
    """For every optimizer, the gradient before (an arrow to the right) and after (turned by the angle between them, as
    long as the ratio of their norms): both from one point, so that what changed is seen."""
    optimizers = measured.get("optimizers")
    if not isinstance(optimizers, Mapping):
        return ""
    known = [(name, arrow) for name, n in optimizers.items() if (arrow := _arrow(n)) is not None][:MOST]
    if not known:
        return ""
    top = 6 + max(_lift(arrow) for _, arrow in known)
    parts = [part for n, (name, arrow) in enumerate(known) for part in _arrows(n * BESIDE, top, name, *arrow)]
    return _svg(
        "gradients",
        len(known) * BESIDE,
        round(top) + 28,
        "gradients: grey the exact one, blue after the cure",
        parts,
    )


def _arrow(numbers: Mapping[str, Any]) -> tuple[float, float] | None:
    """Cosine and ratio, where they are numbers."""
    cosine, ratio = numbers.get("cosine"), numbers.get("norm_ratio")
    return (cosine, ratio) if isinstance(cosine, int | float) and isinstance(ratio, int | float) else None


def _lift(arrow: tuple[float, float]) -> float:
    cosine, ratio = arrow
    return LONG / max(1.0, ratio) * ratio * math.sin(math.acos(max(-1.0, min(1.0, cosine))))


def _arrows(left: int, y: float, name: str, cosine: float, ratio: float) -> list[str]:
    length = LONG / max(1.0, ratio)
    x = left + 8 + (LONG if cosine < 0 else 0)
    after = (x + length * ratio * max(-1.0, min(1.0, cosine)), y - _lift((cosine, ratio)))
    return [
        f'<line x1="{x:.0f}" y1="{y:.1f}" x2="{x + length:.1f}" y2="{y:.1f}" stroke="#8889" stroke-width="5"/>',
        f'<line x1="{x:.0f}" y1="{y:.1f}" x2="{after[0]:.1f}" y2="{after[1]:.1f}" stroke="#0969da" stroke-width="2"/>',
        f'<circle cx="{after[0]:.1f}" cy="{after[1]:.1f}" r="3" fill="#0969da"/>',
        _text(
            left + 8,
            round(y) + 20,
            f"{_short(name, 12)}: cosine {cosine:.4g}, norm ×{ratio:.3g}",
            anchor="start",
        ),
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
        f'aria-label="{_safe(said)}"><title>{_safe(said)}</title>{"".join(parts)}</svg>'
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"


def _end(text: str, most: int) -> str:
    return text if len(text) <= most else "…" + text[-max(most - 1, 1) :]


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
