"""The walls between a run and the machine, best first. docs/safety.md says what each holds and what it does not.

A machine is asked for the best one; where that is refused (no namespaces in this container, no Landlock in
this kernel) the next one is, and every report names the one there was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradfix.run import WallError
from gradfix.run.child import devices

Sandbox = Literal["auto", "strict", "off"]


@dataclass(frozen=True, slots=True)
class Wall:
    """`real`: the kernel holds it, against code that means harm too. `copies`: the run works on a copy of the
    project, whose paths are translated. `loopback`: processes of a run may speak to each other over 127.0.0.1."""

    name: str
    words: str
    real: bool
    copies: bool
    loopback: bool


NAMESPACES = Wall(
    "namespaces",
    "namespaces (a view of the files that only the run writes to, no network)",
    real=True,
    copies=False,
    loopback=True,
)
BUBBLEWRAP = Wall(
    "bubblewrap", "bubblewrap and a scratch copy (no network)", real=True, copies=True, loopback=True
)
LANDLOCK = Wall(
    "landlock", "Landlock and a scratch copy (no network)", real=True, copies=True, loopback=False
)
AUDIT = Wall(
    "audit",
    "a scratch copy and an audit hook, which stop accidents but not hostile code",
    real=False,
    copies=True,
    loopback=False,
)
NONE = Wall("none", "nothing (--sandbox off)", real=False, copies=False, loopback=True)
WALLS = (NAMESPACES, BUBBLEWRAP, LANDLOCK, AUDIT, NONE)


@dataclass(frozen=True, slots=True)
class Terms:
    """What one run is held to: its wall, whether hostile code is expected, and the paths it must not read."""

    wall: Wall
    strict: bool
    masked: tuple[str, ...]


def order(sandbox: Sandbox, forks: bool) -> tuple[Wall, ...]:
    """The walls to ask this machine for, best first. `forks`: runs are forked from a warm process."""
    if sandbox == "off":
        return (NONE,)
    here = [AUDIT]
    if sys.platform.startswith("linux"):
        here = [LANDLOCK, AUDIT]
        if bubblewrap() is not None:
            here.insert(0, BUBBLEWRAP)
        if forks:
            here.insert(0, NAMESPACES)
    return tuple(wall for wall in here if wall.real or sandbox == "auto")


def words(name: str) -> str:
    """What a report says of the wall of this name."""
    return next((wall.words for wall in WALLS if wall.name == name), name)


def none_left(refused: Sequence[tuple[Wall, str]]) -> WallError:
    """Why a strict run is not run."""
    reasons = "; ".join(f"{wall.name}: {why.rstrip('.')}" for wall, why in refused)
    reasons = reasons or f"{sys.platform} has neither namespaces nor Landlock"
    return WallError(
        f"--sandbox strict: this machine has no wall that holds against hostile code ({reasons}), so nothing "
        "was run. --sandbox auto runs code that you trust behind what there is."
    )


def bubblewrap() -> str | None:
    """Where bubblewrap is, if it is."""
    return shutil.which("bwrap")


def inside_bubblewrap(writable: Path, masked: Iterable[str]) -> list[str]:
    """The words to put before a command so that it runs in a bubblewrap: it reads what we read but `masked`,
    writes below `writable` only, and has no network."""
    command = [
        bubblewrap() or "bwrap",
        *("--unshare-user-try", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-cgroup-try"),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run"),
    ]
    for device in devices.accelerators():
        command += ["--dev-bind", device, device]
    for path in masked:
        if not path.startswith("/run/"):
            command += ["--tmpfs", path] if Path(path).is_dir() else ["--ro-bind", "/dev/null", path]
    command += ["--bind", str(writable), str(writable), "--setenv", "TMPDIR", str(writable)]
    return [*command, "--chdir", "/", "--"]


def refuses(command: Sequence[str]) -> str:
    """Why a command behind these words would not start; "" if it would."""
    try:
        done = subprocess.run(
            [*command, "true"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return (said[-1] if said else f"status {done.returncode}") if done.returncode else ""
