"""The whole of `gradfix fix` on a small broken script behind the walls, as a ratio to the same without any.

    python benchmarks/walls.py [--runs 7] [SCRIPT]

`--sandbox auto` against `--sandbox off`, as processes of their own, alternating, after one of each to warm the disk's
cache. Prints medians and the median of the ratios of neighbours; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "fixtures/recompute_after_step/shared_score/before.py"


def timed(script: Path, sandbox: str) -> tuple[float, str]:
    """Seconds of one fix, and the wall there was."""
    command = [sys.executable, "-m", "gradfix", "fix", "--output-format", "json", "--sandbox", sandbox]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    return time.perf_counter() - start, json.loads(done.stdout)["runs"][0]["wall"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("script", nargs="?", type=Path, default=DEFAULT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:  # without a wall the script writes where it stands
        script = Path(folder, "train.py")
        script.write_bytes(args.script.read_bytes())
        _, wall = timed(script, "auto")
        timed(script, "off")
        walled, bare = [], []
        for _ in range(args.runs):
            walled.append(timed(script, "auto")[0])
            bare.append(timed(script, "off")[0])
    ratio = statistics.median(a / b for a, b in zip(walled, bare, strict=True))
    print(f"{args.script.parent.parent.name}/{args.script.parent.name}: behind {wall}")
    print(f"  {statistics.median(walled):.2f} s, without {statistics.median(bare):.2f} s")
    print(f"  ratio {ratio:.2f} (median of {args.runs}, aim 1.3)")


if __name__ == "__main__":
    main()
