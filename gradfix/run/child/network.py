"""Notes which hosts the script asks for, where a wall keeps it from all of them: its error alone ("Temporary failure
in name resolution") would not say whose doing that is."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from .imports import AfterImport

MOST = 3  # hosts that are told of
_LOOKUPS = ("getaddrinfo", "gethostbyname", "gethostbyname_ex")
_CALLS = ("connect", "connect_ex", "sendto")

Say = Callable[[dict[str, Any]], None]


def watch(say: Say) -> None:
    """Tell of every host but this one that the script's own process looks up or connects to."""
    module = sys.modules.get("socket")
    if module is not None:
        _install(module, say)
        return
    sys.meta_path.insert(0, AfterImport("socket", lambda module: _install(module, say)))


def _install(module: Any, say: Say) -> None:
    told: set[str] = set()

    def note(host: Any, port: Any = None) -> None:
        name = host.decode("latin-1") if isinstance(host, bytes) else host
        if not isinstance(name, str) or _is_here(name) or name in told or len(told) >= MOST:
            return
        told.add(name)
        asked = f"{name}:{port}" if isinstance(port, (int, str)) and port else name
        say({"x": "missed", "what": "network", "detail": asked[:200]})

    for name in _LOOKUPS:
        setattr(module, name, _looking_up(getattr(module, name), note))
    for name in _CALLS:
        setattr(module.socket, name, _calling(getattr(module.socket, name), note))


def _is_here(name: str) -> bool:
    return name in ("", "localhost", "::1", "0.0.0.0", "::") or name.startswith("127.")


def _looking_up(real: Any, note: Callable[..., None]) -> Any:
    @functools.wraps(real)
    def lookup(host: Any, *rest: Any, **options: Any) -> Any:
        note(host, rest[0] if rest else options.get("port"))
        return real(host, *rest, **options)

    return lookup


def _calling(real: Any, note: Callable[..., None]) -> Any:
    @functools.wraps(real)
    def call(self: Any, *arguments: Any) -> Any:
        address = arguments[-1] if arguments else None
        if isinstance(address, tuple) and len(address) >= 2:
            note(*address[:2])
        return real(self, *arguments)

    return call
