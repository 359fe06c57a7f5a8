"""The README's example: the script that it prints, and what gradfix prints of it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

README = Path(__file__).parent.parent / "README.md"


def blocks() -> list[str]:
    """The indented blocks, each as it reads without its indentation."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", README.read_text(encoding="utf-8"), re.M)
    return [dedent(block).strip("\n") for block in found]


def test_the_example_is_what_is_printed(tmp_path):
    script = next(b for b in blocks() if b.startswith("import torch"))
    shown = next(b for b in blocks() if b.startswith("error[")).splitlines()
    (tmp_path / "gan.py").write_text(script + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "gradfix", "fix", "gan.py"]
    wide = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, cwd=tmp_path, env=wide, capture_output=True, encoding="utf-8", check=False)
    said = iter([line.rstrip() for line in done.stdout.splitlines()])
    # piped, the first file's name has no a/ before it; what the README leaves out is marked
    told = [line for line in shown if line.strip() != "…" and not line.startswith("--- ")]
    missing = [line for line in told if line not in said]  # in this order
    assert not missing, done.stdout + done.stderr
    assert done.returncode == 1
