"""Landlock (Linux 5.13): a process gives up all files but some, and so do its children. By system call: the
standard library does not have it."""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable, Iterator

from . import linux

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_CHANGES = sum(
    1 << bit for bit in range(4, 13)
)  # remove and make directories, files, sockets, devices, links
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_SCOPES = 1 | 2  # since version 6: abstract sockets, signals
SCOPED = 6


def version() -> int:
    """Of the kernel's Landlock; less than 1 where it has none."""
    try:
        return int(linux.libc().syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG))
    except (OSError, AttributeError, TypeError):  # not Linux
        return 0


def restrict(writable: Iterable[str], devices: Iterable[str], hidden: Iterable[str]) -> None:
    """From here on: write below `writable` and to `devices`, read anything but what is `hidden` or another device,
    send no signal to processes that are not ours. Raises OSError."""
    known = version()
    rights = _EXECUTE | _WRITE_FILE | _READ_FILE | _READ_DIR | _CHANGES
    rights |= (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0) | (_IOCTL if known >= 5 else 0)
    attributes = struct.pack("QQQ", rights, 0, _SCOPES)[: 24 if known >= SCOPED else 8]
    rules = linux.libc().syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    linux.check(min(rules, 0), "landlock_create_ruleset")
    try:
        for path in (*writable, *devices):
            _allow(rules, path, rights)
        _allow(rules, "/", _READ_DIR)  # names are no secret, and rules hold for all that is below
        for path in _beside({*hidden, "/dev"}):
            _allow(rules, path, rights & (_READ_FILE | _EXECUTE | _READ_DIR | _IOCTL))
        linux.no_new_rights()
        linux.check(linux.libc().syscall(_RESTRICT, rules, 0), "landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is not there, or not for us
        return
    try:
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        beneath = struct.pack("=Qi", rights if folder else rights & _OF_FILES, fd)
        linux.check(linux.libc().syscall(_ADD, rules, _PATH_BENEATH, beneath, 0), "landlock_add_rule")
    finally:
        os.close(fd)


def _beside(hidden: set[str], folder: str = "/") -> Iterator[str]:
    """Paths below which, all together, is everything but `hidden`. Not links: what they point at is beside too."""
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if not entry.is_symlink()]
    except OSError:
        return
    for path in found:
        if path in hidden:
            continue
        if any(h.startswith(path + "/") for h in hidden):
            yield from _beside(hidden, path)
        else:
            yield path
