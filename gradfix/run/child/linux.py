"""The system calls that the standard library of Python 3.9 does not have, through ctypes."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS = 1, 36, 38
_MOUNT_SETATTR, _CAPSET = 442, {"x86_64": 126, "aarch64": 91}
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1

# write to files; remove and make directories, files, sockets, fifos, devices, links
_LANDLOCK_CREATE, _LANDLOCK_WRITES = 444, 1 << 1 | sum(1 << bit for bit in range(4, 13))
_LANDLOCK_TRUNCATE = 1 << 14  # since version 3

_libc: ctypes.CDLL | None = None


def libc() -> ctypes.CDLL:
    """The C library of this process. Raises OSError where there is none to call."""
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def _check(result: int, what: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    _check(libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2). Raises OSError."""
    _check(libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
    _check(libc().mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {target}")


def read_only(path: str) -> None:
    """Make every mount from `path` down read-only (mount_setattr(2), Linux 5.12)."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, len(attributes))
    _check(libc().syscall(_MOUNT_SETATTR, *arguments), "mount_setattr")


def landlock_version() -> int:
    """Of the kernel's Landlock; less than 1 where it has none."""
    try:
        return int(libc().syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    except (OSError, AttributeError, TypeError):  # not Linux
        return 0


def landlock(folders: list[str]) -> bool:
    """Let this process and its children write only below `folders`. False: the kernel has no Landlock."""
    version = landlock_version()
    if version < 1:
        return False
    rights = _LANDLOCK_WRITES | (_LANDLOCK_TRUNCATE if version >= 3 else 0)
    rules = libc().syscall(_LANDLOCK_CREATE, struct.pack("Q", rights), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    for folder in folders:
        fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
        _check(
            libc().syscall(_LANDLOCK_CREATE + 1, rules, 1, struct.pack("=Qi", rights, fd), 0),
            "landlock_add_rule",
        )
        os.close(fd)
    _prctl(_NO_NEW_PRIVS, 1)
    _check(libc().syscall(_LANDLOCK_CREATE + 2, rules, 0), "landlock_restrict_self")
    os.close(rules)
    return True


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    _prctl(_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of processes below whose own parent ends."""
    _prctl(_SUBREAPER, 1)


def drop_privileges() -> None:
    """Give up what a user namespace granted, so that the script can't undo its mounts."""
    _prctl(_NO_NEW_PRIVS, 1)
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        _check(libc().syscall(number, struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")


def resident() -> int:
    """Bytes of this process in memory; 0 where nobody tells."""
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def trim() -> None:
    """Give the heap's free pages back (malloc_trim(3) of glibc; others do it themselves)."""
    try:
        libc().malloc_trim(ctypes.c_size_t(0))
    except (OSError, AttributeError, TypeError):
        pass


def _prctl(option: int, value: int) -> None:
    try:
        libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    except (OSError, AttributeError):  # not Linux
        pass
