"""The whole of `gradfix fix` on a small broken script, as a ratio to one cold plain run of the same script.

    python benchmarks/fix.py [--runs 5] [SCRIPT ...]

Diagnosis, every candidate proved, diff; both as processes of their own, alternating. The script by default is the
fixture with the most candidates. Prints medians; asserts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = [ROOT / "fixtures/recompute_after_step/shared_score/before.py"]


def timed(command: list[str], env: dict[str, str]) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("scripts", nargs="*", type=Path, default=DEFAULT)
    args = parser.parse_args()
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    fix = [sys.executable, "-m", "gradfix", "fix"]
    for script in args.scripts:
        plain, whole = [], []
        for _ in range(args.runs):
            plain.append(timed([sys.executable, str(script)], env)[0])
            whole.append(timed([*fix, str(script)], env)[0])
        document = json.loads(timed([*fix, "--output-format", "json", str(script)], env)[1])
        tried = sum(len(d["cures"]) for d in document["diagnostics"])
        a, b = statistics.median(plain), statistics.median(whole)
        print(
            f"{script.parent.parent.name}/{script.parent.name}: plain python {a:.2f} s, gradfix fix {b:.2f} s"
        )
        print(f"  {tried} candidates proved; ratio {b / a:.2f} (median of {args.runs}, aim 2.5)")


if __name__ == "__main__":
    main()
