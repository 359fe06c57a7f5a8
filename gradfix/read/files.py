"""Files that a program reads its settings from: found where it lies, and read as it reads them.

Where the command line has to name such a file, the first of the project is taken, as somebody would name one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gradfix.read import containers
from gradfix.read.frames import Machine
from gradfix.read.values import Instance, Value
from gradfix.read.variants import Asked

SUFFIXES = {".yaml": ".yaml", ".yml": ".yaml", ".json": ".json"}
OPEN = "builtins.file"
DICTS = (
    "easydict.EasyDict", "addict.Dict", "munch.Munch", "munch.munchify", "attrdict.AttrDict", "box.Box",
    "ml_collections.ConfigDict", "omegaconf.OmegaConf.create",
)  # fmt: skip


def opened(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``open(path)``: a file of settings, or one of which nothing is known."""
    mode = args[1] if len(args) > 1 else kwargs.get("mode", "r")
    path = named(m, args[0] if args else None, tuple(SUFFIXES))
    if path is None or not isinstance(mode, str) or "w" in mode or "a" in mode:
        return m.unknown("open")
    return Instance(None, kind=OPEN, extra={"path": path})


def named(m: Machine, path: Value, suffixes: tuple[str, ...]) -> str | None:
    """The file of the project that `path` names, or that somebody would name."""
    if isinstance(path, Asked):
        return m.project.settings(suffixes)
    if not isinstance(path, str) or not path.endswith(suffixes):
        return None
    return m.project.lying(path)


def value(m: Machine, source: Value) -> Value:
    """What the file holds that is `source`, or that it names."""
    path = source.extra.get("path") if isinstance(source, Instance) else None
    text = m.project.text(path) if isinstance(path, str) else source if isinstance(source, str) else None
    if text is None:
        return m.unknown("settings")
    from gradfix.read import settings  # hardly any program has some

    try:
        return settings.read(text, SUFFIXES.get(os.path.splitext(path)[1], "") if path else ".yaml")
    except settings.Strange:
        return m.unknown("settings of a kind of their own")


def _loaded(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return value(m, args[0] if args else None)


def _loaded_dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    path = named(m, args[0] if args else None, tuple(SUFFIXES))
    return (
        attributed(value(m, Instance(None, kind=OPEN, extra={"path": path})))
        if path
        else m.unknown("settings")
    )


def _dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    given = containers.plain(args[0]) if args else {}
    if not isinstance(given, dict) or "**" in kwargs:
        return m.unknown("dictionary")
    return attributed({**given, **kwargs})


def attributed(value: Value) -> Value:
    """A dictionary whose items are attributes too, and so on inside."""
    if isinstance(value, list):
        return [attributed(v) for v in value]
    if not isinstance(value, dict):
        return value
    attrs = {k: attributed(v) for k, v in value.items()}
    return Instance(None, attrs, DICTS[0], {"items": attrs})


def _plain(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``OmegaConf.to_container``: dictionaries of Python's own again."""
    return _unattributed(args[0]) if args else m.unknown("container")


def _unattributed(value: Value) -> Value:
    value = containers.plain(value)
    if isinstance(value, list):
        return [_unattributed(v) for v in value]
    return {k: _unattributed(v) for k, v in value.items()} if isinstance(value, dict) else value


def _joined(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``os.path.join``."""
    if args and all(isinstance(a, str) for a in args):
        return os.path.join(*args)
    asked = next((a for a in reversed(args) if isinstance(a, Asked)), None)
    return asked if asked is not None and asked is args[-1] else m.unknown("os.path.join")


def _text(m: Machine, file: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return file  # which settings are made of as well


def _closed(m: Machine, file: Instance, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return None


def told(m: Machine, path: Value) -> dict[str, Any]:
    """The settings of the file of lines at `path`, or of the one that somebody would name."""
    found = (
        m.project.lying(path)
        if isinstance(path, str)
        else m.project.settings((".txt", ".ini", ".cfg", ".conf"))
    )
    text = m.project.text(found) if found is not None else None
    if text is None:
        return {}
    from gradfix.read import settings

    try:
        return settings.lines(text)
    except settings.Strange:
        return {}


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "os.path.join": _joined,
    "yaml.load": _loaded,
    "yaml.safe_load": _loaded,
    "yaml.full_load": _loaded,
    "yaml.unsafe_load": _loaded,
    "json.load": _loaded,
    "omegaconf.OmegaConf.load": _loaded_dict,
    "omegaconf.OmegaConf.to_container": _plain,
    **dict.fromkeys(DICTS, _dict),
}
METHODS: dict[str, Callable[..., Value]] = {"read": _text, "close": _closed}

__all__ = ["FUNCTIONS", "METHODS", "OPEN", "attributed", "named", "opened", "told", "value"]
