"""What the process of a run gives up before the script's first line, on Linux: rights, calls, room.

It becomes a user of its own where it may, so that it can neither signal nor trace the owner's processes, and
so that a limit on processes counts its own ones alone (the kernel asks no such limit of root). Only the rights
to files stay with it then: which files there are is the view's affair.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import linux, seccomp

PROCESSES = 256  # of a run, threads among them
# To files of another owner: chown, dac_override, fowner, fsetid
FILES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
_SETUID, _SETPCAP = 7, 8
_UIDS = 1 << 30  # where nobody's user numbers are
_COUNTS_BY_NAMESPACE = (5, 14)  # since when RLIMIT_NPROC does


def confine(request: dict[str, Any], granted: bool) -> None:
    """Give up what `request`'s wall says. `granted`: our rights are a user namespace's."""
    if request["wall"] == "none" or not sys.platform.startswith("linux"):
        return
    alone = not granted and _become_somebody()
    linux.keep_capabilities(FILES if alone else 0)
    _limit(request, alone or (granted and _counts_by_namespace()))
    seccomp.install(alone=request["wall"] in ("landlock", "audit"))
    linux.die_with_parent()  # a change of user has undone it


def _become_somebody() -> bool:
    """Become a user whom nobody else is, with the rights to root's files. False where we may not."""
    held = linux.capabilities()
    if os.getuid() != 0 or not held >> _SETUID & 1 or not held >> _SETPCAP & 1:
        return False
    user = _UIDS + int.from_bytes(os.urandom(3), "big")
    linux.keep_over_setuid()
    try:
        os.setresuid(user, user, user)
    except OSError:  # a container's namespace that does not know such numbers
        return False
    linux.be_dumpable()
    os.environ.setdefault("USER", "root")  # getpass looks here before it asks who has this number
    _have_git_trust_us()
    return True


def _have_git_trust_us() -> None:
    """git reads no repository of another owner's unless it is told to, and here everything is one's."""
    count = os.environ.get("GIT_CONFIG_COUNT", "")
    number = int(count) if count.isdigit() else 0
    os.environ[f"GIT_CONFIG_KEY_{number}"], os.environ[f"GIT_CONFIG_VALUE_{number}"] = "safe.directory", "*"
    os.environ["GIT_CONFIG_COUNT"] = str(number + 1)


def _counts_by_namespace() -> bool:
    numbers = os.uname().release.split(".")[:2]
    return os.getuid() != 0 and tuple(int("".join(filter(str.isdigit, n)) or 0) for n in numbers) >= (
        _COUNTS_BY_NAMESPACE
    )


def _limit(request: dict[str, Any], processes: bool) -> None:
    try:
        import resource
    except ImportError:  # an interpreter built without it
        return
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: request["file_size"],
        # of all threads; the keeper's clock strikes first
        resource.RLIMIT_CPU: int(request["timeout"] * (os.cpu_count() or 1)) + 10,
    }
    if processes:
        limits[resource.RLIMIT_NPROC] = PROCESSES
    for kind, value in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
