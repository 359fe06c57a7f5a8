"""Notebooks as one script: the code cells joined, a marker line before each, and cut back by cell.

Magics (``%matplotlib``, ``!pip``) become comments, so that lines keep their number; ``%time`` and ``%timeit``, behind
which there is code, become the beginning of a statement that is as long, so that columns keep theirs. Only the source
of changed cells differs in what is written: everything else of the file is kept to the byte.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

MARK = "# %% cell "
_MAGIC = "#~magic~ "  # what stands before a line that is no Python
_LINE_MAGIC = re.compile(r"^\s*(?:%|!|\?|[\w.]+\?+\s*$|[\w.]+(?:\s*,\s*[\w.]+)*\s*=\s*[%!])", re.M)
# a cell of one line that is no Python: IPython takes it for the magic of that name ("automagic")
_AUTOMAGIC = re.compile(
    r"\s*(?:pip|conda|mamba|micromamba|uv|cd|ls|ll|pwd|mkdir|rmdir|rm|cp|mv|cat|less|more|man|env|matplotlib|"
    r"load_ext|reload_ext|autoreload|run|config|who|whos)(?:[ \t]+[^\s=.(].*)?\s*"
)
_PATH = re.compile(r"\s*(?:cd|ls|ll|mkdir|rmdir|rm|cp|mv|cat)[ \t]+[-/~][\w.]")  # no name that is divided
_BINDS = r"^([ \t]*[\w.]+(?:[ \t]*,[ \t]*[\w.]+)*[ \t]*=[ \t]*)"
_OPTION = r"(?:-[nrp] ?\d+|-[tcqov]+)"
# what a magic with code behind it looks like, and what stands for it: a test that nobody writes, and that holds; where
# its value is bound, an alternative to nothing
_TIMED: tuple[tuple[str, str], ...] = (
    (r"^([ \t]*)%time(?= +[^\s-])", r"\1if~0:"),
    (r"^([ \t]*)%timeit(?= +[^\s-])", r"\1if~1  :"),
    (_BINDS + r"%time(?= +[^\s-])", r"\1()or "),
    (rf"^([ \t]*)%timeit ({_OPTION}(?: {_OPTION})*) (?=[^\s-])", r'\1if~1 :"\2";'),
)
_WRITTEN: tuple[tuple[str, str], ...] = (
    (r"^([ \t]*)if~0:(?= +\S)", r"\1%time"),
    (r"^([ \t]*)if~1  :(?= +\S)", r"\1%timeit"),
    (_BINDS + r"\(\)or (?= +\S)", r"\1%time"),
    (r'^([ \t]*)if~1 :"([^"\n]*)";(?=\S)', r"\1%timeit \2 "),
    (f"^{re.escape(_MAGIC)}", ""),
)
_MARKER = re.compile(r"^# %% cell (\d+)$", re.M)


class NotebookError(ValueError):
    """Not a notebook, or one that can't be written back; the message completes ``PATH: ``."""


def join(text: str) -> str:
    """The script that a notebook's JSON text holds. Raises NotebookError."""
    out = []
    for index, cell in enumerate(_cells(_load(text))):
        if cell.get("cell_type") == "code":
            out.append(f"{MARK}{index}\n" + _python(_dedented(_source(cell))).rstrip("\n") + "\n")
    return "".join(out)


def edit(text: str, script: str) -> str:
    """The notebook's JSON text with `script`, an edited :func:`join` of it, in its cells. Raises NotebookError."""
    document = _load(text)
    style = _style(text, document)
    cells = _cells(document)
    parts = _MARKER.split(script)
    if parts[0].strip() or [int(n) for n in parts[1::2]] != [int(n) for n in _MARKER.split(join(text))[1::2]]:
        raise NotebookError("the new text has no place among its cells")
    old = dict(zip(*[iter(_MARKER.split(join(text))[1:])] * 2, strict=True))
    for number, body in zip(parts[1::2], parts[2::2], strict=True):
        if body == old[number]:
            continue
        cell = cells[int(number)]
        source = _source(cell)
        end = source[len(source.rstrip("\n")) :]
        new = _indented(written(body[1:]).rstrip("\n"), source) + end
        if re.search(r"^[ \t]*if~[01] *:|(?<![\w\])])\(\)or\b", new, flags=re.M):
            raise NotebookError(f"the new text has no place on the one line of a %time in cell {number}")
        cell["source"] = new.splitlines(keepends=True) if isinstance(cell["source"], list) else new
    return str(style(document))


def by_cell(script: str) -> dict[int, str]:
    """The code cells of a joined script by their number, as they are in the notebook."""
    parts = _MARKER.split(script)
    return {int(number): written(body[1:]) for number, body in zip(parts[1::2], parts[2::2], strict=True)}


def written(text: str) -> str:
    """Lines of a joined script as they are in the notebook's cells."""
    for pattern, new in _WRITTEN:
        text = re.sub(pattern, new, text, flags=re.M)
    return text


def locate(script: str, line: int) -> tuple[int, int] | None:
    """(cell, line in it) of a line of a joined script, 0 for its marker; None where the text is no notebook's."""
    lines = script.split("\n")
    for at in range(min(line, len(lines)), 0, -1):
        marker = _MARKER.match(lines[at - 1])
        if marker:
            return int(marker[1]), line - at
    return None


def _load(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as problem:
        raise NotebookError(f"this is not a notebook ({problem})") from None
    except RecursionError:
        raise NotebookError("this is not a notebook (its JSON is nested too deeply)") from None
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise NotebookError("this is not a notebook of format 4 (it has no cells)")
    return document


def _cells(document: dict[str, Any]) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = document["cells"]
    if not all(isinstance(cell, dict) for cell in cells):
        raise NotebookError("this is not a notebook (one of its cells is none)")
    for source in (cell.get("source", "") for cell in cells):
        if not all(isinstance(line, str) for line in (source if isinstance(source, list) else [source])):
            raise NotebookError("this is not a notebook (the source of a cell is no text)")
    return cells


def _source(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _indent(source: str) -> str:
    """What stands before the first line of a cell."""
    found = re.match(r"\s*^([ \t]*)(?=\S)", source, flags=re.M)
    return found[1] if found else ""


def _dedented(source: str) -> str:
    """A cell as IPython takes it: every line without the indent of the first, where it has that."""
    indent = _indent(source)
    return re.sub(f"^{indent}", "", source, flags=re.M) if indent else source


def _indented(text: str, source: str) -> str:
    """New text of a cell with the indent that all lines of `source` have; what is indented in part has none."""
    indent = _indent(source)
    whole = all(line.startswith(indent) for line in source.split("\n") if line.strip())
    return re.sub(r"^(?=.*\S)", indent, text, flags=re.M) if indent and whole else text


def _python(source: str) -> str:
    """A cell's source with everything that is no Python as comments."""
    if re.match(r"\s*%%(?!time|capture)", source):
        return re.sub(r"^", _MAGIC, source, flags=re.M)
    if (
        _AUTOMAGIC.fullmatch(source)
        and "\n" not in source.strip("\n")
        and (_PATH.match(source) or not _parses(source))
    ):
        return _MAGIC + source
    if not _LINE_MAGIC.search(source):
        return source
    out: list[str] = []
    closed = 0  # lines after which no statement goes on
    for line in source.split("\n"):
        going_on = bool(out) and out[-1].startswith(_MAGIC) and out[-1].endswith("\\")
        if going_on or (_LINE_MAGIC.match(line) and not _open(out[closed:])):
            line, closed = (not going_on and _timed(line)) or _MAGIC + line, len(out) + 1
        out.append(line)
    return "\n".join(out)


def _timed(line: str) -> str:
    """The code behind ``%time`` or ``%timeit``; "" where it is none, or where what it binds is not there later."""
    for pattern, new in _TIMED:
        code = re.sub(pattern, new, line)
        if code == line:
            continue
        tree = _parses(code)
        if tree is None:
            return ""
        binds = any(isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store) for x in ast.walk(tree))
        several = pattern.startswith(_BINDS) and len(tree.body) > 1  # of which it is the value of none
        return "" if several or (binds and "%timeit" in pattern) else code
    return ""


def _parses(code: str) -> ast.Module | None:
    try:
        return ast.parse(code.strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _open(lines: list[str]) -> bool:
    """Whether a statement or a string goes on after `lines`: what comes next is part of it, whatever it looks like."""
    if lines and lines[-1].endswith("\\"):
        return True
    import io
    import tokenize

    try:
        for _ in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
            pass
    except tokenize.TokenError as problem:
        return "EOF in multi-line" in problem.args[0]
    except SyntaxError:
        return False
    return False


def _style(text: str, document: dict[str, Any]) -> Any:
    """How to write the document so that what has not changed is the same to the byte. Raises NotebookError."""
    indent = re.match(r"\{\r?\n([ \t]+)", text)
    width = (len(indent[1]) if set(indent[1]) == {" "} else indent[1]) if indent else None
    end = text[len(text.rstrip()) :]
    for plain in (False, True):
        for separators in (None, (",", ":"), (",", ": ")):

            def write(value: object, a: bool = plain, s: Any = separators) -> str:
                return str(json.dumps(value, indent=width, ensure_ascii=a, separators=s)) + end

            if write(document) == text:
                return write
    raise NotebookError("its JSON is laid out in a way of its own; save it in Jupyter first")
