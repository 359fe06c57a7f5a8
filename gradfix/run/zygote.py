"""The host's side of runs: the user's interpreter, started once, and every run forked from it.

with Zygote(python) as zygote:
    outcome = zygote.run(Run(...))

Where there is no fork (Windows), there is nothing to keep warm: the interpreter says what it is and ends, and
every run is a cold start (gradfix.run.cold): one import of torch slower, else the same.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradfix.run import InterpreterError, Outcome, Run, gpu, secrets, walls
from gradfix.run.cold import ColdRun, kill_tree
from gradfix.run.conversation import Gone, Refused, free_memory
from gradfix.run.forked import ForkedRun
from gradfix.run.scratch import Copy
from gradfix.run.walls import BUBBLEWRAP, NONE, Terms, Wall

CHILD = Path(__file__).with_name("child")
DYING = 0.5  # seconds for a process that is gone to be over
START = 120.0  # seconds for an interpreter to import torch
SETTLE = 10.0  # seconds for runs that are stopped to end
_PYTHONS_OWN = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|.*[Pp]ython")

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
    run(), where `python` is not an interpreter with torch, and WallError where the machine has none of the walls
    that `sandbox` asks for. Without `fork`, every run is a fresh process.
    """

    def __init__(
        self,
        python: str | os.PathLike[str] | None = None,
        *,
        sandbox: walls.Sandbox = "auto",
        fork: bool = True,
    ) -> None:
        self.python = os.fspath(python) if python is not None else sys.executable
        self._lock = threading.Lock()
        self._hello: Mapping[str, str] | None = None
        self._problem = ""  # why there is no hello; every thread that asks hears it
        self._last_words = b""  # of an interpreter that ended, on its stderr
        self._has_dynamo = False
        self._closed = False
        self._forks = fork and hasattr(os, "fork")
        self._cold: set[subprocess.Popen[bytes]] = set()  # runs that are not the zygote's children
        self._forked: set[ForkedRun] = set()  # those that are
        self._less = threading.Condition()  # there are fewer of these
        self._sandbox = sandbox
        self._walls = list(walls.order(sandbox, self._forks))  # the one in use, and what is left to try
        self._refused: list[tuple[Wall, str]] = []
        self._on_cpu: set[Path] = set()  # scripts that ask for a GPU where there is none
        self._masked: dict[tuple[Path, ...], tuple[str, ...]] = {}
        self._place: Path | None = (
            None  # where the copies lie that a process behind a wall of its own may write
        )
        self._settle()
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

    @property
    def pid(self) -> int:
        """The process that all others of it are below."""
        return self._process.pid

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

    def settle(self) -> bool:
        """Stop every run. Whether nothing is left of them, so that others find the interpreter as these did."""
        with self._less:
            for run in self._forked:
                run.stop()
            over = self._less.wait_for(lambda: not self._forked, SETTLE)
        return over and not self._cold and self._process.poll() is None

    def close(self) -> None:
        """End the interpreter and every run of it; run() raises InterpreterError from then on."""
        self._closed = True
        self._end()
        with self._lock:
            cold = list(self._cold)
        for process in cold:
            kill_tree(process)
        self._remove_place()

    def _end(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def run(self, run: Run) -> Outcome:
        """Run a script in a scratch view of its project and wait for its end; one that fails for want of a GPU, or does
        without what it asks of one, has the processor in its place, in every run from then on. Raises
        InterpreterError."""
        self.ready()
        if run.script not in self._on_cpu:
            outcome = self._run(run)
            if not gpu.lacks(outcome.failure, outcome.stderr):
                return outcome
            self._on_cpu.add(run.script)
        outcome = self._run(replace(run, on_cpu=True))
        return replace(outcome, missed=(*outcome.missed, gpu.ON_CPU))

    def _run(self, run: Run) -> Outcome:
        while True:
            wall = self._walls[0]
            try:
                return self._run_forked(run, wall) if self._forks else self._run_cold(run, wall)
            except Refused as refused:
                self._next_wall(wall, str(refused))

    def _next_wall(self, wall: Wall, why: str) -> None:
        """Go on with the next best wall, now that the machine has refused `wall`. Raises WallError."""
        with self._lock:
            if self._walls[0] is not wall:  # another thread's run was refused too
                return
            self._refused.append((wall, why))
            if len(self._walls) > 1:  # the last one stays: whoever asks next hears the same
                del self._walls[0]
                self._settle()
                if self._forks and BUBBLEWRAP in (wall, self._walls[0]):
                    self._replace_process()
                return
            raise walls.none_left(self._refused)

    def _settle(self) -> None:
        """Pass over a bubblewrap that would not start. Raises WallError where nothing is left to try."""
        if self._walls and self._walls[0] is BUBBLEWRAP:
            why = walls.refuses(walls.inside_bubblewrap(*self._enclosure()))
            if why:
                self._refused.append((self._walls.pop(0), why))
        if not self._walls:
            self._remove_place()
            raise walls.none_left(self._refused)

    def _remove_place(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
            self._place = None

    def _terms(self, run: Run, wall: Wall) -> Terms:
        needed = (run.root, run.cwd, run.script, Path(self.python), CHILD)
        if needed not in self._masked:  # looking at dozens of paths takes a millisecond
            self._masked[needed] = secrets.masked(needed)
        return Terms(wall, self._sandbox == "strict", self._masked[needed] if wall is not NONE else ())

    def _run_cold(self, run: Run, wall: Wall) -> Outcome:
        terms = self._terms(run, wall)
        try:
            with Copy(run.root, _needed(run), terms.masked) as copy:
                outcome = ColdRun(run, terms, copy).hold(self._start_cold, START)
        except Gone as gone:
            raise InterpreterError(
                self._was_ended() if self._closed else self._no_python(str(gone))
            ) from None
        if self._closed:
            raise InterpreterError(self._was_ended())
        return outcome

    @contextmanager
    def _start_cold(self, folder: Path, terms: Terms) -> Iterator[subprocess.Popen[bytes]]:
        behind = walls.inside_bubblewrap(folder, terms.masked) if terms.wall is BUBBLEWRAP else []
        with self._lock:
            if self._closed:
                raise Gone
            process = self._popen(["cold", str(folder)], behind, stdout=subprocess.PIPE)
            self._cold.add(process)
        try:
            yield process
        finally:
            kill_tree(process)
            with self._lock:
                self._cold.remove(process)

    def _run_forked(self, run: Run, wall: Wall) -> Outcome:
        deaths = 0
        terms = self._terms(run, wall)
        while True:
            copied = Copy(run.root, _needed(run), terms.masked, self._place) if wall.copies else nullcontext()
            with copied as copy:
                conversation = ForkedRun(run, terms, copy)
                with self._less:
                    self._forked.add(conversation)
                try:
                    outcome = conversation.hold(self._send)
                    self._load_dynamo(conversation.needs_dynamo)
                    return outcome
                except Gone:
                    deaths += 1
                    if self._closed:
                        raise InterpreterError(self._was_ended()) from None
                    self._restart()
                    if deaths > 2:
                        return _killer(wall, self.python)
                finally:
                    with self._less:
                        self._forked.remove(conversation)
                        self._less.notify_all()

    # ---- the process

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket | None]:
        if not self._forks:
            return self._popen(["cold"], stdout=subprocess.PIPE), None
        wall = self._walls[0]
        behind = walls.inside_bubblewrap(*self._enclosure()) if wall is BUBBLEWRAP else []
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            try:
                return self._popen(["serve", str(fd), wall.name, str(room())], behind, pass_fds=[fd]), ours
            except InterpreterError:
                ours.close()
                raise

    def _enclosure(self) -> tuple[Path, tuple[str, ...]]:
        """What a warm process behind a wall of its own may write to, and what it must not read."""
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix="gradfix-"))
        return self._place, secrets.masked([Path(self.python), CHILD])

    def _popen(self, words: list[str], behind: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        environment = os.environ if self._sandbox == "off" else secrets.scrubbed(os.environ)[0]
        try:
            return subprocess.Popen(
                [*behind, self.python, str(CHILD), *words],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**environment, **ENVIRONMENT},
                start_new_session=True,
                **{"stdout": subprocess.DEVNULL, **options},
            )
        except OSError as problem:
            raise InterpreterError(
                f"{self.python} can't be started ({problem.strerror}). "
                "Name a Python that has torch with --python."
            ) from None

    def _read_hello(self, again: bool = True) -> Mapping[str, str]:
        """What it says of itself. One that somebody killed as it began says nothing, and is replaced once."""
        try:
            said = self._hear(self._socket) if self._socket is not None else self._hear_all()
        except (TimeoutError, subprocess.TimeoutExpired):
            raise InterpreterError(f"{self.python} did not import torch within {START:.0f} s.") from None
        if not said:
            why = self._why_it_died()
            if again and not self._closed and self._process.returncode == -signal.SIGKILL:
                self._begin_anew()
                return self._read_hello(again=False)
            raise InterpreterError(why)
        hello: dict[str, str] = json.loads(said)
        if hello["problem"]:
            raise InterpreterError(_no_torch(self.python, hello["problem"]))
        return hello

    @staticmethod
    def _hear(zygote: socket.socket) -> bytes:
        """The zygote's first line."""
        zygote.settimeout(START)
        said = b""
        try:
            while not said.endswith(b"\n"):
                piece = zygote.recv(4096)
                if not piece:
                    break
                said += piece
        except TimeoutError:
            raise
        except OSError:
            return b""
        zygote.settimeout(None)
        return said

    def _hear_all(self) -> bytes:
        """What an interpreter that does not stay has to say."""
        try:
            said, self._last_words = self._process.communicate(timeout=START)
        except ValueError:  # closed meanwhile
            return b""
        return said if self._process.returncode == 0 else b""

    def _why_it_died(self) -> str:
        if self._closed:
            return f"{self.python} was ended while torch was being imported."
        if self._socket is not None:
            _, self._last_words = self._process.communicate()
        return self._no_python(self._last_words.decode("utf-8", "replace").strip())

    def _was_ended(self) -> str:
        return f"{self.python} was ended while a script ran in it."

    def _no_python(self, words: str) -> str:
        """`words` are what it said at last."""
        advice = "Name a Python that has torch with --python."
        if "gradfix-too-old" in words:
            return (
                f"{self.python} is {words.split(': ')[-1]}; scripts are run by Python 3.9 or newer. {advice}"
            )
        last = words.splitlines()[-1] if words else ""
        if not _PYTHONS_OWN.match(
            last
        ):  # another program's complaint of arguments that were not meant for it
            last = f"it ended at once, with status {self._process.returncode}"
        return f"{self.python} is not a Python that can run the script ({last}). {advice}"

    def _restart(self) -> None:
        """A zygote that somebody killed is replaced once; a second death is the interpreter's fault."""
        with self._lock:
            with suppress(subprocess.TimeoutExpired):  # its sockets go before it does
                self._process.wait(DYING)
            if self._process.poll() is None and self._hello is not None:
                return
            self._replace_process()

    def _replace_process(self) -> None:
        self._begin_anew()
        self._hello = self._read_hello()

    def _begin_anew(self) -> None:
        self._end()
        self._process, self._socket = self._start()
        self._has_dynamo = False

    def _load_dynamo(self, needed: bool) -> None:
        """Have torch._dynamo imported before the fork, once a script has shown that it is wanted."""
        with self._lock, suppress(OSError):
            if needed and not self._has_dynamo and self._socket is not None:
                self._has_dynamo = True
                self._socket.sendall(b"d")

    def _send(self, descriptors: list[int]) -> None:
        with self._lock:
            if self._socket is None:
                raise Gone
            try:
                socket.send_fds(self._socket, [b"r"], descriptors)
            except OSError:
                raise Gone from None


def _killer(wall: Wall, python: str) -> Outcome:
    """Of a script whose every run took the interpreter along that the others need."""
    words = f"{python} was killed every time the script ran in it."
    return Outcome("killed", None, (), None, "", "", 0.0, wall.name, words)


def room() -> int:
    """Bytes that a run in namespaces may write: they are memory."""
    return max(free_memory() // 4, 1 << 26)


def _no_torch(python: str, problem: str) -> str:
    advice = "Install torch there, or name a Python that has it with --python."
    if problem.startswith("torch "):
        return f"{python} has {problem}. {advice}"
    if "No module named 'torch'" in problem:
        return f"{python} has no torch. {advice}"
    return f"{python} can't import torch ({problem}). {advice}"


def _needed(run: Run) -> Iterable[Path]:
    return (run.script, *map(Path, run.files))
