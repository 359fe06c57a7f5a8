"""Which repository is begun next: the largest of those that wait, so that no long one is left over at the end, when
nothing else is there to be done beside it."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gradfix.batch.values import Spec
from gradfix.discover import SKIPPED

LOOK = 64  # of those that wait, so many are looked at: a batch of any length begins at once
UNKNOWN = 1 << 60  # a size that can't be told before it is opened


def largest_first(specs: Iterable[Spec]) -> Iterator[Spec]:
    """All of them, each the largest of the first LOOK that are left."""
    left = iter(specs)
    seen: list[tuple[int, int, Spec]] = []
    for number, spec in enumerate(left):
        heapq.heappush(seen, (-size(Path(spec.place)), number, spec))
        if len(seen) >= LOOK:
            yield heapq.heappop(seen)[2]
    while seen:
        yield heapq.heappop(seen)[2]


def size(place: Path) -> int:
    """Bytes of what would be read: a guess at how long it takes."""
    if (place / "HEAD").is_file() and (place / "objects").is_dir():
        return UNKNOWN  # bare
    if not place.is_dir():
        with suppress(OSError):
            return place.stat().st_size
        return 0
    total = 0
    for here, folders, files in os.walk(place):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in SKIPPED]
        for name in files:
            if name.endswith(".py"):
                with suppress(OSError):
                    total += os.stat(os.path.join(here, name), follow_symlinks=False).st_size
    return total
