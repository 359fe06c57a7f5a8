"""The run's own line to the host: JSON lines, each led by a letter that says whose it is and by the run's tag.

t the tape's, m the measurement's, x the executor's. The tag keeps out what others write there: processes that
the script has started, a script that writes to every descriptor it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from time import monotonic  # bound here: the script may patch the module
from typing import Any

HIGH = 400  # descriptors below are what scripts dup and close by number
_BATCH = 200
_SECONDS = 0.2
_ENOUGH = 1 << 28  # bytes, of the twice as many that the host takes


class Channel:
    """``channel(obj)`` sends one JSON object; buffered, so flush() before any way out.

    A descriptor number is all a process holds, and the script may close it and get the number back for a file
    of its own: before each write the descriptor is compared with the one that was opened. `closed` says that
    it is lost. `enough` is called once, where so much was sent that the run had better end with it.
    """

    def __init__(self, fd: int, tag: str) -> None:
        self.tag = tag
        self.fd = os.dup2(fd, HIGH, inheritable=False)
        os.close(fd)
        self.identity = _identity(self.fd)
        self.pid = os.getpid()
        self.lines: list[str] = []
        self.flushed = monotonic()
        self.busy = False
        self.closed = False
        self.after_write: Callable[[], None] | None = None
        self.sent = 0
        self.enough: Callable[[], None] | None = None

    def __call__(self, obj: dict[str, Any]) -> None:
        kind = "x" if "x" in obj else "m" if "m" in obj else "t"
        self.lines.append(
            kind + self.tag + json.dumps(obj, ensure_ascii=True, separators=(",", ":"), default=_plain) + "\n"
        )
        if len(self.lines) >= _BATCH or monotonic() - self.flushed > _SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what is held; nothing in a forked child of the script or where the descriptor is lost."""
        if self.busy:
            return
        self.busy = True
        try:
            self._write()
        finally:
            self.busy = False
        if self.after_write is not None:
            self.after_write()
        if self.enough is not None and self.sent > _ENOUGH:
            enough, self.enough = self.enough, None
            enough()

    def _write(self) -> None:
        lines, self.lines = self.lines, []
        self.flushed = monotonic()
        if not lines or self.closed or os.getpid() != self.pid:
            return
        if _identity(self.fd) != self.identity:
            self.closed = True
            return
        data = memoryview("".join(lines).encode("ascii"))
        self.sent += len(data)
        while data:
            try:
                data = data[os.write(self.fd, data) :]
            except OSError:
                self.closed = True
                return


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _plain(value: Any) -> Any:
    """JSON for what json does not know: numbers of NumPy's and torch's kinds, else the words."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
