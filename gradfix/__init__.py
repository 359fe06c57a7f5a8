"""gradfix finds autograd faults in PyTorch scripts, rewrites the source and proves the rewrite by running it."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def install(record: bool = False) -> None:
    """From now on, when an autograd error ends the program, say below its traceback what went wrong and where.

    Costs nothing before the error. With `record`, the script is then run again, recorded, and its cures are proved.
    """
    from gradfix import excepthook

    excepthook.install(record)


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext gradfix``: the same in IPython and Jupyter, with ``%gradfix`` for the cured cell."""
    from gradfix import ipython

    ipython.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext gradfix``."""
    from gradfix import ipython

    ipython.unload(shell)
