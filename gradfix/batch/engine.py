"""The work spread over an executor of `concurrent.futures`: threads here that each keep one process, or Dask's workers.

A repository has a process of its own, so that what it does to it (memory, crashes, kills) costs that repository alone:
one retry, and then a sentence.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from gradfix.batch.processes import kill_below, resident
from gradfix.batch.values import Options, RepoResult, Spec, dumps, loads

TRIES = 2  # of a repository whose worker dies
GRACE = 60.0  # seconds above a repository's own before its worker is killed
LOOK = 0.25  # seconds between two looks at memory
LINES = 100  # the last ones of a worker's, that are kept
DRAIN = 5.0  # seconds for what an ended worker has said to be read
PREFIX = "gradfix-migrate-"


class EngineError(Exception):
    """Why the work can't be spread, as a sentence."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: `result`, or `died` why there is none; `again` whether another try may go better."""

    result: RepoResult | None
    died: str = ""
    again: bool = False


def work(spec: str, options: str, scratch: str = "", stop: threading.Event | None = None) -> str:
    """One repository in a process of its own, tried again where that dies: RepoResult as JSON. What an executor is
    given: text in, text out. `scratch` is a folder for what has to be unpacked ("": this machine's temporary one);
    `stop`, once set, ends the process."""
    asked, how = loads(Spec, spec), loads(Options, options)
    died: list[str] = []
    for _ in range(TRIES):
        attempt = _attempt(spec, options, how, scratch or tempfile.gettempdir(), stop or threading.Event())
        if attempt.result is not None:
            return dumps(attempt.result)
        died.append(attempt.died)
        if not attempt.again:
            break
    sentence = f"{died[-1]}; it was tried {len(died)} times" if len(died) > 1 else died[-1]
    return dumps(RepoResult(asked.name, "failed", sentence))


def _attempt(spec: str, options: str, how: Options, scratch: str, stop: threading.Event) -> Attempt:
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=scratch)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gradfix.batch.worker", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"TMPDIR": folder, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    guard = _Guard(process, how, stop)
    try:
        lines, errors = guard.converse(json.dumps({"spec": spec, "options": options}))
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return Attempt(loads(RepoResult, json.loads(line)["result"]))
    if guard.ended_it:
        return Attempt(None, guard.ended_it)
    code = process.returncode
    how_ = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    return Attempt(None, f"its worker {how_}: {last[0]}", again=True)


class _Guard:
    """Holds one worker to its limits while it is listened to."""

    def __init__(self, process: subprocess.Popen[bytes], how: Options, stop: threading.Event) -> None:
        self.ended_it = ""
        self._process, self._how, self._stop = process, how, stop
        self._over = threading.Event()

    def converse(self, given: str) -> tuple[list[str], str]:
        """What the worker said last on its two streams, up to its end."""
        process = self._process
        assert process.stdin is not None
        said, errors = _Heard(process.stdout), _Heard(process.stderr)
        watcher = threading.Thread(target=self._watch, daemon=True)
        watcher.start()
        with suppress(BrokenPipeError):
            process.stdin.write(given.encode() + b"\n")
            process.stdin.flush()
        process.wait()  # not for the end of its streams, which a process that it has lost may hold open
        self._over.set()
        watcher.join()
        process.stdin.close()
        return said.end(), "".join(errors.end())

    def _watch(self) -> None:
        end = time.monotonic() + self._how.seconds + GRACE
        while not self._over.wait(LOOK):
            if time.monotonic() > end:
                self.ended_it = f"it took longer than {self._how.seconds + GRACE:.0f} s"
            elif resident(self._process.pid) > self._how.memory:
                self.ended_it = f"it took more than {self._how.memory / (1 << 30):.1f} GB of memory"
            elif self._stop.is_set():
                self.ended_it = "it was interrupted"
            if self.ended_it:
                _end(self._process)
                return


class _Heard:
    """The last lines of a stream, read while they come."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream, self._lines = stream, deque[bytes](maxlen=LINES)
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def end(self) -> list[str]:
        """Hear no more."""
        self._thread.join(DRAIN)
        return [line.decode("utf-8", "replace") for line in self._lines.copy()]

    def _hear(self) -> None:
        with self._stream:
            self._lines.extend(self._stream)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The end of a worker and of all that it has started."""
    if process.poll() is None:
        kill_below(process.pid)
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the work goes: an executor, how many repositories it works on at once, and where their scratch lies (""
    where each machine has its own)."""

    executor: Executor
    room: int
    scratch: str
    stop: threading.Event | None = None  # of this process only: it does not travel

    def submit(self, spec: Spec, options: Options) -> Future[str]:
        """The work on one repository."""
        return self.executor.submit(work, dumps(spec), dumps(options), self.scratch, self.stop)


@contextmanager
def local(jobs: int, scratch: Path) -> Iterator[Engine]:
    """Processes on this machine, `jobs` at once."""
    executor, stop = ThreadPoolExecutor(jobs, "gradfix-migrate"), threading.Event()
    try:
        yield Engine(executor, jobs, str(scratch), stop)
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def dask(address: str) -> Iterator[Engine]:
    """The workers of a Dask scheduler. They must see the repositories under the same paths. Raises EngineError."""
    try:
        from distributed import Client
    except ImportError:
        raise EngineError("--engine dask needs dask.distributed: pip install 'gradfix[dask]'") from None
    try:
        client: Any = Client(address, timeout=10, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as problem:
        raise EngineError(f"there is no Dask scheduler at {address} ({problem})") from None
    try:
        threads = sum(client.nthreads().values())
        if not threads:
            raise EngineError(f"the Dask scheduler at {address} has no workers")
        yield Engine(client.get_executor(pure=False, retries=TRIES), threads, "")
    finally:
        with suppress(OSError, TimeoutError):
            client.close(timeout=5)
