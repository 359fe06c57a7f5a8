"""The host's side of runs: the user's interpreter, started once, and every run forked from it.

with Zygote(python) as zygote:
    outcome = zygote.run(Run(...))
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path

from gradfix.run import InterpreterError, Outcome, Run
from gradfix.run.conversation import Conversation, Gone, Refused
from gradfix.run.scratch import Copy

CHILD = Path(__file__).with_name("child")
START = 120.0  # seconds for an interpreter to import torch

# One thread, a fixed hash, no window. Set before torch is imported.
ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
    ),
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "Agg",
}


class Zygote:
    """One warm process of the user's interpreter with torch imported. Thread-safe; several runs at once.

    Making one returns at once: torch is imported meanwhile. Raises InterpreterError, here or from ready() and
    run(), where `python` is not an interpreter with torch. Without `namespaces`, every run gets a copy of the
    project even where more is possible.
    """

    def __init__(self, python: str | os.PathLike[str] | None = None, *, namespaces: bool = True) -> None:
        self.python = os.fspath(python) if python is not None else sys.executable
        self._lock = threading.Lock()
        self._hello: Mapping[str, str] | None = None
        self._problem = ""  # why there is no hello; every thread that asks hears it
        self._has_dynamo = False
        self._closed = False
        self._wall = "namespaces" if namespaces else "copy"
        self._refused = ""
        self._process, self._socket = self._start()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def torch(self) -> str:
        """The version of torch that runs use."""
        return self.ready()["torch"]

    @property
    def version(self) -> str:
        """The version of the interpreter, like ``3.11.7``."""
        return self.ready()["python"]

    def ready(self) -> Mapping[str, str]:
        """Wait until torch is imported; what the interpreter says of itself. Raises InterpreterError."""
        with self._lock:
            if self._problem:
                raise InterpreterError(self._problem)
            if self._hello is None:
                try:
                    self._hello = self._read_hello()
                except InterpreterError as problem:
                    self._problem = str(problem)
                    raise
            return self._hello

    def close(self) -> None:
        """End the interpreter and every run of it; run() raises InterpreterError from then on."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def run(self, run: Run) -> Outcome:
        """Run a script in a scratch view of its project and wait for its end. Raises InterpreterError."""
        self.ready()
        deaths = 0
        while True:
            wall = self._wall
            needed = (run.script, *map(Path, run.files))
            with Copy(run.root, needed) if wall == "copy" else nullcontext() as copy:
                conversation = Conversation(run, wall, copy)
                try:
                    outcome = conversation.hold(self._send)
                    self._load_dynamo(conversation.needs_dynamo)
                    return outcome
                except Refused as refused:
                    self._wall, self._refused = "copy", str(refused)
                except Gone:
                    deaths += 1
                    if self._closed:
                        raise InterpreterError(f"{self.python} was ended while a script ran in it.") from None
                    if deaths > 2:
                        raise InterpreterError(f"{self.python} was killed again and again.") from None
                    self._restart()

    # ---- the process

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        command = [self.python, str(CHILD), "serve", str(theirs.fileno()), self._wall]
        try:
            with theirs:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env={**os.environ, **ENVIRONMENT},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as problem:
            ours.close()
            raise InterpreterError(
                f"{self.python} can't be started ({problem.strerror}). "
                "Name a Python that has torch with --python."
            ) from None
        return process, ours

    def _read_hello(self) -> Mapping[str, str]:
        self._socket.settimeout(START)
        said = b""
        try:
            while not said.endswith(b"\n"):
                piece = self._socket.recv(4096)
                if not piece:
                    break
                said += piece
        except TimeoutError:
            raise InterpreterError(f"{self.python} did not import torch within {START:.0f} s.") from None
        except OSError:
            said = b""
        self._socket.settimeout(None)
        if not said:
            raise InterpreterError(self._why_it_died())
        hello: dict[str, str] = json.loads(said)
        if hello["problem"]:
            raise InterpreterError(_no_torch(self.python, hello["problem"]))
        return hello

    def _why_it_died(self) -> str:
        if self._closed:
            return f"{self.python} was ended while torch was being imported."
        _, stderr = self._process.communicate()
        words = stderr.decode("utf-8", "replace").strip()
        advice = "Name a Python that has torch with --python."
        if "gradfix-too-old" in words:
            return (
                f"{self.python} is {words.split(': ')[-1]}; scripts are run by Python 3.9 or newer. {advice}"
            )
        last = (
            words.splitlines()[-1] if words else f"it ended at once, with status {self._process.returncode}"
        )
        return f"{self.python} is not a Python that can run the script ({last}). {advice}"

    def _restart(self) -> None:
        """A zygote that somebody killed is replaced once; a second death is the interpreter's fault."""
        with self._lock:
            if self._process.poll() is None and self._hello is not None:
                return
            self._end()
            self._process, self._socket = self._start()
            self._hello = self._read_hello()
            self._has_dynamo = False

    def _load_dynamo(self, needed: bool) -> None:
        """Have torch._dynamo imported before the fork, once a script has shown that it is wanted."""
        with self._lock, suppress(OSError):
            if needed and not self._has_dynamo:
                self._has_dynamo = True
                self._socket.sendall(b"d")

    def _send(self, descriptors: list[int]) -> None:
        with self._lock:
            try:
                socket.send_fds(self._socket, [b"r"], descriptors)
            except OSError:
                raise Gone from None


def _no_torch(python: str, problem: str) -> str:
    advice = "Install torch there, or name a Python that has it with --python."
    if problem.startswith("torch "):
        return f"{python} has {problem}. {advice}"
    if "No module named 'torch'" in problem:
        return f"{python} has no torch. {advice}"
    return f"{python} can't import torch ({problem}). {advice}"
