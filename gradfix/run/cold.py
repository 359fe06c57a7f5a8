"""A run in a process of its own, where there is no fork: a cold start on a copy of the project.

No descriptor is handed over. The request is a file in the scratch folder, and what the run says is added to
another, which is read while it runs; stdout and stderr are pipes. The host keeps the bounds that a keeper
keeps elsewhere: time (the process tree is killed), output, what the run says about itself. Not kept: how much
memory all its processes hold together and how many they are, and where Windows does not know whose child a
process was once its parent is gone.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO

from gradfix.run import Outcome, Run
from gradfix.run.conversation import DRAIN, Conversation, Gone
from gradfix.run.scratch import Copy
from gradfix.run.walls import BUBBLEWRAP, Terms

GRACE = 2.0  # seconds between the run's own end of time and the kill
SIGNALLED = 128
PAUSE = 0.02  # seconds between looks at the channel

Start = Callable[[Path, Terms], AbstractContextManager["subprocess.Popen[bytes]"]]


class ColdRun(Conversation):
    """The files and pipes of one run."""

    begins_inside = False

    def __init__(self, run: Run, terms: Terms, copy: Copy) -> None:
        super().__init__(run, terms, copy)
        self.folder = copy.folder
        self.asked = self.folder / "request.json"  # the child removes it when torch is imported
        self.began = 0.0

    def hold(self, start: Start, patience: float) -> Outcome:
        """Have the run made by `start`, which may take `patience` seconds to begin. Raises Gone, with the last
        words of an interpreter that did not get so far, and Refused."""
        self.asked.write_text(json.dumps(self.request()), encoding="ascii")
        channel = self.folder / "channel"
        channel.touch()
        with channel.open("rb", buffering=0) as said, start(self.folder, self.terms) as process:
            readers = [
                threading.Thread(target=self._read, args=(stream, into), daemon=True)
                for stream, into in ((process.stdout, self.out), (process.stderr, self.err))
            ]
            for reader in readers:
                reader.start()
            why = self._listen(process, said, time.monotonic() + patience)
            seconds = time.monotonic() - self.began
            kill_tree(process)
            for reader in readers:
                reader.join(DRAIN)
        if self.asked.exists():
            words = bytes(self.err or self.out).decode("utf-8", "replace").strip()
            raise Gone("it did not import torch in time" if why else words)
        status = process.returncode
        if self.terms.wall is BUBBLEWRAP and status > SIGNALLED:  # it tells of a signal as a shell does
            status = SIGNALLED - status
        return self.outcome(seconds, status, why)

    def _read(self, stream: IO[bytes] | None, into: bytearray) -> None:
        assert stream is not None
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):
                self.keep(into, data)

    def _listen(self, process: subprocess.Popen[bytes], said: IO[bytes], deadline: float) -> str:
        """Read the channel until the process has ended or must be: what for."""
        while True:
            ended = _has_ended(process)
            while data := said.read(1 << 20):
                self.keep(self.said, data)
            if ended:
                return ""
            if self.flooded:
                return "flooded"
            if not self.began and not self.asked.exists():
                self.began = time.monotonic()
                deadline = self.began + self.run.timeout + GRACE
            if time.monotonic() > deadline:
                return "timeout"


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it has started, as far as the system knows it; more than once does no harm."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            subprocess.run(
                ["taskkill", "/T", "/F", "/PID", str(process.pid)], check=False, capture_output=True
            )
    process.kill()
    process.wait()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(PAUSE)
    except subprocess.TimeoutExpired:
        return False
    return True
