"""A process that reads texts for the server, each in a child: a reading that nobody waits for any more is killed.

It has one thread and all imports, so that a child is forked in milliseconds. A child reads one text after the other;
a job that comes while it is at one ends it, and one that has read many makes room for the next, which keeps memory
where it is.
"""

from __future__ import annotations

import gc
import os
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradfix.check import check_text
from gradfix.result import Result, Settings
from gradfix.server.frames import receive, send
from gradfix.source import Source

MANY = 200  # texts that one child reads
FIRST = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    y = model(torch.randn(2, 2)).exp()
    y += 1
    optimizer.zero_grad()
    y.sum().backward()
    optimizer.step()
"""
STDIN, STDOUT = 0, 1


@dataclass(frozen=True, slots=True)
class Check:
    """Read a text: its Results. With ``settings.repair`` they hold the cures."""

    source: Source
    settings: Settings

    def __call__(self) -> list[Result]:
        return list(check_text(self.source, self.settings))


@dataclass(frozen=True, slots=True)
class Cure:
    """Apply every cure that means to change nothing in the training: the text after it."""

    source: Source
    settings: Settings

    def __call__(self) -> str:
        from gradfix.unproved import from_text

        result = from_text(self.source.path, self.settings, self.source.text)
        return result.files.get(str(self.source.path), ("", self.source.text))[1]


Job = Check | Cure


@dataclass(slots=True)
class Child:
    """A forked reader: where its jobs go, where its answers come from, and which one it is at."""

    pid: int
    jobs: int
    answers: int
    busy: int | None = None
    done: int = 0

    @classmethod
    def fork(cls, work: Callable[[int, int], None]) -> Child:
        """A child that does `work` with the ends of two pipes."""
        jobs, our_jobs = os.pipe()
        our_answers, answers = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(our_jobs)
                os.close(our_answers)
                work(jobs, answers)
            finally:
                os._exit(1)  # never into the parent's loop
        os.close(jobs)
        os.close(answers)
        return cls(pid, our_jobs, our_answers)

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.jobs)
        os.close(self.answers)
        os.waitpid(self.pid, 0)


def serve() -> None:
    """Frames (number, job) from standard input to frames (number, answer) on standard output, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's business
    child: Child | None = None
    warm = False
    _first()
    gc.freeze()
    while True:
        listening = [STDIN] if child is None else [STDIN, child.answers]
        ready, _, _ = select.select(listening, [], [], None if warm else 0.3)
        if not ready:  # nobody waits: what only cures need
            warm = True
            if child is not None and child.busy is not None:
                continue
            _warm()
            if child is not None:
                child.end()
                child = None
            continue
        if child is not None and child.answers in ready:
            child = _answered(child)
        if STDIN in ready:
            try:
                number, job = receive(STDIN)
            except EOFError:
                break
            if child is not None and child.busy is not None:
                child.end()
                child = None
            child = child or Child.fork(_read)
            child.busy = number
            try:
                send(child.jobs, job)
            except BrokenPipeError:
                pass  # it died before: the next turn says so
    if child is not None:
        child.end()


def _answered(child: Child) -> Child | None:
    """Pass the child's answer on; the child, if it can go on."""
    answer: Any
    try:
        answer = receive(child.answers)
    except EOFError:
        answer = ("crashed", "reading it ended the process that did")
    if child.busy is not None:
        send(STDOUT, (child.busy, answer))
    child.busy = None
    child.done += 1
    if answer[0] == "crashed" or child.done >= MANY:
        child.end()
        return None
    return child


def _read(jobs: int, answers: int) -> None:
    """The child's life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            job: Job = receive(jobs)
        except EOFError:
            return
        send(answers, ("done", job()))


def _first() -> None:
    """Read a little program: what reading loads on the way is there for every child then."""
    Check(Source(Path.cwd() / "first.py", FIRST.encode(), FIRST), Settings(repair=False))()


def _warm() -> None:
    from gradfix import choose, codemod

    codemod.codemods()
    assert choose
    gc.freeze()
