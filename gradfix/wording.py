"""Words for what a tape speaks of: places, tensors, quotations of the source, with the names a person knows."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from math import isinf

from gradfix.notebook import locate
from gradfix.tape import Ref, Site, Stack

LONGEST = 60  # characters of source quoted inside a sentence

_NEWLINE = re.compile(r"\r\n|\r|\n")
_STRING = re.compile(r"\"[^\"]*\"|'[^']*'")


def at(role: str, stack: Stack) -> str:
    """The words for what stands at `stack`, where it plays `role`."""
    words = {
        "needed": "the backward",
        "freed": "the backward",
        "step": "the step",
        "zero": "the zero_grad",
        "overwritten": "the write",
        "saved": "the op",
        "made": "the value made",
        "target": "the value made",
        "cut": "the cut",
    }
    return (
        f"{words.get(role, 'the statement')} in line {stack[-1].line}" if stack else "code outside the script"
    )


def line(site: Site, sources: Mapping[str, str]) -> str:
    """``line N``, as the person counts it: within its cell where the site is in a notebook that `sources` have."""
    found = (
        locate(sources[site.file], site.line)
        if site.file in sources and site.file.endswith(".ipynb")
        else None
    )
    return f"cell {found[0]}, line {found[1]}" if found else f"line {site.line}"


def quote(site: Site, sources: Mapping[str, str]) -> str:
    """The source text at `site` on one line, what is in its brackets left out where it is long; "" where it is
    unknown, or too long to stand in a sentence even so."""
    text = sources.get(site.file)
    if text is None or not site.line:
        return ""
    lines = _NEWLINE.split(text)
    last = site.end_line or site.line
    if last > len(lines):
        return ""
    if site.end_column or site.end_line > site.line:
        piece = lines[site.line - 1 : last]
        piece[-1] = piece[-1][: site.end_column]
        piece[0] = piece[0][site.column :]
    else:
        piece = [lines[site.line - 1].split("  #")[0]]
    joined = _joined(piece)
    for start, end in reversed(_brackets(joined) or []):
        if len(joined) > LONGEST and end - start > 2:
            joined = joined[: start + 1] + "…" + joined[end:]
    return joined if len(joined) <= LONGEST and "`" not in joined and _brackets(joined) is not None else ""


def briefly(code: str, most: int = LONGEST) -> str:
    """A piece of code as a sentence quotes it: one line, comments left out, what is in its brackets too where it is
    long; where even that is too long, its first words."""
    joined = _joined(_uncommented(code).split("\n"))
    for start, end in reversed(_brackets(joined) or []):
        if len(joined) > most and end - start > 2:
            joined = joined[: start + 1] + "…" + joined[end:]
    if len(joined) <= most:
        return joined
    words = joined[: most - 2]
    return (words[: words.rfind(" ")] if " " in words else words) + " …"


def quoted(sentence: str) -> str:
    """`sentence` with every piece of code in it, between backticks, said briefly."""
    return re.sub(r"`([^`]+)`", lambda m: f"`{briefly(m[1])}`", sentence)


def shortened(message: str, most: int = 160) -> str:
    """The first sentences of an error message, as many as fit, else its first words."""
    if len(message) <= most:
        return message
    sentence = message[:most].rfind(". ")
    return message[: sentence + 1] if sentence > 20 else message[: message[:most].rfind(" ")] + " …"


def _uncommented(code: str) -> str:
    lines = code.strip().split("\n")
    try:
        tokens = [
            t
            for t in tokenize.generate_tokens(io.StringIO(f"({code.strip()}\n)").readline)
            if t.type == tokenize.COMMENT
        ]
    except (tokenize.TokenError, SyntaxError):  # half a statement: the lines as they are
        return "\n".join(lines)
    for token in tokens:
        (line, column), text = token.start, lines[token.start[0] - 1]
        lines[line - 1] = text[: column - (line == 1)].rstrip()
    return "\n".join(lines)


def _joined(lines: list[str]) -> str:
    """Lines as one, without the comments at their ends and the blanks that brackets leave."""
    bare = [re.sub(r"\s+#.*$", "", line) if line != lines[-1] else line for line in lines]
    return re.sub(r"(?<=[(\[{]) |,? (?=[)\]}])", "", " ".join(x.strip() for x in bare if x.strip()))


def _brackets(text: str) -> list[tuple[int, int]] | None:
    """Where the outermost brackets of `text` open and close; None where they don't pair."""
    found, open_ = [], []
    bare = re.sub(_STRING, lambda m: "s" * len(m[0]), text)
    for i, c in enumerate(bare):
        if c in "([{":
            open_.append(i)
        elif c in ")]}":
            if not open_:
                return None
            start = open_.pop()
            if not open_:
                found.append((start, i))
    return None if open_ else found


def name(ref: Ref | None, otherwise: str = "a tensor") -> str:
    """The tensor's name in backticks, or words for one that has none."""
    return f"`{ref.name}`" if ref is not None and ref.name else otherwise


def shaped(ref: Ref) -> str:
    """A tensor as a label speaks of it: ``D.weight (2×2)``."""
    size = "×".join(map(str, ref.shape)) if ref.shape else ""
    return f"{ref.name or 'tensor'} ({size})" if size else ref.name or "tensor"


def listed(names: list[str], most: int = 3) -> str:
    """``a``, ``b`` and 4 more."""
    if len(names) <= most:
        return names[0] if len(names) == 1 else ", ".join(names[:-1]) + f" and {names[-1]}"
    return ", ".join(names[: most - 1]) + f" and {len(names) - most + 1} more"


def nearest(given: str, among: Iterable[str]) -> str:
    """``; did you mean X?``, or nothing."""
    from difflib import get_close_matches

    close = get_close_matches(given.lower().replace("_", "-"), list(among), 1, 0.5)
    return f"; did you mean {close[0]}?" if close else ""


def off(ratio: float) -> str:
    """How wrong a gradient is whose relative difference to the exact one is `ratio` (infinite: nobody ran it)."""
    if isinf(ratio):
        return "wrong"
    if ratio >= 10:
        return f"{ratio:.2g} times off"
    return f"{100 * ratio:.0f} % off" if ratio >= 0.1 else f"{100 * ratio:.2g} % off"
