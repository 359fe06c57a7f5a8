"""The processes below one: what they hold in memory, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PATIENCE = 10.0  # seconds that the system may take to end what was killed


def resident(pid: int) -> int:
    """Bytes that a process and all below it hold in memory, without what they share with files; 0 where the system
    does not tell."""
    return sum(map(_held, (pid, *below(pid))))


def _held(pid: int) -> int:
    """One process's part. What it shares with those it was forked from, or forked, is counted once in all where the
    system says so: the runs are forks of one that has torch in memory."""
    with suppress(OSError, IndexError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().split(b"\n"):
            if line.startswith(b"Pss_Anon:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, IndexError, ValueError):
        held = Path(f"/proc/{pid}/statm").read_bytes().split()
        return (int(held[1]) - int(held[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


def kill_below(pid: int) -> None:
    """End all processes below one, those that they have started meanwhile too."""
    late = time.monotonic() + PATIENCE
    while time.monotonic() < late and (found := [one for one in below(pid) if not _ended(one)]):
        for one in found:
            with suppress(OSError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)


def below(pid: int) -> Iterator[int]:
    """All processes below one, in whatever session they are; none where the system does not tell."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                children.setdefault(int(_about(int(name))[1]), []).append(int(name))
    todo = children.pop(pid, [])
    while todo:
        one = todo.pop()
        yield one
        todo += children.pop(one, [])


def _ended(pid: int) -> bool:
    try:
        return _about(pid)[0] == b"Z"
    except (OSError, IndexError):
        return True


def _about(pid: int) -> list[bytes]:
    """State, parent and so on: what follows the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
