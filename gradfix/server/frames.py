"""Values through a pipe between gradfix's own processes: a length, then a pickle."""

from __future__ import annotations

import os
import pickle
import struct
import sys
from typing import Any

HEAD = struct.Struct(">I")


def process(module: str) -> list[str]:
    """The command of a process that does a module's `serve`. The working directory is not on its path: a file there
    that is called like a module must not be run."""
    return [sys.executable, "-P", "-c", f"from gradfix.server import {module}; {module}.serve()"]


def packed(value: Any) -> bytes:
    """`value` as a frame."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def send(descriptor: int, value: Any) -> None:
    """Write a frame whole. Raises OSError."""
    data = memoryview(packed(value))
    while data:
        data = data[os.write(descriptor, data) :]


def receive(descriptor: int) -> Any:
    """Read a frame whole. Raises EOFError where there is none any more."""
    (length,) = HEAD.unpack(_exactly(descriptor, HEAD.size))
    return pickle.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, length: int) -> bytes:
    parts = []
    while length:
        part = os.read(descriptor, min(length, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
