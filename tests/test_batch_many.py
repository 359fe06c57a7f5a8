"""A thousand small repositories: memory stays flat, and the last ones take no longer than the first."""

import os
import re
import statistics
import time
from pathlib import Path

import pytest
from repositories import faulty, plain, sound

from gradfix.batch.intake import specs
from gradfix.batch.migrate import Batch, Progress
from gradfix.batch.state import State
from gradfix.batch.values import Options
from gradfix.batch.written import write


def resident() -> float:
    """Megabytes that this process holds."""
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.soak)])
def test_memory_is_flat_and_nothing_slows_down(tmp_path, count):
    # a fault takes longer than none: few are all alike, of many a tenth is a mixture
    texts = [faulty(f"net{n}") if n % 3 and count > 100 else sound(f"net{n}") for n in range(count)]
    places = [plain(tmp_path / f"r{n}", {"train.py": text}) for n, text in enumerate(texts)]
    workspace = tmp_path / "ws"
    workspace.mkdir()
    state = State(workspace)
    state.add(specs(map(str, places)))
    held: list[float] = []
    seconds: list[float] = []
    came: list[float] = []
    load: list[float] = []

    def say(progress: Progress) -> None:
        if progress.last is not None:
            held.append(resident())
            came.append(time.monotonic())
            load.append(os.getloadavg()[0])
            seconds.append(progress.last.seconds)

    begun = time.monotonic()
    Batch(workspace, Options(), jobs=2).run(state, say)
    assert len(held) == count
    tenth = max(count // 10, 3)
    for n in range(0, count, tenth):
        some = slice(n, n + tenth)
        took = came[some][-1] - (came[n - 1] if n else begun)
        rate, median = len(came[some]) / took, statistics.median(seconds[some])
        print(
            f"{n + 1:5}-{n + len(came[some]):<5} {statistics.mean(held[some]):6.1f} MB, {rate:.2f} a second, "
            f"median {median:.2f} s, load {statistics.mean(load[some]):.0f}"
        )
    assert held[-1] - statistics.median(held[:tenth]) < 30
    assert statistics.median(seconds[-tenth:]) < 3 * statistics.median(seconds[:tenth]) + 0.5
    begun = time.monotonic()
    write(workspace, state, state.specs())
    print(f"      reports {resident():6.1f} MB, written in {time.monotonic() - begun:.1f} s")
    assert Batch(workspace, Options(), jobs=2).run(state, say)
    assert len(held) == count  # the second time there is nothing to do
    state.close()
