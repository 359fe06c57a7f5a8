"""The host's side of the processes that work on repositories, one after the other: gradfix.batch.worker.

A worker has one repository at a time, so that what that does to it (memory, crashes, kills) costs that repository
alone: one retry by another worker, and then a sentence. The next one finds its imports done and its interpreter warm.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from gradfix.batch.processes import hold_more, kill_below
from gradfix.batch.values import Options, RepoResult, Spec, dumps, loads

TRIES = 2  # of a repository whose worker dies
MANY = 50  # repositories of one worker, before another takes its place: what may leak does not add up
GRACE = 60.0  # seconds above a repository's own before its worker is killed
LOOK = 0.25  # seconds between two looks at memory
LINES = 100  # the last ones of a worker's, that are kept
LEAVE = 3.0  # seconds for a worker that is asked to end
DRAIN = 5.0  # seconds for what an ended worker has said to be read
PREFIX = "gradfix-migrate-"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try: `result`, or `died` why there is none; `again` whether another try may go better."""

    result: RepoResult | None
    died: str = ""
    again: bool = False


class Workers:
    """The workers of one process, those that wait for a repository among them. Thread-safe.

    `scratch` is the folder for what they unpack ("": this machine's temporary one); `stop`, once set, ends them; one
    that has waited for `rest` seconds is ended (0: it waits until close())."""

    def __init__(self, scratch: str = "", stop: threading.Event | None = None, rest: float = 0.0) -> None:
        self._scratch, self._stop, self._rest = scratch, stop or threading.Event(), rest
        self._lock = threading.Lock()
        self._waiting: list[Worker] = []

    def work(self, spec: str, options: str) -> str:
        """One repository, tried again where its worker dies: RepoResult as JSON."""
        asked, how = loads(Spec, spec), loads(Options, options)
        given = json.dumps({"spec": spec, "options": options})
        died: list[str] = []
        for _ in range(TRIES):
            attempt = self._attempt(given, how)
            if attempt.result is not None:
                return dumps(attempt.result)
            died.append(attempt.died)
            if not attempt.again:
                break
        sentence = f"{died[-1]}; it was tried {len(died)} times" if len(died) > 1 else died[-1]
        return dumps(RepoResult(asked.name, "failed", sentence))

    def close(self) -> None:
        """End those that wait."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for worker in waiting:
            worker.end()

    def _attempt(self, given: str, how: Options) -> Attempt:
        worker = self._taken() or Worker(self._scratch or tempfile.gettempdir())
        try:
            attempt = worker.attempt(given, how, self._stop)
        except BaseException:
            worker.end()
            raise
        if attempt.result is None or worker.asked >= MANY:
            worker.end()
        else:
            self._keep(worker)
        return attempt

    def _taken(self) -> Worker | None:
        while True:
            with self._lock:
                if not self._waiting:
                    return None
                worker = self._waiting.pop()
            if worker.alive:
                return worker
            worker.end()

    def _keep(self, worker: Worker) -> None:
        with self._lock:
            self._waiting.append(worker)
        if self._rest:
            timer = threading.Timer(self._rest, self._rested, (worker, worker.asked))
            timer.daemon = True
            timer.start()

    def _rested(self, worker: Worker, asked: int) -> None:
        with self._lock:
            if worker not in self._waiting or worker.asked != asked:
                return
            self._waiting.remove(worker)
        worker.end()


class Worker:
    """A process that works on one repository after the other, in a folder of its own below `scratch`."""

    def __init__(self, scratch: str) -> None:
        self.asked = 0
        self._folder = os.path.join(
            scratch, PREFIX + secrets.token_hex(8)
        )  # made by who takes it along at the end
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "gradfix.batch.worker", self._folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=scratch,
            env=os.environ | {"TMPDIR": self._folder, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._said, self._errors = _Heard(self._process.stdout), _Heard(self._process.stderr)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def attempt(self, given: str, how: Options, stop: threading.Event) -> Attempt:
        """Have it work on what is `given`, held to its limits; all that it has started is ended where it fails."""
        self.asked += 1
        self._errors.forget()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(given.encode() + b"\n")
            self._process.stdin.flush()
        end = time.monotonic() + how.seconds + GRACE
        over = False
        while not over:
            over = not self.alive  # looked for first: what it said at last is in then
            result = self._result(DRAIN if over else LOOK)
            if result is not None:
                return Attempt(result)
            why = ""
            if time.monotonic() > end:
                why = f"it took longer than {how.seconds + GRACE:.0f} s"
            elif hold_more(self._process.pid, how.memory):
                why = f"it took more than {how.memory / (1 << 30):.1f} GB of memory"
            elif stop.is_set():
                why = "it was interrupted"
            if why and not over:
                return Attempt(None, why)
        code = self._process.returncode
        ended = f"was killed (signal {-code})" if code < 0 else f"ended with status {code}"
        last = "".join(self._errors.end()).strip().splitlines()[-1:] or ["it said nothing"]
        return Attempt(None, f"its worker {ended}: {last[0]}", again=True)

    def end(self) -> None:
        """The end of it, of all that it has started, and of its folder. It is asked first: it takes all of that along,
        whoever is killed meanwhile."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE)
        if self.alive:
            kill_below(self._process.pid)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _result(self, patience: float) -> RepoResult | None:
        """What it has to say of the repository, where it says that within `patience` seconds or ends."""
        late = time.monotonic() + patience
        while (line := self._said.next(late - time.monotonic())) is not None:
            with suppress(ValueError, KeyError, TypeError):
                return loads(RepoResult, json.loads(line)["result"])
        return None


class _Heard:
    """The lines of a stream, read while they come: the last ones, for who asks."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        assert stream is not None
        self._stream, self._lines = stream, deque[bytes](maxlen=LINES)
        self._more = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def next(self, patience: float) -> str | None:
        """The next line; None where none comes within `patience` seconds, or at all."""
        with self._more:
            self._more.wait_for(lambda: self._lines or self._over, max(patience, 0.0))
            return self._lines.popleft().decode("utf-8", "replace") if self._lines else None

    def forget(self) -> None:
        """What has been said until now is of no interest."""
        with self._more:
            self._lines.clear()

    def end(self) -> list[str]:
        """What it says up to its end, which is near."""
        self._thread.join(DRAIN)
        with self._more:
            return [line.decode("utf-8", "replace") for line in self._lines]

    def _hear(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._more:
                    self._lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()
