"""One run of the user's script in this process, as ``python script.py arguments`` would run it.

What distinguishes it from that: random generators are seeded, instruments (recorder, imposer, measurer) may be
installed, and the run ends once every optimizer has stepped often enough. It is left by ``os._exit`` and nothing else,
because an exception would be caught by somebody's bare ``except:``.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.abc
import importlib.machinery
import linecache
import os
import random
import signal
import sys
import threading
import types
import weakref
from typing import Any, Callable, Dict, List, NoReturn, Optional

from . import failure
from .channel import Channel

EXIT = os._exit  # the real one: the script finds a version of ours that says goodbye first
LOST = 117  # exit status of a run whose channel the script has closed


def run(request: Dict[str, Any], emit: Any) -> NoReturn:
    """Run the script of `request` and leave the process. See CONTRACTS of the request in gradfix.run.zygote."""
    _Execution(request, emit).run()


class _Execution:
    """The run's state: what is installed, and whether it has ended."""

    def __init__(self, request: Dict[str, Any], emit: Any) -> None:
        self.request = request
        self.emit = emit
        self.pid = os.getpid()
        self.instruments: List[Any] = []
        self.over = False

    def run(self) -> NoReturn:
        script = self.request["script"]
        self._prepare()
        how, exc, status, detail = "finished", None, 0, ""
        try:
            code = _compile(script, self.request.get("files") or {})
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
        os.chdir(request["cwd"])
        os._exit = self._user_exit
        signal.signal(signal.SIGXCPU, self._time_is_up)
        _seed(request.get("seed", 0))
        _serve(request.get("files") or {})
        if request.get("fill_empty"):
            _zero_fresh_memory()
        if request.get("memory"):
            _bound_memory(request["memory"])
        self._instrument()
        if request.get("steps"):
            _Bound(request["steps"], self._steps_are_done).install()

    def _instrument(self) -> None:
        """Only what was asked for is even imported. Each has install() and finish(how, exc)."""
        request, emit, recorder = self.request, self.emit, None
        package = __package__ or "gradfix.run.child"
        if request.get("record"):
            recorder = importlib.import_module(package + ".recorder").Recorder(emit, request)
            self.instruments.append(recorder)
            recorder.install()
        if request.get("impose") is not None:
            imposer = importlib.import_module(package + ".impose").Imposer(request["impose"], recorder, emit)
            self.instruments.append(imposer)
            imposer.install()
        if request.get("measure"):
            measurer = importlib.import_module(package + ".measure").Measurer(emit, request)
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

    def _leave(self, how: str, exc: Optional[BaseException], status: int, detail: str) -> NoReturn:
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

    @staticmethod
    def _is_memory(exc: BaseException) -> bool:
        words = str(exc) if isinstance(exc, RuntimeError) else ""
        return isinstance(exc, MemoryError) or "can't allocate memory" in words or "out of memory" in words

    def _end(self, how: str, exc: Optional[BaseException], status: int, detail: str = "") -> NoReturn:
        if not self.over and os.getpid() == self.pid:
            self.over = True
            for instrument in reversed(self.instruments):
                try:
                    instrument.finish(how, exc)
                except BaseException as problem:  # our own fault must not look like the script's
                    self.emit({"x": "trouble", "text": failure.text(problem)})
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:  # closed, or replaced by something that has no flush
                    pass
            self.emit({"x": "end", "how": how, "status": status, "detail": detail})
            self.emit.flush()
            if getattr(self.emit, "closed", False):
                EXIT(LOST)
        EXIT(status)

    def _user_exit(self, status: int) -> NoReturn:
        """What the script finds as os._exit."""
        if os.getpid() != self.pid:
            EXIT(status)
        self._end("exit", None, status, f"the script ended itself with os._exit({status}).")

    def _steps_are_done(self) -> None:
        self._end("steps", None, 0)

    def _time_is_up(self, *_: Any) -> None:
        """The keeper's warning: what is held gets out now or never. In the middle of a write it goes out after it."""
        if os.getpid() != self.pid:
            return
        if getattr(self.emit, "busy", False):
            self.emit.after_write = lambda: self._end("timeout", None, 0)
            return
        self._end("timeout", None, 0)


def _exit_status(asked: SystemExit) -> "tuple[str, int, str]":
    """(how, status, detail): ``sys.exit()`` and ``sys.exit(0)`` are a script that finished."""
    code = asked.code
    if code is None or code == 0:
        return "finished", 0, ""
    if isinstance(code, int):
        return "exit", code & 0xFF, f"the script called sys.exit({code})."
    print(code, file=sys.stderr)
    return "exit", 1, f"the script called sys.exit({str(code)[:200]!r})."


def _seed(seed: int) -> None:
    """random and torch now; NumPy only if and when the script imports it, for its import costs 0.1 s."""
    import torch

    random.seed(seed)
    torch.manual_seed(seed)
    torch.set_num_threads(1)

    def seed_numpy(module: Any) -> None:
        module.seed(seed % 2**32)

    if "numpy.random" in sys.modules:
        seed_numpy(sys.modules["numpy.random"])
    else:
        sys.meta_path.insert(0, _AfterImport("numpy.random", seed_numpy))


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls `action` with a module right after its import, once, and leaves sys.meta_path."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            self.action(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _zero_fresh_memory() -> None:
    """Uninitialised memory differs from run to run: have glibc clear what it hands out (M_PERTURB; others: no effect)."""
    import ctypes

    try:
        ctypes.CDLL(None).mallopt(-6, 0xFF)  # allocated bytes are set to the complement
    except (OSError, AttributeError):
        pass


def _bound_memory(extra: int) -> None:
    import resource

    with open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = held + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


# ---- candidate texts that could not be written into the scratch view


def _compile(script: str, files: Dict[str, str]) -> types.CodeType:
    if script in files:
        return compile(files[script], script, "exec", dont_inherit=True)
    with open(script, "rb") as stream:
        return compile(stream.read(), script, "exec", dont_inherit=True)


def _serve(files: Dict[str, str]) -> None:
    """Serve `files` to imports, inspect and tracebacks under their real names."""
    if not files:
        return
    for path, text in files.items():
        linecache.cache[path] = (len(text), None, text.splitlines(True), path)
    sys.meta_path.insert(0, _Candidates(files))


class _Candidates(importlib.abc.MetaPathFinder):
    """Finds modules as usual; those whose file has a candidate text get that text."""

    def __init__(self, files: Dict[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None:
            return None
        origin = os.path.abspath(spec.origin)
        if origin not in self.files:
            return None
        spec.loader = _CandidateLoader(name, origin, self.files[origin])
        return spec


class _CandidateLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self.text, self.path, "exec", dont_inherit=True)

    def get_source(self, fullname: str) -> str:
        return self.text


# ---- the bound


class _Bound:
    """Calls `done` when every optimizer that exists has stepped `steps` times.

    An optimizer that has not stepped yet keeps the run going: one real script fails at its 101st step, after a hundred
    of pre-training with another optimizer. One that is made anew in every iteration inherits the count of the dead one
    that was made on the same line.
    """

    def __init__(self, steps: int, done: Callable[[], None]) -> None:
        self.steps, self.done = steps, done
        self.pid = os.getpid()
        self.counts: Dict[int, int] = {}
        self.living: Dict[int, Any] = {}
        self.inherited: Dict[Any, int] = {}

    def install(self) -> None:
        from torch.optim import optimizer as module

        make, bound = module.Optimizer.__init__, self

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            bound.born(self, _caller())

        __init__.__wrapped__ = make  # type: ignore[attr-defined]
        module.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        # Global post hooks run in the order of their registration: instruments, installed before, see the last step.
        module.register_optimizer_step_post_hook(self._stepped)

    def born(self, optimizer: Any, line: Any) -> None:
        key = id(optimizer)

        def died(_: Any) -> None:
            self.inherited[line] = max(self.inherited.get(line, 0), self.counts.pop(key, 0))
            self.living.pop(key, None)

        if key not in self.living:
            self.living[key] = weakref.ref(optimizer, died)
            self.counts[key] = self.inherited.get(line, 0)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.born(optimizer, None)  # one that was copied or unpickled was never made
        self.counts[id(optimizer)] += 1
        if min(self.counts.values()) >= self.steps and os.getpid() == self.pid:
            self.done()


def _caller() -> Any:
    """File and line of the nearest frame of the user's."""
    frame = sys._getframe(1)
    while frame is not None:
        if failure.is_user_file(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
