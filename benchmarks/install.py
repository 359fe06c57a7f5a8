"""What `import gradfix; gradfix.install()` adds to a script that has torch imported: aim 5 ms.

    python benchmarks/install.py [RUNS]

Each run is a process of its own, since a second import in one process is free.
"""

import statistics
import subprocess
import sys

CODE = """
import time, torch
started = time.perf_counter()
import gradfix
gradfix.install()
print(time.perf_counter() - started)
"""


def main(runs: int) -> None:
    seconds = sorted(
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout)
        for _ in range(runs)
    )
    print(f"import gradfix; gradfix.install(): median {statistics.median(seconds) * 1e3:.2f} ms, ", end="")
    print(f"worst of {runs}: {seconds[-1] * 1e3:.2f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
