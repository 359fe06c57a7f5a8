"""The program's files: parsed text, spans as the tape tells them, imports among siblings."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradfix.read.values import Value
from gradfix.tape import Site

LONGEST = 4_000_000  # characters of a file that is read
MOST_READ = 3_000_000  # characters of siblings that one program is read with
LIBRARIES = {
    "torch",
    "numpy",
    "scipy",
    "torchvision",
    "pandas",
    "sklearn",
    "matplotlib",
    "typing",
    "math",
    "os",
    "sys",
}


class Unit:
    """One file: its tree, and the names of its module once its body has run."""

    def __init__(self, path: str, text: str, tree: ast.Module, name: str) -> None:
        self.path, self.text, self.tree, self.name = path, text, tree, name
        self.names: dict[str, Value] = {}
        self.entered = False
        self._lines: list[str] | None = None
        self._sites: dict[tuple[int, str], Site] = {}

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

    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(text)
        self._kept[text] = tree
        self._size += len(text)
        while self._size > self._most:
            old, _ = self._kept.popitem(last=False)
            self._size -= len(old)
        return tree


_TREES = _Trees(4_000_000)  # a tree takes some 30 times the room of its text


def parsed(path: str, text: str, name: str) -> Unit:
    """The unit of `text`. Raises Unreadable."""
    if len(text) > LONGEST:
        raise Unreadable("The file is too large to be read.")
    try:
        tree = _TREES.of(text)
    except SyntaxError as problem:
        raise Unreadable(f"Not Python of this version: {problem.msg}.", problem.lineno or 0) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as problem:
        said = "it is nested too deeply" if not isinstance(problem, ValueError) else str(problem)
        raise Unreadable(f"The file can't be parsed: {said}.") from None
    return Unit(path, text, tree, name)


class Project:
    """The files below `root` as they are imported, each read at most once."""

    def __init__(self, root: Path, folder: Path, files: Mapping[str, str]) -> None:
        self._folders = tuple(dict.fromkeys((folder, root)))
        self._root = root
        self._files = files
        self.units: dict[str, Unit] = {}
        self._missing: set[str] = set()
        self._there: dict[str, bool] = {}
        self._read = 0

    def find(self, name: str, importer: Unit, level: int = 0) -> Unit | None:
        """The module that `importer` (with `level` leading dots) calls `name`; None where it isn't the program's."""
        if level:
            folder = Path(importer.path).parent
            for _ in range(level - 1):
                folder = folder.parent
            return self._at(folder, name)
        if name in self._missing or name.partition(".")[0] in LIBRARIES:
            return None
        for folder in self._folders:
            found = self._at(folder, name)
            if found is not None:
                return found
        self._missing.add(name)
        return None

    def has(self, name: str, importer: Unit, level: int = 0) -> bool:
        """Whether `find` would look into a file or a package: cheaper, since nothing is read."""
        if level:
            return True
        if name.partition(".")[0] in LIBRARIES:
            return False
        found = self._there.get(name)
        if found is None:
            parts = name.split(".")
            found = self._there[name] = any(
                f.joinpath(*parts[:-1], parts[-1] + ".py").is_file() or f.joinpath(*parts).is_dir()
                for f in self._folders
            )
        return found

    def _at(self, folder: Path, name: str) -> Unit | None:
        target = folder.joinpath(*[p for p in name.split(".") if p]) if name else folder
        for path in (
            (target.with_name(target.name + ".py"), target / "__init__.py")
            if name
            else (target / "__init__.py",)
        ):
            key = str(path)
            if key in self.units:
                return self.units[key]
            if key in self._missing:
                continue
            try:
                if not path.is_file():
                    self._missing.add(key)
                    continue
                text = self._files.get(key) or path.read_text(encoding="utf-8")
                self._read += len(text)
                if self._read > MOST_READ:
                    return None
                self.units[key] = parsed(key, text, name or target.name)
                return self.units[key]
            except (OSError, ValueError, Unreadable):
                self._missing.add(key)
        return None
