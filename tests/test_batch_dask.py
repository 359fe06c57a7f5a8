"""The same batch over Dask: a real scheduler and two workers, as processes on this machine.

The soak tier kills the scheduler 30 times, at random moments.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from repositories import faulty, nobody_works_in, plain, sound, state
from test_batch import UNTRIED, call, migrate, without_times
from test_batch_killed import BRANCH, KILLS, PLACES, WRITE, came_to, nothing_is_left, started
from test_batch_killed import given as repositories

pytest.importorskip("distributed")


@contextmanager
def cluster(folder: Path, workers: int = 2, temporary: Path | None = None):
    """Gives (address, the processes: scheduler first). Workers have what they make for a while in `temporary`; what is
    Dask's own lies in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": (folder / "log").open("ab"), "cwd": folder}
    file = folder / "scheduler.json"
    environment = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "5"}
    common = {"start_new_session": True, **quiet}
    own = common | {"env": environment | {"TMPDIR": str(folder)}}
    ours = common | {"env": environment | {"TMPDIR": str(temporary or folder)}}
    dask = [sys.executable, "-m", "distributed.cli"]
    scheduler = [
        *dask[:-1],
        "distributed.cli.dask_scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--no-dashboard",
    ]
    worker = [
        *[*dask[:-1], "distributed.cli.dask_worker", "--scheduler-file", str(file), "--nthreads", "1"],
        *["--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--memory-limit", "0"],
        *["--local-directory", str(folder)],
    ]
    processes = [subprocess.Popen([*scheduler, "--scheduler-file", str(file)], **own)]
    try:
        end = time.monotonic() + 60
        while not (file.exists() and file.read_text().strip().endswith("}")):
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        processes += [subprocess.Popen(worker, **ours) for _ in range(workers)]
        from distributed import Client

        address = json.loads(file.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)
        yield address, processes
    finally:
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def given(folder: Path, copies: int = 1) -> list[Path]:
    texts = {"faulty": faulty(), "other": faulty("critic").replace("exp", "sigmoid"), "sound": sound()}
    texts = {f"{name}{n or ''}": text for n in range(copies) for name, text in texts.items()}
    return [plain(folder / name, {"train.py": text}) for name, text in texts.items()]


def test_two_workers_find_what_one_machine_finds(tmp_path):
    places = given(tmp_path)
    here = migrate(tmp_path / "here", places)
    with cluster(tmp_path / "dask") as (address, _):
        there = migrate(tmp_path / "there", places, scheduler=address)
    assert without_times(there) == without_times(here)
    assert len(there["faulty"].steps) == 1


def test_a_worker_that_dies_costs_a_retry(tmp_path):
    places = given(tmp_path)
    here = migrate(tmp_path / "here", places)
    with cluster(tmp_path / "dask") as (address, processes):
        command = [sys.executable, "-m", "gradfix", "migrate", *map(str, places), "--workspace", "ws", "--jobs", "2",
                   "--accept", "untried", "--engine", "dask", "--scheduler", address]  # fmt: skip
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(2)
        os.killpg(processes[1].pid, signal.SIGKILL)
        _, err = process.communicate(timeout=180)
    assert process.returncode == 1, err.decode()  # cures are not applied
    assert without_times(migrate(tmp_path / "ws", options=UNTRIED)) == without_times(here)


def test_a_scheduler_that_dies_is_a_sentence_and_the_same_call_goes_on(tmp_path):
    places = given(tmp_path, 2)
    here = migrate(tmp_path / "here", places)
    words = [*map(str, places), "--workspace", "ws", "--accept", "untried", "--engine", "dask", "--scheduler"]
    with cluster(tmp_path / "one") as (address, processes):
        command = [sys.executable, "-m", "gradfix", "migrate", *words, address]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stderr is not None
        first = process.stderr.readline()  # a repository is done, others are being worked on
        processes[0].kill()
        _, err = process.communicate(timeout=180)
    assert first.startswith(b"[1/6] ")
    assert process.returncode == 2
    assert b"gradfix: the engine has gone" in err, err.decode()
    assert b"Traceback" not in err, err.decode()
    assert b"()" not in err, err.decode()
    with cluster(tmp_path / "two") as (address, _):
        assert call(*words, address, cwd=tmp_path).returncode == 1  # cures are not applied
    assert without_times(migrate(tmp_path / "ws", options=UNTRIED)) == without_times(here)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[tuple[str, ...], tuple[dict[str, object], float]]:
    """What either call comes to without Dask, and in how many seconds with it."""
    out = {}
    for flags in (BRANCH, WRITE):
        folder = repositories(tmp_path_factory.mktemp("undisturbed"))
        assert started(folder, flags).communicate()[1].startswith(b"[1/3] ")
        other = repositories(tmp_path_factory.mktemp("dask"))
        with cluster(other / "dask") as (address, _):
            begun = time.monotonic()
            process = started(other, (*flags, "--engine", "dask", "--scheduler", address))
            assert process.communicate()[1].startswith(b"[1/3] ")
            out[flags] = came_to(folder), time.monotonic() - begun
        assert came_to(other) == came_to(folder)
    return out


@pytest.mark.parametrize("seed", KILLS)
def test_the_scheduler_is_killed(tmp_path, undisturbed, seed):
    flags = (BRANCH, WRITE)[seed % 2]
    wanted, seconds = undisturbed[flags]
    folder = repositories(tmp_path / "work")
    before = [state(folder / name, "cured") for name in PLACES]
    with cluster(tmp_path / "one", temporary=folder / "tmp") as (address, processes):
        process = started(folder, (*flags, "--engine", "dask", "--scheduler", address))
        time.sleep(random.Random(seed + 200).uniform(0.2, seconds))
        processes[0].kill()
        _, err = process.communicate(timeout=180)
        there_was = b"engine has gone" in err or b"there is no Dask scheduler" in err
        assert (process.returncode, there_was) in [(0, False), (2, True)], err.decode()
    assert nobody_works_in(tmp_path)
    with cluster(tmp_path / "two", temporary=folder / "tmp") as (address, _):
        process = started(folder, (*flags, "--engine", "dask", "--scheduler", address))
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err.decode()
    assert came_to(folder) == wanted
    nothing_is_left(folder)
    assert flags is WRITE or [state(folder / name, "cured") for name in PLACES] == before


def test_no_scheduler_is_a_sentence(tmp_path):
    plain(tmp_path / "a", {"train.py": sound()})
    done = call("a", "--engine", "dask", "--scheduler", "tcp://127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no Dask scheduler at tcp://127.0.0.1:1" in done.stderr
    assert "go together" in call("a", "--engine", "dask", cwd=tmp_path).stderr
