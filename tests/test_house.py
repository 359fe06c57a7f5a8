"""Formatting, lint and types of the house itself, with the pinned tools of the test extra."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "command",
    [["ruff", "format", "--check", "."], ["ruff", "check", "."], ["mypy"]],
    ids=["format", "lint", "types"],
)
def test_clean(command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_outgrows_the_head():
    for path in [*ROOT.glob("gradfix/**/*.py"), *ROOT.glob("codemods/*.py")]:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 600, f"{path.relative_to(ROOT)} has {lines} lines"
