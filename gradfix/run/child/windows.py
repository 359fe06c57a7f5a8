"""No window is opened, whatever a script asks for: matplotlib draws into memory. A run is given no display, so that
``matplotlib.use("TkAgg")`` would end it where it does not end the script.

Standard library only.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from .imports import AfterImport

WITHOUT = ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template")  # backends that open none


def none() -> None:
    """From here on, for matplotlib that is imported by then or later."""
    for name, function in (("matplotlib", "use"), ("matplotlib.pyplot", "switch_backend")):
        kept = functools.partial(_kept, function=function)
        if name in sys.modules:
            kept(sys.modules[name])
        else:
            sys.meta_path.insert(0, AfterImport(name, kept))


def _kept(module: Any, function: str) -> None:
    plain = getattr(module, function)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return plain(*map(_drawn, args), **{k: _drawn(v) for k, v in kwargs.items()})

    setattr(module, function, call)


def _drawn(backend: Any) -> Any:
    opens = isinstance(backend, str) and backend.lower() not in WITHOUT and "://" not in backend
    return "agg" if opens else backend
