"""The program's files: parsed text, spans as the tape tells them, imports among siblings."""

from __future__ import annotations

import ast
import gc
import os
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradfix.read.gate import LIBRARIES
from gradfix.read.outline import OUTLINES, Outline, outlined
from gradfix.read.paths import IMPORTED, added
from gradfix.read.values import Class, Value
from gradfix.tape import Site

if TYPE_CHECKING:
    from gradfix.read.frames import Frame

LONGEST = 4_000_000  # characters of a file that is read
LARGEST = 1_000_000  # bytes of a file that is none of Python's
SETTINGS = ("configs", "config", "cfgs", "cfg", "conf", "options", "settings", "hparams", "experiments")
MOST_READ = 3_000_000  # characters of siblings that one program is read with


class Unit:
    """One file: its tree, and the names of its module once its body has run."""

    def __init__(self, path: str, text: str, tree: ast.Module, name: str) -> None:
        self.path, self.text, self.tree, self.name = path, text, tree, name
        self.names: dict[str, Value] = {}
        self.entered = False
        self._lines: list[str] | None = None
        self._digest = ""
        self._sites: dict[tuple[int, str], Site] = {}
        self._places: dict[tuple[str, ...], list[int]] = {}

    def again(self) -> Unit:
        """The same file in a program in which nothing has run."""
        other = Unit(self.path, self.text, self.tree, self.name)
        other._lines, other._sites, other._places = self._lines, self._sites, self._places
        return other

    def site(self, node: Any, function: str) -> Site:
        """The span of `node` in the tape's terms: columns in code points."""
        key = (id(node), function)
        found = self._sites.get(key)
        if found is None:
            line, end = node.lineno, node.end_lineno or node.lineno
            found = self._sites[key] = Site(
                self.path,
                line,
                self._column(line, node.col_offset),
                end,
                self._column(end, node.end_col_offset or 0),
                function,
            )
        return found

    def _column(self, line: int, column: int) -> int:
        if self._lines is None:
            ascii_only = self.text.isascii()
            self._lines = [] if ascii_only else self.text.lstrip("\ufeff").replace("\r\n", "\n").split("\n")
        if not self._lines or line > len(self._lines):
            return column
        text = self._lines[line - 1]
        if text.isascii():
            return column
        return len(text.encode("utf-8", "surrogatepass")[:column].decode("utf-8", "replace"))

    def lines_with(self, *patterns: str) -> list[int]:
        """The numbers of the lines that match, in order: where to look for a node, without looking at all of them."""
        found = self._places.get(patterns)
        if found is None:
            found, line, at = [], 1, 0
            # one by one: a pattern that begins with a word is found many times as fast as one of two
            places = sorted(each.start() for p in patterns for each in re.finditer(p, self.text))
            for place in places:
                line += self.text.count("\n", at, place)
                at = place
                if not found or found[-1] != line:
                    found.append(line)
            self._places[patterns] = found
        return found

    def digest(self) -> str:
        if not self._digest:
            from hashlib import sha256

            self._digest = sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()
        return self._digest


class Unreadable(Exception):
    """The text can't be parsed: a sentence, and the line it stands in (0: none)."""

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.text, self.line = text, line


class _Trees:
    """The last trees that were parsed, as many as `most` characters of source make: the files of a project import the
    same siblings over and over. A tree is never changed."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[str, ast.Module] = OrderedDict()

    def of(self, text: str) -> ast.Module:
        tree = self._kept.get(text)
        if tree is not None:
            self._kept.move_to_end(text)
            return tree
        collecting = gc.isenabled()
        gc.disable()  # a tree has no cycles, and so many nodes that looking for some takes a third as long again
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's strings
                tree = ast.parse(text)
        finally:
            if collecting:
                gc.enable()
        self._kept[text] = tree
        self._size += len(text)
        while self._size > self._most:
            old, _ = self._kept.popitem(last=False)
            self._size -= len(old)
        return tree


_TREES = _Trees(4_000_000)  # a tree takes some 30 times the room of its text


def parsed(path: str, text: str, name: str, tree_of: Callable[[str], ast.Module] | None = None) -> Unit:
    """The unit of `text`. Raises Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable("The file is too large to be read.")
    try:
        tree = (tree_of or _TREES.of)(text)
    except SyntaxError as problem:
        raise Unreadable(f"Not Python of this version: {problem.msg}.", problem.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
        said = "it is nested too deeply" if not isinstance(problem, ValueError) else str(problem)
        raise Unreadable(f"The file can't be parsed: {said}.") from None
    return Unit(path, text, tree, name)


class Project:
    """The files below `root` as they are imported, each read at most once. `looked` are the files that were asked
    after, there or not: were one of them to appear or to change, the program could be another."""

    def __init__(self, root: Path, folder: Path, files: Mapping[str, str] | None = None) -> None:
        self._root = str(root)
        self._folders = tuple(dict.fromkeys((str(folder), self._root)))
        self._files = files or {}  # texts over the disk's
        self.units: dict[str, Unit] = {}
        self.frames: list[Frame] = []  # of functions with others inside
        self.classes: list[Class] = []
        self.looked: set[str] = set()
        self._located: dict[tuple[str, int, str], str | None] = {}
        self._places: dict[tuple[str, str], str | None] = {}
        self._unread: set[str] = set()
        self._packages: dict[str, bool] = {}
        self._followed: set[str] = set()
        self._read = 0

    def follow(self, path: str, text: str) -> None:
        """Look for modules where the file at `path` says, too, or one that it imports for that."""
        self._followed.add(path)
        for name in IMPORTED.findall("\n" + text):
            other = self.locate(path, 0, name)
            if other is not None and other not in self._followed:
                self.outline(other)
        more = [] if "sys.path" not in text else added(path, text, self._root)
        if not {*more} <= {*self._folders}:
            self._folders = tuple(dict.fromkeys((*self._folders, *more)))
            self._located = {key: found for key, found in self._located.items() if found is not None}
            self._packages = {name: found for name, found in self._packages.items() if found}

    def again(self) -> Project:
        """The same files, none of which has been imported."""
        other = copy(self)
        other.units, other.frames, other.classes = {}, [], []
        return other

    def find(self, name: str, importer: Unit, level: int = 0) -> Unit | None:
        """The module that `importer` (with `level` leading dots) calls `name`; None where it isn't the program's."""
        path = self.locate(importer.path, level, name)
        if path is None or path in self._unread:
            return None
        if path not in self.units:
            try:
                text = self._files[path] if path in self._files else Path(path).read_text(encoding="utf-8")
                self._read += len(text)
                self.follow(path, text)
                if self._read > MOST_READ:
                    return None
                self.units[path] = parsed(path, text, name or os.path.basename(os.path.dirname(path)))
            except (OSError, ValueError, Unreadable):
                self._unread.add(path)
                return None
        return self.units[path]

    def locate(self, importer: str, level: int, name: str) -> str | None:
        """The file of that module."""
        key = (importer if level else "", level, name)
        if key not in self._located:
            self._located[key] = self._locate(*key)
        return self._located[key]

    def _locate(self, importer: str, level: int, name: str) -> str | None:
        if level:
            folder = os.path.dirname(importer)
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._at(folder, name)
        if name.partition(".")[0] in LIBRARIES:
            return None
        return next(filter(None, (self._at(folder, name) for folder in self._folders)), None)

    def outline(self, path: str) -> Outline | None:
        """The outline of the file at `path`; None where there is none to be had."""
        text = self._files.get(path)
        found = OUTLINES.of(path) if text is None else outlined(path, text.encode("utf-8", "replace"))
        if found is not None and found.paths:
            self.follow(path, found.paths)
        return found

    def lying(self, path: str) -> str | None:
        """The file that the program would open by `path`, from where it may be run."""
        for folder in self._folders:
            one = os.path.normpath(os.path.join(folder, path))
            if one.startswith(self._root + os.sep):
                self.looked.add(one)
                if one in self._files or os.path.isfile(one):
                    return one
        return None

    def settings(self, suffixes: tuple[str, ...]) -> str | None:
        """The first file of settings in a folder of such."""
        for folder in self._folders:
            for name in SETTINGS:
                for here, inside, files in os.walk(os.path.join(folder, name)):
                    inside.sort()
                    found = min((f for f in files if f.endswith(suffixes)), default=None)
                    if found is not None:
                        return self.lying(os.path.join(here, found))
        return None

    def text(self, path: str) -> str | None:
        """What a file holds that is none of Python's."""
        try:
            if path in self._files:
                return self._files[path]
            if os.path.getsize(path) > LARGEST:
                return None
            return Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError):
            return None

    def release(self) -> None:
        """Let go of the program. Its names hold functions that hold their module, and with it the tree: looking for
        such circles takes Python longer than all else that is done about a file."""
        for unit in self.units.values():
            unit.tree = ast.Module([], [])
            unit.names.clear()
        for frame in self.frames:
            frame.names.clear()
            frame.result = None
        for cls in self.classes:
            cls.attrs.clear()
            cls.order = ()
        self.frames.clear()
        self.classes.clear()
        self.units.clear()

    def has(self, name: str, level: int = 0) -> bool:
        """Whether `find` would look into a file or a package: cheaper, since nothing is read."""
        if level:
            return True
        if name.partition(".")[0] in LIBRARIES:
            return False
        found = self._packages.get(name)
        if found is None:
            inner = os.path.join(*name.split("."))
            found = self.locate("", 0, name) is not None or any(
                os.path.isdir(os.path.join(folder, inner)) for folder in self._folders
            )
            self._packages[name] = found
        return found

    def _at(self, folder: str, name: str) -> str | None:
        key = (folder, name)
        if key not in self._places:
            target = os.path.join(folder, *filter(None, name.split(".")))
            several = (target + ".py", os.path.join(target, "__init__.py"))
            found = None
            for path in several if name else several[1:]:
                self.looked.add(path)
                if path in self._files or os.path.isfile(path):
                    found = path
                    break
            self._places[key] = found
        return self._places[key]
