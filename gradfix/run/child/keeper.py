"""The process between the zygote and one run: makes the scratch view, watches, and takes everything down at the end.

In a namespace of its own it is process 1, so that its end is the end of whatever the script has started; elsewhere it
adopts orphans and kills them. The host hangs up on the status socket to stop a run, and a host that dies does too.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import channel as channels
from . import execute, linux, view

GRACE = 0.5  # seconds between the warning and the kill, for what the recorder holds back
PAUSE = 0.05  # seconds between looks at memory and processes
PROCESSES = 512


class Means(NamedTuple):
    """What this process may do: mount, with rights `granted` by a user namespace, as process 1 of a PID namespace."""

    mounts: bool
    granted: bool
    is_init: bool


def keep(descriptors: List[int], means: Means) -> None:
    """Run the request that waits on the channel, report on the status socket, never return."""
    channel, status, out, err = descriptors
    os.setsid()
    linux.die_with_parent()
    linux.adopt_orphans()
    host = socket.socket(fileno=status)
    request = _read_request(channel)
    if request is None:
        os._exit(0)
    wall = request["wall"]
    if wall == "namespaces":
        try:
            if not means.mounts:
                raise view.NoView("user namespaces are not available")
            view.enter([request["root"], request["cwd"]])
        except view.NoView as refused:
            _tell(host, {"refused": str(refused)})
            os._exit(0)
    own_proc = means.is_init and wall == "namespaces" and view.mount_processes()
    wakeup = _wake_on_child()
    _tell(host, {"wall": wall})
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        host.close()
        for fd in wakeup:
            os.close(fd)
        _become_run(request, channel, out, err, means)
    for fd in (channel, out, err):
        os.close(fd)
    watch = _Watch(child, request, own_proc)
    code = watch.until_end(host, wakeup[0])
    _kill_all(means.is_init)
    _tell(host, {"status": code, "why": watch.why})
    os._exit(0)


def _read_request(channel: int) -> Optional[Dict[str, Any]]:
    size = _read(channel, 8)
    data = _read(channel, struct.unpack("!Q", size)[0]) if len(size) == 8 else b""
    return json.loads(data) if data else None


def _read(fd: int, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = os.read(fd, min(size - len(found), 1 << 20))
        if not piece:
            return b""
        found += piece
    return found


def _tell(host: socket.socket, obj: Dict[str, Any]) -> None:
    try:
        host.sendall(json.dumps(obj).encode() + b"\n")
    except OSError:  # the host is gone: nobody to tell
        pass


def _wake_on_child() -> Tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    return read, write


def _become_run(request: Dict[str, Any], channel: int, out: int, err: int, means: Means) -> None:
    """In the process that becomes the script's."""
    linux.die_with_parent()
    os.setpgid(0, 0)
    line = channels.Channel(channel)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, standard in ((out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.closerange(3, channels.HIGH)
    request["files"] = view.write_texts(request["files"]) if request["wall"] != "none" else request["files"]
    if means.granted:
        linux.drop_privileges()
    execute.run(request, line)


class _Watch:
    """Waits for the run's process; ends it when the host hangs up, time is out, or memory or processes run over."""

    def __init__(self, child: int, request: Dict[str, Any], own_proc: bool) -> None:
        self.child = child
        self.why = ""
        self.own_proc = own_proc
        self.deadline = time.monotonic() + request["timeout"]
        self.memory = request.get("resident")
        self.killed = False

    def until_end(self, host: socket.socket, wakeup: int) -> int:
        """The wait status of the run's process."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        poll.register(host, select.POLLIN)
        while True:
            status = self._reap()
            if status is not None:
                return status
            ready = [fd for fd, _ in poll.poll(1000 * PAUSE)]
            if wakeup in ready:
                os.read(wakeup, 512)
            if host.fileno() in ready:
                self._kill("stopped")
                poll.unregister(host)
            self._look()

    def _reap(self) -> Optional[int]:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 0
            if pid == self.child:
                return status
            if pid == 0:
                return None

    def _look(self) -> None:
        late = time.monotonic() - self.deadline
        if late > GRACE:
            self._kill("timeout")
        elif late > 0 and not self.why:
            self.why = "timeout"
            os.kill(self.child, signal.SIGXCPU)
        if self.killed:
            return
        resident, processes = _usage() if self.own_proc else (0, 0)
        if self.memory is not None and resident > self.memory:
            self._kill("memory")
        if processes > PROCESSES:
            self._kill("processes")

    def _kill(self, why: str) -> None:
        if not self.killed:
            self.killed = True
            self.why = why
            os.kill(self.child, signal.SIGKILL)


def _usage() -> Tuple[int, int]:
    """Private resident bytes and number of all processes in this PID namespace."""
    pages = number = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            number += 1
            try:
                with open(f"/proc/{name}/statm") as statm:
                    fields = statm.read().split()
            except OSError:  # it has just ended
                continue
            pages += int(fields[1]) - int(fields[2])
    return pages * resource.getpagesize(), number


def _kill_all(in_namespace: bool) -> None:
    """Everything the run has started. Process 1 of a namespace need only leave."""
    if in_namespace:
        return
    for _ in range(100):
        children = _children()
        if not children:
            return
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def _children() -> List[int]:
    """This process's children, orphans it has adopted among them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:
        return []
