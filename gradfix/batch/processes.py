"""The processes below one: what they hold in memory, and their end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Set
from contextlib import suppress

PATIENCE = 10.0  # seconds that the system may take to end what was killed


def hold_more(pid: int, most: int) -> bool:
    """Whether a process and all below it hold more than `most` bytes in memory, without what they share with files;
    never where the system does not tell.

    The exact number is dear: the system walks through every page, and the process waits meanwhile. So it is asked for
    only where all that each of them maps, shared or not, would come to more."""
    all_ = (pid, *below(pid))
    return sum(map(_mapped, all_)) > most and sum(map(_held, all_)) > most


def _mapped(pid: int) -> int:
    """One process's part, with what it shares with those it was forked from, or forked."""
    with suppress(OSError, IndexError, ValueError):
        held = _read(f"/proc/{pid}/statm").split()
        return (int(held[1]) - int(held[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _held(pid: int) -> int:
    """One process's part. What it shares with those it was forked from, or forked, is counted once in all where the
    system says so: the runs are forks of one that has torch in memory."""
    with suppress(OSError, IndexError, ValueError):
        for line in _read(f"/proc/{pid}/smaps_rollup").split(b"\n"):
            if line.startswith(b"Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return _mapped(pid)


def kill_below(pid: int, spared: Set[int] = frozenset()) -> None:
    """End all processes below one but those `spared` and what is below them; those too that they have started
    meanwhile."""
    late = time.monotonic() + PATIENCE
    while time.monotonic() < late and (found := [one for one in below(pid, spared) if not _ended(one)]):
        for one in found:
            with suppress(OSError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)


def below(pid: int, spared: Set[int] = frozenset()) -> Iterator[int]:
    """All processes below one, in whatever session they are, without those `spared` and what is below them; none where
    the system does not tell."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                children.setdefault(int(_about(int(name))[1]), []).append(int(name))
    todo = [one for one in children.pop(pid, []) if one not in spared]
    while todo:
        one = todo.pop()
        yield one
        todo += [child for child in children.pop(one, []) if child not in spared]


def _ended(pid: int) -> bool:
    try:
        return _about(pid)[0] == b"Z"
    except (OSError, IndexError):
        return True


def _about(pid: int) -> list[bytes]:
    """State, parent and so on: what follows the name, which may hold anything."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(file: str) -> bytes:
    """A file of the system's, without what makes reading one of a person's convenient: they are read by the hundred."""
    found = os.open(file, os.O_RDONLY)
    try:
        return os.read(found, 1 << 16)
    finally:
        os.close(found)
