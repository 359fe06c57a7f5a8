"""The process between the zygote and one run: makes the scratch view, watches, takes everything down.

It is forked before its run is asked for, so that the view is ready by then. In a namespace of its own it is
process 1, and its end is the end of whatever the script has started; elsewhere it adopts orphans and kills
them. The host hangs up on the status socket to stop a run, and a host that dies does too.
"""

from __future__ import annotations

import array
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, NamedTuple, NoReturn

from . import channel as channels
from . import confine, execute, furnish, guard, linux, view

GRACE = 2.0  # seconds between the warning and the kill, for what the recorder holds back on a busy machine
PAUSE = 0.05  # seconds between looks at memory and processes
PROCESSES = 256
DESCRIPTORS = 4  # of a run: channel, status, stdout, stderr


class Means(NamedTuple):
    """What this process may do: mount (or why not), `granted` by a user namespace; be process 1; `room` in bytes."""

    mounts: bool
    refused: str
    granted: bool
    is_init: bool
    room: int


def main(host: socket.socket, report: int, means: Means) -> NoReturn:
    """Wait for a run on `host`, keep it, leave. The zygote hears on `report` of the letter that came:
    ``r`` a run, ``d`` import torch._dynamo; ``n`` and a reason: no view can be made here."""
    os.setsid()
    linux.die_with_parent()
    linux.adopt_orphans()
    scratch, own_proc = None, None
    if means.mounts:
        try:
            scratch = view.View(means.room)
        except view.NoView as refused:
            os.write(report, b"n" + str(refused).encode())
            os._exit(0)
        own_proc = furnish.give_processes() if means.is_init else None
    word, descriptors = _receive(host)
    os.write(report, word)
    host.close()
    os.close(report)
    if word == b"r" and len(descriptors) == DESCRIPTORS:
        _keep(descriptors, means, scratch, own_proc)
    os._exit(0)


def _receive(host: socket.socket) -> tuple[bytes, list[int]]:
    """The next word and its descriptors; no word when the host is gone."""
    descriptors = array.array("i")
    try:
        word, ancillary, _, _ = host.recvmsg(1, socket.CMSG_SPACE(DESCRIPTORS * descriptors.itemsize))
    except OSError:
        return b"", []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return word, list(descriptors)


def _keep(descriptors: list[int], means: Means, scratch: view.View | None, own_proc: int | None) -> None:
    channel, status, out, err = descriptors
    host = socket.socket(fileno=status)
    request = _read_request(channel)
    if request is None:
        return
    try:
        if request["wall"] == "namespaces":
            if scratch is None:
                raise view.NoView(means.refused)
            scratch.include([request["root"], request["cwd"]], request["masked"], means.granted)
        else:
            guard.refuse(request["wall"], request["strict"])
    except (view.NoView, guard.NoGuard) as refused:
        _tell(host, {"refused": str(refused)})
        return
    wakeup = _wake_on_child()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        host.close()
        for fd in wakeup:
            os.close(fd)
        _become_run(request, channel, out, err, means.granted, own_proc)
    _tell(host, {"started": True})
    for fd in (channel, out, err):
        os.close(fd)
    watch = _Watch(child, request, own_proc)
    code = watch.until_end(host, wakeup[0])
    if not means.is_init:
        _kill_adopted()
    _tell(host, {"status": os.waitstatus_to_exitcode(code), "why": watch.why})


def _read_request(channel: int) -> dict[str, Any] | None:
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


def _tell(host: socket.socket, obj: dict[str, Any]) -> None:
    try:
        host.sendall(json.dumps(obj).encode() + b"\n")
    except OSError:  # the host is gone: nobody to tell
        pass


def _wake_on_child() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    os.set_blocking(read, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write)
    return read, write


def _become_run(
    request: dict[str, Any], channel: int, out: int, err: int, granted: bool, own_proc: int | None
) -> NoReturn:
    """In the process that becomes the script's."""
    linux.die_with_parent()
    os.setpgid(0, 0)
    _be_first_to_go(own_proc)
    line = channels.Channel(channel, request["tag"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for fd, standard in ((out, 1), (err, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.closerange(3, channels.HIGH)
    if "scratch" in request:
        # Before the first write: parts of a copy may be links to the owner's files.
        guard.install(request)
    if request["wall"] != "none":  # what lies there is the owner's then
        request["files"] = view.write_texts(request["files"])
    confine.confine(request, granted)
    execute.run(request, line)


def _be_first_to_go(own_proc: int | None) -> None:
    """When the machine runs out of memory, the kernel shall choose the run and nothing of the owner's."""
    try:
        score = os.open(
            "self/oom_score_adj" if own_proc is not None else "/proc/self/oom_score_adj",
            os.O_WRONLY,
            dir_fd=own_proc,
        )
        os.write(score, b"1000")
    except OSError:
        pass


class _Watch:
    """Waits for the run's process; ends it when the host hangs up or time, memory or processes run out."""

    def __init__(self, child: int, request: dict[str, Any], own_proc: int | None) -> None:
        self.child = child
        self.why = ""
        self.own_proc = own_proc
        self.deadline = time.monotonic() + request["timeout"]
        self.memory = request.get("resident")
        self.killed = False
        self.own = _private("/proc/self/statm")  # what a fork of the zygote has without doing anything

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

    def _reap(self) -> int | None:
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
        resident, processes = _usage(self.own_proc is not None)
        if processes > PROCESSES:
            self._kill("processes")
        elif self.memory is not None and resident - processes * self.own > self.memory:
            self._kill("memory")

    def _kill(self, why: str) -> None:
        if not self.killed:
            self.killed = True
            self.why = why
            os.kill(self.child, signal.SIGKILL)


def _usage(own_proc: bool) -> tuple[int, int]:
    """Private resident bytes and number of all processes of the run: of this PID namespace, or below this one."""
    names = [n for n in os.listdir("/proc") if n.isdigit() and n != "1"] if own_proc else _below("self")
    return sum(_private(f"/proc/{name}/statm") for name in names), len(names)


def _below(name: str) -> list[str]:
    """Names below /proc of a process's children, and of theirs."""
    found: list[str] = []
    waiting = [name]
    while waiting and len(found) <= PROCESSES:
        parent = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as children:
                    waiting += (born := children.read().split())
                    found += born
        except OSError:  # it has just ended, or this system does not tell
            continue
    return found


def _private(statm: str) -> int:
    try:
        with open(statm) as stream:
            fields = stream.read().split()
    except OSError:  # it has just ended, or there is no /proc
        return 0
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


def _kill_adopted() -> None:
    """Everything the run has started, for a keeper that is not process 1 of a namespace."""
    for _ in range(200):
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


def _children() -> list[int]:
    """This process's children, orphans it has adopted among them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as stream:
            return [int(word) for word in stream.read().split()]
    except OSError:
        return []
