"""Where else a program looks for its modules: the folders that its text puts on ``sys.path``, without running it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

MOST = 12  # folders that one file adds
IMPORTED = re.compile(r"\nimport +([\w.]*paths?)\b")  # modules that are there to add some
# each begins with the words it looks for: that is found many times as fast
_ADDS = tuple(
    map(
        re.compile,
        (r"sys(?<!\wsys)\.path\.(?:append|insert|extend)\(([^\n]*)", r"add_path(?<!\wadd_path)\(([^\n]*)"),
    )
)
_STRING = re.compile(r"[\"']([^\"'\n]*)[\"']")
_NAME = re.compile(r"(?:0\s*,\s*)?([^\W\d]\w*)\s*\)")


def added(path: str, text: str, root: str) -> list[str]:
    """The folders within `root` that the file at `path` may add. What a path is joined to is hardly ever said in the
    same place: it is taken from the file's own folder, and from each around it."""
    found: dict[str, None] = {}
    for line in _lines(text):
        pieces = _STRING.findall(line) or _bound(line, text)
        inner = os.path.join("", *pieces)
        if os.path.isabs(inner) or any(each in inner for each in "{}~\0%"):
            continue
        for folder in _around(os.path.dirname(path), root):
            one = os.path.normpath(os.path.join(folder, inner))
            if one == root or one.startswith(root + os.sep):
                found[one] = None
    return list(found)[:MOST]


def _lines(text: str) -> Iterator[str]:
    """What is added, to the end of its line, in the order of the text; what a comment says is not."""
    end = 0
    for found in sorted((f for each in _ADDS for f in each.finditer(text)), key=lambda f: f.start()):
        if found.start() >= end and "#" not in text[text.rfind("\n", 0, found.start()) + 1 : found.start()]:
            yield found[1]
            end = found.end()


def _bound(line: str, text: str) -> list[str]:
    """The strings in what a name was bound to that is added."""
    named = _NAME.match(line)
    if named is None:
        return []
    said = re.search(rf"^[ \t]*{re.escape(named[1])}[ \t]*=(?!=)([^\n]*)", text, re.M)
    return _STRING.findall(said[1]) if said else []


def _around(folder: str, root: str) -> list[str]:
    out = [folder]
    while folder != root and folder.startswith(root + os.sep):
        folder = os.path.dirname(folder)
        out.append(folder)
    return out
