"""Runs that ask for a GPU where there is none: the processor stands in for it (child/on_cpu.py)."""

from __future__ import annotations

import re

from gradfix.tape import Failure

ON_CPU = "there is no GPU here: what the script puts on CUDA was on the processor"
_LACKS = re.compile(
    r"(Torch not|PyTorch was) compiled with(out)? CUDA|Found no NVIDIA driver|No CUDA GPUs are available"
    r"|torch\.cuda\.is_available\(\) is False|type torch\.cuda\.\w+ not available|NVIDIA driver on your system is too"
    r"|has no attribute '_cuda_\w+'|Cannot access accelerator device when none is available"
    r"|torch\.cuda\.\w+ requires CUDA support"
)
_SWITCHED_OFF = "GradScaler is enabled, but CUDA is not available"
_ASSERTS = re.compile(r"^ *assert\b.*\bcuda\.is_available\(\)", re.MULTILINE)


def lacks(failure: Failure | None, stderr: str = "") -> bool:
    """Whether a run failed for want of a GPU, or torch said that it switched off what scales gradients there."""
    if failure is None or _SWITCHED_OFF in stderr:
        return _SWITCHED_OFF in stderr
    asserted = failure.type == "AssertionError" and _ASSERTS.search(failure.traceback) is not None
    return asserted or _LACKS.search(failure.message) is not None
