"""Settings as programs keep them in files: YAML as far as settings use it, JSON, and lines of ``name = value``."""

from __future__ import annotations

import re
from typing import Any

DEEPEST = 20  # values inside one another
LONGEST = 200_000  # characters of a file of settings
WIDEST = 2_000  # characters of a line
LINES = 200  # that one value goes on over

# as PyYAML tells numbers from strings: 1e-4 is a string to it
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))"
)
_OCTAL = re.compile(r"[-+]?0[0-7_]+")
_ODD = re.compile(
    r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?|\d{4}-\d\d?-\d\d?.*|[-+]?0[xb][0-9a-fA-F_]+|<<|="
)
_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}  # fmt: skip
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'")
_KEY = re.compile(r"(\"[^\"]*\"|'[^']*'|[^\s\[\]{},#&*!|>'\"%@`-][^#:]*?|-?\d+)\s*:(?:\s+|$)")
_SETTING = re.compile(r"(?:--)?([A-Za-z_][\w-]*)(?:[ \t]*[=:]|[ \t])[ \t]*(\S.*)")
_SWITCH = re.compile(r"(?:--)?([A-Za-z_]\w*)")


class Strange(ValueError):
    """What this does not read: tags, anchors, several documents, text that goes on over lines."""


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
    return _Block(text).whole()


def settings(text: str) -> dict[str, Any]:
    """The settings of a file of lines ``name = value``."""
    out: dict[str, Any] = {}
    for line in text[:LONGEST].split("\n"):
        said = line.split("#")[0].split(";")[0].strip()
        found = _SETTING.fullmatch(said) if len(said) < WIDEST else None
        if found is not None:
            out[found[1].replace("-", "_")] = scalar(found[2])
        elif _SWITCH.fullmatch(said):
            out[said.lstrip("-")] = True
    return out


def scalar(text: str) -> Any:
    """A plain or quoted value on one line."""
    if text[:1] in ("[", "{"):
        return _Flow(text).whole()
    if text[:1] in ("'", '"'):
        if _QUOTED.fullmatch(text) is None:
            raise Strange(text)
        inner = text[1:-1]
        return inner.replace("''", "'") if text[0] == "'" else inner.replace('\\\\"', '"')
    if text[:1] in "&*!|>%@`" and text:
        raise Strange(text)
    if text in _WORDS:
        return _WORDS[text]
    if _ODD.fullmatch(text):
        raise Strange(text)  # times, dates, and what merges
    if _OCTAL.fullmatch(text):
        return int(text.replace("_", ""), 8)
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    return float(text.replace("_", "").replace(".inf", "inf")) if _FLOAT.fullmatch(text) else text


class _Block:
    """Mappings and sequences by indentation."""

    def __init__(self, text: str) -> None:
        self.lines: list[tuple[int, str]] = []
        for raw in text.replace("\r\n", "\n").lstrip("\ufeff").split("\n"):
            if len(raw) > WIDEST:
                raise Strange("too wide")
            line = _bare(raw).rstrip()
            if line and line != "---" and not line.startswith("%"):
                if "\t" in line[: len(line) - len(line.lstrip())]:
                    raise Strange("tab")
                self.lines.append((len(line) - len(line.lstrip(" ")), line.strip()))
        self.at = 0

    def whole(self) -> Any:
        value = self.value(0, 0) if self.lines else None
        if self.at < len(self.lines):
            raise Strange(self.lines[self.at][1])
        return value

    def value(self, least: int, depth: int) -> Any:
        """What begins at the next line, if that is indented by `least` at least."""
        if depth > DEEPEST:
            raise Strange("too deep")
        if self.at == len(self.lines) or self.lines[self.at][0] < least:
            return None
        indent, line = self.lines[self.at]
        if line == "-" or line.startswith("- "):
            return self.sequence(indent, depth)
        if _KEY.match(line):
            return self.mapping(indent, depth)
        return scalar(self.joined(line))

    def joined(self, first: str) -> str:
        """A flow value that may go on over lines."""
        begin = self.at
        self.at += 1
        text = first
        if first[:1] in ("[", "{"):
            while not _closed(text) and self.at < len(self.lines):
                text += " " + self.lines[self.at][1]
                self.at += 1
                if self.at - begin > LINES:
                    raise Strange(first)
        return text

    def sequence(self, indent: int, depth: int) -> list[Any]:
        out: list[Any] = []
        while self.at < len(self.lines) and self.lines[self.at][0] == indent:
            line = self.lines[self.at][1]
            if line == "-":
                self.at += 1
                out.append(self.value(indent + 1, depth + 1))
                continue
            if not line.startswith("- "):
                break
            rest = line[2:].lstrip()
            inner = indent + len(line) - len(rest)
            self.lines[self.at] = (inner, rest)
            out.append(self.value(inner, depth + 1))
        return out

    def mapping(self, indent: int, depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        while self.at < len(self.lines) and self.lines[self.at][0] == indent:
            found = _KEY.match(self.lines[self.at][1])
            if found is None:
                raise Strange(self.lines[self.at][1])
            rest = self.lines[self.at][1][found.end() :]
            if rest:
                value = scalar(self.joined(rest))
            else:
                self.at += 1
                dashed = self.at < len(self.lines) and self.lines[self.at][1].startswith("-")
                value = self.value(indent + (not dashed), depth + 1)
            out[scalar(found[1])] = value
        if self.at < len(self.lines) and self.lines[self.at][0] > indent:
            raise Strange(self.lines[self.at][1])
        return out


def _bare(line: str) -> str:
    """Without its comment."""
    if "#" not in line:
        return line
    hidden = _QUOTED.sub(lambda found: "_" * len(found[0]), line)
    found = _COMMENT.search(hidden)
    return line if found is None else line[: found.start()]


def _closed(text: str) -> bool:
    plain = _QUOTED.sub("", text)
    return plain.count("[") + plain.count("{") <= plain.count("]") + plain.count("}")


class _Flow:
    """``[a, b]`` and ``{a: 1}``."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def whole(self) -> Any:
        value = self.value(0)
        if self.text[self.at :].strip():
            raise Strange(self.text)
        return value

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise Strange("too deep")
        opened = self.peek()
        if opened not in ("[", "{"):
            return scalar(self.plain(",]}"))
        self.at += 1
        items: list[Any] = []
        pairs: dict[Any, Any] = {}
        while (char := self.peek()) not in ("]", "}"):
            if char == "":
                raise Strange(self.text)
            if opened == "{":
                key = scalar(self.plain(":,}"))
                if self.peek() == ":":
                    self.at += 1
                pairs[key] = self.value(depth + 1)
            else:
                items.append(self.value(depth + 1))
            if self.peek() == ",":
                self.at += 1
            elif self.peek() not in ("]", "}"):
                raise Strange(self.text)
        self.at += 1
        return items if opened == "[" else pairs

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def plain(self, ends: str) -> str:
        self.peek()
        quoted = _QUOTED.match(self.text, self.at)
        if quoted is not None:
            self.at = quoted.end()
            return quoted[0]
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            self.at += 1
        return self.text[begin : self.at].strip()
