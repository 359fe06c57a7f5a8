"""A copy of the project, for machines where a run can't have namespaces of its own."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from gradfix.run import WallError

SMALL = 1 << 20  # bytes of a file that is copied whatever it is
MOST = 5_000  # entries looked at, and
MOST_BYTES = 1 << 28  # bytes copied, before the rest is only linked to: a project may be somebody's home
NEIGHBOURS = 500  # entries beside the project that are linked to
LEFT_OUT = frozenset((".git", "__pycache__", "node_modules", ".hg", ".tox", ".venv", "venv"))


class Copy:
    """A folder of its own that looks like the project: small files copied, the rest linked. Removed on exit.

    The project keeps its name, and what lies beside it is linked to: scripts read ../data.

    The folders of `needed` files are copied whatever the project's size, `masked` paths never. It lies in
    `place`, by default where temporary files do.

    Paths are translated on the way in (:meth:`inward`) and out (:meth:`outward`).
    """

    def __init__(
        self, root: Path, needed: Iterable[Path], masked: Iterable[str] = (), place: Path | None = None
    ) -> None:
        self.root = root
        self.folder = Path(tempfile.mkdtemp(prefix="gradfix-", dir=place))
        self.project = self.folder / "project" / (root.name or "root")
        self._needed = {str(folder) for path in needed for folder in (path, *path.parents)}
        self._masked = frozenset(masked)
        self._seen = self._bytes = 0

    def __enter__(self) -> Copy:
        try:
            self.project.parent.mkdir()
            self._fill(str(self.root), str(self.project))
            self._link_neighbours()
        except OSError as problem:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise WallError(
                f"{self.root} can't be copied to {self.folder.parent} to be run there "
                f"({(problem.strerror or str(problem)).lower()}). TMPDIR names another place."
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _fill(self, source: str, target: str) -> None:
        os.mkdir(target)
        with os.scandir(source) as entries:
            for entry in entries:
                self._seen += 1
                if entry.path in self._masked:
                    continue
                to = os.path.join(target, entry.name)
                if entry.is_dir(follow_symlinks=False) and self._is_walked(entry):
                    self._fill(entry.path, to)
                elif self._is_copied(entry):
                    self._bytes += entry.stat().st_size
                    shutil.copy2(entry.path, to)
                else:
                    _link(entry, to)

    def _link_neighbours(self) -> None:
        try:
            with os.scandir(self.root.parent) as entries:
                beside = [e for e in itertools.islice(entries, NEIGHBOURS) if e.name != self.project.name]
        except OSError:  # not ours to list
            return
        for entry in beside:
            if entry.path not in self._masked and entry.path != str(self.folder):
                with suppress(OSError):
                    os.symlink(entry.path, self.project.parent / entry.name)

    def _is_walked(self, entry: os.DirEntry[str]) -> bool:
        if not os.access(entry.path, os.R_OK | os.X_OK) or entry.path == str(self.folder):
            return False
        return entry.path in self._needed or (entry.name not in LEFT_OUT and not self._is_full())

    def _is_copied(self, entry: os.DirEntry[str]) -> bool:
        try:
            if not entry.is_file() or not os.access(entry.path, os.R_OK):
                return False
        except OSError:  # a link that leads round in a circle
            return False
        return entry.path in self._needed or (entry.stat().st_size <= SMALL and not self._is_full())

    def _is_full(self) -> bool:
        return self._seen >= MOST or self._bytes >= MOST_BYTES

    def inward(self, value: Any) -> Any:
        """A JSON value with paths of the project as paths of the copy."""
        if isinstance(value, str):
            return self._inward_path(value)
        if isinstance(value, Mapping):
            return {self._inward_path(key): self.inward(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.inward(item) for item in value]
        return value

    def _inward_path(self, text: str) -> str:
        root = str(self.root)
        if text == root or text.startswith(os.path.join(root, "")):
            return str(self.project) + text[len(_bare(root)) :]
        return text

    def outward(self, data: bytearray) -> bytearray:
        """Output of the run with the project's own paths."""
        return data.replace(os.fsencode(self.project), os.fsencode(_bare(str(self.root))))

    def outward_json(self, data: bytearray) -> bytearray:
        """The same for lines of JSON."""
        copy, real = (json.dumps(path)[1:-1].encode() for path in (str(self.project), _bare(str(self.root))))
        return data.replace(copy, real)


def _link(entry: os.DirEntry[str], to: str) -> None:
    """A link; where the system does not let us make one, a file is copied and a folder left out."""
    try:
        os.symlink(entry.path, to)
    except OSError:
        if entry.is_file() and os.access(entry.path, os.R_OK):
            shutil.copy2(entry.path, to)


def _bare(folder: str) -> str:
    """Without the separator that only a root ends with."""
    return folder.rstrip("/" + os.sep)
