"""One run of the user's script in this process, as ``python script.py arguments`` would run it.

What distinguishes it from that: random generators are seeded, instruments (recorder, imposer, measurer) may
be installed, and the run ends once every optimizer has stepped often enough. It is left by ``os._exit`` and
nothing else, because an exception would be caught by somebody's bare ``except:``.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.machinery
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import candidates, compiled, dynamo, failure, network

PACKAGE = __package__ or "gradfix.run.child"
EXIT = os._exit  # the real one: the script finds a version of ours that says goodbye first
LOST = 117  # exit status of a run whose channel the script has closed
TIME_IS_UP: int = getattr(signal, "SIGXCPU", signal.SIGTERM)  # the warning before a run is killed
LATE = 5.0  # seconds after its time limit when a run that lets no signal through is ended in the middle


def run(request: dict[str, Any], emit: Any) -> NoReturn:
    """Run the script of `request` (the fields of a gradfix.run.Run) and leave the process."""
    _Execution(request, emit).run()


def start_clock(seconds: float, give_up: Callable[[], Any]) -> None:
    """For a run that nobody else warns when its time is up. `give_up` ends one that does not hear."""

    def watch() -> None:
        time.sleep(seconds)
        if hasattr(signal, "SIGXCPU"):
            os.kill(os.getpid(), TIME_IS_UP)  # wakes the main thread
        else:
            signal.raise_signal(TIME_IS_UP)  # os.kill would end the process
        time.sleep(LATE)
        give_up()

    threading.Thread(target=watch, daemon=True, name="gradfix-clock").start()


class _Execution:
    """The run's state: what is installed, and whether it has ended."""

    def __init__(self, request: dict[str, Any], emit: Any) -> None:
        self.request = request
        self.emit = emit
        self.pid = os.getpid()
        self.instruments: list[Any] = []
        self.recorder: Any = None
        self.failed: BaseException | None = None
        self.thread_hook = threading.excepthook
        self.over = False

    def run(self) -> NoReturn:
        script = self.request["script"]
        try:
            self._prepare()
        except BaseException as problem:  # our own fault: the script has not begun
            self._trouble(problem)
            self.emit.flush()
            EXIT(LOST)
        how, exc, status, detail = "finished", None, 0, ""
        try:
            code = candidates.compile_script(script, self.request.get("files") or {})
            self._become_main(script)
            exec(code, sys.modules["__main__"].__dict__)
        except SystemExit as asked:
            how, status, detail = _exit_status(asked)
        except BaseException as problem:
            how, exc, status = "failed", problem, 1
        self._leave(how, exc, status, detail)

    # ---- before the script

    def _prepare(self) -> None:
        request = self.request
        gc.enable()
        os.chdir(request["cwd"])
        os._exit = self._user_exit
        signal.signal(TIME_IS_UP, self._time_is_up)
        threading.excepthook = self._thread_failed
        importlib.import_module(PACKAGE + ".seeds").seed_everything(request.get("seed", 0))
        importlib.import_module(PACKAGE + ".windows").none()
        self.emit.enough = self._said_enough
        if request.get("one_thread", True):
            _one_thread()
        candidates.serve(request.get("files") or {})
        compiled.under_whole_paths()
        if request.get("fill_empty"):
            _zero_fresh_memory()
        if request.get("memory"):
            _bound_memory(request["memory"])
        if request.get("wall", "none") != "none":
            network.watch(self.emit)
        self._instrument()
        if request.get("on_cpu"):
            importlib.import_module(PACKAGE + ".on_cpu").stand_in()
        if request.get("steps"):
            bound = importlib.import_module(PACKAGE + ".bound").Bound
            never = self.recorder.optimizers.never if self.recorder is not None else lambda _: None
            calls, making = request.get("calls"), request.get("making", 0)
            bound(request["steps"], self._steps_are_done, calls, never, making).install()

    def _instrument(self) -> None:
        """Only what was asked for is even imported. Each has install() and finish(how, exc)."""
        request, emit = self.request, self.emit
        if request.get("record"):
            self.recorder = importlib.import_module(PACKAGE + ".recorder").Recorder(emit, request)
            self.instruments.append(self.recorder)
            self.recorder.install()
        if request.get("impose") is not None:
            impose = importlib.import_module(PACKAGE + ".impose").Imposer
            imposer = impose(request["impose"], self.recorder, emit)
            self.instruments.append(imposer)
            imposer.install()
        if request.get("measure"):
            measurer = importlib.import_module(PACKAGE + ".measure").Measurer(emit, request)
            self.instruments.append(measurer)
            measurer.install()

    def _become_main(self, script: str) -> None:
        main = types.ModuleType("__main__")
        main.__file__ = script
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", script)
        main.__dict__["__builtins__"] = sys.modules["builtins"]
        main.__dict__["__cached__"] = None
        sys.modules["__main__"] = main
        sys.argv = [script, *self.request.get("arguments", ())]
        if hasattr(sys, "orig_argv"):
            sys.orig_argv = [sys.executable, *sys.argv]
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, os.path.dirname(script))

    # ---- the ways out

    def _leave(self, how: str, exc: BaseException | None, status: int, detail: str) -> NoReturn:
        """The ordinary end: what the interpreter does after the last line, then out."""
        if exc is not None:
            self._say_failure(exc)
        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits for the script's threads
            atexit._run_exitfuncs()
        except BaseException as problem:  # atexit has printed it
            detail = detail or f"an atexit handler raised {type(problem).__name__}."
        self._end(how, exc, status, detail)

    def _say_failure(self, exc: BaseException) -> None:
        self.failed = exc
        if self._is_memory(exc):
            self.emit({"x": "memory", "detail": failure.describe(exc)["message"]})
        self.emit({"x": "failure", **failure.describe(exc)})
        self.emit.flush()
        try:
            if sys.excepthook is sys.__excepthook__:
                sys.stderr.write(failure.text(exc))
            else:
                sys.excepthook(type(exc), exc, exc.__traceback__)
        except BaseException:  # a hook of the user's that fails changes nothing: the failure is said
            pass

    def _thread_failed(self, args: Any) -> None:
        """A thread that dies of an error of torch's ends a training, even where the script goes on to its end."""
        if isinstance(args.exc_value, RuntimeError) and self.failed is None and os.getpid() == self.pid:
            self.failed = args.exc_value
            self.emit({"x": "failure", **failure.describe(args.exc_value)})
        self.thread_hook(args)

    @staticmethod
    def _is_memory(exc: BaseException) -> bool:
        words = str(exc) if isinstance(exc, RuntimeError) else ""
        return isinstance(exc, MemoryError) or "can't allocate memory" in words or "out of memory" in words

    def _end(self, how: str, exc: BaseException | None, status: int, detail: str = "") -> NoReturn:
        if not self.over and os.getpid() == self.pid:
            self.over = True
            if self.failed is not None and how in ("exit", "finished"):  # by what ran after the failure
                how, exc = "failed", self.failed
            for instrument in reversed(self.instruments):
                try:
                    instrument.finish(how, exc)
                except BaseException as problem:  # our own fault must not look like the script's
                    self._trouble(problem)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:  # closed, or replaced by something that has no flush
                    pass
            self.emit(
                {"x": "end", "how": how, "status": status, "detail": detail, "dynamo": dynamo.is_loaded()}
            )
            self.emit.flush()
            if getattr(self.emit, "closed", False):
                EXIT(LOST)
        EXIT(status)

    def _trouble(self, problem: BaseException) -> None:
        text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
        self.emit({"x": "trouble", "text": text})

    def _user_exit(self, status: int) -> NoReturn:
        """What the script finds as os._exit."""
        if os.getpid() != self.pid:
            EXIT(status)
        self._end("exit", None, status, f"the script ended itself with os._exit({status}).")

    def _steps_are_done(self) -> None:
        self._end("steps", None, 0)

    def _said_enough(self) -> None:
        """More would not fit where it is read: what there is tells as much as of a run whose time was up."""
        self._end("timeout", None, 0, "the run had said so much about itself that it was ended.")

    def _time_is_up(self, *_: Any) -> None:
        """The warning of keeper or clock: what is held goes out now or never (in the middle of a write: after it)."""
        if os.getpid() != self.pid:
            return
        if getattr(self.emit, "busy", False):
            self.emit.after_write = lambda: self._end("timeout", None, 0)
            return
        self._end("timeout", None, 0)


def _exit_status(asked: SystemExit) -> tuple[str, int, str]:
    """(how, status, detail): ``sys.exit()`` and ``sys.exit(0)`` are a script that finished."""
    code = asked.code
    if code is None or code == 0:
        return "finished", 0, ""
    if isinstance(code, int):
        return "exit", code & 0xFF, f"the script called sys.exit({code})."
    print(code, file=sys.stderr)
    return "exit", 1, f"the script called sys.exit({str(code)[:200]!r})."


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _zero_fresh_memory() -> None:
    """Uninitialised memory differs from run to run: have glibc clear what it hands out (M_PERTURB)."""
    import ctypes

    try:
        ctypes.CDLL(None).mallopt(-6, 0xFF)  # allocated bytes are set to the complement
    except (OSError, AttributeError, TypeError):  # not glibc
        pass


def _bound_memory(extra: int) -> None:
    try:
        import resource

        with open("/proc/self/statm") as statm:
            held = int(statm.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # only Linux says what a process holds and lets it be bounded
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = held + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
