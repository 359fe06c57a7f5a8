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
    r"|Failed to resolve|nodename nor servname|NameResolutionError"
)
_FULL = re.compile(r"Errno 28\b|No space left on device")
_LARGE = re.compile(r"Errno 27\b|File too large")
_CROWDED = re.compile(r"\[Errno 11\] Resource temporarily unavailable|can't start new thread|os error 11")
_WRITES = re.compile(r"\[Errno 30\]|Read-only file system|PermissionError: |this run may only write")


def missed(wall: Wall, failure: Failure | None, hosts: Sequence[str], file_size: int) -> Iterator[str]:
    """Sentences on what the script asked for and `wall` withheld. `hosts` are those it was seen to ask for."""
    if wall.name == "none":
        return
    said = f"{failure.type}: {failure.message}\n{failure.traceback[-4000:]}" if failure is not None else ""
    if hosts or _NETWORK.search(said):
        which = ", ".join(hosts) or _last_line(said)
        yield (
            f"the script asked for the network: {which}. A run has none: put what it needs on this machine "
            f"first; {OFF}"
        )
    if _FULL.search(said):
        yield "the run's scratch space is full: what a run writes is kept apart, in memory or where TMPDIR says"
    elif _LARGE.search(said):
        yield f"a file may grow to {_size(file_size)} in a run; {OFF}"
    elif _CROWDED.search(said):
        yield f"a run may have {PROCESSES} processes and threads; {OFF}"
    elif failure is not None and _WRITES.search(f"{failure.type}: {failure.message}"):
        yield f"a run may write to its own view of the project only, and reads no secrets; {OFF}"
    names = sorted(name for name in secrets.scrubbed(os.environ)[1] if _names(said, name))
    if names:
        yield f"the environment's {', '.join(names)} {'are' if len(names) > 1 else 'is'} withheld from runs; {OFF}"


def _names(said: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said) is not None


def _last_line(said: str) -> str:
    return next((line.strip() for line in said.split("\n") if _NETWORK.search(line)), "")[:200]


def _size(size: int) -> str:
    return f"{size >> 30} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
