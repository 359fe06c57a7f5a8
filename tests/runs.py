"""What the tests of runs share: a project whose files must stay as they are, and runs of a text in it."""

from __future__ import annotations

import hashlib
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradfix.run import Outcome, Run, walls
from gradfix.run.zygote import Zygote

MODEL = """
import torch
w = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
def train():
    optimizer.zero_grad()
    (w ** 2).sum().backward()
    optimizer.step()
"""
IGNORES_SIGNALS = """
import signal
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
while True: pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "precious.txt").write_text("the owner's")
    return root


@pytest.fixture(scope="module")
def copying() -> Iterator[Zygote]:
    with behind(walls.LANDLOCK, walls.AUDIT) as zygote:
        yield zygote


def behind(*have: walls.Wall, **options: Any) -> Zygote:
    """A zygote on a machine that has these walls only."""

    def order(sandbox: walls.Sandbox, forks: bool) -> tuple[walls.Wall, ...]:
        return tuple(wall for wall in have if wall.real or sandbox == "auto")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradfix.run.walls.order", order)
        return Zygote(**options)


@pytest.fixture
def run(zygote: Zygote, project: Path) -> Iterator[Callable[..., Outcome]]:
    """Runs a text as the project's script; afterwards the project must be what it was."""
    zygote.ready()
    script = project / "script.py"
    before: list[dict[str, str]] = []

    def start(text: str, where: Zygote = zygote, **options: Any) -> Outcome:
        script.write_text(textwrap.dedent(text))
        before.append(fingerprint(project))
        options = {"record": False, "timeout": 20.0, **options}
        return where.run(Run(script, project, project, **options))

    yield start
    assert before[-1] == fingerprint(project)


def fingerprint(root: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() + oct(path.stat().st_mode)
        if path.is_file()
        else "dir"
        for path in sorted(root.rglob("*"))
    }


def processes_named(word: str, where: str = "cmdline") -> list[str]:
    """Processes with a whole argument, or environment entry, of these words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / where).read_bytes().decode(errors="replace")
            except OSError:
                continue
            if word in line.split("\0"):
                found.append(entry.name)
    return found


def until(condition: Callable[[], bool], seconds: float = 3.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
