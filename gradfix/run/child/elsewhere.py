"""Training outside the main thread: which thread is recorded, and what trains where nothing is recorded.

Autograd's hooks and modes, and the numbers of its nodes, belong to a thread each. One thread is recorded at a
time: the main one, until another makes a graph before the main one has run a backward, or after the recorded
one has ended. Several at once would share numbers and the clock; that, and training in processes that the
script starts, is said instead.
"""

from __future__ import annotations

import copy
import mmap
import multiprocessing.process
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

THREADS = "Only one thread is recorded: what the others train is not watched."
PROCESSES = "What the script trains in processes that it starts is not watched."
MAYBE = "The script starts processes of its own; what they might train is not watched."

_sequence = torch._C._autograd._get_sequence_nr


class EachThread:
    """Calls functions in every thread that the script starts, before what the thread is for."""

    def __init__(self) -> None:
        self._entered: list[Callable[[], None]] = []

    def do(self, enter: Callable[[], None]) -> None:
        """From here on call `enter` first in each new thread."""
        if not self._entered:
            self._patch()
        self._entered.append(enter)

    def enter(self, mode: Any) -> None:
        """Enter `mode`, never to leave it, in this thread and in each that is started."""
        self.do(lambda: copy.copy(mode).__enter__())
        mode.__enter__()

    def _patch(self) -> None:
        start, entered = threading.Thread.start, self._entered

        def begin(self: threading.Thread) -> None:
            plain = self.run

            def run() -> None:
                self.__dict__.pop("run", None)
                for enter in entered:
                    enter()
                plain()

            self.run = run  # type: ignore[method-assign]
            start(self)

        begin.__wrapped__ = start  # type: ignore[attr-defined]
        threading.Thread.start = begin  # type: ignore[method-assign]


class Threads:
    """The recorder's one thread. A watch (one for each thread) asks to be taken on before its first graph."""

    def __init__(self, recorder: Any) -> None:
        self.r = recorder
        self._owner = threading.get_ident()
        self._thread: Callable[[], Any] = weakref.ref(threading.current_thread())
        self._walked = False  # the recorded thread has run a backward
        self._highest = 0  # of the numbers that nodes of earlier threads have
        self._missed = False

    def install(self) -> None:
        each_thread.do(self._enter)
        self.r.watch.hooked = True

    def mine(self) -> bool:
        return threading.get_ident() == self._owner

    def walks(self) -> bool:
        """Whether a backward of this thread is to be recorded."""
        if self.mine():
            self._walked = True
            return True
        self._missed = True
        return False

    def missed(self) -> str:
        """What to say of the threads that were not recorded."""
        return THREADS if self._missed else ""

    def _enter(self) -> None:
        watch = copy.copy(self.r.watch)  # shares what it knows of tensors and calls
        watch.idle, watch.hooked = True, False
        watch.__enter__()

    def take(self, watch: Any, args: Any) -> bool:
        """Whether this thread is recorded from here on: `watch` meets a call with `args`."""
        thread = self._thread()
        main = thread is threading.main_thread()
        ended = thread is None or not thread.is_alive()
        if (ended or (main and not self._walked)) and torch.is_grad_enabled() and any(map(_trains, args)):
            self._highest = max(self._highest, self.r.calls.last())
            self.r.watch.idle = True
            self._owner, self._walked = threading.get_ident(), False
            self._thread = weakref.ref(threading.current_thread())
            self._number()
            if not watch.hooked:
                torch._C._autograd._push_saved_tensors_default_hooks(self.r.saves.pack, self.r.saves.unpack)
            watch.idle, watch.hooked, self.r.watch = False, True, watch
            return True
        if watch.hooked:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            watch.hooked = False
        return False

    def _number(self) -> None:
        """Let this thread's nodes be numbered from where the last thread's ended."""
        leaf = torch.zeros((), requires_grad=True)
        with torch._C.DisableTorchFunction():
            while _sequence() < self._highest:
                leaf.view_as(leaf)


class Processes:
    """Whether the script's own processes train: a forked one can say so in memory it shares with this one."""

    def __init__(self) -> None:
        self._trained = mmap.mmap(-1, 1)
        self._started = False

    def install(self) -> None:
        process = multiprocessing.process.BaseProcess
        start, mine = process.start, self

        def begin(self: Any) -> None:
            target = getattr(self, "_target", None)
            if not str(getattr(target, "__module__", "")).startswith("torch.utils.data"):
                mine._started = True
            start(self)

        process.start = begin  # type: ignore[method-assign]

    def walks(self) -> None:
        """A backward in a forked process of the script's."""
        self._trained[0] = 1

    def missed(self) -> str:
        """What to say of the processes that were not recorded."""
        if self._trained[0]:
            return PROCESSES
        return MAYBE if self._started else ""


def _trains(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(isinstance(x, torch.Tensor) and x.requires_grad for x in value)
    return isinstance(value, torch.Tensor) and value.requires_grad


each_thread = EachThread()  # of this process: threads are started through one class
