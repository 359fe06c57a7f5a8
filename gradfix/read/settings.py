"""Settings as programs keep them in files: YAML and JSON, and lines of ``name = value``."""

from __future__ import annotations

import re
from typing import Any

import yaml

DEEPEST = 20  # values inside one another
LONGEST = 200_000  # characters of a file of settings
MOST = 20_000  # values; one that is named again counts again
WIDEST = 2_000  # characters of a line

_SETTING = re.compile(r"(?:--)?([A-Za-z_][\w-]*)(?:[ \t]*[=:]|[ \t])[ \t]*(\S.*)")
_SWITCH = re.compile(r"(?:--)?([A-Za-z_]\w*)")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Strange(ValueError):
    """What is not read: no YAML or JSON, mappings that are merged, dates, tags, and more than settings need."""


def read(text: str, suffix: str) -> Any:
    """The value that a file of settings holds. Raises Strange."""
    if len(text) > LONGEST:
        raise Strange("too long")
    if suffix == ".json":
        import json

        try:
            return json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise Strange(str(problem)) from None
    if "<<" in text:  # a few lines that merge what is merged fill any memory
        raise Strange("merged")
    try:
        value = yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as problem:
        raise Strange(str(problem)) from None
    if not _few(value):
        raise Strange("more than settings")
    return value


def _few(value: Any) -> bool:
    """Whether it is made of plain values, not too deeply, and not of too many (it may hold itself)."""
    todo, seen = [(value, 0)], 0
    while todo:
        each, depth = todo.pop()
        seen += 1
        inner = (
            [*each.keys(), *each.values()]
            if isinstance(each, dict)
            else each
            if isinstance(each, list)
            else ()
        )
        if depth > DEEPEST or seen + len(inner) > MOST:
            return False
        if not isinstance(each, dict | list | str | int | float | type(None)):
            return False
        todo += [(x, depth + 1) for x in inner]
    return True


def lines(text: str) -> dict[str, Any]:
    """The settings of a file of lines ``name = value``."""
    out: dict[str, Any] = {}
    for line in text[:LONGEST].split("\n"):
        said = line.split("#")[0].split(";")[0].strip()
        found = _SETTING.fullmatch(said) if len(said) < WIDEST else None
        if found is not None:
            out[found[1].replace("-", "_")] = read(found[2], ".yaml")
        elif _SWITCH.fullmatch(said):
            out[said.lstrip("-")] = True
    return out
