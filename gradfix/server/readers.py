"""Readings, one at a time, in a process of their own: the newest text of a file counts, and older ones are dropped."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from dataclasses import dataclass, field
from typing import Any

from gradfix.server.forks import Job
from gradfix.server.frames import HEAD, packed, process

Key = tuple[str, str]  # what is wanted, and of which document


class Crashed(Exception):
    """Reading ended the process that did."""


@dataclass(slots=True)
class Readers:
    """The jobs that wait, and the one that is being done."""

    _process: asyncio.subprocess.Process | None = None
    _waiting: dict[Key, tuple[Job, asyncio.Future[Any]]] = field(default_factory=dict)
    _running: tuple[Key, int, asyncio.Future[Any]] | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _answers: asyncio.Task[None] | None = None

    async def ask(self, what: str, document: str, job: Job) -> Any:
        """The answer to `job`. Raises asyncio.CancelledError once it is dropped or asked anew, Crashed."""
        await self.start()
        key = (what, document)
        self._forget(key)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = (job, future)
        self._next()
        return await future

    def drop(self, document: str) -> None:
        """Nobody waits for anything of the document's text any more."""
        for key in [k for k in self._waiting if k[1] == document]:
            self._forget(key)
        if self._running is not None and self._running[0][1] == document:
            self._forget(self._running[0])
        self._next()

    async def start(self) -> None:
        """Start the process, if there is none; it ends with this one."""
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            self._process = await asyncio.create_subprocess_exec(
                *process("forks"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            self._answers = asyncio.create_task(self._listen(self._process))

    def _forget(self, key: Key) -> None:
        """Cancel what was asked under `key`. The job that is being done ends when the next one is sent."""
        if key in self._waiting:
            self._waiting.pop(key)[1].cancel()
        if self._running is not None and self._running[0] == key:
            self._running[2].cancel()
            self._running = None

    def _next(self) -> None:
        if self._running is not None or not self._waiting or self._process is None:
            return
        # who asked for cures is waiting for them
        key = next((k for k in self._waiting if k[0] != "check"), next(iter(self._waiting)))
        job, future = self._waiting.pop(key)
        number = next(self._numbers)
        self._running = (key, number, future)
        assert self._process.stdin is not None
        self._process.stdin.write(packed((number, job)))

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while True:
                (length,) = HEAD.unpack(await process.stdout.readexactly(HEAD.size))
                number, (state, answer) = pickle.loads(await process.stdout.readexactly(length))
                if self._running is None or self._running[1] != number:
                    continue  # of a text that is no longer
                future = self._running[2]
                self._running = None
                if not future.done() and state == "done":
                    future.set_result(answer)
                elif not future.done():
                    future.set_exception(Crashed(answer))
                self._next()
        except asyncio.IncompleteReadError:
            await process.wait()
            if self._running is not None and not self._running[2].done():
                self._running[2].set_exception(Crashed("the process that reads has ended"))
            self._running = None
