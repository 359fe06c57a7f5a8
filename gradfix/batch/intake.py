"""What a path on the command line is, and how it is opened: repository, bare repository, folder, archive."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from gradfix.batch.git import GITLINK, LINK, Blob, GitError, Repository, blob_name, repository
from gradfix.batch.values import Kind, Spec
from gradfix.batch.words import escaped
from gradfix.discover import Search

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MEMBERS, BYTES = 50_000, 1 << 30  # of an archive; more is no source distribution
LONG = 2_000_000  # bytes of a file that is read: nobody wrote more by hand
FILES = 20_000  # sources of one repository
LFS = b"version https://git-lfs.github.com/spec/"
SUFFIXES = (".py", ".ipynb")
NESTED = "is a repository of its own"


class Refused(Exception):
    """Why something is not migrated, as a sentence."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Something to migrate, opened: `root` holds its files, `commit` is what is checked out ("" outside git), `remarks`
    are sentences worth saying of it."""

    root: Path
    kind: Kind
    commit: str = ""
    remarks: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # folders of it that are other repositories'
    tracked: Mapping[str, Blob] = field(default_factory=dict, repr=False)
    staged: Set[str] = field(
        default_factory=frozenset, repr=False
    )  # what the index has otherwise than the commit

    def changed(self, path: Path, raw: bytes) -> bool:
        """Whether a tracked file differs from its commit by more than line endings, here or in the index."""
        name = path.relative_to(self.root).as_posix()
        blob = self.tracked.get(name)
        same = blob is None or blob.name in (
            blob_name(raw, blob.name),
            blob_name(raw.replace(b"\r\n", b"\n"), blob.name),
        )
        return not same or name in self.staged


def specs(places: Iterable[str]) -> list[Spec]:
    """A Spec for every place, each once, with names of their own: as much of the path as tells them apart. A
    repository may be named by its ``.git``, too."""
    real = (os.path.realpath(p) for p in places)
    absolute = list(dict.fromkeys(os.path.dirname(p) if os.path.basename(p) == ".git" else p for p in real))
    names: dict[str, str] = {}
    for place in absolute:
        parts = Path(place).parts[1:] or ("root",)
        for most in range(1, len(parts) + 1):
            name = _plain("-".join(parts[-most:]))
            if name not in names:
                break
        else:
            name = next(n for i in range(2, len(absolute) + 2) if (n := f"{name}-{i}") not in names)
        names[name] = place
    return [Spec(name, place) for name, place in names.items()]


def nothing(place: str) -> str:
    """Why there is nothing at `place` to be migrated, now or ever; "" where there may be."""
    try:
        about = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return "there is no such folder or archive"
    except (OSError, ValueError):  # that it can't be read is a result, and may be another the next time
        return ""
    if stat.S_ISDIR(about.st_mode):
        return ""
    name = os.path.basename(place)
    if name.lower().endswith(ARCHIVES) and stat.S_ISREG(about.st_mode):
        return ""
    return f"{name} is neither a folder nor an archive ({', '.join(ARCHIVES)})"


def listed(text: str) -> list[str]:
    """The places of a list: one a line, ``#`` begins a comment."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@contextmanager
def opened(spec: Spec, scratch: Path) -> Iterator[Opened]:
    """The thing itself where it lies; what has to be unpacked first is unpacked below `scratch`. Raises Refused."""
    place = Path(spec.place)
    try:
        if why := nothing(spec.place):
            raise Refused(why)
        if place.is_file():
            root, remarks = _unpacked(place, scratch / "archive")
            yield Opened(root, "archive", remarks=remarks)
            return
        found = repository(place)
        if found is None:
            nested = _nested(place)
            remarks = (_left_out(NESTED, list(nested)),) if nested else ()
            yield Opened(place, "folder", remarks=remarks, skipped=nested)
            return
        commit = found.head()
        if found.work is None:
            root, remarks = _laid_out(found, commit, scratch / "tree")
            yield Opened(root, "bare", commit, remarks)
            return
        yield _working_copy(found, place, commit)
    except GitError as problem:
        raise Refused(str(problem)) from None
    except OSError as problem:
        reason = (problem.strerror or str(problem)).lower()
        raise Refused(f"{problem.filename or place}: can't be read ({reason})") from None


def sources(there: Opened, exclude: tuple[tuple[Path, tuple[str, ...]], ...]) -> tuple[list[Path], list[str]]:
    """The files to read, and sentences about those that are left out. Raises Refused where there are too many."""
    left: dict[str, list[str]] = {}
    found: list[Path] = []
    search = Search(
        exclude,
        SUFFIXES,
        True,
        blocked=lambda p: left.setdefault("can't be read", []).append(str(p.filename)),
    )
    for path in search.below(there.root):
        name = path.relative_to(there.root).as_posix()
        if any(name.startswith(f"{folder}/") for folder in there.skipped):
            continue
        why = _unreadable(path, name)
        if why:
            left.setdefault(why, []).append(name)
            continue
        found.append(path)
        if len(found) > FILES:
            raise Refused(f"it holds more than {FILES} source files; name a folder of it")
    return found, [_left_out(why, names) for why, names in left.items()]


def _unreadable(path: Path, name: str) -> str:
    """Why a file is left out, as the end of a sentence; "" where it is not."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    try:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            return "is a symbolic link: what it leads to is read under its own name, if it lies here"
        if about.st_size > LONG:
            return f"is longer than {LONG // 1_000_000} MB"
        with path.open("rb") as opened_:
            return "is a pointer of git LFS, not the file" if opened_.read(len(LFS)) == LFS else ""
    except OSError as problem:
        return f"can't be read ({(problem.strerror or str(problem)).lower()})"


def _left_out(why: str, names: list[str]) -> str:
    names = [escaped(name) for name in names]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"{shown}: left out; each {why}." if len(names) > 1 else f"{shown}: left out; it {why}."


def _working_copy(found: Repository, place: Path, commit: str) -> Opened:
    tree = found.tree(commit)
    links = sorted(path for path, blob in tree.items() if blob.mode == GITLINK)
    remarks = []
    if links:
        remarks.append(_left_out("is a submodule: migrate it as a repository of its own", links))
    if not found.branch():
        remarks.append("HEAD is detached: a branch would begin at the commit that is checked out.")
    if found.shallow():
        remarks.append(
            "This is a shallow clone; a branch of it can only be pushed to where its history is whole."
        )
    nested = [n for n in _nested(place) if n not in links]
    if nested:
        remarks.append(_left_out(NESTED, nested))
    skipped = (*links, *nested)
    return Opened(place, "repository", commit, tuple(remarks), skipped, tree, found.staged(tree))


def _nested(root: Path) -> tuple[str, ...]:
    """Folders below `root` that are repositories themselves."""
    out = []
    for here, folders, files in os.walk(root):
        inside = Path(here) != root and (".git" in folders or ".git" in files)
        if inside:
            out.append(Path(here).relative_to(root).as_posix())
        ours = "state.db" in files and "lock" in files  # a workspace: it may hold what was unpacked
        folders[:] = (
            [] if inside or ours else [f for f in folders if not f.startswith(".") and f != "node_modules"]
        )
    return tuple(out)


def _laid_out(found: Repository, commit: str, root: Path) -> tuple[Path, tuple[str, ...]]:
    """The files of a commit below `root`, as they are stored: no filter sees them, no link is made."""
    tree = found.tree(commit, sizes=True)
    plain = {p: b for p, b in tree.items() if b.mode not in (GITLINK, LINK)}
    if len(plain) > MEMBERS or sum(b.size for b in plain.values()) > BYTES:
        raise Refused(
            f"it is a bare repository of more than {MEMBERS} files or {BYTES >> 30} GB; clone it first"
        )
    room = _Room()
    for path, data in zip(plain, found.contents(b.name for b in plain.values()), strict=True):
        if room.wants(path):
            _write(root, path, data)
    (root / ".git").mkdir(parents=True, exist_ok=True)  # where the project begins, for who looks for a root
    left = sorted(set(tree) - set(plain))
    return root, (_left_out("is a link or a submodule", left),) if left else ()


def _unpacked(archive: Path, root: Path) -> tuple[Path, tuple[str, ...]]:
    """The files of an archive below `root`, the folder in it where there is but one, and what is to be said of it.
    Raises Refused."""
    room = _Room()
    links: list[str] = []
    try:
        if archive.name.lower().endswith(".zip"):
            with zipfile.ZipFile(archive) as zipped:
                for info in zipped.infolist():
                    kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where it was made elsewhere than on Unix
                    if info.is_dir() or kind == stat.S_IFDIR or not room.wants(info.filename):
                        continue
                    if kind not in (0, stat.S_IFREG):
                        links.append(info.filename)
                        continue
                    if info.flag_bits & 1:
                        raise Refused(f"{archive.name} is encrypted")
                    with zipped.open(info) as member:
                        _write(root, info.filename, room.read(member))
        else:
            with tarfile.open(archive) as tarred:
                for entry in tarred:
                    room.checked(entry.name)
                    if entry.isdir() or not room.wants(entry.name):
                        continue
                    if not entry.isfile():
                        links.append(entry.name)
                        continue
                    opened_ = tarred.extractfile(entry)
                    assert opened_ is not None
                    _write(root, entry.name, room.read(opened_))
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        RuntimeError,
        NotImplementedError,
    ) as problem:
        raise Refused(
            f"{archive.name} can't be unpacked ({str(problem) or type(problem).__name__})"
        ) from None
    root.mkdir(parents=True, exist_ok=True)
    inside = [p for p in root.iterdir() if p.is_dir()]
    top = inside[0] if len(inside) == 1 and len(list(root.iterdir())) == 1 else root
    (top / ".git").mkdir(exist_ok=True)  # as in _laid_out
    return top, (_left_out("is a link or a device", links),) if links else ()


class _Room:
    """What an archive may still take."""

    def __init__(self) -> None:
        self.members, self.bytes = MEMBERS, BYTES

    def wants(self, name: str) -> bool:
        """Whether a member is to be unpacked. Raises Refused for one that would land elsewhere."""
        parts = self.checked(name).parts
        self.members -= 1
        if self.members < 0:
            raise Refused(f"it holds more than {MEMBERS} files")
        return ".git" not in parts

    def checked(self, name: str) -> PurePosixPath:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in name.split("/")[0] or "\0" in name:
            raise Refused(f"it has a file outside of its folder ({name!r}); nothing of it was unpacked")
        return path

    def read(self, member: IO[bytes]) -> bytes:
        data = member.read(self.bytes + 1)
        self.bytes -= len(data)
        if self.bytes < 0:
            raise Refused(f"it holds more than {BYTES >> 30} GB")
        return data


def _write(root: Path, name: str, data: bytes) -> None:
    path = root / name.replace("\\", "/")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as out:
            out.write(data)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise Refused(
            f"two of its files can't lie side by side here ({name}): the same name twice, names that differ by case "
            "only, or a file where the other needs a folder"
        ) from None


def _plain(name: str) -> str:
    """A name that can be a file's, everywhere."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name).strip(".") or "_"
