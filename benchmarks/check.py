"""What reading a whole tree costs, as ratios of one run: gradfix check beside a parser, a linter and TorchFix.

    OMP_NUM_THREADS=1 python benchmarks/check.py [--tree FOLDER] [--torchfix PYTHON]

The tree is torch's own package unless another is named. Every row is a process of its own. Seconds are the processor's
(user and system, children included), so that a busy machine does not show; with more than one core the clock's
stand beside. `files` are those that a row opened, of gradfix those that it interpreted. `libcst` and TorchFix see a
random sample and are scaled by bytes. TorchFix runs in an environment
of its own: one that is named, else one that is made for the occasion, if pip can get it. Last comes what one script of
a thousand lines costs, from the start of Python to its end, without a cache: the best of several, with few and with
many trainings in it (aim: 0.25 s). Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from server import FAULT, text

from gradfix.discover import Search, project_root
from gradfix.examine import matters
from gradfix.read import outline
from gradfix.read.project import Project

SAMPLE = 60  # files
TRAININGS = (2, 16)  # in a script of a thousand lines
TRIES = 9  # of a script
READ = """
import sys
for path in open(sys.argv[1]).read().split("\\n"):
    open(path, "rb").read()
"""
PARSE = """
import ast, sys, warnings
warnings.simplefilter("ignore")
for path in open(sys.argv[1]).read().split("\\n"):
    try:
        ast.parse(open(path, "rb").read())
    except (SyntaxError, ValueError):
        pass
"""
LIBCST = """
import sys, libcst
for path in open(sys.argv[1]).read().split("\\n"):
    try:
        libcst.parse_module(open(path, "rb").read())
    except libcst.ParserSyntaxError:
        pass
"""


@dataclass(frozen=True)
class Row:
    """`seconds` of the processor for `files`, `clock` seconds, `memory` in MiB: the largest process."""

    name: str
    files: int
    seconds: float
    clock: float
    memory: float
    scaled: bool = False


def measured(name: str, command: Sequence[str], files: int, times: float = 1.0) -> Row:
    """Run `command` to its end. `times` is what a sample is scaled by."""
    started = time.monotonic()
    bytecode = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=bytecode)
    _, status, used = os.wait4(process.pid, 0)
    clock = time.monotonic() - started
    if os.waitstatus_to_exitcode(status) not in (0, 1, 2):
        print(f"{name}: ended with {os.waitstatus_to_exitcode(status)}", file=sys.stderr)
    seconds = used.ru_utime + used.ru_stime
    return Row(name, files, seconds * times, clock * times, used.ru_maxrss / 1024, times != 1.0)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser()
    torch = find_spec("torch")
    default = Path(str(torch.origin)).parent if torch else None
    options.add_argument("--tree", type=Path, default=default)
    options.add_argument("--torchfix", help="a Python that has torchfix")
    given = options.parse_args()
    files = list(Search().below(given.tree))
    raws = [file.read_bytes() for file in files]
    size, read = sum(map(len, raws)), sum(map(interpreted, files, raws))
    some = random.Random(0).sample(files, min(SAMPLE, len(files)))
    times = size / sum(file.stat().st_size for file in some)
    print(
        f"{given.tree}: {len(files)} files, {size / 1e6:.1f} MB; {read} of them may show a fault and are interpreted"
    )
    python = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        every, sample = Path(folder, "every"), Path(folder, "sample")
        every.write_text("\n".join(map(str, files)))
        sample.write_text("\n".join(map(str, some)))
        check = [
            python,
            "-m",
            "gradfix",
            "check",
            "--isolated",
            "-q",
            "--output-format",
            "concise",
            str(given.tree),
        ]
        cache = ["--cache-dir", str(Path(folder, "cache"))]
        rows = [
            measured("reading alone", [python, "-c", READ, str(every)], len(files)),
            measured("ast.parse", [python, "-c", PARSE, str(every)], len(files)),
            measured("libcst parse", [python, "-c", LIBCST, str(sample)], len(some), times),
            measured(
                "ruff check",
                [python, "-m", "ruff", "check", "--isolated", "--no-cache", str(given.tree)],
                len(files),
            ),
            measured("gradfix check, one core", [*check, "--no-cache", "-j", "1"], read),
            measured("gradfix check, two cores", [*check, *cache, "-j", "2"], read),
            measured("gradfix check, warm cache", [*check, *cache, "-j", "1"], 0),
        ]
        fixer = given.torchfix or environment(Path(folder, "torchfix"))
        if fixer:
            command = [fixer, "-m", "torchfix", "--select", "ALL", *map(str, some)]
            rows.append(measured("TorchFix", command, len(some), times))
        rows += scripts(Path(folder))
    base = rows[1].seconds
    print(f"{'':<28}{'files':>7}{'CPU s':>9}{'x ast':>8}{'clock s':>9}{'MiB':>7}")
    for row in rows:
        scaled = "  (scaled)" if row.scaled else ""
        print(
            f"{row.name:<28}{row.files:>7}{row.seconds:>9.2f}{row.seconds / base:>8.2f}"
            f"{row.clock:>9.2f}{row.memory:>7.0f}{scaled}"
        )


def scripts(folder: Path) -> Iterator[Row]:
    """One script of a thousand lines in which there is nothing to find, for each number of trainings."""
    for trainings in TRAININGS:
        script = folder / f"train{trainings}.py"
        script.write_text(text(trainings).replace(FAULT, FAULT.replace("y += 1", "y = y + 1")))
        command = [sys.executable, "-m", "gradfix", "check", "--isolated", "--no-cache", str(script)]
        name = f"one script, {trainings} trainings"
        yield min((measured(name, command, 1) for _ in range(TRIES)), key=lambda row: row.seconds)


def interpreted(file: Path, raw: bytes) -> bool:
    """Whether a check goes into the file: what can't come to a fault it only looks at."""
    files = Project(project_root(file), file.parent)
    return matters(raw) and outline.wanted(str(file), raw.decode("utf-8", "replace"), files).any


def environment(folder: Path) -> str:
    """A Python with torchfix in an environment of its own; "" where there is none to be had."""
    python = str(folder / "bin" / "python")
    steps = ([sys.executable, "-m", "venv", str(folder)], [python, "-m", "pip", "install", "-q", "torchfix"])
    for step in steps:
        if subprocess.run(step, capture_output=True, check=False).returncode:
            print("TorchFix: not to be had here", file=sys.stderr)
            return ""
    return python


if __name__ == "__main__":
    main()
