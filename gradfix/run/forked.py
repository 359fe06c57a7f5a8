"""A run that is forked from the zygote: four descriptors handed over, a keeper that watches on the other side."""

from __future__ import annotations

import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from gradfix.run import Outcome, Run
from gradfix.run.conversation import DRAIN, Conversation, Gone, Refused
from gradfix.run.scratch import Copy
from gradfix.run.walls import Terms

LATE = 5.0  # seconds after its time limit when a run that its keeper does not end is given up
HELD = 64  # reads that empty any pipe or socket that nobody fills any more


class ForkedRun(Conversation):
    """The descriptors of one run."""

    def __init__(self, run: Run, terms: Terms, copy: Copy | None) -> None:
        super().__init__(run, terms, copy)
        self.status = bytearray()  # what the keeper says
        self._keeper: socket.socket | None = None
        self._unwanted = False

    def hold(self, send: Callable[[list[int]], None]) -> Outcome:
        """Have the run made by `send`, wait for its end. Raises Refused, Gone."""
        with ExitStack() as open_:
            channel, channel_theirs = _pair(open_)
            status, status_theirs = _pair(open_)
            self._keeper = status
            out, out_theirs = os.pipe()
            err, err_theirs = os.pipe()
            for fd in (out, err):
                open_.callback(os.close, fd)
            try:
                send([channel_theirs.fileno(), status_theirs.fileno(), out_theirs, err_theirs])
            finally:
                for theirs in (channel_theirs, status_theirs):
                    theirs.close()
                for fd in (out_theirs, err_theirs):
                    os.close(fd)
            request = json.dumps(self.request()).encode()
            with suppress(
                BrokenPipeError, ConnectionResetError
            ):  # the keeper ended: the status socket says why
                channel.sendall(struct.pack("!Q", len(request)) + request)
            if self._unwanted:
                self.stop()  # it had no keeper yet that could have heard
            started = time.monotonic()
            self._listen(
                {channel.fileno(): self.said, status.fileno(): self.status, out: self.out, err: self.err},
                status,
            )
            seconds = time.monotonic() - started
        keeper = self._keeper_words()
        if not keeper:
            raise Gone
        if "refused" in keeper:
            raise Refused(keeper["refused"])
        return self.outcome(seconds, keeper.get("status"), keeper.get("why", ""))

    def stop(self) -> None:
        """Have it end soon, from any thread; its outcome is worth nothing then."""
        self._unwanted = True
        if self._keeper is not None:
            with suppress(OSError):  # it has ended
                self._keeper.shutdown(socket.SHUT_WR)

    # ---- while it runs

    def _listen(self, streams: Mapping[int, bytearray], status: socket.socket) -> None:
        """Read until the keeper hangs up, then what is left in the other streams."""
        deadline = time.monotonic() + self.run.timeout + LATE
        with selectors.DefaultSelector() as selector:
            for fd in streams:
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    self._empty(streams)  # this process may have had no turn until now
                    return
                for key, _ in selector.select(left):
                    data = _read(key.fd)
                    if not data:
                        selector.unregister(key.fd)
                        if key.fd == status.fileno():
                            deadline = min(deadline, time.monotonic() + DRAIN)
                        continue
                    self.keep(streams[key.fd], data)
                    if key.fd == status.fileno() and b'"status"' in data:
                        selector.unregister(key.fd)  # its last word; it need not be waited for
                        deadline = min(deadline, time.monotonic() + DRAIN)
                    elif streams[key.fd] is self.said and self._has_said_goodbye():
                        self._empty(streams)
                        return
                if self.flooded:
                    status.shutdown(socket.SHUT_WR)
                    self.flooded = False

    def _has_said_goodbye(self) -> bool:
        """The executor's last line is in: only the process itself has yet to be taken down."""
        return self.said.endswith(b"\n") and self.said.rfind(f'x{self.tag}{{"x":"end"'.encode(), -1000) >= 0

    def _empty(self, streams: Mapping[int, bytearray]) -> None:
        """What has been written and has not been read yet: no more than the system holds."""
        for fd, stream in streams.items():
            os.set_blocking(fd, False)
            with suppress(BlockingIOError):
                for _ in range(HELD):
                    if not (data := _read(fd)):
                        break
                    self.keep(stream, data)

    def _keeper_words(self) -> dict[str, Any]:
        words: dict[str, Any] = {}
        for line in bytes(self.status).splitlines():
            words.update(json.loads(line))
        return words


def _pair(open_: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    open_.enter_context(ours)
    open_.enter_context(theirs)
    return ours, theirs


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 18)
    except ConnectionResetError:
        return b""
