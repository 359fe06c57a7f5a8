"""The work spread over an executor of `concurrent.futures`: threads here, or Dask workers, each with its processes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradfix.batch.values import Options, Spec, dumps
from gradfix.batch.workers import TRIES, Workers

# say with tracebacks what is a sentence here
LOGS = ("distributed", "distributed.client", "tornado.application")
REST = 2.0  # seconds that a worker waits for the next repository where nobody can say whether there is one


class EngineError(Exception):
    """Why the work can't be spread, as a sentence."""


def work(spec: str, options: str) -> str:
    """One repository on whatever machine this is, tried again where its worker dies: RepoResult as JSON. What a
    distributed executor is given: text in, text out."""
    return _HERE.work(spec, options)


_HERE = Workers(rest=REST)


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the work goes: an executor, how many repositories it works on at once, and what does it there."""

    executor: Executor
    room: int
    work: Callable[[str, str], str] = work

    def submit(self, spec: Spec, options: Options) -> Future[str]:
        """The work on one repository."""
        return self.executor.submit(self.work, dumps(spec), dumps(options))


@contextmanager
def local(jobs: int, scratch: Path) -> Iterator[Engine]:
    """Processes on this machine, `jobs` at once."""
    executor, stop = ThreadPoolExecutor(jobs, "gradfix-migrate"), threading.Event()
    workers = Workers(str(scratch), stop)
    try:
        yield Engine(executor, jobs, workers.work)
    finally:
        stop.set()
        executor.shutdown(wait=True, cancel_futures=True)
        workers.close()


@contextmanager
def dask(address: str) -> Iterator[Engine]:
    """The workers of a Dask scheduler. They must see the repositories under the same paths. Raises EngineError."""
    try:
        from distributed import Client
    except ImportError:
        raise EngineError("--engine dask needs dask.distributed: pip install 'gradfix[dask]'") from None
    client: Any = None
    levels = {log: log.level for log in map(logging.getLogger, LOGS)}
    try:
        for log in levels:
            log.setLevel(logging.CRITICAL)
        try:
            client = Client(address, timeout=10, set_as_default=False)
            threads = sum(client.nthreads().values())
        except (OSError, TimeoutError, ValueError) as problem:
            raise EngineError(f"there is no Dask scheduler at {address} ({problem})") from None
        if not threads:
            raise EngineError(f"the Dask scheduler at {address} has no workers")
        yield Engine(client.get_executor(pure=False, retries=TRIES), threads)
    finally:
        with suppress(OSError, TimeoutError):
            if client is not None:
                client.close(timeout=5)
        for log, level in levels.items():
            log.setLevel(level)
