"""Small repositories to migrate, and what must not change in them."""

import hashlib
import os
import subprocess
import time
from pathlib import Path

FAULTY = """\
import torch

{model} = torch.nn.Linear(3, 1)
opt = torch.optim.SGD({model}.parameters(), lr=0.1)
for step in range({steps}):
    value = {model}(torch.ones(2, 3)).exp()
    value += {number}
    opt.zero_grad()
    value.sum().backward()
    opt.step()
"""
SOUND = FAULTY.replace("value += {number}", "value = value + {number}")


def faulty(model: str = "net", steps: int = 3, number: int = 1) -> str:
    """A training loop that overwrites what exp() saved; `clean` is its cure."""
    return FAULTY.format(model=model, steps=steps, number=number)


def sound(model: str = "net") -> str:
    """One without a fault."""
    return SOUND.format(model=model, steps=3, number=1)


def git(folder: Path, *words: str, **more) -> str:
    """git as a person calls it."""
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    command += ["-c", "protocol.file.allow=always", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, **more)
    return done.stdout.strip()


def repository(folder: Path, files: dict[str, str | bytes]) -> Path:
    """A git repository of one commit."""
    plain(folder, files)
    git(folder, "init")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "first")
    return folder


def plain(folder: Path, files: dict[str, str | bytes]) -> Path:
    """A folder of files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def state(folder: Path, *branches: str) -> str:
    """A digest of all that --branch must leave alone: the working tree, HEAD, index, configuration and every ref but
    `branches`. Objects may come."""
    found = hashlib.sha256()
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f != "objects")
        for name in sorted(files):
            path = Path(here) / name
            if not any(str(path).endswith(f"refs/heads/{branch}") for branch in branches):
                inside = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
                found.update(os.fsencode(path.relative_to(folder)) + b"\0" + inside)
    return found.hexdigest()


def working_in(folder: Path) -> list[int]:
    """The processes that know of `folder`, whoever started them: by environment, command line or directory."""
    found = []
    for name in set(filter(str.isdigit, os.listdir("/proc"))) - {str(os.getpid())}:
        about = Path("/proc", name)
        try:
            known = (about / "environ").read_bytes() + (about / "cmdline").read_bytes()
            if os.fsencode(folder) in known + os.fsencode(os.readlink(about / "cwd")):
                found.append(int(name))
        except OSError:
            continue
    return found


def nobody_works_in(folder: Path) -> bool:
    """Whether all of them end, soon."""
    end = time.monotonic() + 30
    while working_in(folder):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
