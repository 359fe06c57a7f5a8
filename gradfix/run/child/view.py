"""The scratch view: the run sees the machine's files as they are, writes where it likes, and nothing arrives.

With namespaces (Linux): every folder that people keep files in is overlaid with a memory file system that only this
run's mount namespace knows and that vanishes with its last process; the rest is mounted read-only. Paths stay what
they are. Otherwise: a copy of the project (see gradfix.run.scratch, which makes it) and :func:`guard`.
"""

from __future__ import annotations

import io
import os
import tokenize
from typing import Dict, Iterator, List

from . import linux

# Nobody's training script keeps its files here; left out of the overlays, and so read-only.
SYSTEM = frozenset("bin boot dev etc lib lib32 lib64 libx32 lost+found proc run sbin sys usr".split())
SHARED = "/dev/shm"
# What can't be a lower layer, or has nothing to protect.
PSEUDO = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs bpf pstore autofs".split()
)


class NoView(Exception):
    """This machine does not let us make the view; the message says what refused."""


def enter(folders: List[str]) -> None:
    """Make the view in this process, which must be in a user or root namespace that may mount.

    `folders` are those that must be writable whatever the machine looks like: the project's root and the working
    directory. Raises NoView and leaves the process unfit for a run.
    """
    try:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_SLAVE)
        _cover(_targets(folders))
    except OSError as refused:
        raise NoView(refused.strerror or str(refused)) from None


def _cover(targets: List[str]) -> None:
    lower = {target: os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for target in targets}
    linux.read_only("/", on=True, recursive=True)
    place = SHARED if os.path.isdir(SHARED) else "/tmp"  # holds the layers, and is covered in the end
    linux.mount("gradfix", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
    layers = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    held = f"/proc/self/fd/{layers}"
    for number, target in enumerate(sorted(targets, key=lambda folder: folder == place)):
        base = f"{held}/{number}"
        for part in ("", "/upper", "/work"):
            os.mkdir(base + part)
        _copy_status(lower[target], base + "/upper")
        _overlay(target, f"/proc/self/fd/{lower[target]}", base)
        os.close(lower[target])
    os.close(layers)
    if place not in targets:
        linux.mount("gradfix", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")


def _copy_status(fd: int, folder: str) -> None:
    status = os.fstat(fd)
    os.chmod(folder, status.st_mode & 0o7777)
    try:
        os.chown(folder, status.st_uid, status.st_gid)
    except OSError:  # an owner that this user namespace does not know
        pass


def _overlay(target: str, lower: str, base: str) -> None:
    options = f"lowerdir={lower},upperdir={base}/upper,workdir={base}/work"
    try:
        linux.mount("overlay", target, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options + ",userxattr")
    except OSError:
        linux.mount("overlay", target, "overlay", linux.MS_NOSUID | linux.MS_NODEV, options)


def mount_processes() -> bool:
    """Give a new PID namespace its own /proc. False where the machine forbids it (masked /proc of a container)."""
    try:
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV)
    except OSError:
        return False
    return True


def _targets(folders: List[str]) -> List[str]:
    """The folders to overlay, none inside another."""
    mounts = _mounts()
    wanted = [os.path.realpath(folder) for folder in folders]
    wanted += ["/" + name for name in _top_level()]
    wanted += [point for point in mounts if point.strip("/").split("/")[0] not in SYSTEM]
    if any(os.path.join(folder, "").startswith(SHARED + "/") for folder in wanted):
        wanted.append(SHARED)
    found: List[str] = []
    for folder in sorted(set(wanted)):
        found.extend(_split(folder, mounts))
    kept: List[str] = []
    for folder in sorted(set(found)):
        if not any(folder.startswith(os.path.join(other, "")) for other in kept):
            kept.append(folder)
    return kept


def _top_level() -> Iterator[str]:
    with os.scandir("/") as entries:
        for entry in entries:
            if entry.name not in SYSTEM and entry.is_dir(follow_symlinks=False):
                yield entry.name


def _split(folder: str, mounts: Dict[str, str]) -> Iterator[str]:
    """`folder`, or what is in it where file systems are mounted inside: the kernel refuses those as a lower layer."""
    inside = [m for m in mounts if m.startswith(os.path.join(folder, ""))]
    if not inside:
        if mounts.get(folder) not in PSEUDO:
            yield folder
        return
    try:
        children = [e.path for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for child in children:
        if folder != "/" or os.path.basename(child) not in SYSTEM:
            yield from _split(child, mounts)


def _mounts() -> Dict[str, str]:
    """Mount point -> file system type of the topmost mount there."""
    found: Dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(" ")
            point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape").encode("latin-1")
            found[os.fsdecode(point)] = fields[fields.index("-") + 1]
    return found


def write_texts(files: Dict[str, str]) -> Dict[str, str]:
    """Write candidate texts into the view. Gives those that would not go, to be served by an import hook."""
    left: Dict[str, str] = {}
    for path, text in files.items():
        try:
            with open(path, "wb") as stream:
                stream.write(_encode(text))
        except OSError:
            left[path] = text
    return left


def _encode(text: str) -> bytes:
    """In the encoding that the text itself declares (PEP 263)."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode("utf-8", "surrogatepass")).readline)
    return text.encode("utf-8" if encoding == "utf-8-sig" else encoding)
