"""Text that the program compiles by itself (``runpy.run_path("train.py")``, ``exec(compile(open(...).read(), ...))``).

Code under a relative name is told by its whole path: the name means a file only in the folder where it was compiled,
and the program may go to another one afterwards.
"""

from __future__ import annotations
import __future__ as future

import builtins
import functools
import os
import sys
from typing import Any

_INHERITED = sum(getattr(future, name).compiler_flag for name in future.all_feature_names)


def under_whole_paths() -> None:
    """From now on compile() gives code the whole path of the file that its text was read from."""
    real = builtins.compile

    @functools.wraps(real)
    def compile(
        source: Any,
        filename: Any,
        mode: str,
        flags: int = 0,
        dont_inherit: bool = False,
        optimize: int = -1,
        **more: Any,
    ) -> Any:
        if not dont_inherit:
            flags |= sys._getframe(1).f_code.co_flags & _INHERITED
        if mode == "exec":
            filename = _whole(filename, source)
        return real(source, filename, mode, flags, True, optimize, **more)

    builtins.compile = compile


def _whole(filename: Any, source: Any) -> Any:
    """The path of `filename` if `source` is what stands there; else `filename` as it is."""
    try:
        name = os.fsdecode(filename)
        if os.path.isabs(name) or not os.path.isfile(name) or not isinstance(source, (str, bytes)):
            return filename
        with open(name, "rb") as stream:
            there = stream.read()
    except (TypeError, ValueError, OSError):  # compile() says what is wrong with it
        return filename
    given = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    same = given == there or given == there.replace(b"\r\n", b"\n")
    return os.path.abspath(name) if same else filename
