"""Masks of bytes, as they were before PyTorch 1.2: today's ops that write under one refuse it."""

from __future__ import annotations

from gradfix.read.frames import Machine
from gradfix.read.values import Tensor, Value


def look(m: Machine, mask: Value) -> None:
    """An op is about to write under `mask`."""
    if isinstance(mask, Tensor) and mask.dtype == "uint8":
        m.outdated(
            "RuntimeError", "masked_fill_ only supports boolean masks, but got mask with dtype unsigned char"
        )
