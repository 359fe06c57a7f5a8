"""Numbers in words, for every report of a batch."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

_CODE = re.compile("`([^`]+)`")
_MARKUP = re.compile(r"[\\`*\[\]~$]|(?<![^\W_])_")  # (a _ in a word begins nothing)
_CALLS = re.compile(r"@(?=\w)|#(?=\d)|GH-(?=\d)|:(?=//)|www(?=\.)", re.IGNORECASE)  # people, issues, pages
_BLOCK = re.compile(r"^(\d*)([.)]|#+|[+-])(?=\s|-|$)")  # headings, lists


def escaped(text: str) -> str:
    """`text` in one line: a control character, a lone surrogate or what turns the direction of writing is told, not
    done. For what others have named: files, and code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def code(text: str) -> str:
    """`text` as code in Markdown, whatever it holds."""
    if not text:
        return ""
    marks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{marks}{space}{escaped(text)}{space}{marks}"


def text(said: str) -> str:
    """`said` as text in Markdown, code between backticks as code: nothing else in it is markup or HTML, and it calls
    for nobody."""
    pieces = _CODE.split(escaped(said).lstrip())
    return "".join(code(piece) if n % 2 else _plain(piece, not n) for n, piece in enumerate(pieces))


def _plain(piece: str, first: bool) -> str:
    piece = _MARKUP.sub(r"\\\g<0>", html.escape(piece, quote=False))
    piece = _CALLS.sub(lambda m: f"{m[0]}&#8203;", piece)  # a space of no width
    return _BLOCK.sub(r"\1\\\2", piece) if first else piece


def sentence(totals: Mapping[str, Any]) -> str:
    """The totals in words."""
    ended = totals["ended"]
    waiting = {"waiting": totals["waiting"]} if totals["waiting"] else {}
    parts = [f"{many(totals['repositories'], 'repository', 'repositories')}: {counts({**ended, **waiting})}"]
    parts.append(f"{many(totals['faults'], 'fault')} and {many(totals['notes'], 'note')} found "
                 f"in {many(totals['files'], 'file')}")  # fmt: skip
    verdicts = f" ({counts(totals['verdicts'])})" if totals["verdicts"] else ""
    came = counts(totals["outcomes"]) if totals["outcomes"] else ""
    parts.append(f"cures for {totals['cured']} of them{verdicts}{': ' if came else ''}{came}")
    if totals["earlier"]:
        parts.append(f"applied by earlier calls: {many(sum(totals['earlier'].values()), 'cure')}, "
                     f"{counts(totals['earlier'])}")  # fmt: skip
    if totals["refused"]:
        where = many(totals["refused"], "repository", "repositories")
        parts.append(f"what was to be done with them was refused in {where}")
    if totals["crashes"]:
        parts.append(
            f"{many(totals['crashes'], 'file')} that gradfix could not follow, a fault of its own: see report.json"
        )
    parts.append(f"{many(totals['runs'], 'script')} run{_stopped(totals['stopped'])}")
    seconds = totals["seconds"]
    parts.append(f"a repository took {seconds['median']:.1f} s (median), {seconds['p95']:.1f} s (p95)")
    return "; ".join(parts) + "."


def _stopped(reasons: Mapping[str, int]) -> str:
    """How many scripts came to nothing, and what would get most of them further."""
    if not reasons:
        return ""
    first = dict(list(reasons.items())[:3])
    more = f" and {many(len(reasons) - 3, 'reason')} more" if len(reasons) > 3 else ""
    return f", {sum(reasons.values())} of them failed for reasons that are not autograd's ({counts(first)}{more})"


def many(count: int, one: str, more: str = "") -> str:
    """``1 fault``, ``2 faults``."""
    return f"{count} {one if count == 1 else more or f'{one}s'}"


def counts(given: Mapping[str, int]) -> str:
    """``3 proved, 1 intended``."""
    return ", ".join(f"{n} {what}" for what, n in given.items()) or "none"
