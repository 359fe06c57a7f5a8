"""A diagnosis below PyTorch's traceback: gradfix.install(), or ``python -m gradfix.excepthook train.py``.

Nothing is recorded and nothing is run again, unless asked for: the traceback says which error, the text says how it
came about. Before there is an error only `threading` is imported, which torch needs as well.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType

Raised = tuple[type[BaseException], BaseException, TracebackType | None]

USAGE = "usage: python -m gradfix.excepthook [--record] SCRIPT [ARGUMENT ...]"


class Hook:
    """What stands in for sys.excepthook: the one before it, then the diagnosis."""

    record = False
    told: BaseException | None = (
        None  # once is enough, though a wrapper of somebody's calls a hook from a hook
    )

    def __init__(self) -> None:
        self.before = sys.excepthook

    def __call__(self, kind: type[BaseException], value: BaseException, tb: TracebackType | None) -> None:
        tb = _theirs(tb)
        value.__traceback__ = tb
        self.before(kind, value, tb)
        _tell((kind, value, tb))


class ThreadHook:
    """The same for threading.excepthook, which speaks of the threads that end in an error."""

    def __init__(self) -> None:
        self.before = threading.excepthook

    def __call__(self, raised: threading.ExceptHookArgs) -> None:
        self.before(raised)
        if raised.exc_value is not None:
            _tell((raised.exc_type, raised.exc_value, raised.exc_traceback))


def install(record: bool = False) -> None:
    """See gradfix.install. Once is enough."""
    Hook.record = record
    if not isinstance(sys.excepthook, Hook):
        sys.excepthook = Hook()
    if not isinstance(threading.excepthook, ThreadHook):
        threading.excepthook = ThreadHook()


def _tell(raised: Raised) -> None:
    kind, value, _ = raised
    if issubclass(kind, Exception) and Hook.told is not value and sys.stderr is not None:
        Hook.told = value
        _explain(raised, Hook.record)


def _theirs(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the script on: without the frames that lead to it, where this module runs it."""
    frame, start = tb, tb
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            start = frame.tb_next
        frame = frame.tb_next
    return start


def _explain(raised: Raised, record: bool) -> None:
    import traceback

    try:
        from gradfix import escaped

        if sys.stdout is not None:
            sys.stdout.flush()
        escaped.explain("".join(traceback.format_exception(*raised)), _script(), sys.argv[1:], record)
    except Exception as problem:  # the person's own error has been shown; ours must not look like it
        print(f"gradfix: no diagnosis ({type(problem).__name__}: {problem})", file=sys.stderr)


def _script() -> str | None:
    """The file that is being run, if it is one."""
    return getattr(sys.modules.get("__main__"), "__file__", None)


def main(arguments: list[str]) -> None:
    """Run a script as ``python SCRIPT`` does, with the hook in place."""
    import os
    from types import ModuleType

    record = arguments[:1] == ["--record"]
    words = arguments[1:] if record else arguments
    if not words or words[0].startswith("-"):
        sys.exit(USAGE)
    try:
        with open(words[0], "rb") as file:
            code = compile(file.read(), words[0], "exec", dont_inherit=True)
    except OSError as problem:
        sys.exit(f"gradfix: {words[0]}: can't be read ({(problem.strerror or str(problem)).lower()})")
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    main_module = ModuleType("__main__")
    main_module.__file__ = words[0]
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["gradfix.__excepthook__"] = sys.modules["__main__"]  # it must outlive the script's
    sys.modules["__main__"] = main_module
    install(record)
    exec(code, main_module.__dict__)


if __name__ == "__main__":
    main(sys.argv[1:])
