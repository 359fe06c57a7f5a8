"""What a second core and a distributed engine are worth to a batch: the same repositories, arranged in four ways.

    OMP_NUM_THREADS=1 python benchmarks/batch.py REPO… | --from LIST [--time-limit 60] [--only NAME] [--read]

One repository at once on one core, and with all cores at its hands; two at once; and two workers of a Dask scheduler on
this machine (where dask.distributed is installed): each with a workspace of its own, made for the occasion; nothing is
written to the repositories. Seconds are the clock's, from the call to its end, so that only a quiet machine says
anything: the load before each arrangement and the cores that were busy during it (all of the machine's, whoever used
them) stand beside. A job is no core: one repository's cures are proved two at a time, so that one job keeps more than
one core busy where there are more. `speed-up` is over the one core, what a second core is worth; `of a job` over one
job with all cores, what a second job adds to that. What two processes that share nothing come to on this machine is
the most that either could be. The arrangements must come to the same, and it is said where they do not: where time
limits end runs, a busy machine finds less. Nothing is asserted.
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
ONE_CORE, ONE, TWO, DASK = "one core", "one at once", "two at once", "two Dask workers"
ALONE = "for _ in range(2 * 10**7): pass"


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
    parser.add_argument(
        "--only", action="append", choices=(ONE_CORE, ONE, TWO, DASK), help="only this arrangement"
    )
    parser.add_argument("--python", help="the interpreter that runs the scripts")
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
    words += ["--python", asked.python] if asked.python else []
    rows: list[Row] = []
    for _ in range(asked.times):
        rows += arrangements(words, asked.only or (ONE_CORE, ONE, TWO, DASK))
    tell(rows)
    print(f"two processes that share nothing: {ceiling():.2f}x")


def arrangements(words: Sequence[str], names: Sequence[str]) -> Iterator[Row]:
    """Those of the names, one after the other."""
    with tempfile.TemporaryDirectory(prefix="gradfix-batch-") as folder:
        place = Path(folder)
        if ONE_CORE in names:
            yield measured(ONE_CORE, [*words, "-j", "1"], place / "core", cores=1)
        if ONE in names:
            yield measured(ONE, [*words, "-j", "1"], place / "one")
        if TWO in names:
            yield measured(TWO, [*words, "-j", "2"], place / "two")
        if DASK not in names:
            return
        if find_spec("distributed") is None:
            print("dask.distributed is not installed: that row is left out", file=sys.stderr)
            return
        with cluster(place) as address:
            yield measured(DASK, [*words, "--engine", "dask", "--scheduler", address], place / "dask")


def ceiling() -> float:
    """How much faster two processes that share nothing are at once than one after the other."""
    begun = time.monotonic()
    for _ in range(2):
        subprocess.run([sys.executable, "-c", ALONE], check=True)
    turns = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-c", ALONE]) for _ in range(2)]:
        process.wait()
    return (turns - begun) / (time.monotonic() - turns)


def measured(name: str, words: Sequence[str], workspace: Path, cores: int = 0) -> Row:
    """One batch from nothing to its reports, on so many of the cores (0: all)."""
    mine = sorted(os.sched_getaffinity(0))[: cores or None]
    print(f"{name} …", file=sys.stderr, flush=True)
    load, before, started = os.getloadavg()[0], busy_seconds(), time.monotonic()
    done = subprocess.run(
        [*CALL, *words, "--workspace", str(workspace)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, mine),
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
    job = best.get(ONE)
    totals = first.report
    print(f"{totals['repositories']} repositories, {totals['files']} files, {totals['lines']} lines, "
          f"{totals['runs']} scripts run; {os.cpu_count()} cores")  # fmt: skip
    head = f"{'':18}{'seconds':>9}{'speed-up':>10}{'of a job':>10}{'busy cores':>12}{'load before':>13}"
    print(f"{head}{'a repository, median':>22}{'p95':>7}")
    for row in best.values():
        each = row.report["seconds"]
        of_a_job = f"{job.seconds / row.seconds:.2f}x" if job is not None else ""
        print(
            f"{row.name:18}{row.seconds:9.1f}{first.seconds / row.seconds:9.2f}x{of_a_job:>10}"
            f"{row.busy:12.2f}{row.load:13.2f}{each['median']:21.1f}s{each['p95']:6.1f}s"
        )
    for row in best.values():
        other = [name for name, found in row.found.items() if found != first.found[name]]
        if other:
            print(f"{row.name}: came to something else in {', '.join(other)}")


if __name__ == "__main__":
    main()
