"""The system calls that the standard library of Python 3.9 does not have, through ctypes."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Optional

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
MS_RDONLY, MS_REMOUNT, MS_NOSUID, MS_NODEV = 1, 32, 2, 4
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
_PDEATHSIG, _SUBREAPER, _NO_NEW_PRIVS = 1, 36, 38
_MOUNT_SETATTR, _CAPSET = 442, {"x86_64": 126, "aarch64": 91}
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1

_libc: Optional[ctypes.CDLL] = None


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
    _check(libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: Optional[str], flags: int, data: str = "") -> None:
    words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
    _check(libc().mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {target}")


def read_only(path: str, on: bool, recursive: bool) -> None:
    """mount_setattr(2), Linux 5.12."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY if on else 0, 0 if on else _ATTR_RDONLY, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    call = libc().syscall
    _check(
        call(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes)),
        "mount_setattr",
    )


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    _prctl(_PDEATHSIG, 9)


def adopt_orphans() -> None:
    _prctl(_SUBREAPER, 1)


def drop_privileges() -> None:
    """Give up what a user namespace granted, so that the script can't undo its mounts."""
    _prctl(_NO_NEW_PRIVS, 1)
    number = _CAPSET.get(os.uname().machine)
    if number is not None:
        _check(libc().syscall(number, struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")


def _prctl(option: int, value: int) -> None:
    try:
        libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0)
    except (OSError, AttributeError):  # not Linux
        pass
