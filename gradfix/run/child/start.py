"""What a process does before there is a run in it: import torch and the instruments, and say what it is."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import weakref
from contextlib import suppress

from . import dynamo

INSTRUMENTS = ("recorder", "impose", "measure")  # what a run may ask for
# what torch imports at the first step
LATE = ("torch.profiler._cupti_monitor", "torch._subclasses.schema_check_mode")
OLDEST_TORCH = 2


def prepare() -> dict[str, str]:
    """Make this process fit for a run. What to say of it to the host: versions, or the problem."""
    hello = _import_torch()
    _write_no_bytecode()
    _forget_finalizers()
    return hello


def _import_torch() -> dict[str, str]:
    """What to say to the host: versions, or the problem."""
    hello = {"problem": "", "python": platform.python_version(), "executable": sys.executable}
    try:
        import torch
        import torch.optim

        if int(torch.__version__.split(".")[0]) < OLDEST_TORCH:
            return {
                **hello,
                "problem": f"torch {torch.__version__}, and {OLDEST_TORCH}.0 is the oldest that works",
            }
        dynamo.stand_in()
        for name in INSTRUMENTS:
            importlib.import_module(f"{__package__}.{name}")
        for name in LATE:
            with suppress(ImportError):  # not in every torch
                importlib.import_module(name)
        hello["torch"] = str(torch.__version__)
    except (ImportError, OSError) as problem:  # OSError: a shared library that does not load
        hello["problem"] = f"{type(problem).__name__}: {problem}"
    return hello


def _write_no_bytecode() -> None:
    """From here on, and in all that runs start: bytecode belongs to whoever owns the folder."""
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


def _forget_finalizers() -> None:
    """PyTorch undoes thousands of operator registrations at exit: 25 ms of every run, for nothing."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        finalizer.atexit = False
