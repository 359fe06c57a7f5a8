"""One file's hunks into a text that may have changed: each where it belongs, or none of them.

A hunk is only placed where its lines are (but for names that were changed throughout, comments and indentation), where
what stands around them still does, and where no other place fits nearly as well. What the fix brings in is then called
and indented as the text has it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from diff_match_patch import diff_match_patch

from gradfix.patches.fit import SLACK, Place, Text, places, rival
from gradfix.patches.flow import Doubt, differs
from gradfix.patches.layout import laid_out, pieces, with_what_looks
from gradfix.patches.lines import Indents, Names, level, lexed, quoted, rename, renames
from gradfix.patches.make import digest
from gradfix.patches.names import Bindings
from gradfix.patches.undone import undone
from gradfix.patches.values import FilePatch, Hunk, Sides

FITS = 0.6  # of the lines around a place must be left
CLEAR = 0.2  # by so much a place must fit better than any other
COPY = 0.15  # by so much others may fit better than they did in the source
LOST = "can't be found any more"
NOT_KNOWN = "it has changed, and what the fix's lines had to do with the others is not known"
NEAR, WINDOW = 32, 20_000  # characters of a line that is looked for, and where


class Refused(Exception):
    """Why a fix is not applied; a sentence without its full stop that begins with a file's name."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The new text, and of each hunk the line (from 1) it was made for and the one it went to; 0 where the text has it
    already. `doubt` says where the values of its lines go other ways than they did: only a run can tell then.

    Where it is `open`, who follows the program may know, too: something came in `beside` its lines (flow.Doubt), or
    they are at no other place, and the text around them does not tell this one from others."""

    text: str
    lines: tuple[tuple[int, int], ...]
    doubt: str = ""
    open: bool = False
    beside: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())

    @property
    def already(self) -> bool:
        """Whether there was nothing to do."""
        return not any(line for _, line in self.lines)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A hunk at its place; `names` are all that it uses as they are called there. `done`: nothing is left to do.
    `doubt`: why it may belong elsewhere near by, `around`: or elsewhere at all."""

    hunk: Hunk
    place: Place
    names: Names
    done: bool = False
    doubt: str = ""
    around: str = ""


def place(file: FilePatch, text: str) -> Placed:
    """The hunks of `file` in `text`. Raises Refused."""
    if digest(text) == file.sha256:
        return _as_made(file, text)
    if _is_there(file, text):
        return Placed(text, tuple((hunk.line, 0) for hunk in file.hunks))
    return _anywhere(file, text)


def _as_made(file: FilePatch, text: str) -> Placed:
    """The hunks in the very text that they were made from. Raises Refused."""
    spots = [_exact(hunk, text.split("\n"), file.path) for hunk in file.hunks]
    return _edited(spots, Text(text), file.path, None, exact=True)


def _is_there(file: FilePatch, text: str) -> bool:
    """Whether `text` is what the hunks make of what it is without them."""
    found = undone(file, text)
    if found is None:
        return False
    was, alone = found
    try:
        if digest(was) == file.sha256:
            return _as_made(file, was).text == text
        again = _anywhere(file, was) if alone else None
    except Refused:
        return False
    return again is not None and again.text == text and not again.doubt


def _anywhere(file: FilePatch, text: str) -> Placed:
    """The hunks in a text that is not the one they were made from. Raises Refused."""
    found: Placed | Refused
    try:
        found = _found(file, Text(text))
    except Refused as why:
        found = why
    if isinstance(found, Refused) or found.doubt:
        found = _otherwise_laid_out(file, text, found)
    if isinstance(found, Refused):
        raise found
    return found


def _otherwise_laid_out(file: FilePatch, text: str, found: Placed | Refused) -> Placed | Refused:
    """What comes of `file` where the statements are laid out as the fix's source has them; `found` where that is no
    better: a place that is only doubted because the lines around it are broken otherwise has nothing to be doubted."""
    laid = laid_out(file.hunks, text)
    if laid is None:
        return found
    try:
        other = _found(file, laid)
    except Refused as why:
        return found if isinstance(found, Placed) or LOST in str(why) else why
    return found if isinstance(found, Placed) and other.doubt else other


def _found(file: FilePatch, lines: Text) -> Placed:
    """The hunks in a text that has changed. Raises Refused."""
    name = file.path
    try:
        bindings = Bindings.of("\n".join(lines.lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Refused(f"{name} has changed, and can't be parsed as it is") from None
    known = _throughout(file.hunks, lines)
    spots = [_spot(hunk, lines, bindings, name, known) for hunk in file.hunks]
    _in_order(spots, bindings, name)
    return _edited(spots, lines, name, file.flow)


def _exact(hunk: Hunk, lines: list[str], name: str) -> _Spot:
    start = hunk.line - 1
    if tuple(lines[start : start + len(hunk.old)]) != hunk.old or start > len(lines):
        raise Refused(
            f"{name} is the file that the fix was made from, and its line {hunk.line} is not the fix's"
        )
    return _Spot(hunk, Place(start, start + len(hunk.old), {}, 1.0), {})


# ---- where


def _throughout(hunks: Sequence[Hunk], text: Text) -> Names:
    """The names that are nowhere any more, and called one and the same wherever a hunk may belong."""
    seen: dict[str, set[str]] = {}
    for hunk in hunks:
        for found in places(hunk, text):
            for old, now in found.names.items():
                seen.setdefault(old, set()).add(now)
    return {old: next(iter(now)) for old, now in seen.items() if len(now) == 1 and old not in text.used}


def _spot(hunk: Hunk, text: Text, bindings: Bindings, name: str, known: Names) -> _Spot:
    """The one place for `hunk`; `known` are names that are others in all of the text. Raises Refused."""
    if not hunk.names and any(lexed(x).used for x in (*hunk.old, *hunk.new)):
        raise Refused(f"{name} has changed, and the fix can only be placed in the very file it was made from")
    said: list[str] = []
    spots = list(_possible(hunk, text, bindings, None, said, known))
    if spots:
        return _clearest(spots, hunk, text, name, _once(hunk, text))
    applied = [
        s
        for s in _possible(hunk, text, bindings, hunk.new, [], known)
        if None not in _beside(hunk, text, s.place)
    ]
    if applied:
        return _clearest(applied, hunk, text, name, False)
    what = _said(hunk)
    if said:
        raise Refused(f"{name}: {what}: {said[0]}")
    raise Refused(f"{name}: {what} {LOST}{_nearest(hunk, text)}")


def _once(hunk: Hunk, text: Text) -> bool:
    """Whether no two places of the hunk's lines say the same, whatever their names are."""
    said = [tuple(lexed(here).spelled({}) for _, here in found.pairs) for found in places(hunk, text)]
    return len(set(said)) == len(said)


def _said(hunk: Hunk) -> str:
    """The hunk as a sentence speaks of it."""
    first = next((x for x in hunk.old if lexed(x).kind == "code"), None)
    if first is not None:
        return f"`{first.strip()}` (line {hunk.line} of the source of the fix)"
    beside = next((x for x in hunk.before[::-1] if lexed(x).kind == "code"), "")
    return f"the place after `{beside.strip()}` (line {hunk.line} of the source of the fix)"


def _possible(
    hunk: Hunk, text: Text, bindings: Bindings, old: tuple[str, ...] | None, said: list[str], known: Names
) -> Iterator[_Spot]:
    """The places whose names make sense; `said` gets why others' do not."""
    for found in places(hunk, text, old):
        names = {**known, **_evidence(hunk, text, found), **found.names}
        problem = _misnamed(hunk, names, bindings, found.start + 1, old is not None)
        if problem:
            said.append(f"it may be in line {text.number(found.start) + 1}, but {problem}")
            continue
        doubt = _between(hunk, text, found) if not hunk.old and old is None else ""
        yield _Spot(hunk, found, names, old is not None, doubt)


def _between(hunk: Hunk, text: Text, found: Place) -> str:
    """What keeps it open where between two lines, or at an end of the file, the fix's are to go; "" where nothing
    does."""
    before, after = (_count(lines, found.names) for lines in (hunk.before, hunk.after))
    above, below = text.around(found.start, found.end, max(before.total(), 1), max(after.total(), 1))
    first = lexed(hunk.new[0]).indent
    if (above and not before) or (
        below and not after and len(lexed(text.lines[below[0]]).indent) >= len(first)
    ):
        return "it was an end of the file, and is not any more"
    # one of the two lines once more: something came in between, and which side of it was meant is not known
    now = _count((text.lines[n] for n in (*above, *below)), {})
    ends = [
        next((lexed(x) for x in lines if lexed(x).kind == "code"), None)
        for lines in (hunk.before[::-1], hunk.after)
    ]
    held = [line.spelled(found.names) for line in ends if line is not None]
    again = any(now[x] > before[x] + after[x] for x in held)
    return "the lines around that place are there more often than they were" if again else ""


def _count(lines: Iterable[str], names: Names) -> Counter[str]:
    return Counter(line.spelled(names) for line in map(lexed, lines) if line.kind == "code")


def _clearest(spots: list[_Spot], hunk: Hunk, text: Text, name: str, only: bool) -> _Spot:
    """The spot that fits, and clearly better than the others do; where it is the `only` place of its lines and does
    not, with what is said `around` it. Raises Refused."""
    ranked = sorted(spots, key=lambda s: -s.place.score)
    best = ranked[0].place
    here = text.number(best.start) + 1
    if ranked[0].doubt:
        raise Refused(f"{name}: {_said(hunk)}: it may be in line {here}, but {ranked[0].doubt}")
    others = [(s.place.score, s.place.start) for s in ranked[1:]]
    second, line = max([rival(hunk, text, best), *others])
    around = ""
    if best.score < max(FITS, min(hunk.alike + CLEAR, 1.0)):
        around = f"may be in line {here}, but too much around it is not what it was"
    # where another place fits better than any other did in the source, there is a copy; where none did, any is one
    elif second > min(best.score - CLEAR, hunk.alike + COPY) or (
        others and not hunk.alike and max(others)[0]
    ):
        where = " and ".join(str(n) for n in sorted((here, text.number(line) + 1)))
        around = f"may be in line {where}, which fit equally well"
    if around and (others or not only):
        raise Refused(f"{name}: {_said(hunk)} {around}")
    return replace(ranked[0], around=f"{_said(hunk)} {around}" if around else "")


def _nearest(hunk: Hunk, text: Text) -> str:
    """The line that is most like what was looked for, as diff-match-patch finds it."""
    first = next((x.strip() for x in (*hunk.old, *hunk.before[::-1]) if lexed(x).kind == "code"), "")
    whole = "\n".join(text.lines)
    at = sum(len(x) + 1 for x in text.lines[: hunk.line - 1])
    start = max(0, at - WINDOW // 2)
    engine = diff_match_patch()
    engine.Match_Distance = WINDOW
    found = engine.match_main(whole[start : start + WINDOW], first[:NEAR], at - start) if first else -1
    if found < 0:
        return ""
    line = whole.count("\n", 0, start + found) + 1
    return f"; the nearest to it is line {line}: `{text.lines[line - 1].strip()}`"


# ---- names


def _evidence(hunk: Hunk, text: Text, found: Place) -> dict[str, str]:
    """What the lines around the place say of names that the place itself does not use: those that are called one and
    the same in all of them."""
    seen: dict[str, set[str]] = {}
    for was, now in _pairs(hunk, text, found):
        for old, new in (renames([was], [now]) or {}).items():
            seen.setdefault(old, set()).add(new)
    return {old: "" if len(new) > 1 else next(iter(new)) for old, new in seen.items()}


def _pairs(hunk: Hunk, text: Text, found: Place, sides: int = 2) -> Iterator[tuple[str, str]]:
    """Lines of code around the hunk (with one side: before it), each with what is left of it around the place."""
    for side, lines in enumerate((hunk.before, hunk.after)[:sides]):
        old = [x for x in lines if lexed(x).kind == "code"]
        size = len(old) + SLACK
        now = [text.lines[n] for n in text.around(found.start, found.end, size, size)[side]]
        a = [lexed(x).spelled(found.names) for x in old]
        b = [lexed(x).spelled({}) for x in now]
        for tag, i, end, j, stop in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            if tag == "equal" or (tag == "replace" and end - i == stop - j):
                yield from zip(old[i:end], now[j:stop], strict=True)


def _misnamed(hunk: Hunk, names: Names, bindings: Bindings, line: int, done: bool) -> str:
    """What is wrong with the names a fix would use there; "" where nothing is."""
    for name, bound in hunk.names.items():
        now = names.get(name, name)
        if now == "":
            return f"`{name.lstrip('.')}` may be called one thing or another there"
        if bound == "new" and not done:
            if name in bindings.words:
                return f"`{name}`, which the fix brings in, is a name of the file's already"
        elif now != name:
            if (
                bound in ("free", "new")
                or bindings.where(name, line) == bound
                or bindings.where(now, line) != bound
            ):
                return f"`{now.lstrip('.')}` there is not just another name for `{name.lstrip('.')}`"
        elif bound == "attribute" and bindings.where(name, line) != bound:
            return f"nothing sets the attribute `{name}` any more"
        elif bound in ("block", "file") and bindings.where(name, line) not in ("block", "file"):
            return f"`{name}` is bound nowhere any more"
        elif bound == "block" and bindings.where(name, line) == "file":
            return f"`{name}` is another one there"
    taken = [names.get(n, n) for n in hunk.names]
    return "two of its names would be one there" if len(set(taken)) != len(taken) else ""


# ---- the new text


def _in_order(spots: Sequence[_Spot], bindings: Bindings, name: str) -> None:
    """Raises Refused where two hunks of one statement of the module's changed places: what stood before the other does
    not any more."""
    for a, b in pairwise(spots):
        if a.place.start > b.place.start and bindings.block(a.place.start + 1) == bindings.block(
            b.place.start + 1
        ):
            raise Refused(f"{name}: {_said(a.hunk)} comes after {_said(b.hunk)} now")


def _edited(spots: Sequence[_Spot], text: Text, name: str, flow: Sides | None, exact: bool = False) -> Placed:
    open_ = [s for s in spots if not s.done]
    if 0 < len(open_) < len(spots):
        done = next(s for s in spots if s.done)
        raise Refused(
            f"{name}: {_said(done.hunk)} is changed as the fix has it, and the rest is not: a part of it is there"
        )
    comments = {} if exact else _comments(open_, text, name)
    ranges = [(spot.place.start, spot.place.end) for spot in open_]
    new = [
        s.hunk.new if exact else _as_there(s, text, comments.get(n, {}), name) for n, s in enumerate(open_)
    ]
    whole = with_what_looks([(*lines, said) for lines, said in zip(ranges, new, strict=True)], text)
    if whole is None:
        raise Refused(f"{name}: an assertion or a print came in among the lines that the fix changes")
    real = [text.real(*lines, said) for lines, said in zip(ranges, whole, strict=True)]
    edits = [(*each, n) for n, each in enumerate(real)]
    edits.sort()
    for a, b in pairwise(edits):
        if a[1] > b[0] or a[:2] == b[:2]:
            raise Refused(f"{name}: two changes would fall into one place, in line {b[0] + 1}")
    lines: list[str] = []
    after, at = {}, 0
    for start, end, put, n in edits:
        lines += text.whole[at:start]
        after[n] = len(lines)
        lines += put
        at = end
    lines += text.whole[at:]
    made = "\n".join(lines)
    try:
        ast.parse(made)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise Refused(f"{name} would be no Python any more ({getattr(problem, 'msg', problem)})") from None
    doubt = Doubt()
    if not exact and open_:
        called = {old: now for s in spots for old, now in s.names.items()}
        but = [said for lines in ranges for _, said in text.left_out(*lines)]
        before = [x for start, end, _ in real for x in pieces(start, text.whole[start:end], but)]
        became = [x for n, (_, _, put) in enumerate(real) for x in pieces(after[n], put, but)]
        doubt = (
            differs(flow, "\n".join(text.whole), made, before, became, called) if flow else Doubt(NOT_KNOWN)
        )
    around = next((s.around for s in open_ if s.around), "")
    said = doubt.said or around
    may_be_told = bool(said) and (not doubt.said or any(doubt.beside))
    lines_ = tuple((s.hunk.line, 0 if s.done else text.number(s.place.start) + 1) for s in spots)
    return Placed(made, lines_, f"{name}: {said}" if said else "", may_be_told, doubt.beside)


def _as_there(spot: _Spot, text: Text, comments: Mapping[int, tuple[str, str]], name: str) -> tuple[str, ...]:
    """The hunk's new lines, called, commented and indented as the text is at its place. Raises Refused."""
    hunk, place = spot.hunk, spot.place
    pairs = list(place.pairs)
    pairs += [pair for beside in _beside(hunk, text, place) for pair in beside or ()]
    was = level((*hunk.before, *hunk.old, *hunk.new, *hunk.after))
    indents = Indents.of(((lexed(a).indent, lexed(b).indent) for a, b in pairs), was, text.unit)
    if indents is not None and not (_together(hunk, indents) and _level(hunk, text, place, indents)):
        indents = None
    out = []
    for n, line in enumerate(hunk.new):
        moved = indents.moved(rename(line, spot.names)) if indents is not None else None
        if moved is None:
            raise Refused(f"{name}: {_said(hunk)} is indented otherwise than what is around it")
        if any(quoted(line, old) for old, now in spot.names.items() if old != now):
            raise Refused(f"{name}: {_said(hunk)} has names in a text that are called otherwise now")
        if moved != line and ('"""' in line or "'''" in line):
            raise Refused(f"{name}: {_said(hunk)} holds a text of several lines, which can't be moved")
        if n in comments:
            space, said = comments[n]
            code = (
                moved[: len(moved) - len(lexed(moved).comment)].rstrip()
                if lexed(moved).comment
                else moved.rstrip()
            )
            moved = f"{code}{space}{said}" if said else code
        out.append(moved)
    return tuple(out)


def _together(hunk: Hunk, indents: Indents) -> bool:
    """Whether lines that are put in as one piece are moved as one. Where only some of the lines around them went
    deeper, nobody can tell with which of them they go."""
    if hunk.old:
        return True
    was, unit = max(len(indents.was), 1), max(len(indents.unit), 1)
    by = set()
    for line in hunk.new:
        indent, now = lexed(line).indent, indents.moved(lexed(line).indent + "pass")
        if lexed(line).kind == "code" and now is not None:
            by.add(len(now.removesuffix("pass")) / unit - len(indent) / was)
    return len(by) <= 1


def _level(hunk: Hunk, text: Text, place: Place, indents: Indents) -> bool:
    """Whether it is clear which block the new lines belong to. What goes in at the end of one that was moved to the
    right may belong to it, or to the one around it: only the line that begins the block can tell."""
    first, below = (
        next((lexed(x) for x in some if lexed(x).kind == "code"), None) for some in (hunk.new, hunk.after)
    )
    if hunk.old or first is None or (below is not None and below.indent == first.indent):
        return True
    now = indents.moved(first.indent + "pass")
    heads = [
        (lexed(a).indent, lexed(b).indent)
        for a, b in _pairs(hunk, text, place, 1)
        if len(lexed(a).indent) < len(first.indent) and lexed(a).spelled(place.names) == lexed(b).spelled({})
    ]
    if not heads:
        return now == first.indent + "pass"
    head = Indents.of(heads[-1:], indents.was, indents.unit)
    return head is not None and head.moved(first.indent + "pass") == now


def _beside(hunk: Hunk, text: Text, place: Place) -> list[list[tuple[str, str]] | None]:
    """For either side, the line of code next to the hunk with the one that is there: none where the file began or
    ended, None where it is another one."""
    out: list[list[tuple[str, str]] | None] = []
    for lines, there in zip(
        (hunk.before[::-1], hunk.after), text.around(place.start, place.end, 1, 1), strict=True
    ):
        old = next((x for x in lines if lexed(x).kind == "code"), None)
        now = text.lines[there[0]] if there else None
        if old is None or now is None:
            out.append([] if old is now else None)
        else:
            same = lexed(old).spelled(place.names) == lexed(now).spelled({})
            out.append([(old, now)] if same else None)
    return out


def _comments(spots: Sequence[_Spot], text: Text, name: str) -> dict[int, dict[int, tuple[str, str]]]:
    """By hunk and new line, the comment it has there, with the space before it: lines keep the comments that they were
    given since. Raises Refused where a comment has no line to go to."""
    out: dict[int, dict[int, tuple[str, str]]] = {}
    for n, spot in enumerate(spots):
        for old, there in zip(spot.hunk.old, text.lines[spot.place.start : spot.place.end], strict=True):
            was, now = lexed(old), lexed(there)
            if was.comment == now.comment:
                continue
            every = [(h, i, lexed(x)) for h, s in enumerate(spots) for i, x in enumerate(s.hunk.new)]
            same = [(h, i) for h, i, x in every if x.tokens == was.tokens and x.comment == was.comment]
            mine = [(h, i) for h, i, x in every if h == n and x.comment == was.comment]
            goes = same or (mine if was.comment or len(spot.hunk.old) == 1 else [])
            if len(goes) != 1 or goes[0][1] in out.get(goes[0][0], {}):
                line = text.number(spot.place.start) + 1
                raise Refused(f"{name}: a comment was changed in what the fix changes, in line {line}")
            out.setdefault(goes[0][0], {})[goes[0][1]] = (now.space or was.space or "  ", now.comment)
    return out
