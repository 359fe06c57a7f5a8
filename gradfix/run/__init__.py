"""Running the user's script in a child process: recorded (a tape), measured, or both.

with Zygote(python) as zygote:
    outcome = zygote.run(Run(script, ...))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from gradfix.dataclass import dataclass
from gradfix.tape import Failure, Tape


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a script. Paths are absolute.

    `files` are candidate texts served under the real file's name (absolute path -> text) without touching the
    disk. `root` is the project that the scratch view covers (see gradfix.discover.project_root); `cwd` the directory
    the run starts in. `record` asks for a tape, `measure` for a Measurement. `impose` is the effect imposed on the
    run (see gradfix.prove), a JSON object, or None. `steps` bounds the run (each optimizer), and `calls` does (the
    steps of all of them together, whether each has stepped or not); neither before optimizers were made in `making`
    places.
    `timeout` in seconds.
    `memory` bytes of address space above what the child has at the fork; None: most of what is free.
    `resident` bytes that all of its processes together may hold; None: most of what is free.
    `file_size` bytes that a file may grow to.
    `fill_empty`: fresh memory (torch.empty, torch.Tensor(3)) is zero instead of leftovers, so that runs can
    be compared.
    `on_cpu`: the processor stands in for CUDA; a Zygote has it so for scripts that fail for want of a GPU.
    """

    script: Path
    root: Path
    cwd: Path
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    record: bool = True
    measure: bool = False
    impose: Mapping[str, Any] | None = None
    steps: int = 3
    calls: int | None = None
    making: int = 0
    timeout: float = 120.0
    seed: int = 0
    memory: int | None = None
    resident: int | None = None
    file_size: int = 1 << 32
    fill_empty: bool = True
    on_cpu: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run went. `ended`: ``finished``, ``steps``, ``exit``, ``failed`` (an exception, see `failure`),
    ``timeout``, ``killed`` (a signal: see `detail`), ``memory``, ``tampered`` (the channel spoke nonsense).

    `measurement` is the raw measurement lines of the child (list of JSON objects), for gradfix.prove to read.
    `stdout`/`stderr` are the last 64 KiB of each. `wall` names what stood between the run and the machine
    (gradfix.run.walls); `missed` says in sentences what it asked for and a wall withheld.
    """

    ended: str
    tape: Tape | None
    measurement: tuple[Mapping[str, Any], ...]
    failure: Failure | None
    stdout: str
    stderr: str
    seconds: float
    wall: str
    detail: str = ""
    status: int | None = None
    missed: tuple[str, ...] = ()


class InterpreterError(RuntimeError):
    """The user's interpreter can't be used (missing, no torch, too old). The message is for the user."""


class WallError(InterpreterError):
    """This machine has no wall of the kind that was asked for, or no room for one. The message is for the user."""
