"""What a plain run would have freed: kept, so that a second backward can be followed, and bounded.

The newest graphs are kept, as much as the largest of them or 64 MiB, the parameters cloned for them included. What
the allocator holds is bounded too: graphs that live longer than they would leave its heap full of holes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection

from . import linux
from .saves import GONE, NOBODY, Entry

BUDGET = 64 << 20  # bytes
_LOOK = 16 << 20  # bytes let go between two looks at the process's size
_GROWTH = 1.2  # of the process, since its free memory was last given back


class _Graph:
    """What one backward freed: `size` in bytes, clones of parameters included, and the entries."""

    __slots__ = ("entries", "size")

    def __init__(self, entries: list[weakref.ref[Entry]]) -> None:
        self.size = 0
        self.entries = entries

    def gone(self) -> bool:
        return all(e() is None for e in self.entries)


class Freed:
    """The graphs that backwards freed, by the time of the backward. `tell` hears that evidence was dropped."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._graphs: dict[int, _Graph] = {}
        self._sweep_at = 256
        self._held = 0
        self._budget = BUDGET
        self._let_go = 0
        self._size = 0  # of the process when its free memory was last given back

    def stamp(self, used: Collection[Entry], time: int) -> None:
        """Mark what a plain run would have freed, and let the oldest go when it is too much to keep."""
        kept = [entry for entry in used if entry.tensor is not GONE]
        sizes: dict[int, int] = {}
        for entry in used:
            if entry.freed is None:
                entry.freed = time
            if entry.maker != NOBODY and entry.address not in sizes and entry.tensor is not GONE:
                sizes[entry.address] = entry.tensor.nbytes
        self._graphs[time] = _Graph(list(map(weakref.ref, kept)))
        self._grow(time, sum(sizes.values()))
        if self._held > self._budget or len(self._graphs) > self._sweep_at:
            self._bound()
        if self._let_go > _LOOK:
            self._let_go = 0
            self._give_back()

    def cloned(self, time: int, size: int) -> None:
        """A parameter that the graph freed at `time` saved was cloned before a step."""
        if time in self._graphs:
            self._grow(time, size)

    def _grow(self, time: int, size: int) -> None:
        graph = self._graphs[time]
        graph.size += size
        self._held += size
        self._let_go += size
        self._budget = max(self._budget, graph.size)

    def _bound(self) -> None:
        graphs = self._graphs = {t: g for t, g in self._graphs.items() if not g.gone()}
        self._sweep_at = max(256, 2 * len(graphs))
        self._held = sum(g.size for g in graphs.values())
        for time in list(graphs)[:-1]:
            if self._held <= self._budget:
                break
            graph = graphs.pop(time)
            self._held -= graph.size
            self._drop(graph)

    def _drop(self, graph: _Graph) -> None:
        for reference in graph.entries:
            entry = reference()
            if entry is not None:
                entry.tensor = GONE
                if entry.fate is not None:
                    entry.fate.value = None
        self._tell(
            "Saved tensors of graphs that a backward had already freed were dropped to bound memory: "
            "a later backward through them can't be followed."
        )

    def _give_back(self) -> None:
        """Let the C library return its free memory where the process has grown: glibc fits no aligned block into
        the hole that one of its size has left."""
        if linux.resident() > _GROWTH * self._size:
            linux.trim()
            self._size = linux.resident()
