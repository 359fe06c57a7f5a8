"""``# gradfix: ignore[kind]``: comments that say which faults of a line, or of a file, nobody wants to hear of.

``# gradfix: ignore[kind, kind]`` speaks of the statement it stands in (of a loop or a function: the line that opens
it); alone on its line, of the next one. ``# gradfix: ignore-file[kind]``, alone on its line, speaks of the file.
Without kinds both mean every kind. It is the reported place that counts, as in other tools: not the places the fault
rests on besides.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import lru_cache

from gradfix.dataclass import dataclass
from gradfix.detect.conflict import KINDS, Conflict, Label, Severity
from gradfix.tape import Site
from gradfix.wording import nearest

UNUSED = "unused-ignore"
REPORTED: dict[str, Severity] = {**KINDS, UNUSED: "warning"}  # what a report may speak of

_DIRECTIVE = re.compile(r"#\s*gradfix\s*:\s*([\w-]*)\s*(?:\[([^\]#]*)\]?)?", re.I)
_BETWEEN = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


@dataclass(frozen=True, slots=True)
class Ignore:
    """One comment: the `kinds` it names (none: all) and the lines it speaks of, both inclusive; `last` is None
    where it speaks of the whole file. `wrong` says what it should not hold."""

    kinds: tuple[str, ...]
    first: int
    last: int | None
    line: int
    column: int
    end_column: int
    wrong: str = ""

    def covers(self, kind: str, line: int) -> bool:
        """Whether a fault of `kind` that is reported in `line` is meant."""
        if self.kinds or self.wrong:
            meant = kind in self.kinds
        else:
            meant = kind != UNUSED  # else a bare ignore would hide that it is of no use
        return meant and (self.last is None or self.first <= line <= self.last)


@lru_cache(maxsize=64)
def ignores(text: str) -> tuple[Ignore, ...]:
    """The comments of a file that speak to gradfix, in order."""
    return tuple(_read(text)) if re.search(r"#\s*gradfix\s*:", text, re.I) else ()


def suppressed(conflict: Conflict, text: str) -> bool:
    """Whether a comment in `text`, the file where `conflict` is reported, says not to."""
    return any(ignore.covers(conflict.kind, conflict.at.line) for ignore in ignores(text))


def complaints(path: str, text: str) -> Iterator[Conflict]:
    """The comments that can't be understood, as diagnostics."""
    for ignore in ignores(text):
        if ignore.wrong:
            yield _complaint(path, ignore, ignore.wrong)


def unused(path: str, text: str, found: Iterable[tuple[int, str]]) -> Iterator[Conflict]:
    """The comments, and the kinds in them, that nothing `found` in the file (line, kind) needs, as diagnostics."""
    found = list(found)
    for ignore in ignores(text):
        if ignore.wrong or UNUSED in ignore.kinds:
            continue
        met = {kind for line, kind in found if ignore.covers(kind, line)}
        idle = [kind for kind in ignore.kinds if kind not in met]
        if not met:
            yield _complaint(path, ignore, f"nothing is ignored {_where(ignore)}")
        elif idle:
            yield _complaint(path, ignore, f"no {' and no '.join(idle)} is ignored {_where(ignore)}")


def _where(ignore: Ignore) -> str:
    return "in this file" if ignore.last is None else "here"


def _complaint(path: str, ignore: Ignore, sentence: str) -> Conflict:
    site = Site(path, ignore.line, ignore.column, ignore.line, ignore.end_column)
    return Conflict(UNUSED, REPORTED[UNUSED], sentence, (Label("comment", (site,), "this comment"),))


def _read(text: str) -> Iterator[Ignore]:
    """From the tokens: what looks like a comment inside a string is none."""
    waiting: list[
        tuple[tokenize.TokenInfo, re.Match[str]]
    ] = []  # for the lines of the statement they speak of
    first = 0  # line where the statement begins that is being read; 0 between statements
    last = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                for found in _DIRECTIVE.finditer(token.string):
                    if found[1].lower() == "ignore":
                        waiting.append((token, found))
                    else:
                        yield _ignore(token, found, 1, None, alone=not first)
            elif token.type == tokenize.NEWLINE:
                yield from (_ignore(t, f, first or t.start[0], token.end[0]) for t, f in waiting)
                waiting, first = [], 0
            elif token.type not in _BETWEEN:
                first = first or token.start[0]
            last = token.end[0]
    except (tokenize.TokenError, SyntaxError):
        pass  # a file that is no Python: what was read until there counts
    yield from (_ignore(t, f, first or t.start[0], max(last, t.start[0])) for t, f in waiting)


def _ignore(
    token: tokenize.TokenInfo, found: re.Match[str], first: int, last: int | None, alone: bool = True
) -> Ignore:
    line, start = token.start
    column, end = start + found.start(), start + len(found[0].rstrip()) + found.start()
    kinds = tuple(dict.fromkeys(k.strip() for k in (found[2] or "").split(",") if k.strip()))
    wrong = _misspelt(found, kinds, alone)
    if wrong:
        return Ignore((), first, last, line, column, end, wrong)
    unknown = next((k for k in kinds if k not in REPORTED), None)
    if unknown is not None:  # the others it names still hold
        wrong = f"there is no kind {unknown!r}{nearest(unknown, REPORTED) or ' (see gradfix rules)'}"
    return Ignore(kinds, first, last, line, column, end, wrong)


def _misspelt(found: re.Match[str], kinds: tuple[str, ...], alone: bool) -> str:
    verb = found[1].lower()
    if verb not in ("ignore", "ignore-file"):
        return f"gradfix knows no comment {found[1]!r}{nearest(verb, ['ignore', 'ignore-file'])}"
    if verb == "ignore-file" and not alone:
        return "ignore-file stands alone on its line"
    if found[2] is not None and not kinds:
        return "the brackets name no kind"
    return "" if found[2] is None or found[0].rstrip().endswith("]") else "the bracket is not closed"
