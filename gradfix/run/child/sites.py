"""From the frames of a running program to places in its text.

The hot path keeps a stack as a flat tuple ``(id(code), lasti, id(code), lasti, ...)``, innermost first; spans
are looked up only for stacks that reach the tape. ``co_positions()`` counts UTF-8 bytes, the tape counts code
points.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any

from torch.nn import Module

Key = tuple[int, ...]  # id(code), lasti, ... innermost first
Span = tuple[int, int, int, int]  # line, column, end line, end column; columns in code points from 0

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RUNNER = _OURS + "execute.py"
_USER, _OUTER, _FOREIGN = "user", "outer", ""
_STORES = frozenset(
    dis.opmap[name]
    for name in ("STORE_SUBSCR", "STORE_SLICE", "STORE_ATTR", "DELETE_SUBSCR", "DELETE_ATTR")
    if name in dis.opmap
)

_ITEM_STORES = frozenset(dis.opmap[name] for name in ("STORE_SUBSCR", "STORE_SLICE") if name in dis.opmap)
_CACHE = dis.opmap.get("CACHE", -1)

_ASKED = ".grad is not None"
_CLEARING = tuple(
    f".grad{way}" for way in (".zero_()", ".data.zero_()", ".detach_()", ".requires_grad_(False)", " = None")
)
_NOTHING = ast.Module([], [])
_NEAR = 3  # frames from the inside that are seldom met again
_RESUMED = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
)  # now by this caller, now by that


class _Outwards:
    """What a frame's callers are, left on the frame: they stay where they are as long as it runs. Python keeps the
    place for a debugger's function, and asks for nothing there unless one is at work."""

    __slots__ = ("key",)

    def __init__(self, key: Key) -> None:
        self.key = key

    def __call__(self, *_: Any) -> None:
        """As a debugger's function that came later would have it: no part in it."""


class Sites:
    """Which code is the user's, the stack of a frame, and the span of an instruction.

    `texts` maps absolute paths to the text that runs where it is not what lies on the disk.
    """

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self._texts = dict(texts or {})
        self._foreign = _foreign_folders()
        self._kinds: dict[int, str] = {}
        self._passed: set[int] = set()  # code that is foreign
        self._keys: dict[Key, Key] = {}
        # what every call of a module passes: not marked, for it is left with the call
        self._brief = {id(f.__code__) for f in (Module._wrapped_call_impl, Module._call_impl)}
        self._codes: dict[int, CodeType] = {}  # every code ever asked about stays alive: its id is its key
        self._positions: dict[int, list[Any]] = {}
        self._lines: dict[str, list[str]] = {}
        self._statements: dict[str, list[Span]] = {}
        self._calls: dict[str, dict[tuple[int, int], Span]] = {}
        self._clearing: dict[str, set[int]] = {}

    def stack(self, frame: FrameType | None) -> Key:
        """The user's frames from `frame` outwards, innermost first."""
        passed, brief = self._passed, self._brief
        found: list[int] = []
        unmarked: list[tuple[FrameType, int]] = []
        near = _NEAR
        while frame is not None:
            code = id(frame.f_code)
            if code in brief:
                near -= 1
                frame = frame.f_back
                continue
            if code not in passed:
                kind = self._kinds.get(code) or self._classify(frame.f_code)
                if kind is _USER:
                    found += (code, frame.f_lasti)
                elif kind is _OUTER:
                    break  # who started the run is no part of the program
            if (mark := frame.f_trace) is not None and type(mark) is _Outwards:
                if not found and not unmarked:
                    return mark.key
                found += mark.key
                break
            if near > 0:
                near -= 1
            else:
                unmarked.append((frame, len(found)))
            frame = frame.f_back
        key = self._one(tuple(found))
        if unmarked and sys.gettrace() is None:
            for frame, at in unmarked:
                if not frame.f_code.co_flags & _RESUMED:
                    frame.f_trace = _Outwards(self._one(key[at:]) if at else key)
        return key

    def _one(self, key: Key) -> Key:
        """One object for each place: there are many calls to one."""
        return self._keys.setdefault(key, key)

    def is_user(self, code: CodeType) -> bool:
        kind = self._kinds.get(id(code))
        return (self._classify(code) if kind is None else kind) is _USER

    def called_by_user(self, frame: FrameType | None) -> bool:
        """Whether the program itself made the call that `frame` is of, whatever mode of this package's stands between
        (on_cpu.py)."""
        while frame is not None and frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
        return frame is not None and self.is_user(frame.f_code)

    def is_user_file(self, file: str) -> bool:
        """Whether `file` is the user's: not of the interpreter, of an installed package or of this one."""
        if file.startswith("<") or not os.path.isabs(file):
            return False
        return file in self._texts or not os.path.realpath(file).startswith(self._foreign)

    def _classify(self, code: CodeType) -> str:
        self._codes[id(code)] = code
        kind = _FOREIGN
        if self.is_user_file(code.co_filename):
            kind = _USER
            self.lines(code.co_filename)  # now, while the text is what runs
        elif code.co_filename == _RUNNER and code.co_name == "run":
            kind = _OUTER
        self._kinds[id(code)] = kind
        if kind is _FOREIGN:
            self._passed.add(id(code))
        return kind

    def resolve(self, key: Key) -> list[tuple[Any, ...]]:
        """The sites of a stack, outermost first, as the tape writes them:
        (file, line, column, end line, end column, function)."""
        return [self.site(self._codes[key[i]], key[i + 1]) for i in range(len(key) - 2, -1, -2)]

    def site(self, code: CodeType, lasti: int) -> tuple[Any, ...]:
        function = getattr(code, "co_qualname", code.co_name)
        return (code.co_filename, *self.span(code, lasti), function)

    def span(self, code: CodeType, lasti: int) -> Span:
        """The span of the instruction at `lasti`; columns are 0 where only the line is known (before
        3.11)."""
        if sys.version_info < (3, 11):  # noqa: UP036 (the user's interpreter)
            line = code.co_firstlineno
            for start, number in dis.findlinestarts(code):
                if start > lasti:
                    break
                line = number
            return (line, 0, 0, 0)
        positions = self._positions.get(id(code))
        if positions is None:
            self._codes[id(code)] = code
            positions = self._positions[id(code)] = list(code.co_positions())
        line, end_line, column, end_column = positions[lasti // 2]
        if line is None:
            return (code.co_firstlineno, 0, 0, 0)
        if column is None or end_column is None or end_line is None:
            return (line, 0, 0, 0)
        lines = self.lines(code.co_filename)
        found = (
            line,
            code_points(lines, line, column),
            end_line,
            code_points(lines, end_line, end_column),
        )
        if code.co_code[lasti] in _STORES:
            return self._statement(code.co_filename, found)
        if line <= len(lines) and lines[line - 1][: found[1]].rstrip().endswith("."):
            return self._call(code.co_filename, found)
        return found

    def item_write(self, key: Key) -> Key:
        """Where the statement writes into an item of what the call at `key` gives (``t.numpy()[0] = 1``), that write;
        else `key`."""
        if sys.version_info < (3, 11):  # noqa: UP036 (the user's interpreter)
            return key
        code = self._codes[key[0]]
        positions = list(code.co_positions())
        line, end_line, column, end_column = positions[key[1] // 2]
        for at in range(key[1] // 2, len(positions)):
            first, last, start, end = positions[at]
            if code.co_code[2 * at] not in _ITEM_STORES or None in (column, start):
                continue
            if (first, start) <= (line, column) and (end_line, end_column) <= (last, end):
                return (key[0], 2 * at, *key[2:])
        return key

    def dropped(self, key: Key) -> bool:
        """Whether the call at `key` is a statement of its own: what it gives is thrown away."""
        code = self._codes[key[0]].co_code
        at = key[1] + 2
        while at < len(code) and code[at] == _CACHE:
            at += 2
        return at < len(code) and code[at] == dis.opmap["POP_TOP"]

    def text(self, file: str) -> str:
        return "".join(self.lines(file))

    def bytes(self, file: str) -> bytes:
        """The bytes of `file` as they ran; its text where the file is gone."""
        if file not in self._texts:
            try:
                with open(file, "rb") as stream:
                    return stream.read()
            except OSError:
                pass
        return self._texts.get(file, self.text(file)).encode("utf-8", "surrogatepass")

    def lines(self, file: str) -> list[str]:
        """The lines of `file` as it runs, with their ends; no lines where there is no text."""
        if file not in self._lines:
            if file in self._texts:
                self._lines[file] = split_lines(self._texts[file])
            else:
                self._lines[file] = linecache.getlines(file)
        return self._lines[file]

    def clearing(self, file: str) -> set[int]:
        """The lines that ask for a gradient only to clear it: nothing is lost where there is none."""
        if file not in self._clearing:
            tests = (n for n in ast.walk(parsed(self.text(file)) or _NOTHING) if isinstance(n, ast.If))
            self._clearing[file] = {n.lineno for n in tests if _clears(n)}
        return self._clearing[file]

    def met(self) -> set[tuple[str, int]]:
        """The files and lines of all stacks there were."""
        places = {key[i : i + 2] for key in self._keys for i in range(0, len(key), 2)}
        return {self.site(self._codes[code], lasti)[:2] for code, lasti in places}

    def files(self) -> list[str]:
        """The user's files that were executed."""
        return list(self._lines)

    def trees(self) -> dict[str, ast.Module]:
        """The user's files as Python reads them, those that it can."""
        return {file: tree for file in self.files() if (tree := parsed(self.text(file))) is not None}

    def _call(self, file: str, span: Span) -> Span:
        """The whole of a method call over several lines: CPython lets its span begin at the method's name."""
        if file not in self._calls:
            spans = nodes(self.text(file), self.lines(file), ast.Call)
            self._calls[file] = {each[2:]: each for each in spans}
        return self._calls[file].get(span[2:], span)

    def _statement(self, file: str, span: Span) -> Span:
        """The smallest statement around `span`: the position of a store is its target only."""
        if file not in self._statements:
            self._statements[file] = nodes(self.text(file), self.lines(file), ast.stmt)
        start = span[:2]
        best = span
        for each in self._statements[file]:
            if each[:2] <= start and span[2:] <= each[2:] and (best is span or each[:2] >= best[:2]):
                best = each
        return best


def _clears(node: ast.If) -> bool:
    """``if p.grad is not None: p.grad.zero_()``"""
    test = ast.unparse(node.test) if not node.orelse else ""
    name = test[: -len(_ASKED)] if test.endswith(_ASKED) else ""
    return bool(name) and {ast.unparse(each) for each in node.body} <= {name + way for way in _CLEARING}


def code_points(lines: list[str], line: int, column: int) -> int:
    """`column` in UTF-8 bytes of line number `line`, in code points."""
    if not 0 < line <= len(lines):
        return column
    text = lines[line - 1]
    if text.isascii():
        return column
    return len(text.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "replace"))


def split_lines(text: str) -> list[str]:
    """Lines as Python's tokenizer counts them: form feeds and Unicode separators end none."""
    if text.startswith("\ufeff"):
        text = text[1:]
    return (
        text.replace("\r\n", "\n").replace("\r", "\n").splitlines(True)
        if text.isascii() and not (set(text) & set("\x0b\x0c\x1c\x1d\x1e"))
        else _split_exactly(text.replace("\r\n", "\n").replace("\r", "\n"))
    )


def _split_exactly(text: str) -> list[str]:
    parts = text.split("\n")
    return [p + "\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def parsed(text: str) -> ast.Module | None:
    """None for what is no module's text (a notebook's cell with a magic)."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def nodes(text: str, lines: list[str], kind: Any) -> list[Span]:
    """The spans of all calls or all simple statements of `text`."""
    spans = []
    for node in ast.walk(parsed(text) or ast.Module([], [])):
        if isinstance(node, kind) and not hasattr(node, "body"):
            end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
            spans.append(
                (
                    node.lineno,
                    code_points(lines, node.lineno, node.col_offset),
                    end_line,
                    code_points(lines, end_line, end_column),
                )
            )
    return spans


def _foreign_folders() -> tuple[str, ...]:
    """Folders whose code is never the user's: the standard library, installed packages, torch, this
    package."""
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    paths.update(getattr(site, "getsitepackages", list)())
    user = getattr(site, "getusersitepackages", None)
    if user is not None:
        paths.add(user())
    paths.add(os.path.dirname(os.path.abspath(__file__)))
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "__file__", None):
        paths.add(os.path.dirname(os.path.abspath(str(torch.__file__))))
    folders: set[str] = set()
    for path in paths:
        if path:
            folders.update((path, os.path.realpath(path)))
    return tuple(sorted(path.rstrip(os.sep) + os.sep for path in folders))
