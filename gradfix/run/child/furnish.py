"""What a run in namespaces sees of the machine beside files: few devices, its own processes, no services, no
secrets. Every function raises OSError where the machine forbids it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from . import devices, linux

SAFE = linux.MS_NOSUID | linux.MS_NODEV
SHARED = "/dev/shm"
SERVICES = "/run"  # sockets of other programs, some of which do what root may


def give_devices(room: int) -> None:
    """A /dev with what :mod:`.devices` names, terminals of its own and shared memory of `room` bytes."""
    opened = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in devices.present()}
    linux.mount("gradfix", "/dev", "tmpfs", linux.MS_NOSUID, "mode=755,size=64k")
    for path, fd in opened.items():
        source = f"/proc/self/fd/{fd}"
        if os.path.isdir(source):
            os.mkdir(path)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        linux.mount(source, path, None, linux.MS_BIND)
        os.close(fd)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink("/proc/self/fd" + target, "/dev/" + name)
    os.mkdir(SHARED)
    linux.mount("gradfix", SHARED, "tmpfs", SAFE, f"mode=1777,size={room}")
    os.mkdir("/dev/pts")
    try:
        linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")
    except OSError:  # no terminals then
        pass


def hide_services() -> None:
    """An empty /run but for its links, which some systems reach their programs through."""
    if not os.path.isdir(SERVICES) or os.path.islink(SERVICES):
        return
    with os.scandir(SERVICES) as entries:
        links = {entry.path: os.readlink(entry.path) for entry in entries if entry.is_symlink()}
    linux.mount("gradfix", SERVICES, "tmpfs", SAFE, "mode=755,size=1m")
    for path, target in links.items():
        os.symlink(target, path)


def give_processes() -> int | None:
    """Give a new PID namespace its own /proc, which nothing can be written to: the machine's settings are in it.
    A descriptor of one that can; None where a container's masked /proc forbids a new one."""
    try:
        linux.mount("proc", "/proc", "proc", SAFE | linux.MS_NOEXEC)
    except OSError:
        return None
    own = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    linux.mount("/proc", "/proc", None, linux.MS_BIND)
    linux.read_only("/proc")
    return own


def hide(paths: Iterable[str]) -> None:
    """Show an empty folder or an empty file in the place of each path that is there."""
    for path in paths:
        if os.path.isdir(path):
            linux.mount("gradfix", path, "tmpfs", SAFE, "mode=755,size=4k")
        elif os.path.exists(path):
            linux.mount("/dev/null", path, None, linux.MS_BIND)
