"""Where there are no namespaces: refuse writes outside of the run's own copy.

Landlock (Linux 5.13) holds for every kind of write and for what the script starts; where it is missing, an
audit hook sees what goes through Python, and torch.save, which writes past Python, is asked first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

from . import devices, landlock, seccomp

# Audit event -> which of its arguments are paths that it writes to.
WRITES = {
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.mkdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
}
DEVICES = ("/dev/", "/proc/self/")


class NoGuard(Exception):
    """This machine does not have the wall; the message says why."""


def refuse(wall: str, strict: bool) -> None:
    """Raise NoGuard where this wall would not hold, before anything is begun."""
    if wall != "landlock":
        return
    version = landlock.version()
    if version < 1:
        raise NoGuard("this kernel has no Landlock")
    if not seccomp.is_known():
        raise NoGuard("this kernel filters no system calls, so the network would be open")
    if strict and version < landlock.SCOPED:
        raise NoGuard("this kernel's Landlock does not stop signals to other programs (Linux 6.12 does)")


def install(request: dict[str, Any]) -> None:
    """From here on this process and its children write only to the copy of the project and to harmless devices."""
    folder = os.path.realpath(request["scratch"])
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # The copy's .git is a link: git status must not refresh the owner's index.
    os.environ["GIT_OPTIONAL_LOCKS"] = "0"
    if request["wall"] == "audit" or landlock.version() < 1:
        _audit([folder])
        return
    shared = [] if request["strict"] else ["/dev/shm"]  # other programs of the owner's keep memory there
    landlock.restrict([folder], [*devices.present(), *shared], request["masked"])


def _audit(allowed: list[str]) -> None:
    roots = [os.path.normcase(folder) for folder in allowed]

    def check(path: Any, descriptor: Any = None) -> None:
        if isinstance(path, int) or path in (None, os.devnull):
            return
        real = os.path.normcase(os.path.realpath(os.fsdecode(path)))
        if real.startswith(DEVICES) or any(real == a or real.startswith(a + os.sep) for a in roots):
            return
        raise PermissionError(13, "this run may only write inside of its scratch copy", os.fsdecode(path))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND):
                check(path)
        else:
            for index in WRITES.get(event, ()):
                check(arguments[index])

    sys.addaudithook(hook)
    _ask_torch_save(check)


def _ask_torch_save(check: Any) -> None:
    from torch import serialization

    for name in ("_open_zipfile_writer", "_open_file_like"):
        opener = getattr(serialization, name, None)
        if opener is not None:
            setattr(serialization, name, _checked(opener, check))


def _checked(opener: Any, check: Any) -> Any:
    def checked(name_or_buffer: Any, *rest: Any) -> Any:
        writes = not rest or "w" in str(rest[0])
        if writes and isinstance(name_or_buffer, (str, os.PathLike)):
            check(name_or_buffer)
        return opener(name_or_buffer, *rest)

    return checked
