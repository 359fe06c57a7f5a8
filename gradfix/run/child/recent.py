"""The last passes of a run that goes on like before: not worth writing, unless something happens next to them."""

from __future__ import annotations

from collections import deque
from typing import Any

_PASSES = 2  # of one backward
_MOST, _LARGE = 4000, 40_000  # lines, and what lines and records count together


class Recent:
    """A queue of lines (or of whole walks' Records) that forgets all but the last passes."""

    def __init__(self) -> None:
        self._lines: deque[tuple[Any, int]] = deque()
        self._passes: dict[int, int] = {}  # stack of a backward -> how many are held
        self._size = 0
        self.cut = False  # the queue no longer begins where the writing stopped

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, line: Any, size: int) -> None:
        self._lines.append((line, size))
        self._size += size
        if type(line) is dict and line["e"] == "Backward":
            stack = line["s"]
            held = self._passes[stack] = self._passes.get(stack, 0) + 1
            if held > _PASSES or (held > 1 and self._size > _LARGE):
                while self._forget() != stack:
                    pass
        while len(self._lines) > _MOST:
            self._forget()

    def take(self) -> list[Any]:
        """What is held, in order, from the beginning of a pass on."""
        lines: list[Any] = []
        filled: set[Any] = set()
        for line, _ in self._lines:
            if self.cut and type(line) is dict:
                if line["e"] == "Backward":
                    if "accumulates" in line:
                        filled.update(line["accumulates"].numbers())
                    filled.add(None)
                elif line["e"] == "Step" and filled.isdisjoint(line["refs"].numbers()):
                    continue  # its backward is forgotten
                elif line["e"] == "Free" and not filled:
                    continue
            lines.append(line)
        self._lines.clear()
        self._passes.clear()
        self._size, self.cut = 0, False
        return lines

    def _forget(self) -> int | None:
        """Drop the oldest line; gives the stack of a backward."""
        line, size = self._lines.popleft()
        self._size -= size
        self.cut = True
        if type(line) is dict and line["e"] == "Backward":
            self._passes[line["s"]] -= 1
            return int(line["s"])
        return None
