"""What `import gradfix; gradfix.install()` adds to a script that has torch imported: aim 5 ms.

    python benchmarks/install.py [RUNS]

Each run is a process of its own, since a second import in one process is free. Beside the clock stands the processor's
time, which a busy machine does not stretch.
"""

import statistics
import subprocess
import sys

CODE = """
import time, torch
started, processor = time.perf_counter(), time.process_time()
import gradfix
gradfix.install()
print(time.perf_counter() - started, time.process_time() - processor)
"""


def main(runs: int) -> None:
    measured = [
        subprocess.run(
            [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(runs)
    ]
    print("import gradfix; gradfix.install()")
    for name, column in zip(("clock", "processor"), zip(*measured, strict=True), strict=True):
        seconds = sorted(map(float, column))
        print(
            f"  {name}: median {statistics.median(seconds) * 1e3:.2f} ms, worst of {runs} {seconds[-1] * 1e3:.2f} ms"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
