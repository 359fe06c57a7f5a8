"""Odd formatting: the same program with comments, blank lines, semicolons, tabs, CRLF, trailing spaces, non-ASCII."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis.strategies import DrawFn

NAMES = {"data": "données", "state": "zustand_ä", "total": "総和", "net": "сеть", "opt": "øpt"}
COMMENTS = ("# größe?", "#kein Leerzeichen", "#  → x @ w", "# TODO: 直す  ", "# type: ignore")


@st.composite
def oddly(draw: DrawFn, text: str) -> tuple[str, str]:
    """(`text` with other names, the same program in an odd format)."""
    for old, new in NAMES.items():
        if draw(st.booleans()):
            text = re.sub(rf"(?<![.\w]){old}\b(?!\w|=)", new, text)
    return text, draw(formatted(text))


@st.composite
def formatted(draw: DrawFn, text: str) -> str:
    tabs, crlf, bom = draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 9)) == 9
    lines: list[str] = []
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        how = draw(
            st.sampled_from(("",) * 6 + ("comment", "above", "blank", "spaces", "join", "tight", "wide"))
        )
        before = lines[-1] if lines else ""
        if line.strip():
            if how == "comment":
                line += "  " + draw(st.sampled_from(COMMENTS))
            elif how == "above":
                lines.append(indent + draw(st.sampled_from(COMMENTS)))
            elif how == "blank":
                lines.append(indent if draw(st.booleans()) else "")
            elif how == "spaces":
                line += "   "
            elif how == "join" and _joins(before, line, indent):
                lines[-1] = before.rstrip() + draw(st.sampled_from(("; ", ";", " ;  "))) + line.strip()
                continue
            elif how == "tight":
                line = line.replace(", ", ",")
            elif how == "wide":
                line = line.replace(" = ", "   =  ", 1)
        lines.append(line)
    if tabs:
        lines = [_tabbed(line) for line in lines]
    return ("\ufeff" if bom else "") + ("\r\n" if crlf else "\n").join(lines) + ("\r\n" if crlf else "\n")


def _joins(before: str, line: str, indent: str) -> bool:
    """Whether both lines are simple statements of one block."""
    simple = not any(x.rstrip().endswith(":") or "#" in x or not x.strip() for x in (before, line))
    return (
        simple
        and before.startswith(indent)
        and not before[len(indent) :].startswith((" ", "\t", "with", "for"))
    )


def _tabbed(line: str) -> str:
    body = line.lstrip(" ")
    return "\t" * ((len(line) - len(body)) // 4) + body


# ---- what must have been kept


def comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text.removeprefix("\ufeff")).readline)
    return Counter(t.string.rstrip() for t in tokens if t.type == tokenize.COMMENT)


def disturbed(before: str, after: str) -> list[str]:
    """Lines of `before` that `after` lacks although every statement on them is still there as it was; a line of several
    may be split where others come between them (and of statements alike, nobody can say which those are). A line that
    was changed where it stands may have its old text elsewhere, written anew. Of the blank lines above and below a
    statement that is taken away, one is left."""
    follows = {*_neighbours(after)}
    written = Counter(_statements(before))
    gone = written - Counter(_statements(after))
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    removed, added = [], Counter[str]()
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            removed += [
                line
                for n, line in enumerate(old[i:j], i)
                if not _changed(line, new[k:m], written) and not _doubled(old, n, range(i, j))
            ]
            added += Counter(x.lstrip(" \t") for x in new[k:m])
    found = []
    for line in removed:
        moved = line.lstrip(" \t")
        if added[moved]:
            added[moved] -= 1
        elif any(s in gone for s in _statements(moved)) or _header(moved):
            continue
        elif follows.issuperset(_neighbours(moved)):
            alike = ";" in moved and any(written[s] > 1 for s in _statements(moved))
            found += [] if alike else [line]
    return found


def _changed(line: str, instead: list[str], written: Counter[str]) -> bool:
    """Whether one of the lines that stand there now is `line` with a statement that was nowhere before."""
    alike = get_close_matches(line, [x for x in instead if x != line], cutoff=0.6)
    return any(s not in written for x in alike for s in _statements(x.lstrip(" \t")))


def _doubled(old: list[str], n: int, gone: range) -> bool:
    """Whether line `n` is blank and so is the one beyond the statement beside it, which goes, too."""
    blank = [not old[k].strip() if 0 <= k < len(old) else False for k in (n - 2, n, n + 2)]
    return blank[1] and ((blank[0] and n - 1 in gone) or (blank[2] and n + 1 in gone))


def _header(line: str) -> bool:
    return line.split("#")[0].rstrip().endswith(":")


def _statements(text: str) -> Iterator[str]:
    """Every simple statement as Python reads it."""
    for node in _nodes(text):
        if _simple(node):
            yield ast.dump(node)


def _neighbours(text: str) -> Iterator[tuple[str, str]]:
    """Every two simple statements of which one comes right after the other in the same block."""
    for node in _nodes(text):
        for block in (value for _, value in ast.iter_fields(node) if isinstance(value, list)):
            for one, other in pairwise(block):
                if _simple(one) and _simple(other):
                    yield ast.dump(one), ast.dump(other)


def _nodes(text: str) -> Iterator[ast.AST]:
    try:
        yield from ast.walk(ast.parse(text.removeprefix("\ufeff")))
    except SyntaxError:
        return


def _simple(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt) and not hasattr(node, "body")


def one_ending(text: str) -> bool:
    """Whether all lines end alike."""
    return "\r\n" not in text or text.count("\n") == text.count("\r\n")
