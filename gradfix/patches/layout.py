"""A text as who lays it out as a hunk does would have written it: statements that were wrapped, or put in parentheses,
stand in it as the hunk has them, and assertions and prints that came in are left out.

Lines are compared in that text; what is put in then goes into the text itself, in which only the statements that are
changed get the hunk's layout.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradfix.patches.fit import Text
from gradfix.patches.lines import lexed, rename
from gradfix.patches.uses import TOLD
from gradfix.patches.values import Hunk

LONGEST = 40  # lines of a statement
LOOKS = {
    "all",
    "any",
    "abs",
    "max",
    "min",
    "sum",
    "round",
    "type",
    "hasattr",
    "list",
    "tuple",
    "set",
    "sorted",
}
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
Lines = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """Lines `start` to `end` of the text as it is compared, which are `first` to `last` of the text itself (from 0, the
    ends exclusive)."""

    start: int
    end: int
    first: int
    last: int


class Laid(Text):
    """`whole`, laid out otherwise in `blocks`."""

    def __init__(self, lines: Sequence[str], whole: Sequence[str], blocks: Sequence[Block]) -> None:
        super().__init__("\n".join(lines))
        self.whole = list(whole)
        self._blocks = blocks
        self._starts = [block.start for block in blocks]

    def number(self, line: int) -> int:
        """The line of the text itself, from 0, that `line` is, or belongs to."""
        at = bisect_right(self._starts, line) - 1
        if at < 0:
            return line
        block = self._blocks[at]
        return block.first if line < block.end else block.last + line - block.end

    def left_out(self, start: int, end: int) -> list[tuple[int, Lines]]:
        """What was left out among these lines, each with the line before which it stands."""
        inside = [b for b in self._blocks if b.start == b.end and start < b.start < end]
        return [(b.start, tuple(self.whole[b.first : b.last])) for b in inside]

    def real(self, start: int, end: int, new: Sequence[str]) -> tuple[int, int, Lines]:
        """What is to be put in the place of which lines of the text itself."""
        head: list[str] = []
        tail: list[str] = []
        first = self.number(start)
        last = self.number(end - 1) + 1 if end > start else first
        for block in self._blocks:
            if block.start < start < block.end:
                head, first = self.lines[block.start : start], block.first
            if block.start < end < block.end:
                tail = self.lines[end : block.end]
            if block.start < end <= block.end and (end > start or block.start < start):
                last = block.last
        return first, last, (*head, *new, *tail)


def laid_out(hunks: Iterable[Hunk], text: str) -> Laid | None:
    """`text` in the layout of the hunks; None where it has that already."""
    known: dict[str, list[tuple[ast.stmt, Lines]]] = {}
    for hunk in hunks:
        for middle in (hunk.old, hunk.new):
            for node, said in _parsed((*hunk.before, *middle, *hunk.after)):
                known.setdefault(_shape(node), []).append((node, said))
    whole = text.split("\n")
    lines: list[str] = []
    blocks: list[Block] = []
    at = 0
    for first, last, node, alone in _statements(text):
        if first < at:
            continue
        layouts = known.get(_shape(node))
        new: Lines | None = () if _only_looks(node) and not alone else None
        if layouts:
            new = _as_laid(node, whole[first:last], layouts)
        if new is not None:
            lines += whole[at:first]
            blocks.append(Block(len(lines), len(lines) + len(new), first, last))
            lines += new
            at = last
    return Laid([*lines, *whole[at:]], whole, blocks) if blocks else None


def _only_looks(node: ast.stmt) -> bool:
    """Whether a statement is an assertion, or a print, that does nothing to what it is about."""
    if isinstance(node, ast.Expr):
        call = node.value
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"):
            return False
    elif not isinstance(node, ast.Assert):
        return False
    calls = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    return not any(
        isinstance(each, ast.NamedExpr | ast.Await | ast.Yield) for each in ast.walk(node)
    ) and all(
        (isinstance(func, ast.Name) and func.id in TOLD | LOOKS)
        or (isinstance(func, ast.Attribute) and not func.attr.endswith("_"))
        for func in calls
    )


def with_what_looks(edits: Sequence[tuple[int, int, Lines]], text: Text) -> list[Lines] | None:
    """The new lines of all edits with what was left out among the old ones, each after the line that it stood behind;
    None where that is not one line, or the names it reads may have other values there."""
    out = [list(new) for _, _, new in edits]
    changed = _bound(x for start, end, new in edits for x in (*text.lines[start:end], *new))
    for start, end, _ in edits:
        for at, said in reversed(text.left_out(start, end)):
            before = text.lines[at - 1]
            places = [
                (lines, n)
                for lines in out
                for n, x in enumerate(lines)
                if x.split("  #")[0] == before.split("  #")[0]
            ]
            reads = _words(said)
            if (
                len(places) != 1
                or lexed(said[0]).indent != lexed(before).indent
                or not (reads & changed) <= _bound([before])
            ):
                return None
            lines, n = places[0]
            lines[n + 1 : n + 1] = said
    return [tuple(lines) for lines in out]


def pieces(first: int, lines: Sequence[str], but: Iterable[Lines]) -> list[tuple[int, int]]:
    """The ranges that `lines` make, which begin in line `first`, without those of `but`."""
    out = [first]
    at = 0
    while at < len(lines):
        there = next((some for some in but if tuple(lines[at : at + len(some)]) == some), ())
        out += [first + at, first + at + len(there)] if there else []
        at += len(there) or 1
    out.append(first + len(lines))
    found = list(zip(out[::2], out[1::2], strict=True))
    return [(start, end) for start, end in found if start < end] or found[:1]


def _words(lines: Iterable[str]) -> set[str]:
    return {said for line in lines for kind, said in lexed(line).tokens if kind == "name"}


def _bound(lines: Iterable[str]) -> set[str]:
    """The names that stand on the left of a ``=`` in these lines, whatever becomes of them; all of them where a line is
    no assignment or call."""
    out: set[str] = set()
    for line in lines:
        node = _statement((line.strip(),)) if line.strip() else None
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            out |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif not isinstance(node, ast.Expr):
            out |= _words([line])
    return out


def _as_laid(node: ast.stmt, there: Sequence[str], layouts: Iterable[tuple[ast.stmt, Lines]]) -> Lines | None:
    """The lines of a statement in one of the layouts; None where it has one, or none can be given to it."""
    tokens = [_tokens(line) for line in there]
    found: Lines | None = None
    for was, said in layouts:
        names = _renamed(was, node)
        lines = tuple(rename(line, names) for line in said) if names is not None else ()
        if not lines or _head(lines) != ast.dump(_alone(node)):
            continue
        if [_tokens(line) for line in lines] == tokens:
            return None
        found = found or lines
    if found is None:
        return None
    indent, last = lexed(there[0]).indent, lexed(there[-1])
    *above, end = [indent + line if line else line for line in found]
    code = end[: len(end) - len(lexed(end).comment)].rstrip()
    return (*above, f"{code}{last.space or '  '}{last.comment}" if last.comment else code)


def _tokens(line: str) -> tuple[tuple[str, str], ...]:
    """What a line says, whatever its names are."""
    return tuple((kind, said if kind == "fixed" else "") for kind, said in lexed(line).tokens)


def _parsed(lines: Lines) -> Iterator[tuple[ast.stmt, Lines]]:
    """The statements (of compound ones, the heads) that can be parsed by themselves, with their lines without the
    indentation of the first."""
    at = 0
    while at < len(lines):
        first = lexed(lines[at])
        for end in range(at + 1, min(at + LONGEST, len(lines)) + 1) if first.kind == "code" else ():
            some = lines[at:end]
            if any(x and not x.startswith(first.indent) for x in some):
                break
            said = tuple(x.removeprefix(first.indent) for x in some)
            node = _statement(said)
            if node is not None:
                yield node, said
                at = end - 1
                break
        at += 1


def _statement(lines: Lines) -> ast.stmt | None:
    """The one statement, or head of one, that `lines` are; no text of several lines in it."""
    code = "\n".join(lines)
    for more in ("", "\n pass"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                body = ast.parse(code + more).body
        except UNREADABLE:
            continue
        node = body[0] if len(body) == 1 else None
        if node is None or _long_text(code) or (more and not isinstance(getattr(node, "body", None), list)):
            return None
        return node
    return None


def _head(lines: Lines) -> str:
    node = _statement(lines)
    return ast.dump(_alone(node)) if node is not None else ""


def _alone(node: ast.stmt) -> ast.stmt:
    """A statement without those in it."""
    if not isinstance(getattr(node, "body", None), list):
        return node
    fields = dict(ast.iter_fields(node))
    inner = {"body": [ast.Pass()], "orelse": [], "finalbody": [], "handlers": [], "cases": []}
    return type(node)(**{name: inner.get(name, value) for name, value in fields.items()})


def _shape(node: ast.stmt) -> str:
    """The same for statements that differ in names only."""
    return ",".join(type(each).__name__ for each in ast.walk(_alone(node)))


def _renamed(was: ast.stmt, now: ast.stmt) -> dict[str, str] | None:
    """How the names of `was` are called in `now`, which has the same shape; None where that is not one and the same."""
    names: dict[str, str] = {}
    for old, new in zip(ast.walk(_alone(was)), ast.walk(_alone(now)), strict=False):
        pair = ("", "")
        if isinstance(old, ast.Name) and isinstance(new, ast.Name):
            pair = (old.id, new.id)
        elif isinstance(old, ast.Attribute) and isinstance(new, ast.Attribute):
            pair = (f".{old.attr}", f".{new.attr}")
        if names.setdefault(*pair) != pair[1]:
            return None
    return names if len(set(names.values())) == len(names) else None


def _statements(text: str) -> Iterator[tuple[int, int, ast.stmt, bool]]:
    """The statements of a text (of compound ones, the heads) in order, that share no line with another and hold neither
    a comment between their lines nor a text of several: their lines, and whether they are alone in their block."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except UNREADABLE:
        return
    lines = text.split("\n")
    found: list[tuple[int, int, ast.stmt, bool]] = []
    for parent in ast.walk(tree):
        bodies = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
        for body in (some for some in bodies if isinstance(some, list)):
            nodes = [node for node in body if isinstance(node, ast.stmt)]
            found += [(*_lines_of(node, lines), node, len(nodes) == 1) for node in nodes]
    used: dict[int, int] = {}
    for first, last, _, _ in found:
        for line in range(first, last):
            used[line] = used.get(line, 0) + 1
    for first, last, node, alone in sorted(found, key=lambda x: x[:2]):
        said = "\n".join(lines[first:last])
        own = all(used[line] == 1 for line in range(first, last))
        if (
            own
            and last - first <= LONGEST
            and first < last
            and not _inner_comment(said)
            and not _long_text(said)
        ):
            yield first, last, node, alone


def _lines_of(node: ast.stmt, lines: Sequence[str]) -> tuple[int, int]:
    """From 0, the end exclusive; none of what is decorated, or an ``elif``."""
    first, last = node.lineno - 1, node.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list):
        inner = body[0]
        last = min([inner.lineno, *(d.lineno for d in getattr(inner, "decorator_list", ()))]) - 1
        while last > first and lexed(lines[last - 1]).kind != "code":
            last -= 1
    if getattr(node, "decorator_list", None) or lines[first].lstrip().startswith("elif"):
        return first, first
    return first, last


def _inner_comment(code: str) -> bool:
    """Whether a comment stands in it before its last line."""
    last = code.count("\n") + 1
    return any(t.type == tokenize.COMMENT and t.start[0] < last for t in _tokenized(code))


def _long_text(code: str) -> bool:
    """Whether a token of it, as a text in three quotes, goes over several lines."""
    return any(
        t.start[0] != t.end[0] for t in _tokenized(code) if t.type not in (tokenize.NEWLINE, tokenize.NL)
    )


def _tokenized(code: str) -> Iterator[tokenize.TokenInfo]:
    try:
        yield from tokenize.generate_tokens(io.StringIO(code.lstrip() + "\n").readline)
    except (tokenize.TokenError, SyntaxError):  # a head without its block; what came before has been said
        return
