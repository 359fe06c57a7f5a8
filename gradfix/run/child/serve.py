"""The zygote: torch imported, one thread, no op run; every run is forked from here.

It knows nothing of runs: the host sends four descriptors (channel, status, stdout, stderr), the zygote forks, and the
keeper (:mod:`.keeper`) in the new process reads the request from the channel.
"""

from __future__ import annotations

import array
import gc
import json
import os
import platform
import signal
import socket
import sys
from typing import List, Optional

from . import keeper, linux

DESCRIPTORS = 4


def main(words: List[str]) -> None:
    """``serve FD``: the zygote over the socket FD."""
    host = socket.socket(fileno=int(words[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    world = _World()
    _import_torch(host)
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # nobody asks for the keepers' exit: they report to the host
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page in every run
    while True:
        descriptors = _receive(host)
        if descriptors is None:
            return
        _fork(host, world, descriptors)


class _World:
    """What this machine allows, found out while the process has one thread: entering a user namespace."""

    def __init__(self) -> None:
        self.mounts = False
        self.granted = (
            False  # our rights over mounts come from a user namespace, and the script shall not have them
        )
        self.processes: Optional[int] = None
        if not sys.platform.startswith("linux"):
            return
        try:
            if not _may_mount():
                _enter_user_namespace()
                self.granted = True
            self.processes = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            self.mounts = True
        except OSError:
            pass

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
        if self.processes is not None:
            try:
                linux.setns(self.processes, linux.CLONE_NEWPID)
            except OSError:
                self.processes = None


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


def _import_torch(host: socket.socket) -> None:
    """Say hello, or why not, and leave."""
    problem = ""
    try:
        import torch
        import torch._dynamo  # the first optimizer imports it
        import torch.optim
    except ImportError as missing:
        problem = f"{type(missing).__name__}: {missing}"
    except OSError as broken:  # a shared library that does not load
        problem = f"OSError: {broken}"
    hello = {"problem": problem, "python": platform.python_version(), "executable": sys.executable}
    if not problem:
        hello["torch"] = str(torch.__version__)
    host.sendall(json.dumps(hello).encode() + b"\n")
    if problem:
        sys.exit(4)


def _receive(host: socket.socket) -> Optional[List[int]]:
    """The next run's descriptors, or None when the host is gone."""
    descriptors = array.array("i")
    try:
        word, ancillary, _, _ = host.recvmsg(1, socket.CMSG_SPACE(DESCRIPTORS * descriptors.itemsize))
    except OSError:
        return None
    if not word:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _fork(host: socket.socket, world: _World, descriptors: List[int]) -> None:
    own_processes = world.next_child_is_init()
    try:
        child = os.fork()
    except OSError:
        child = -1
    if child == 0:
        host.close()
        if world.processes is not None:
            os.close(world.processes)
        try:
            keeper.keep(descriptors, keeper.Means(world.mounts, world.granted, own_processes))
        finally:
            os._exit(70)
    if own_processes:
        world.back()
    for descriptor in descriptors:
        os.close(descriptor)
