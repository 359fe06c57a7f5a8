"""Which files a directory stands for: sources that are the project's own, as .gitignore and the exclusions have it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gradfix.dataclass import dataclass
from gradfix.patterns import matches, spec
from gradfix.source import SourceError, absent

# Folders that hold no source of the project's: ruff's list, and what is left of builds. Hidden ones come on top.
SKIPPED = frozenset(
    {
        "__pycache__",
        "__pypackages__",
        "_build",
        "buck-out",
        "build",
        "dist",
        "env",
        "node_modules",
        "site-packages",
        "venv",
    }
)

SHEBANG = re.compile(rb"#!.*\bpython[\d.]*(\s|$)")
PROJECT_MARKS = ("pyproject.toml", "setup.py", "setup.cfg", ".git", "requirements.txt")

Patterns = tuple[tuple[Path, tuple[str, ...]], ...]  # with the folder they start at


@dataclass(frozen=True, slots=True)
class Search:
    """What to look for below a directory. `exclude` are patterns as in .gitignore; `scripts` takes files without a
    suffix whose first line names Python; `blocked` hears of folders that can't be read."""

    exclude: Patterns = ()
    suffixes: tuple[str, ...] = (".py",)
    scripts: bool = False
    blocked: Callable[[OSError], None] | None = None

    def below(self, folder: Path) -> Iterator[Path]:
        """The files, sorted, those of a folder before those of the folders in it. Symbolic links to folders are not
        followed."""
        ignored = {folder: _around(folder)}
        for root, folders, files in os.walk(folder, onerror=self.blocked):
            here = Path(root)
            rules = ignored.pop(here)
            if ".gitignore" in files:
                rules = (*rules, *_rules(here, here / ".gitignore"))
            folders[:] = sorted(
                x for x in folders if not _skipped(here / x) and self._wanted(rules, here, x, "/")
            )
            ignored |= {here / x: rules for x in folders}
            for name in sorted(files):  # dangling links and pipes are nobody's source
                ours = name.endswith(self.suffixes) or (self.scripts and "." not in name)
                ours = ours and name[0] != "." and (here / name).is_file()
                if ours and self._wanted(rules, here, name, "") and ("." in name or is_script(here / name)):
                    yield here / name

    def excludes(self, path: Path) -> bool:
        """Whether the exclusions speak of the file or a folder around it."""
        return any(matches(base, patterns, path) for base, patterns in self.exclude)

    def _wanted(self, rules: tuple[_Rule, ...], here: Path, name: str, slash: str) -> bool:
        if not rules and not self.exclude:
            return True
        path = here / name
        return not _says(rules, path, slash) and not self.excludes(path)


def is_script(path: Path) -> bool:
    """Whether the first line of a file has Python run it."""
    try:
        with path.open("rb") as opened:
            return SHEBANG.match(opened.readline(200)) is not None
    except OSError:
        return False


def discover(paths: Iterable[Path | str], search: Search | None = None) -> Iterator[Path]:
    """Files as they are given, and those that `search` finds below a directory. Raises SourceError where a path is
    not there or a directory holds no Python."""
    search = search or Search()
    for given in paths:
        path = Path(given)
        if not path.is_dir():
            if not path.exists():
                raise SourceError(f"{path}: {absent(path, 'there is no such file or directory')}")
            yield path
            continue
        found = False
        for file in search.below(path):
            found = True
            yield file
        if not found:
            raise SourceError(f"{path}: there is no Python file in this directory")


@dataclass(frozen=True, slots=True)
class _Rule:
    """The patterns of one .gitignore; its folder."""

    base: Path
    patterns: tuple[str, ...]


def _says(rules: tuple[_Rule, ...], path: Path, slash: str) -> bool:
    """Whether git would ignore `path`: the deepest file that speaks of it decides, in it the last pattern."""
    for rule in reversed(rules):
        verdict = spec(rule.patterns).check_file(os.path.relpath(path, rule.base) + slash).include
        if verdict is not None:
            return verdict
    return False


def _around(folder: Path) -> tuple[_Rule, ...]:
    """The rules of the repository that `folder` lies in, from its root down to the folder above. None of them count
    where they ignore the very folder that was asked for."""
    real = Path(os.path.realpath(folder))
    top = next((p for p in (real, *real.parents) if (p / ".git").exists()), None)
    if top is None:
        return ()
    between = [p for p in reversed(real.parents) if p.is_relative_to(top)] if top != real else []
    rules = [*_rules(top, top / ".git" / "info" / "exclude")]
    for around in between:
        rules += _rules(around, around / ".gitignore")
    # the walk speaks of paths as they were given
    shift = [_Rule(folder / os.path.relpath(r.base, real), r.patterns) for r in rules]
    return () if _says(tuple(rules), real, "/") else tuple(shift)


def _rules(base: Path, file: Path) -> Iterator[_Rule]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    patterns = tuple(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    if patterns:
        yield _Rule(base, patterns)


def project_root(entry: Path) -> Path:
    """The nearest folder around `entry` that looks like a project's; else the one the person stands in, if it is
    around `entry` (``python src/train.py`` has its relative paths from there), else `entry`'s own; never the home
    directory or the root of the file system."""
    nearest = folder = os.path.dirname(entry)
    home, here = os.path.expanduser("~"), os.path.realpath(os.curdir)
    while folder not in (home, os.path.dirname(folder)):
        if any(os.path.exists(os.path.join(folder, mark)) for mark in PROJECT_MARKS):
            return Path(folder)
        nearest = folder if folder == here else nearest
        folder = os.path.dirname(folder)
    return Path(nearest)


def _skipped(folder: Path) -> bool:
    name = folder.name
    return (
        name.startswith(".")
        or name in SKIPPED
        or name.endswith(".egg-info")
        or (folder / "pyvenv.cfg").exists()
    )
