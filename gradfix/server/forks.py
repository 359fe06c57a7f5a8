"""A process that reads texts for the server, in children of its own.

It has one thread and all imports, so that a child is forked in milliseconds. One child reads texts, and keeps what it
has read of each file, so that of the next text it reads what is new; another one works out cures. A text that nobody
waits for any more is let go: reading it stops where it is, working out its cures ends with the child. A child that has
read many texts makes room for the next, which keeps memory where it is.
"""

from __future__ import annotations

import gc
import mmap
import os
import select
import signal
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradfix.check import check_text
from gradfix.examine import seen
from gradfix.read.kept import Kept
from gradfix.result import Result, Settings
from gradfix.server.frames import receive, send
from gradfix.source import Source

FILES = 6  # of which is kept what was read
MANY = 500  # texts that one child reads
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
BROKEN = "import torch\nloss.backward("
STDIN, STDOUT = 0, 1


class Stale(BaseException):
    """Another text is waited for."""


@dataclass(slots=True)
class Desk:
    """What a child has of the files that it read last."""

    _files: OrderedDict[Path, Kept] = field(default_factory=OrderedDict)

    def of(self, path: Path) -> Kept:
        kept = self._files.get(path)
        if kept is None:
            kept = self._files[path] = Kept(seen)
        self._files.move_to_end(path)
        if len(self._files) > FILES:
            self._files.popitem(last=False)
        return kept

    def clear(self) -> None:
        self._files.clear()

    @property
    def open(self) -> bool:
        """Whether reading can stop here, and nothing is left half done."""
        return any(kept.reading for kept in self._files.values())


DESK = Desk()


@dataclass(frozen=True, slots=True)
class Check:
    """Read a text among `files` that an editor has, too: its Results. With ``settings.repair`` they hold the cures."""

    source: Source
    settings: Settings
    files: Mapping[str, str] = field(default_factory=dict)

    def __call__(self) -> list[Result]:
        kept = None if self.settings.repair else DESK.of(self.source.path)
        return list(check_text(self.source, self.settings, self.files, kept))


@dataclass(frozen=True, slots=True)
class Cure:
    """Apply every cure that means to change nothing in the training: the text after it."""

    source: Source
    settings: Settings
    files: Mapping[str, str] = field(default_factory=dict)

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
    newest: mmap.mmap  # the number of the job that is waited for, shared with it
    busy: int | None = None
    done: int = 0

    @classmethod
    def fork(cls, work: Callable[[int, int, mmap.mmap], None]) -> Child:
        """A child that does `work` with the ends of two pipes."""
        jobs, our_jobs = os.pipe()
        our_answers, answers = os.pipe()
        newest = mmap.mmap(-1, 8)
        pid = os.fork()
        if not pid:
            try:
                os.close(our_jobs)
                os.close(our_answers)
                work(jobs, answers, newest)
            finally:
                os._exit(1)  # never into the parent's loop
        os.close(jobs)
        os.close(answers)
        return cls(pid, our_jobs, our_answers, newest)

    def give(self, number: int, job: Job) -> None:
        """Have `job` done; one that the child is still at stops soon."""
        self.newest[:] = number.to_bytes(8, "big")
        if self.busy is not None:
            os.kill(self.pid, signal.SIGUSR1)
        self.busy = number
        try:
            send(self.jobs, (number, job))
        except BrokenPipeError:
            pass  # it died before: the next turn says so

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.jobs)
        os.close(self.answers)
        self.newest.close()
        os.waitpid(self.pid, 0)


def serve() -> None:
    """Frames (number, job) from standard input to frames (number, answer) on standard output, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server's business
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a child knows what to do with it
    children: dict[bool, Child] = {}
    warm = False
    _first()
    gc.freeze()
    while True:
        answering = {child.answers: quick for quick, child in children.items()}
        ready, _, _ = select.select([STDIN, *answering], [], [], None if warm else 0.3)
        if not ready:  # nobody waits: what only cures need
            warm = not any(child.busy is not None for child in children.values())
            if warm:
                _warm()
            continue
        for quick in [answering[each] for each in ready if each != STDIN]:
            if not _answered(children[quick]):
                children.pop(quick).end()
        if STDIN in ready:
            try:
                number, job = receive(STDIN)
            except EOFError:
                break
            slow = children.get(False)
            if slow is not None and slow.busy is not None:  # only one text is waited for at a time
                children.pop(False).end()
            quick = isinstance(job, Check) and not job.settings.repair
            if quick not in children:
                children[quick] = Child.fork(_read)
            children[quick].give(number, job)
    for child in children.values():
        child.end()


def _answered(child: Child) -> bool:
    """Pass the child's answer on; whether the child can go on."""
    answer: Any
    try:
        number, answer = receive(child.answers)
    except EOFError:
        number, answer = child.busy, ("crashed", "reading it ended the process that did")
    child.done += 1
    if number == child.busy and number is not None:
        send(STDOUT, (number, answer))
        child.busy = None
    return answer[0] != "crashed" and (child.done < MANY or child.busy is not None)


def _read(jobs: int, answers: int, newest: mmap.mmap) -> None:
    """The child's life."""
    at = 0

    def stop(*_: object) -> None:
        if DESK.open and int.from_bytes(newest[:], "big") != at:
            raise Stale

    signal.signal(signal.SIGUSR1, stop)
    while True:
        try:
            at, job = receive(jobs)
        except EOFError:
            return
        try:
            answer = ("done", job())
        except Stale:
            answer = ("stale", [])
        send(answers, (at, answer))


def _first() -> None:
    """Read a little program: what reading loads on the way is there for every child then."""
    for text in (FIRST, BROKEN):
        Check(Source(Path.cwd() / "first.py", text.encode(), text), Settings(repair=False))()
    DESK.clear()


def _warm() -> None:
    from gradfix import choose, codemod

    codemod.codemods()
    assert choose
    gc.freeze()
