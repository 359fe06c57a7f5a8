"""The scratch view: the run sees the machine's files as they are, writes where it likes, and nothing arrives.

With namespaces (Linux), every folder that people keep files in is overlaid with a memory file system that
only this run's mount namespace knows and that vanishes with its last process; the rest is mounted read-only.
Paths stay what they are; there is no network and little else of the machine (:mod:`.furnish`). Elsewhere a run
gets a copy of the project (gradfix.run.scratch) and :mod:`.guard`.
"""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterator

from . import furnish, linux
from .furnish import SAFE, SERVICES, SHARED

# Nobody's training script keeps its files here: no overlay, and so read-only.
SYSTEM = frozenset(
    (
        "bin",
        "boot",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "libx32",
        "lost+found",
        "proc",
        "run",
        "sbin",
        "sys",
        "usr",
    )
)
# Not a lower layer, and nothing in it to protect.
PSEUDO = frozenset(
    (
        "autofs",
        "bpf",
        "cgroup",
        "cgroup2",
        "debugfs",
        "devpts",
        "devtmpfs",
        "mqueue",
        "proc",
        "sysfs",
        "tracefs",
    )
)
_MEMORY = frozenset(("tmpfs", "ramfs"))
_NOBODY = 65534  # what a user namespace shows for an owner whom it does not know


class NoView(Exception):
    """This machine does not let us make the view; the message says what refused."""


class View:
    """The view of this process and its children, in which they may write `room` bytes. Making one needs the right
    to mount; raises NoView.

    A process in which it could not be made is unfit for a run: part of its file systems may be read-only.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.lower: dict[str, int] = {}  # folder -> what lies under its overlay
        try:
            linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC)
            linux.loopback()
            linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
            self.mounts = _mounts()
            lower = {target: _open(target) for target in self._usual()}
            linux.read_only("/")
            self.shared = _open(SHARED) if os.path.isdir(SHARED) else None
            furnish.give_devices(self.room)
            furnish.hide_services()
            self._cover(lower)
        except OSError as refused:
            raise NoView(refused.strerror or str(refused)) from None

    def include(self, folders: list[str], masked: list[str], granted: bool) -> None:
        """See to it that `folders` can be written, wherever they are, and `masked` paths not read. Raises NoView.

        Where our rights are `granted` by a user namespace, a folder of another owner needs an overlay of its
        own: the kernel can't copy the folder into one for an owner whom the namespace does not know.
        """
        try:
            for folder in map(os.path.realpath, folders):
                if folder != "/" and folder not in self.lower:
                    self._include(folder, granted)
            furnish.hide(masked)
        except OSError as refused:
            raise NoView(refused.strerror or str(refused)) from None

    def _include(self, folder: str, granted: bool) -> None:
        over = next((target for target in self.lower if _is_within(folder, target)), None)
        if over is None and self.shared is not None and _is_within(folder, SHARED):
            self._cover({SHARED: self.shared})
        elif over is None:
            self._cover({target: _open(target) for target in _split(folder, self.mounts)})
        elif granted and _is_foreign(folder):
            self._cover({folder: _open(os.path.relpath(folder, over), self.lower[over])})

    def _usual(self) -> list[str]:
        """The top-level folders and mounted file systems where people keep files, none inside another."""
        with os.scandir("/") as entries:
            folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        ours = [f for f in [*folders, *self.mounts] if _is_ours(f) or self._is_medium(f)]
        found = [t for folder in ours for t in _split(folder, self.mounts)]
        kept: list[str] = []
        for folder in sorted(set(found)):
            if not (kept and _is_within(folder, kept[-1])):
                kept.append(folder)
        return kept

    def _is_medium(self, folder: str) -> bool:
        """A disk that somebody has plugged in."""
        kind = self.mounts.get(folder, "tmpfs")
        return _is_within(folder, SERVICES) and kind not in _MEMORY and kind not in PSEUDO

    def _cover(self, lower: dict[str, int]) -> None:
        """Overlay each folder of `lower` (path -> descriptor of what is there now, which stays open).

        The layers lie in a memory file system that is hidden in the end by a fresh one on top of it.
        """
        linux.mount("gradfix", SHARED, "tmpfs", SAFE, f"mode=755,size={self.room}")
        layers = _open(SHARED)
        for number, target in enumerate(sorted(lower, key=lambda folder: folder == SHARED)):
            if _is_within(target, SERVICES):
                os.makedirs(target, exist_ok=True)
            base = f"/proc/self/fd/{layers}/{number}"
            for part in ("", "/upper", "/work"):
                os.mkdir(base + part)
            _copy_status(lower[target], base + "/upper")
            _overlay(target, f"/proc/self/fd/{lower[target]}", base)
            self.lower[target] = lower[target]
        os.close(layers)
        if SHARED not in lower:
            linux.mount("gradfix", SHARED, "tmpfs", SAFE, f"mode=1777,size={self.room}")


def write_texts(files: dict[str, str]) -> dict[str, str]:
    """Write candidate texts into the view. Gives those that would not go, to be served by an import hook."""
    left: dict[str, str] = {}
    for path, text in files.items():
        try:
            with open(path, "wb") as stream:
                stream.write(_encode(text))
        except OSError:
            left[path] = text
    return left


def _encode(text: str) -> bytes:
    """In the encoding that the text itself declares (PEP 263)."""
    data = text.encode("utf-8", "surrogatepass")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data if encoding == "utf-8-sig" else text.encode(encoding)
    except (SyntaxError, UnicodeEncodeError):  # the interpreter will say so when it gets there
        return data


def _open(folder: str, base: int | None = None) -> int:
    return os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=base)


def _overlay(target: str, lower: str, base: str) -> None:
    options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
    try:
        linux.mount("overlay", target, "overlay", SAFE, options + ",userxattr")
    except OSError:  # before Linux 5.11, or no such attributes there
        linux.mount("overlay", target, "overlay", SAFE, options)


def _copy_status(fd: int, folder: str) -> None:
    status = os.fstat(fd)
    os.chmod(folder, status.st_mode & 0o7777)
    try:
        os.chown(folder, status.st_uid, status.st_gid)
    except OSError:  # an owner that this user namespace does not know
        pass


def _is_within(folder: str, other: str) -> bool:
    return folder == other or folder.startswith(other + "/")


def _is_foreign(folder: str) -> bool:
    owner = os.stat(folder).st_uid
    return owner != os.geteuid() or owner == _NOBODY


def _is_ours(folder: str) -> bool:
    first = folder.split("/")[1]
    return bool(first) and first not in SYSTEM


def _split(folder: str, mounts: dict[str, str]) -> Iterator[str]:
    """`folder`, or what is in it where file systems are mounted inside: no lower layer may have those."""
    if mounts.get(folder) in PSEUDO or not os.access(folder, os.X_OK | os.R_OK) or not os.path.isdir(folder):
        return
    if not any(_is_within(point, folder) and point != folder for point in mounts):
        yield folder
        return
    with os.scandir(folder) as entries:
        children = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for child in children:
        yield from _split(child, mounts)


def _mounts() -> dict[str, str]:
    """Mount point -> file system type of the topmost mount there."""
    found: dict[str, str] = {}
    with open("/proc/self/mountinfo", "rb") as lines:
        for line in lines:
            fields = line.decode("latin-1").split(" ")
            point = fields[4].encode("latin-1").decode("unicode_escape").encode("latin-1")
            found[os.fsdecode(point)] = fields[fields.index("-") + 1]
    return found
