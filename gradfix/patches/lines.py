"""A line of Python for comparison: its tokens, what was renamed, how it is indented.

By line and by pattern, not by the tokenizer: the lines of a hunk are no whole program.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

_TOKEN = re.compile(
    r"""(?P<string>[A-Za-z]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))"""
    r"""|(?P<comment>\#.*)|(?P<name>[^\W\d]\w*)|(?P<number>\.?\d(?:[eE][+-]|[\w.])*)|(?P<other>\S)"""
)
_MARKER = re.compile(r"# %% cell \d+$")
Names = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Line:
    """`kind`: code, comment, blank, or marker (of a notebook's cell). `tokens` are (kind, text): a ``name``, an
    ``attribute`` that is not called, or what must be the same to be equal; `space` stands before the `comment`."""

    indent: str
    kind: str
    tokens: tuple[tuple[str, str], ...] = ()
    space: str = ""
    comment: str = ""

    @property
    def used(self) -> tuple[str, ...]:
        """The names in it, attributes with a dot before."""
        return tuple(_key(kind, text) for kind, text in self.tokens if kind != "fixed")

    def spelled(self, names: Names) -> str:
        """Its code with single spaces, names as `names` has them."""
        return " ".join(_renamed(kind, text, names) for kind, text in self.tokens)


@lru_cache(maxsize=65536)
def lexed(text: str) -> Line:
    """One line, without its end."""
    body = text.lstrip(" \t\f")
    indent = text[: len(text) - len(body)]
    if not body.strip():
        return Line(indent, "blank")
    if _MARKER.match(text):
        return Line("", "marker")
    found = list(_TOKEN.finditer(body))
    comment = found.pop() if found[-1].lastgroup == "comment" else None
    space = ""
    if comment is not None and found:
        space = body[found[-1].end() : comment.start()]
    tokens = tuple(_token(m, body) for m in found)
    said = comment[0].rstrip() if comment is not None else ""
    return Line(indent, "code" if tokens else "comment", tokens, space, said)


def _token(m: re.Match[str], body: str) -> tuple[str, str]:
    if m.lastgroup != "name" or keyword.iskeyword(m[0]):
        return "fixed", m[0]
    if not body[: m.start()].rstrip().endswith("."):
        return "name", m[0]
    called = body[m.end() :].lstrip().startswith("(")
    return ("fixed" if called else "attribute"), m[0]  # another method is another meaning


def _key(kind: str, text: str) -> str:
    return f".{text}" if kind == "attribute" else text


def _renamed(kind: str, text: str, names: Names) -> str:
    return text if kind == "fixed" else names.get(_key(kind, text), _key(kind, text)).removeprefix(".")


def renames(old: Sequence[str], now: Sequence[str]) -> dict[str, str] | None:
    """How the names of `old` are called in `now`, the same lines but for names, comments and indentation; None where
    they are not the same."""
    names: dict[str, str] = {}
    if len(old) != len(now):
        return None
    for a, b in zip(map(lexed, old), map(lexed, now), strict=True):
        if a.kind != b.kind or len(a.tokens) != len(b.tokens):
            return None
        for (kind, was), (other, is_) in zip(a.tokens, b.tokens, strict=True):
            if kind != other or (kind == "fixed" and was != is_):
                return None
            if kind != "fixed" and names.setdefault(_key(kind, was), _key(kind, is_)) != _key(kind, is_):
                return None
    return names if len(set(names.values())) == len(names) else None


def rename(text: str, names: Names) -> str:
    """`text` with its names as `names` has them."""
    line = lexed(text)
    if not any(names.get(name, name) != name for name in line.used):
        return text
    out, at, tokens = [], len(line.indent), iter(line.tokens)
    out.append(line.indent)
    for m in _TOKEN.finditer(text, at):
        out.append(text[at : m.start()])
        at = m.end()
        out.append(m[0] if m.lastgroup == "comment" else _renamed(*next(tokens), names))
    return "".join(out) + text[at:]


def quoted(text: str, name: str) -> bool:
    """Whether a formatted string of the line `text` speaks of `name`."""
    strings = (m[0] for m in _TOKEN.finditer(text) if m.lastgroup == "string" and m[0][0] in "fFrR")
    return any(re.search(rf"\b{re.escape(name.lstrip('.'))}\b", x) for x in strings)


@dataclass(frozen=True, slots=True)
class Indents:
    """How lines are indented now that were indented otherwise: (old, new) indentations of lines that are the same
    (`known`), and what one level more is (`unit`, "" where that differs) and was
    (`was`)."""

    known: Mapping[str, str]
    was: str
    unit: str

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], was: str, unit: str) -> Indents | None:
        """None where lines that stood alike do not any more."""
        known: dict[str, str] = {}
        for old, now in pairs:
            if known.setdefault(old, now) != now:
                return None
        return cls(known, was, unit)

    def moved(self, text: str) -> str | None:
        """`text` as it is indented there; None where that can't be told."""
        line = lexed(text)
        if line.kind in ("blank", "marker"):
            return text
        new = self._new(line.indent)
        return None if new is None else new + text[len(line.indent) :]

    def _new(self, indent: str) -> str | None:
        if indent in self.known:
            return self.known[indent]
        for old in sorted(self.known, key=len, reverse=True):
            now = self.known[old]
            if indent.startswith(old):
                more = self._levels(indent[len(old) :])
                return None if more is None else now + more
            if old.startswith(indent):
                less = self._levels(old[len(indent) :])
                return now.removesuffix(less) if less is not None and now.endswith(less) else None
        return indent if not self.known and self.was == self.unit else None

    def _levels(self, more: str) -> str | None:
        """So many levels as they are now."""
        if self.was == self.unit:
            return more
        count = len(more) // len(self.was) if self.was and self.unit else 0
        return self.unit * count if more == self.was * count else None


def level(lines: Iterable[str]) -> str:
    """What one level more is indented by in `lines`, going by the least step that there is."""
    indents = sorted({lexed(x).indent for x in lines if lexed(x).kind == "code"}, key=len)
    steps = [b[len(a) :] for a, b in pairwise(indents) if b.startswith(a)]
    return min(steps, key=len, default="")
