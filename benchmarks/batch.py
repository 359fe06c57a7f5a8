"""What a second core and a distributed engine are worth to a batch: the same repositories, arranged in three ways.

    OMP_NUM_THREADS=1 python benchmarks/batch.py REPO… | --from LIST [--time-limit 60] [--times 1] [--read]

One repository at once, two at once, and two workers of a Dask scheduler on this machine (where dask.distributed is
installed): each with a workspace of its own, made for the occasion; nothing is written to the repositories. Seconds are
the clock's, from the call to its end, so that only a quiet machine says anything: the load before each arrangement and
the cores that were busy during it (all of the machine's, whoever used them) stand beside. One repository at once is no
single core: its cures are proved two at a time. `speed-up` is over that row. The arrangements must come to the same,
and it is said where they do not: where time limits end runs, a busy machine finds less. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

CALL = [sys.executable, "-m", "gradfix", "migrate"]


@dataclass(frozen=True)
class Row:
    """`found` is what a batch came to, without its times."""

    name: str
    seconds: float
    load: float
    busy: float
    report: dict[str, object]
    found: dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("repositories", nargs="*", type=Path)
    parser.add_argument("--from", dest="list_", type=Path, help="a file that names them, one a line")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for a repository")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds for a run")
    parser.add_argument("--entries", type=int, default=4, help="scripts of a repository to run at most")
    parser.add_argument("--times", type=int, default=1, help="rounds; the best of each arrangement counts")
    parser.add_argument("--read", action="store_true", help="read only: nothing is run or proved")
    asked = parser.parse_args()
    words = [str(p.resolve()) for p in asked.repositories]
    words += ["--from", str(asked.list_.resolve())] if asked.list_ else []
    if not words:
        parser.error("name repositories, or a list of them")
    words += [] if asked.read else ["--prove"]
    words += [
        "--time-limit",
        f"{asked.time_limit:g}",
        "--timeout",
        f"{asked.timeout:g}",
        "--entries",
        f"{asked.entries}",
    ]
    rows: list[Row] = []
    for _ in range(asked.times):
        rows += arrangements(words)
    tell(rows)


def arrangements(words: Sequence[str]) -> Iterator[Row]:
    """The three, one after the other."""
    with tempfile.TemporaryDirectory(prefix="gradfix-batch-") as folder:
        place = Path(folder)
        yield measured("one at once", [*words, "-j", "1"], place / "one")
        yield measured("two at once", [*words, "-j", "2"], place / "two")
        if find_spec("distributed") is None:
            print("dask.distributed is not installed: that row is left out", file=sys.stderr)
            return
        with cluster(place) as address:
            yield measured(
                "two Dask workers", [*words, "--engine", "dask", "--scheduler", address], place / "dask"
            )


def measured(name: str, words: Sequence[str], workspace: Path) -> Row:
    """One batch from nothing to its reports."""
    print(f"{name} …", file=sys.stderr, flush=True)
    load, before, started = os.getloadavg()[0], busy_seconds(), time.monotonic()
    done = subprocess.run(
        [*CALL, *words, "--workspace", str(workspace)], capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - started
    busy = (busy_seconds() - before) / seconds
    if done.returncode not in (0, 1) and not (workspace / "report.json").is_file():
        sys.exit(f"{name}: ended with {done.returncode}: {done.stderr[-500:]}")
    report = json.loads((workspace / "report.json").read_text())
    found = {r["name"]: what(r) for r in report["repositories"]}
    return Row(name, seconds, load, busy, report["totals"], found)


def what(repository: dict[str, object]) -> object:
    """What was found and cured in a repository."""
    faults = [(f["kind"], f["path"], f["line"], f["status"]) for f in repository.get("faults", ())]
    return repository["ended"], faults, [(s["codemod"], s["verdict"]) for s in repository.get("steps", ())]


def busy_seconds() -> float:
    """Seconds that the machine's cores have worked, all together."""
    user, nice, system, _, _, irq, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    )
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A Dask scheduler and two workers, one repository at once each. Gives its address."""
    from distributed import Client

    file, log = folder / "scheduler.json", (folder / "dask.log").open("ab")
    common = {"stdout": log, "stderr": log, "cwd": folder, "start_new_session": True}
    here = ["--host", "127.0.0.1", "--no-dashboard"]
    scheduler = ["distributed.cli.dask_scheduler", *here, "--port", "0", "--scheduler-file", str(file)]
    worker = [
        "distributed.cli.dask_worker",
        *here,
        "--scheduler-file",
        str(file),
        "--nthreads",
        "1",
        "--no-nanny",
    ]
    worker += ["--memory-limit", "0", "--local-directory", str(folder)]
    processes = [subprocess.Popen([sys.executable, "-m", *scheduler], **common)]
    try:
        while not (file.exists() and file.read_text().strip().endswith("}")):
            time.sleep(0.1)
        processes += [subprocess.Popen([sys.executable, "-m", *worker], **common) for _ in range(2)]
        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=120)
        yield address
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def tell(rows: Sequence[Row]) -> None:
    """The table, and whether all came to the same."""
    best: dict[str, Row] = {}
    for row in rows:
        if row.name not in best or row.seconds < best[row.name].seconds:
            best[row.name] = row
    first = next(iter(best.values()))
    totals = first.report
    print(f"{totals['repositories']} repositories, {totals['files']} files, {totals['lines']} lines, "
          f"{totals['runs']} scripts run; {os.cpu_count()} cores")  # fmt: skip
    head = f"{'':18}{'seconds':>9}{'speed-up':>10}{'busy cores':>12}{'load before':>13}"
    print(f"{head}{'a repository, median':>22}{'p95':>7}")
    for row in best.values():
        each = row.report["seconds"]
        print(
            f"{row.name:18}{row.seconds:9.1f}{first.seconds / row.seconds:9.2f}x{row.busy:12.2f}{row.load:13.2f}"
            f"{each['median']:21.1f}s{each['p95']:6.1f}s"
        )
    for row in best.values():
        other = [name for name, found in row.found.items() if found != first.found[name]]
        if other:
            print(f"{row.name}: came to something else in {', '.join(other)}")


if __name__ == "__main__":
    main()
