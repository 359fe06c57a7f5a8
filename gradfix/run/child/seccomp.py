"""A filter of system calls (seccomp): those that no training needs and that reach the kernel's less tried corners,
and, where there is no network namespace, those that open a way to the network."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

from . import linux

_SET_SECCOMP, _FILTER = 22, 2
_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # the same machine's calls by other numbers
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _ENETUNREACH = 1, 38, 101
_AF_UNIX = 1

# name -> number on x86_64, on aarch64
_FORBIDDEN = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),  # would open sockets past this filter
}
# What Landlock does not hold: owner, mode, times and attributes of a file.
_UNHELD = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_UNSHARE, _CLONE, _CLONE3, _SOCKET = (272, 97), (56, 220), 435, (41, 198)


def is_known() -> bool:
    """Whether this machine has such filters and we its numbers."""
    try:
        return os.uname().machine in _ARCH and linux.libc().prctl(21, 0, 0, 0, 0) >= 0
    except (OSError, AttributeError, TypeError):  # not Linux
        return False


def install(alone: bool) -> None:
    """Filter from here on, in children too. Where the filter stands `alone`, without namespaces: no sockets but local
    ones, and changes of a file's mode and the like seem to be made and are not. Raises OSError."""
    if not is_known():
        return
    program = list(_program(os.uname().machine, alone))
    code = b"".join(program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(buffer))
    linux.no_new_rights()
    linux.check(linux.libc().prctl(_SET_SECCOMP, _FILTER, header, 0, 0), "seccomp")


def _program(machine: str, alone: bool) -> Iterator[bytes]:
    column = list(_ARCH).index(machine)
    yield _step(_LOAD, _ARCHITECTURE)
    yield from _unless(_EQUAL, _ARCH[machine], _KILL)
    yield _step(_LOAD, _NUMBER)
    if machine == "x86_64":
        yield from _if(_AT_LEAST, _X32, _ERROR | _ENOSYS)
    for numbers in _FORBIDDEN.values():
        yield from _if(_EQUAL, numbers[column], _ERROR | _EPERM)
    yield from _if(_EQUAL, _CLONE3, _ERROR | _ENOSYS)  # its flags can't be seen from here; clone is used then
    for numbers in (_UNSHARE, _CLONE):  # no user namespace: in one of its own it would have every right
        yield _step(_EQUAL, numbers[column], 0, 3)
        yield _step(_LOAD, _FIRST_ARGUMENT)
        yield from _if(_ANY_BIT, linux.CLONE_NEWUSER, _ERROR | _EPERM)
        yield _step(_LOAD, _NUMBER)
    if alone:
        for unheld in _UNHELD.values():
            number = unheld[column]
            if number is not None:
                yield from _if(_EQUAL, number, _ERROR)
        yield _step(_EQUAL, _SOCKET[column], 0, 3)
        yield _step(_LOAD, _FIRST_ARGUMENT)
        yield from _unless(_EQUAL, _AF_UNIX, _ERROR | _ENETUNREACH)
    yield _step(_RETURN, _ALLOW)


def _if(test: int, value: int, answer: int) -> Iterator[bytes]:
    yield _step(test, value, 0, 1)
    yield _step(_RETURN, answer)


def _unless(test: int, value: int, answer: int) -> Iterator[bytes]:
    yield _step(test, value, 1, 0)
    yield _step(_RETURN, answer)


def _step(code: int, value: int, when: int = 0, otherwise: int = 0) -> bytes:
    """One instruction of the kernel's packet filter, with how many to skip when it holds, and otherwise."""
    return struct.pack("HBBI", code, when, otherwise, value)
