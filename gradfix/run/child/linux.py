"""The system calls that the standard library of Python 3.9 does not have, through ctypes."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWIPC, CLONE_NEWNET = 0x08000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_PDEATHSIG, _DUMPABLE, _BSET_DROP, _SECUREBITS, _SUBREAPER, _NO_NEW_PRIVS, _AMBIENT = 1, 4, 24, 28, 36, 38, 47
_NO_SETUID_FIXUP, _KEEP_CAPS = 1 << 2, 1 << 4
_AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 2, 4
_MOUNT_SETATTR, _CAPSET = 442, {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION = 0x20080522
_AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = -100, 0x8000, 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

_libc: ctypes.CDLL | None = None


def libc() -> ctypes.CDLL:
    """The C library of this process. Raises OSError where there is none to call."""
    global _libc
    if _libc is None:
        _libc = ctypes.CDLL(None, use_errno=True)
    return _libc


def check(result: int, what: str) -> None:
    """Raise the OSError of a call of the C library that did not give 0."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """unshare(2). Raises OSError."""
    check(libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """setns(2). Raises OSError."""
    check(libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    words = [None if w is None else os.fsencode(w) for w in (source, target, kind)]
    check(libc().mount(*words, ctypes.c_ulong(flags), os.fsencode(data) or None), f"mount {target}")


def read_only(path: str) -> None:
    """Make every mount from `path` down read-only (mount_setattr(2), Linux 5.12)."""
    attributes = struct.pack("QQQQ", _ATTR_RDONLY, 0, 0, 0)
    arguments = (_AT_FDCWD, os.fsencode(path), _AT_RECURSIVE, attributes, len(attributes))
    check(libc().syscall(_MOUNT_SETATTR, *arguments), "mount_setattr")


def die_with_parent() -> None:
    """SIGKILL for this process when the thread that forked it ends."""
    _prctl(_PDEATHSIG, 9)


def adopt_orphans() -> None:
    """Become the parent of processes below whose own parent ends."""
    _prctl(_SUBREAPER, 1)


def loopback() -> None:
    """Bring up the one interface of a new network namespace, for programs that speak to themselves."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        request = struct.pack("16sh22x", b"lo", 0)
        name, flags = struct.unpack("16sh22x", fcntl.ioctl(any_, _SIOCGIFFLAGS, request))
        fcntl.ioctl(any_, _SIOCSIFFLAGS, struct.pack("16sh22x", name, flags | _IFF_UP))


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


def capabilities() -> int:
    """Those in effect, a bit each."""
    try:
        with open("/proc/self/status") as status:
            effective = next(line for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return 0
    return int(effective.split()[1], 16)


def keep_over_setuid() -> None:
    """Do not lose all capabilities when this process becomes another user: not for access(2) either, which would
    otherwise answer for somebody without any."""
    _prctl(_SECUREBITS, _NO_SETUID_FIXUP | _KEEP_CAPS)


def be_dumpable() -> None:
    """Let a process that became another user look at itself below /proc."""
    _prctl(_DUMPABLE, 1)


def no_new_rights() -> None:
    """No program that this process starts shall have more rights than it."""
    _prctl(_NO_NEW_PRIVS, 1)


def keep_capabilities(kept: int) -> None:
    """Give up every right but those of the bits `kept`, for good, in what is started from here too."""
    number = _CAPSET.get(os.uname().machine)
    for bit in range(64):
        if not kept >> bit & 1:
            _prctl(_BSET_DROP, bit)
    no_new_rights()
    _prctl(_AMBIENT, _AMBIENT_CLEAR_ALL)
    if number is None:
        return
    data = struct.pack("3I", kept, kept, kept) + bytes(12)
    check(libc().syscall(number, struct.pack("Ii", _CAPABILITY_VERSION, 0), data), "capset")
    for bit in range(64):
        if kept >> bit & 1:
            _prctl(_AMBIENT, _AMBIENT_RAISE, bit)


def _prctl(option: int, value: int, more: int = 0) -> None:
    try:
        libc().prctl(
            option, ctypes.c_ulong(value), ctypes.c_ulong(more), ctypes.c_ulong(0), ctypes.c_ulong(0)
        )
    except (OSError, AttributeError):  # not Linux
        pass
