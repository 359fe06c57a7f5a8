"""A text that changes a little at a time: parsed in parts, each only when its words change."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from dataclasses import dataclass, field

# a statement at the margin that is not the going on of one
_BEGINS = re.compile(r"^(?=[^\s#)\]}])(?!(?:else|elif|except|finally)\b)", re.M)
GONE = 20  # parts that are kept though the text has them no more
_QUOTES = re.compile(r"\"\"\"|'''")


@dataclass(slots=True, eq=False)
class _Part:
    """What stands between two places at the margin; `line` is that of its first line in the file, from 1."""

    text: str
    body: list[ast.stmt]
    line: int = 1
    _nodes: list[ast.AST] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> _Part:
        body = ast.parse(text).body
        nodes = [node for each in body for node in ast.walk(each) if hasattr(node, "lineno")]
        return cls(text, body, 1, nodes)

    def move(self, line: int) -> None:
        by = line - self.line
        if by:
            for node in self._nodes:
                node.lineno += by  # type: ignore[attr-defined]
                node.end_lineno += by  # type: ignore[attr-defined]
            self.line = line

    def same(self, other: _Part) -> bool:
        """Whether both are the same statements at the same places: they differ in comments or blanks alone."""
        self.move(1)
        other.move(1)
        return len(self._nodes) == len(other._nodes) and all(
            ast.dump(a, include_attributes=True) == ast.dump(b, include_attributes=True)
            for a, b in zip(self.body, other.body, strict=True)
        )


@dataclass(slots=True)
class Parts:
    """The parts of the last text of a file that could be parsed. A statement that has not changed is the same object
    in the next tree, wherever it has moved to."""

    _parts: list[_Part] = field(default_factory=list)
    _gone: list[_Part] = field(default_factory=list)  # of texts before it: people undo

    def tree(self, text: str) -> ast.Module:
        """The tree of `text`. Raises what ast.parse raises."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            if "\r" in text:  # lines end otherwise than they are counted here
                return ast.parse(text)
            try:
                self._parts = self._parsed(_cut(text))
            except SyntaxError:
                return ast.parse(text)  # says where; or a part was cut where a statement goes on
        return ast.Module([statement for part in self._parts for statement in part.body], [])

    def _parsed(self, texts: list[str]) -> list[_Part]:
        counts = Counter(texts)
        known: dict[str, list[_Part]] = {}
        gone = []
        for part in self._parts:
            if len(known.get(part.text, ())) < counts[part.text]:
                known.setdefault(part.text, []).append(part)
            else:
                gone.append(part)
        for part in self._gone:
            known.setdefault(part.text, []).append(part)
        found = [known[text].pop(0) if known.get(text) else _Part.of(text) for text in texts]
        old = {id(part) for part in (*self._parts, *self._gone)}
        new = [n for n, part in enumerate(found) if id(part) not in old]
        if len(new) == len(gone):
            for n, before in zip(new, gone, strict=True):
                if before.same(found[n]):
                    before.text, found[n] = found[n].text, before
        used = {id(part) for part in found}
        self._gone = [part for part in (*gone, *self._gone) if id(part) not in used][:GONE]
        line = 1
        for part in found:
            part.move(line)
            line += part.text.count("\n")
        return found


def _cut(text: str) -> list[str]:
    """`text` cut at the margin's statements; decorators stay with what they decorate, long strings whole."""
    starts = [found.start() for found in _BEGINS.finditer(text)]
    out: list[str] = []
    begin, decorated = 0, False
    for start in starts:
        before = text[begin:start]
        if before.strip() and not decorated and not _opens(before):
            out.append(before)
            begin = start
        decorated = text[start] == "@"
    out.append(text[begin:])
    return out


def _opens(text: str) -> bool:
    """Whether a string of several lines may not have ended yet."""
    counts = Counter(_QUOTES.findall(text))
    return any(number % 2 for number in counts.values())
