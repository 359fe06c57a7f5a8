"""What a wall kept from a run, as sentences: the script's own error seldom says whose doing it was."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from gradfix.run import secrets
from gradfix.run.child.confine import PROCESSES
from gradfix.run.walls import Wall
from gradfix.tape import Failure

OFF = "--sandbox off runs it as python would"
_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|getaddrinfo failed"
    r"|Failed to resolve|nodename nor servname|NameResolutionError|network addresses? of .* cannot be retrieved"
    r"|Cannot resolve \S+ to a",
    re.IGNORECASE,
)
_FULL = re.compile(r"Errno 28\b|No space left on device")
_LARGE = re.compile(r"Errno 27\b|File too large")
_CROWDED = re.compile(r"\[Errno 11\] Resource temporarily unavailable|can't start new thread|os error 11")
_WRITES = re.compile(
    r"\[Errno 30\]|Read-only file system|PermissionError: |this run may only write|: Permission denied"
    r"|unable to open database file|attempt to write a readonly database"
)
_ENOUGH = ("finished", "steps")  # ends of a run that missed nothing, whatever it printed


def missed(
    wall: Wall, ended: str, failure: Failure | None, stderr: str, hosts: Sequence[str], file_size: int
) -> Iterator[str]:
    """Sentences on what the script asked for and `wall` withheld. `hosts` are those it was seen to ask for;
    its `stderr` counts where it did not come to its end and no exception says why."""
    if wall.name == "none":
        return
    if failure is not None and not failure.type.endswith(
        "CalledProcessError"
    ):  # what that program said is on stderr
        last = f"{failure.type}: {failure.message}"
        said = f"{last}\n{failure.traceback[-4000:]}"
    else:
        last = said = stderr if ended not in _ENOUGH else ""
    if hosts or _NETWORK.search(said):
        which = ", ".join(hosts) or _last_line(said)
        loopback = "" if wall.loopback or hosts else f", 127.0.0.1 neither behind {wall.name}"
        yield (
            f"the script asked for the network: {which}. A run has none{loopback}: put what it needs on this "
            f"machine first; {OFF}"
        )
    if _FULL.search(said):
        yield "the run's scratch space is full: what a run writes is kept apart, in memory or where TMPDIR says"
    elif _LARGE.search(said):
        yield f"a file may grow to {_size(file_size)} in a run; {OFF}"
    elif _CROWDED.search(said):
        yield f"a run may have {PROCESSES} processes and threads; {OFF}"
    elif _WRITES.search(last):
        yield f"a run may write to its own view of the project only, and reads no secrets; {OFF}"
    names = sorted(name for name in secrets.scrubbed(os.environ)[1] if _names(said, name))
    if names:
        yield f"the environment's {', '.join(names)} {'are' if len(names) > 1 else 'is'} withheld from runs; {OFF}"


def _names(said: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said) is not None


def _last_line(said: str) -> str:
    """Without what a logger puts before it."""
    line = next((line.strip() for line in said.split("\n") if _NETWORK.search(line)), "")
    return re.sub(r"^(\[[A-Z][^]]*\] )*(\[c10d\] )?", "", line)[:200].rstrip(".")


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
