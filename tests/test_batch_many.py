"""A thousand small repositories: memory stays flat, and the last ones take no longer than the first."""

import re
import statistics
from pathlib import Path

import pytest
from repositories import faulty, plain, sound

from gradfix.batch.intake import specs
from gradfix.batch.migrate import Batch, Progress
from gradfix.batch.state import State
from gradfix.batch.values import Options


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

    def say(progress: Progress) -> None:
        if progress.last is not None:
            held.append(resident())
            seconds.append(progress.last.seconds)

    Batch(workspace, Options(), jobs=2).run(state, say)
    assert len(held) == count
    tenth = max(count // 10, 3)
    curve = [(round(statistics.mean(held[i : i + tenth])), round(statistics.median(seconds[i : i + tenth]), 3))
             for i in range(0, count, tenth)]  # fmt: skip
    print(f"(MB, median s) by tenths: {curve}")
    assert held[-1] - statistics.median(held[:tenth]) < 30
    assert statistics.median(seconds[-tenth:]) < 3 * statistics.median(seconds[:tenth]) + 0.5
    assert Batch(workspace, Options(), jobs=2).run(state, say)
    assert len(held) == count  # the second time there is nothing to do
    state.close()
