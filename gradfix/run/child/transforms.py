"""torch.func: what is differentiated inside a transform is nobody's backward pass, and has no values to look at."""

from __future__ import annotations

from typing import Any

import torch


def transformed(outputs: Any) -> bool:
    """Whether a torch.func transform is at work, or has been on these outputs."""
    if torch._C._are_functorch_transforms_active():
        return True
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(isinstance(x, torch.Tensor) and wrapped(x) for x in outputs)
