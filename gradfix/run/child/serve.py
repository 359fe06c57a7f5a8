"""The zygote: torch imported, one thread, no op run; every run is forked from here.

It knows nothing of runs: it keeps one forked keeper (:mod:`.keeper`) waiting on the host's socket, and forks
the next when that one has got its run.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

from . import dynamo, keeper, linux, start

PATIENCE = 20  # keepers that may die without a word, one after the other


def main(words: list[str]) -> None:
    """``serve FD WALL ROOM``: the zygote over the socket FD, in namespaces where that is the wall; its runs may write
    ROOM bytes there."""
    gc.disable()  # torch's import makes no garbage worth looking for
    host = socket.socket(fileno=int(words[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world = _World(host, namespaces=words[2] == "namespaces")
    hello = start.prepare()
    gc.freeze()  # the collector would touch, and so copy, every page in every run
    host.sendall(json.dumps(hello).encode() + b"\n")
    if hello["problem"]:
        sys.exit(4)
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # nobody asks for the keepers' exit: they report to the host
    silent = 0
    while silent < PATIENCE:
        word = _keep_one_waiting(host, world, int(words[3]))
        if word is None:
            return
        silent = 0 if word else silent + 1
        if word == b"d":
            with suppress(ImportError, OSError):  # a run that needs it will say why it can't be had
                dynamo.load()
            gc.freeze()
        elif word.startswith(b"n"):
            world.mounts, world.refused = False, word[1:].decode()


def _keep_one_waiting(host: socket.socket, world: _World, room: int) -> bytes | None:
    """Fork a keeper, wait until it has something to do: its word, b"" if it died, None: the host is gone."""
    read, write = os.pipe()
    try:
        is_init = world.next_child_is_init()
        child = os.fork()
    except OSError:  # too many processes just now
        time.sleep(0.1)
        return b""
    if child == 0:
        try:
            os.close(read)
            world.close()
            keeper.main(host, write, keeper.Means(world.mounts, world.refused, world.granted, is_init, room))
        finally:
            os._exit(70)
    os.close(write)
    if is_init:
        world.back()
    poll = select.poll()
    poll.register(host, 0)  # tells of a hang-up; what is written there is for the keeper
    poll.register(read, select.POLLIN)
    ready = [fd for fd, _ in poll.poll()]
    word = os.read(read, 512) if read in ready else None
    os.close(read)
    return word


class _World:
    """What this machine allows, found out while the process has one thread and nothing in it.

    Where it can, the zygote goes on as process 1 of a PID namespace, in a user namespace if it may not mount
    otherwise: only from a PID namespace of its own may it start others and come back. Its end ends all runs.
    """

    def __init__(self, host: socket.socket, namespaces: bool) -> None:
        self.mounts = False
        self.refused = "there are no namespaces on this system"
        self.granted = False  # by a user namespace, and so not the script's to have
        self.processes: int | None = None
        if not namespaces or not sys.platform.startswith("linux"):
            return
        try:
            if not _may_mount():
                _enter_user_namespace()
                self.granted = True
            self.mounts = True
            linux.unshare(linux.CLONE_NEWPID)
        except OSError as refused:
            self.refused = str(refused)
            return
        _become_first_process(host)
        self.processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def next_child_is_init(self) -> bool:
        """Have the next fork start a PID namespace, whose end ends everything the run has started."""
        if self.processes is None:
            return False
        try:
            linux.unshare(linux.CLONE_NEWPID)
        except OSError:
            return False
        return True

    def back(self) -> None:
        """After the fork: the next child starts out from here again."""
        if self.processes is not None:
            linux.setns(self.processes, linux.CLONE_NEWPID)

    def close(self) -> None:
        if self.processes is not None:
            os.close(self.processes)


def _become_first_process(host: socket.socket) -> None:
    """Go on in a child; this process only waits for its end, and takes it along when it is killed itself."""
    child = os.fork()
    if child == 0:
        linux.die_with_parent()
        return
    host.close()
    _, status = os.waitpid(child, 0)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _may_mount() -> bool:
    with open("/proc/self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> 21 & 1)  # CAP_SYS_ADMIN


def _enter_user_namespace() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as stream:
            stream.write(text)
